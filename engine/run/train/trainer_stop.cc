// How a training is asked to stop, and what it then drops of the steps under way.
#include <fmt/format.h>

#include <cmath>

#include "engine/base/clock.h"
#include "engine/base/units.h"
#include "engine/run/train/droppable.h"
#include "engine/run/train/saving.h"
#include "engine/run/train/trainer.h"

namespace sluice {

namespace {

// What ranks tell each other before a step: how many were asked to stop, find that a checkpoint is due, know
// why the run cannot go on, and had a long last step.
struct Signs {
  int stopping = 0, saving = 0, failed = 0, slow = 0;
  Signs& operator+=(const Signs& other) {
    stopping += other.stopping, saving += other.saving, failed += other.failed, slow += other.slow;
    return *this;
  }
};

}  // namespace

// One rank's signal stops all ranks, after the same step. The first rank's clock decides when a checkpoint is
// due.
bool Trainer::stops() {
  const double takes = events_.forecast ? events_.forecast->save_seconds() : 0;
  const double every = seconds_between(options_.run.checkpoint_every, std::isfinite(takes) ? takes : 0);
  const bool is_due = every > 0 && steady_seconds() - saved_at_ >= every;
  if (data_.check) failure_ = data_.check->fault();
  if (const std::exception_ptr moved = moved_directory()) failure_ = moved;
  const Signs signs = session_.ranks().sum(
      Signs{stop_, session_.ranks().is_first() && is_due, failure_ != nullptr, metrics_.seconds > kLongStep});
  saves_by_time_ = signs.saving > 0;
  steps_are_long_ = signs.slow > 0;
  failed_ = signs.failed > 0;
  return signs.stopping + signs.failed > 0;
}

// Only a single rank drops: several ranks would have to drop the same instructions, but each rank's lanes
// know only what they have begun themselves.
void Trainer::allow_drop() {
  const bool is_asked_for = at_end_ == AtEnd::checkpoint && options_.run.stop_within.is_given();
  if (!is_asked_for || !events_.forecast || session_.ranks().size() > 1 || bodies().waves > 1) return;
  allows_drop_ = session_.executor().allow_drop(droppable_parts(session_.plan()));
  if (!allows_drop_) return;
  events_.forecast->drops_beyond(options_.run.stop_within.seconds);
  session_.executor().set_meanwhile([this] { consider_drop(); });
}

void Trainer::consider_drop() {
  if (!may_drop_ || pending_.empty() || kept_ || !stop_) return;
  const double now = steady_seconds();
  if (asked_at_ == 0) asked_at_ = now;
  if (now - asked_at_ + events_.forecast->seconds_left(now) > options_.run.stop_within.seconds)
    kept_ = session_.executor().drop();
}

void Trainer::take_back() {
  const Pending first = pending_.front();
  for (; !pending_.empty(); pending_.pop_back()) session_.take_back(pending_.back().body);
  if (events_.trouble)
    events_.trouble(fmt::format("The run drops what came after step {}, to stop within {}.", state_.step,
                                readable_seconds(options_.run.stop_within.seconds)));
  state_.cursor -= static_cast<uint64_t>((step_ - state_.step) * options_.batch.batch);
  step_ = state_.step;
  // If a body of the next step has begun to update, this body makes all updates of the step before.
  pending_update_ = bodies().drain && kept_->ticket < first.ticket && first.body != bodies().first;
  passes_over_ = bodies().drain && !pending_update_;
}

}  // namespace sluice
