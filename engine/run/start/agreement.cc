#include "engine/run/start/agreement.h"

#include <xxhash.h>

#include <algorithm>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/verify/ranks.h"

namespace sluice {

namespace {

uint64_t hash_of(const std::string& text) { return XXH3_64bits(text.data(), text.size()); }

struct Difference {
  size_t rank, index;
};

// The first value of `mine` in which a rank differs from rank 0. `mine` has the same length on all ranks.
std::optional<Difference> first_difference(const std::vector<uint64_t>& mine, const Ranks& ranks) {
  const std::vector<uint64_t> all = ranks.all(mine);
  for (size_t rank = 1; rank < static_cast<size_t>(ranks.size()); ++rank)
    for (size_t i = 0; i < mine.size(); ++i)
      if (all[rank * mine.size() + i] != all[i]) return Difference{rank, i};
  return std::nullopt;
}

Error disagreement(size_t rank, const std::string& what) {
  return {ExitCode::usage, "Rank " + std::to_string(rank) + " " + what + " than rank 0.",
          "Start all ranks with the same command, options, data and files."};
}

// The hash of the file of the command that runs.
uint64_t program_hash() {
  constexpr size_t kChunk = 1 << 16;
  const InputFile program("/proc/self/exe");
  std::vector<char> chunk(kChunk);
  uint64_t hash = 0;
  for (uint64_t at = 0; at < program.bytes(); at += kChunk) {
    const size_t size = std::min<uint64_t>(kChunk, program.bytes() - at);
    program.read(at, chunk.data(), size);
    hash = XXH3_64bits_withSeed(chunk.data(), size, hash);
  }
  return hash;
}

// A line of text for each collective, body after body, with the bytes that it sends.
std::vector<std::string> all_collectives(const Program& program) {
  std::vector<std::string> list;
  for (const Body& body : program.bodies)
    for (const uint32_t i : collectives_of(body))
      list.push_back(body.name + ": " + collective_name(program, body, body.instructions[i]));
  return list;
}

}  // namespace

void check_same_program(const Ranks& ranks) {
  if (const auto d = first_difference({program_hash()}, ranks))
    throw disagreement(d->rank, "runs another build of Sluice");
}

void check_facts(const std::vector<Fact>& facts, const Ranks& ranks) {
  std::vector<uint64_t> hashes;
  for (const Fact& fact : facts) hashes.push_back(hash_of(fact.value));
  if (const auto d = first_difference(hashes, ranks))
    throw disagreement(d->rank, "was started with another " + facts[d->index].name);
}

void check_agreement(const std::vector<Fact>& facts, const Plan& plan, const Ranks& ranks) {
  if (ranks.size() == 1) return;
  check_facts(facts, ranks);

  const std::vector<std::string> collectives = all_collectives(plan.program);
  const auto count = static_cast<uint64_t>(collectives.size());
  const std::vector<uint64_t> counts = ranks.all(count);
  std::vector<uint64_t> hashes(*std::min_element(counts.begin(), counts.end()));
  for (size_t i = 0; i < hashes.size(); ++i) hashes[i] = hash_of(collectives[i]);
  if (const auto d = first_difference(hashes, ranks))
    throw disagreement(d->rank, "has another program, from `" + collectives[d->index] + "` on,");
  for (size_t rank = 1; rank < counts.size(); ++rank)
    if (counts[rank] != counts[0])
      throw disagreement(rank, "has another number of collectives (" + std::to_string(counts[rank]) + ")");
}

}  // namespace sluice
