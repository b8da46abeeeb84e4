#include "models/data/data_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "engine/base/error.h"
#include "engine/base/philox.h"
#include "engine/graph/op.h"

namespace sluice {

namespace {

// Makes the key differ from the key of the initial weights, which is the seed itself. The value is the first
// digits of pi.
constexpr uint64_t kDataOrderStream = 0x243F6A8885A308D3;

// NIST SP 800-38G (FF1) uses this number for small domains; four rounds suffice for large domains.
constexpr uint32_t kFeistelRounds = 10;

uint64_t low_bits(int bits) { return bits == 0 ? 0 : ~uint64_t{0} >> (64 - bits); }

// One pass of the network over [0, 2^bits). One half may be one bit longer than the other. Rounds change the
// halves in turn, so each round is its own inverse and the whole is a bijection.
uint64_t feistel(uint64_t value, int bits, PhiloxKey key, uint64_t epoch) {
  const int low = bits / 2;
  uint64_t left = value >> low, right = value & low_bits(low);
  for (uint32_t round = 0; round < kFeistelRounds; ++round) {
    const bool change_left = round % 2 == 0;
    const uint64_t fixed = change_left ? right : left;  // at most 32 bits
    const PhiloxCounter words = philox4x32({static_cast<uint32_t>(fixed), round, static_cast<uint32_t>(epoch),
                                            static_cast<uint32_t>(epoch >> 32)},
                                           key);
    if (change_left)
      left ^= words[0] & low_bits(bits - low);
    else
      right ^= words[0] & low_bits(low);
  }
  return left << low | right;
}

uint64_t window_count(const TokenData& data, int64_t sequence) {
  CHECK(sequence > 0, "a sequence has at least one token");
  return data.tokens() == 0 ? 0 : (data.tokens() - 1) / static_cast<uint64_t>(sequence);
}

// The `length` inputs from token `begin` on, and their labels.
void read_window(const TokenData& data, uint64_t begin, uint64_t length, int32_t* inputs, int32_t* labels) {
  data.read(begin, length, inputs);
  std::copy(inputs + 1, inputs + length, labels);
  data.read(begin + length, 1, labels + length - 1);
  if (data.has_masks()) data.mask(begin + 1, length, labels);
}

}  // namespace

DataOrder make_data_order(const TokenData& data, int64_t sequence, bool shuffled, uint64_t seed) {
  const uint64_t windows = window_count(data, sequence);
  if (windows == 0)
    throw Error(ExitCode::malformed_file,
                fmt::format("{} holds {} tokens; one sequence of {} needs {}.", data.description(),
                            data.tokens(), sequence, sequence + 1),
                "Give more data or a smaller --seq.");
  return {windows, sequence, shuffled, seed};
}

uint64_t permuted(uint64_t index, uint64_t size, uint64_t seed, uint64_t epoch) {
  CHECK(index < size, "an index outside the permutation");
  const int bits = std::bit_width(size - 1);
  if (bits == 0) return 0;
  const PhiloxKey key = philox_key(seed ^ kDataOrderStream);
  do index = feistel(index, bits, key, epoch);
  while (index >= size);
  return index;
}

uint64_t window_of_row(const DataOrder& order, uint64_t row) {
  const uint64_t index = row % order.windows;
  return order.shuffled ? permuted(index, order.windows, order.seed, row / order.windows) : index;
}

void read_rows(const DataOrder& order, const TokenData& data, uint64_t first_row, uint64_t rows,
               int32_t* inputs, int32_t* labels) {
  const auto length = static_cast<uint64_t>(order.sequence);
  for (uint64_t row = first_row; row < first_row + rows; ++row) {
    uint64_t labelled = length;
    if (order.once) {
      const uint64_t all = data.tokens() - 1;
      labelled = row < order.windows ? std::min(length, all - row * length) : 0;
      std::fill(inputs + labelled, inputs + length, 0);
      std::fill(labels + labelled, labels + length, kPaddingLabel);
    }
    if (labelled > 0)
      read_window(data, order.once ? row * length : window_of_row(order, row) * length, labelled, inputs,
                  labels);
    inputs += length;
    labels += length;
  }
}

DataOrder make_evaluation_order(const TokenData& data, int64_t sequence) {
  if (data.tokens() < 2)
    throw Error(ExitCode::malformed_file, fmt::format("{} holds no label.", data.description()),
                "Give data of two tokens or more.");
  const auto length = static_cast<uint64_t>(sequence);
  return {(data.tokens() - 1 + length - 1) / length, sequence, false, 0, true};
}

DataOrder make_validation_order(const TokenData& data, int64_t sequence, uint64_t batches,
                                uint64_t rows_per_batch) {
  const uint64_t windows = window_count(data, sequence);
  uint64_t needed = 0;
  if (__builtin_mul_overflow(batches, rows_per_batch, &needed) || needed > windows)
    throw Error(
        ExitCode::usage,
        fmt::format("validation needs {} batches of {} sequences of {} tokens, but {} holds {} sequences.",
                    batches, rows_per_batch, sequence, data.description(), windows),
        windows >= rows_per_batch
            ? fmt::format("Use --val-batches {} or less.", windows / rows_per_batch)
            : fmt::format(
                  "Give more data to validate on{} or a smaller --seq; `train` also takes --val-data none.",
                  windows > 0 ? ", a smaller --batch" : ""));
  return {windows, sequence, false, 0};
}

}  // namespace sluice
