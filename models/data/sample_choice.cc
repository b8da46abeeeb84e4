#include "models/data/sample_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/error.h"

namespace sluice {

namespace {

constexpr uint64_t kChosenAtOnce = 1 << 10;

// floor(a * b / c)
uint64_t share(uint64_t a, uint64_t b, uint64_t c) {
  return static_cast<uint64_t>(static_cast<__uint128_t>(a) * b / c);
}

// The samples that came of one record.
struct RecordSamples {
  uint64_t first = 0, samples = 0, tokens = 0;
  PreparedSample last = {};

  // Whether the record is one text of more than `above` tokens, all learned: its parts are texts, too.
  bool is_divided(uint64_t above) const {
    return samples == 1 && last.is_text && last.trained + 1 == last.tokens && tokens > above;
  }
};

template <typename Visit>
void for_each_record(const PreparedSet& set, const Visit& visit) {
  std::vector<PreparedSample> some;
  RecordSamples record;
  for (uint64_t first = 0; first < set.samples(); first += some.size()) {
    some.resize(std::min(kChosenAtOnce, set.samples() - first));
    set.read_samples(first, some);
    for (uint64_t i = 0; i < some.size(); ++i) {
      if (!some[i].goes_on) {
        if (record.samples > 0) visit(record);
        record = {.first = first + i};
      }
      ++record.samples;
      record.tokens += some[i].tokens;
      record.last = some[i];
    }
  }
  if (record.samples > 0) visit(record);
}

uint64_t part_of(uint64_t tokens, double percent) {
  return static_cast<uint64_t>(std::llround(percent / 100 * static_cast<double>(tokens)));
}

}  // namespace

HeldOut::HeldOut(const PreparedSet& set, double percent) {
  const uint64_t divided_above = std::min(kStretchTokens, part_of(set.counts().tokens, percent));
  Side whole, divided;
  RecordSamples smallest;
  uint64_t records = 0;
  for_each_record(set, [&](const RecordSamples& record) {
    ++records;
    (record.is_divided(divided_above) ? divided : whole).all += record.tokens;
    if (smallest.samples == 0 || record.tokens < smallest.tokens) smallest = record;
  });
  for (Side* side : {&whole, &divided}) {
    side->wanted = part_of(side->all, percent);
    side->stretches = std::max<uint64_t>(1, (side->wanted + kStretchTokens - 1) / kStretchTokens);
  }
  for_each_record(set, [&](const RecordSamples& record) {
    const bool is_divided = record.is_divided(divided_above);
    const uint64_t held = is_divided ? divide(record.first, record.tokens, divided)
                                     : take(record.samples, record.tokens, whole);
    records_ += held > 0;
    tokens_ += held;
  });
  if (held_.empty() && records > 1) {  // the part is smaller than half of any record
    parts_.clear();
    entries_ = set.samples();
    for (uint64_t i = 0; i < smallest.samples; ++i) held_.push_back(smallest.first + i);
    tokens_ = smallest.tokens;
    records_ = 1;
  }
  if (held_.empty() || held_.size() == entries_)
    throw Error(ExitCode::usage,
                fmt::format("--val-split leaves none of {} {} to {}.", records,
                            records == 1 ? "record" : "records", held_.empty() ? "validate on" : "train on"),
                held_.empty() ? "Give more data, or --val-data." : "Give a smaller part, or more data.");
}

// Holds a record out if the held-out part lacks at least half of the record's tokens. Returns the record's
// tokens then, else 0.
uint64_t HeldOut::take(uint64_t samples, uint64_t tokens, Side& side) {
  side.seen += tokens;
  const uint64_t due = share(side.wanted, side.seen, side.all);
  const bool is_held = due > side.held && 2 * (due - side.held) >= tokens;
  for (uint64_t i = 0; is_held && i < samples; ++i) held_.push_back(entries_ + i);
  entries_ += samples;
  if (is_held) side.held += tokens;
  return is_held ? tokens : 0;
}

// Holds out stretches of a divided text. All divided texts together are cut into equal shares of tokens.
// Stretch j ends where share j ends, or later if the text begins too late for that. It has the tokens that
// are due up to the end of share j, less those held out before. Returns how many tokens of this text are held
// out.
uint64_t HeldOut::divide(uint64_t sample, uint64_t tokens, Side& side) {
  const uint64_t before = side.held, first = side.seen;
  uint64_t at = 0;
  const auto add = [&](uint64_t end, bool is_held) {
    if (end > at + 1) {  // a single token has no label
      if (is_held) held_.push_back(entries_);
      parts_.push_back({entries_++, {sample, static_cast<uint32_t>(at), static_cast<uint32_t>(end - at)}});
    }
    if (is_held) side.held += end - at;
    at = end;
  };
  side.seen += tokens;
  for (uint64_t j = share(first, side.stretches, side.all) + 1; j <= side.stretches; ++j) {
    const uint64_t end = share(side.all, j, side.stretches), due = share(side.wanted, end, side.all);
    if (end > side.seen) break;
    if (due < side.held + 2) continue;
    const uint64_t missing = due - side.held, wanted_end = end - first;
    add(std::max(at, wanted_end - std::min(wanted_end, missing)), false);
    add(std::min(tokens, at + missing), true);
  }
  add(tokens, false);
  return side.held - before;
}

SampleStretch HeldOut::entry(uint64_t index) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), index,
                                      [](uint64_t i, const Part& part) { return i < part.entry; });
  if (after == parts_.begin()) return {index, 0, 0};
  const Part& before = *std::prev(after);
  if (before.entry == index) return before.stretch;
  return {before.stretch.sample + (index - before.entry), 0, 0};
}

uint64_t SampleChoice::size() const {
  if (!of_) return samples_;
  return takes_held_ ? of_->held_.size() : of_->entries_ - of_->held_.size();
}

SampleStretch SampleChoice::at(uint64_t index) const {
  CHECK(index < size(), "an index outside of the choice");
  if (!of_) return {index, 0, 0};
  const std::vector<uint64_t>& held = of_->held_;
  if (takes_held_) return of_->entry(held[index]);
  uint64_t least = 0, most = held.size();  // bounds of the number of held-out entries before the one sought
  while (least < most) {
    const uint64_t middle = least + (most - least) / 2;
    if (held[middle] - middle > index)
      most = middle;
    else
      least = middle + 1;
  }
  return of_->entry(index + least);
}

}  // namespace sluice
