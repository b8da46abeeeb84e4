// Decides whether training steps guess that their update will be neither clipped nor skipped (lower.h). A
// wrong guess costs time and changes no result. So the choice may follow what the last steps were like.
// Owner: the trainer.
#pragma once

#include <bit>
#include <cstdint>

#include "engine/run/execute/session.h"
#include "engine/run/options/options.h"

namespace sluice {

class GuessChoice {
 public:
  static constexpr int kSteps = 32;  // steps that are remembered

  // `break_even`: the share of wrong guesses above which steps without guesses are faster.
  GuessChoice(Overlap overlap, double break_even)
      : overlap_(overlap), break_even_(break_even), guesses_(break_even > 0) {}

  bool guesses() const { return overlap_ == Overlap::automatic ? guesses_ : overlap_ == Overlap::always; }

  // Called for each step in order. `right`: its guess was right, or would have been. Steps stop guessing when
  // the share of wrong guesses is above `break_even`, and begin again only when it is below half of that.
  void add(bool right) {
    wrong_ = wrong_ << 1 | (right ? 0u : 1u);
    const double share = static_cast<double>(std::popcount(wrong_)) / kSteps;
    guesses_ = guesses_ ? share <= break_even_ : share < break_even_ / 2;
  }

 private:
  Overlap overlap_;
  double break_even_;
  bool guesses_;
  uint32_t wrong_ = 0;  // a bit for each of the last steps
};

struct IssuedWave {                   // a body of a training step
  uint64_t ticket = 0, position = 0;  // in kTrainRing
  BodyId body = 0;
};

// The first body of the next step. `last`: the last wave of the step before; nullptr: no update is pending.
// `guesses`: whether the next step is to guess, if the plan leaves the choice. If the step before guessed,
// waits until it is known whether the guess was right.
BodyId next_step(Session& session, const BodyIds& bodies, const IssuedWave* last, bool guesses);

}  // namespace sluice
