// Single faults put into the planner's programs: the verifier objects to every one. (verify_test.cc does the
// same with programs that the planner did not make.)
#include "tests/mutate.h"

#include <gtest/gtest.h>

#include "engine/verify.h"
#include "tests/plan_support.h"

namespace sluice::testing {
namespace {

constexpr uint64_t kPrograms = 200;
constexpr size_t kMutations = 10;  // of a kind and program
constexpr uint64_t kCellBytes = uint64_t{1}
                                << 21;  // alone_in_its_life goes cell by cell: for smaller buffers only

std::vector<Mutation> some(std::vector<Mutation> all, uint64_t seed) {
  std::shuffle(all.begin(), all.end(), Random(seed));
  all.resize(std::min(all.size(), kMutations));
  return all;
}

std::vector<Mutation> some_shifts(const Program& p, uint64_t seed) {
  std::vector<Mutation> shifts;
  uint64_t bytes = 0;
  for (const Buffer& b : p.buffers) bytes += b.bytes();
  if (bytes > kCellBytes) return shifts;
  const int64_t step = seed % 4 < 2 ? 64 : kDirectAlignment;
  for (const Mutation& m : some(offset_shifts(p, seed % 3 == 0 ? -step : step), seed))
    if (!alone_in_its_life(p, m)) shifts.push_back(m);
  return shifts;
}

// Applies mutations and returns how many there were; each must be caught.
size_t expect_caught(Program& program, const std::vector<Mutation>& mutations) {
  for (const Mutation& m : mutations) {
    const Mutated guard(program, m);
    EXPECT_FALSE(verify(program, 1).empty()) << m.name();
  }
  return mutations.size();
}

// A transfer that moves nothing: its target stays as it was, and waits on it hold. One a body, if a random
// one is there.
size_t expect_losses_caught(Program& program, uint64_t seed) {
  size_t mutations = 0;
  Random random(seed);
  for (Body& body : program.bodies) {
    Instruction& in = body.instructions[random() % body.instructions.size()];
    if (in.task != kNoTask) continue;
    const Place target = in.places[1];
    in.places[1] = in.places[0];
    EXPECT_FALSE(verify(program, 1).empty()) << "lost transfer, body " << body.name;
    in.places[1] = target;
    ++mutations;
  }
  return mutations;
}

// Every other program has the least budgets of all tiers.
TEST(Mutate, EveryFaultIsCaught) {
  size_t waits = 0, shifts = 0, swaps = 0, losses = 0;
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE("random_case(" + std::to_string(seed) + ")");
    Case c = random_case(seed);
    for (TierId t = 0; t < c.program.machine.tiers.size() && seed % 2 == 1; ++t) shrink(c, t);
    ASSERT_FALSE(assemble(c.program, c.arrangement));
    waits += expect_caught(c.program, some(all_single_wait_drops(c.program), seed));
    shifts += expect_caught(c.program, some_shifts(c.program, seed));
    swaps += expect_caught(c.program, some(piece_swaps(c.program), seed));
    losses += expect_losses_caught(c.program, seed);
    if (HasFailure()) return;
  }
  EXPECT_GT(waits, 9 * kPrograms);
  EXPECT_GT(shifts, 3 * kPrograms);
  EXPECT_GT(swaps, 3 * kPrograms);
  EXPECT_GT(losses, kPrograms);
}

}  // namespace
}  // namespace sluice::testing
