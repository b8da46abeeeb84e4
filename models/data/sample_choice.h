// Which samples of a prepared set: all, those that are held out to validate on, or the others.
//
// The part that is held out counts tokens. It is spread evenly over the set and does not depend on a seed.
// What came of one record stays on one side, so that no conversation is in part trained and in part validated
// on. Only a text is divided, if it has more tokens than kStretchTokens or than the whole part to hold out:
// then stretches of the text, of about kStretchTokens at most, are held out. Memory: 8 bytes for each sample
// that is held out, 32 for each stretch. Pure but for reads of the set; a HeldOut never changes and may be
// used from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/data/prepared_set.h"

namespace sluice {

// Tokens [first, first + tokens) of a sample.
struct SampleStretch {
  uint64_t sample = 0;
  uint32_t first = 0, tokens = 0;  // tokens 0: the whole sample
  bool operator==(const SampleStretch&) const = default;
};

class HeldOut {
 public:
  static constexpr uint64_t kStretchTokens = 1 << 15;

  // Holds out `percent` of the tokens, 0 < percent < 100. Throws Error(usage) where nothing would be left on
  // one side.
  HeldOut(const PreparedSet& set, double percent);

  uint64_t tokens() const { return tokens_; }    // that are held out
  uint64_t records() const { return records_; }  // that are held out, at least in part

 private:
  friend class SampleChoice;
  struct Side {                    // the records that are not divided, or the texts that are
    uint64_t all = 0, wanted = 0;  // tokens; those to be held out
    uint64_t stretches = 1;
    uint64_t seen = 0, held = 0;  // tokens so far; those held out
  };
  uint64_t take(uint64_t samples, uint64_t tokens, Side& side);
  uint64_t divide(uint64_t sample, uint64_t tokens, Side& side);
  SampleStretch entry(uint64_t index) const;

  struct Part {
    uint64_t entry;
    SampleStretch stretch;
  };
  // Entries, in the order of the set, are whole samples and, in place of divided ones, their stretches.
  uint64_t entries_ = 0, tokens_ = 0, records_ = 0;
  std::vector<uint64_t> held_;  // entries that are held out; ascending
  std::vector<Part> parts_;     // entries that are stretches; ascending
};

class SampleChoice {
 public:
  static SampleChoice all(uint64_t samples) { return {nullptr, samples, false}; }
  static SampleChoice held_out(std::shared_ptr<const HeldOut> of) { return {std::move(of), 0, true}; }
  static SampleChoice others(std::shared_ptr<const HeldOut> of) { return {std::move(of), 0, false}; }

  uint64_t size() const;
  SampleStretch at(uint64_t index) const;  // in the order of the set; index < size()

 private:
  SampleChoice(std::shared_ptr<const HeldOut> of, uint64_t samples, bool takes_held)
      : of_(std::move(of)), samples_(samples), takes_held_(takes_held) {}
  std::shared_ptr<const HeldOut> of_;  // nullptr: all
  uint64_t samples_;
  bool takes_held_;
};

}  // namespace sluice
