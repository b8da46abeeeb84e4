#include "models/data/packed_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "engine/base/error.h"
#include "engine/graph/op.h"
#include "models/data/data_order.h"

namespace sluice {

namespace {

constexpr uint64_t kGroupPieces = 1 << 14;
constexpr uint64_t kSamplesAtOnce = 1 << 10;
constexpr uint64_t kNone = ~uint64_t{0};
constexpr uint32_t kNoRow = ~uint32_t{0};
// Makes the permutation of a group's rows differ from the permutations of samples and of other groups. The
// value has digits of e.
constexpr uint64_t kRowStream = 0xB7E151628AED2A6B;

uint64_t pieces_of(uint32_t positions, int64_t sequence) {
  return (positions + static_cast<uint64_t>(sequence) - 1) / static_cast<uint64_t>(sequence);
}

}  // namespace

PackedRows::PackedRows(const PreparedSet& set, SampleChoice samples, const PackingChoice& choice)
    : set_(set), samples_(samples), choice_(choice) {
  CHECK(choice.sequence > 0 && choice.sequence < INT32_MAX, "a row has tokens");
  const auto length = static_cast<size_t>(choice.sequence);
  pieces_.reserve(kGroupPieces);
  for (std::vector<uint32_t>* of_piece : {&order_, &starts_, &room_, &next_})
    of_piece->reserve(kGroupPieces + 1);
  first_with_.resize(length + 1);
  occupied_.resize(length / 64 + 1);
  marks_.resize(length + 1);
  ids_.resize(length + 1);
  ahead_.reserve(kSamplesAtOnce);
  scan(0);
  if (facts_.rows == 0)
    throw Error(
        ExitCode::malformed_file,
        fmt::format("Of {} samples, none has trained tokens within {} tokens.", samples_.size(),
                    choice.sequence),
        choice.long_samples == LongSamples::divided
            ? "`sluice prepare --show 9` prints samples with their trained parts; --train-on says what "
              "is trained."
            : "Use a larger --seq, or --long-samples divide.");
}

SampleStretch PackedRows::sample_at(uint64_t epoch, uint64_t index) const {
  return samples_.at(choice_.shuffled ? permuted(index, samples_.size(), choice_.seed, epoch) : index);
}

PreparedSample PackedRows::sample(uint64_t epoch, uint64_t index) {
  const SampleStretch stretch = sample_at(epoch, index);
  const uint64_t wanted = stretch.sample;
  if (wanted < ahead_first_ || wanted - ahead_first_ >= ahead_.size()) {
    ahead_first_ = wanted;
    ahead_.resize(choice_.shuffled ? 1 : std::min(kSamplesAtOnce, set_.samples() - wanted));
    set_.read_samples(wanted, ahead_);
  }
  PreparedSample found = ahead_[wanted - ahead_first_];
  if (stretch.tokens == 0) return found;
  found.begin += stretch.first;  // only texts are divided, and all of their tokens are learned
  found.tokens = stretch.tokens;
  found.trained = found.last_trained = stretch.tokens - 1;
  found.first_trained = 1;
  return found;
}

void PackedRows::take_pieces(uint64_t epoch, Place& place, EpochFacts& facts) {
  const int64_t sequence = choice_.sequence;
  const auto row_positions = static_cast<uint32_t>(sequence);
  pieces_.clear();
  while (pieces_.size() < kGroupPieces && place.sample < samples_.size()) {
    const PreparedSample s = sample(epoch, place.sample);
    const uint32_t positions = s.tokens - 1;
    const bool is_long = positions > row_positions;
    if (is_long && choice_.long_samples == LongSamples::refused)
      throw Error(ExitCode::usage,
                  fmt::format("Sample {} of the data has {} tokens, more than --seq {} and one label.",
                              sample_at(epoch, place.sample).sample + 1, s.tokens, sequence),
                  fmt::format("Use --seq {}, or --long-samples cut or divide.", positions));
    if (is_long && place.piece == 0) ++facts.cut;
    const bool divides = is_long && choice_.long_samples == LongSamples::divided;
    const uint64_t trained_before = facts.trained;
    const uint64_t count = divides ? pieces_of(positions, sequence) : 1;
    for (; place.piece < count && pieces_.size() < kGroupPieces; ++place.piece) {
      const auto first = static_cast<uint32_t>(place.piece * row_positions);
      const uint32_t length = std::min(positions - first, row_positions);
      if (s.trained == 0 || s.first_trained > first + length || s.last_trained <= first) {
        ++facts.left_out;
        continue;
      }
      pieces_.push_back({s.begin + first, length});
      facts.tokens += length;
      if (length == positions) {
        facts.trained += s.trained;
        continue;
      }
      set_.read_tokens(s.begin + first, length + 1, ids_.data(), marks_.data());
      facts.trained += static_cast<uint64_t>(std::count(marks_.begin() + 1, marks_.begin() + length + 1, 1));
    }
    if (is_long && !divides) {
      facts.lost += s.trained - (facts.trained - trained_before);
      facts.lost_ends += s.last_trained > row_positions;
    }
    if (place.piece == count) place = {place.sample + 1, 0};
  }
}

uint32_t PackedRows::fill_rows() {
  const auto count = static_cast<uint32_t>(pieces_.size());
  if (!choice_.packed) {
    for (uint32_t i = 0; i < count; ++i) pieces_[i].row = i;
    return count;
  }
  order_.resize(count);
  for (uint32_t i = 0; i < count; ++i) order_[i] = i;
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    return pieces_[a].length != pieces_[b].length ? pieces_[a].length > pieces_[b].length : a < b;
  });
  const auto sequence = static_cast<uint32_t>(choice_.sequence);
  std::fill(first_with_.begin(), first_with_.end(), kNoRow);
  std::fill(occupied_.begin(), occupied_.end(), 0);
  room_.clear();
  next_.clear();
  // Takes the fullest row with room for at least `room` positions out of its list; kNoRow: there is none.
  const auto take = [&](uint32_t room) {
    uint64_t word = room / 64;
    uint64_t bits = occupied_[word] & ~uint64_t{0} << room % 64;
    while (bits == 0 && ++word < occupied_.size()) bits = occupied_[word];
    if (bits == 0) return kNoRow;
    const auto found = static_cast<uint32_t>(word * 64 + static_cast<uint64_t>(std::countr_zero(bits)));
    const uint32_t row = first_with_[found];
    first_with_[found] = next_[row];
    if (next_[row] == kNoRow) occupied_[found / 64] &= ~(uint64_t{1} << found % 64);
    return row;
  };
  const auto put = [&](uint32_t row) {
    const uint32_t room = room_[row];
    if (room == 0) return;
    next_[row] = first_with_[room];
    first_with_[room] = row;
    occupied_[room / 64] |= uint64_t{1} << room % 64;
  };
  for (const uint32_t i : order_) {
    uint32_t row = take(pieces_[i].length);
    if (row == kNoRow) {
      row = static_cast<uint32_t>(room_.size());
      room_.push_back(sequence);
      next_.push_back(kNoRow);
    }
    room_[row] -= pieces_[i].length;
    pieces_[i].row = row;
    put(row);
  }
  // Numbers the rows in the order of their first pieces.
  const auto rows = static_cast<uint32_t>(room_.size());
  std::fill(next_.begin(), next_.end(), kNoRow);
  uint32_t numbered = 0;
  for (Piece& piece : pieces_) {
    uint32_t& number = next_[piece.row];
    if (number == kNoRow) number = numbered++;
    piece.row = number;
  }
  return rows;
}

void PackedRows::scan(uint64_t epoch) {
  if (!choice_.shuffled && epoch_ != kNone) epoch_ = epoch;  // all epochs are alike
  if (epoch_ == epoch) return;
  epoch_ = epoch;
  loaded_ = kNone;
  groups_.clear();
  facts_ = {};
  for (Place place; place.sample < samples_.size();) {
    const Place begin = place;
    take_pieces(epoch, place, facts_);
    if (pieces_.empty()) continue;
    groups_.push_back({begin, facts_.rows});
    facts_.rows += fill_rows();
  }
}

void PackedRows::load_group(uint64_t group) {
  if (loaded_ == group) return;
  Place place = groups_[group].begin;
  EpochFacts ignored;
  take_pieces(epoch_, place, ignored);
  const uint32_t rows = fill_rows();
  starts_.assign(rows + 1, 0);
  for (const Piece& piece : pieces_) ++starts_[piece.row + 1];
  for (uint32_t row = 0; row < rows; ++row) starts_[row + 1] += starts_[row];
  order_.resize(pieces_.size());
  for (uint32_t i = 0; i < pieces_.size(); ++i) order_[starts_[pieces_[i].row]++] = i;
  for (uint32_t row = rows; row > 0; --row) starts_[row] = starts_[row - 1];
  starts_[0] = 0;
  loaded_ = group;
}

void PackedRows::seek(uint64_t row) {
  if (row < first_row_) {
    first_row_ = 0;
    scan(0);
  }
  while (row - first_row_ >= facts_.rows) {
    first_row_ += facts_.rows;
    scan(epoch_ + 1);
  }
}

uint64_t PackedRows::rows_of_epochs(uint64_t epochs) {
  if (epochs == 0) return 0;
  first_row_ = 0;
  scan(0);
  if (!choice_.shuffled) return facts_.rows * epochs;
  while (epoch_ + 1 < epochs) {
    first_row_ += facts_.rows;
    scan(epoch_ + 1);
  }
  return first_row_ + facts_.rows;
}

// Returns how many positions it fills.
uint64_t PackedRows::read_row(uint64_t row, int32_t* inputs, int32_t* labels, int32_t* documents) {
  seek(row);
  const uint64_t in_epoch = row - first_row_;
  const auto after = std::upper_bound(groups_.begin(), groups_.end(), in_epoch,
                                      [](uint64_t r, const Group& g) { return r < g.first_row; });
  const auto group = static_cast<uint64_t>(after - groups_.begin()) - 1;
  load_group(group);
  uint64_t place = in_epoch - groups_[group].first_row;
  if (choice_.shuffled)
    place = permuted(place, starts_.size() - 1, choice_.seed ^ kRowStream * (group + 1), epoch_);
  uint64_t at = 0;
  for (uint32_t i = starts_[place]; i < starts_[place + 1]; ++i) {
    const Piece& piece = pieces_[order_[i]];
    set_.read_tokens(piece.begin, piece.length + 1, ids_.data(), marks_.data());
    for (uint64_t t = 0; t < piece.length; ++t) {
      inputs[at + t] = ids_[t];
      labels[at + t] = marks_[t + 1] ? ids_[t + 1] : kIgnoreLabel;
      if (documents) documents[at + t] = static_cast<int32_t>(at);
    }
    at += piece.length;
  }
  return at;
}

void PackedRows::read(uint64_t first, uint64_t rows, int32_t* inputs, int32_t* labels, int32_t* documents) {
  const auto length = static_cast<uint64_t>(choice_.sequence);
  for (uint64_t row = first; row < first + rows; ++row) {
    uint64_t at = 0;
    if (!choice_.once || row < facts().rows) at = read_row(row, inputs, labels, documents);
    for (; at < length; ++at) {
      inputs[at] = 0;
      labels[at] = kPaddingLabel;
      if (documents) documents[at] = static_cast<int32_t>(at);
    }
    inputs += length;
    labels += length;
    if (documents) documents += length;
  }
}

}  // namespace sluice
