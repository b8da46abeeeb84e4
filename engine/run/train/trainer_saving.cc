// What a training saves, and what is pending after a step: its validation and its samples.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "engine/base/clock.h"
#include "engine/run/train/batches.h"
#include "engine/run/train/trainer.h"
#include "engine/run/train/way_on.h"

namespace sluice {

namespace {

// How often a run looks for room for its last checkpoint, and what it says of that.
constexpr std::chrono::milliseconds kBetweenLooksForRoom{500};
constexpr const char* kWaits = "The run waits for it; a signal ends it without. Free some space.";

}  // namespace

bool Trainer::run_pending(bool saved) {
  if (events_.forecast) events_.forecast->drained(steady_seconds(), saved);
  if (state_.pending_validation) {
    if (!validate()) return false;
    if (saved) record_done(state_.pending_validation);
    state_.pending_validation = false;
    if (saved_ != step_ && saves_best() && !save_on_the_way()) return false;
  }
  if (state_.pending_samples) {
    if (!sample()) return false;
    if (saved || saved_ == step_) record_done(state_.pending_samples);
    state_.pending_samples = false;
  }
  return true;
}

// Notes in the step's checkpoint, if there is one, that `pending` is done. What cannot be noted is done again
// by a run that goes on from that checkpoint.
void Trainer::record_done(bool& pending) {
  pending = false;
  if (at_end_ != AtEnd::checkpoint) return;
  bool is_noted = false;
  if (session_.ranks().is_first()) try {
      const SpareDescriptors::Lent lent(*spare_);
      const std::string out = out_->where().value_or(options_.run.out);
      is_noted = amend_checkpoint(out, state_);
      if (is_noted && options_.run.keep_best) prune_checkpoints(out, options_.run.keep, true);
    } catch (const Error& error) {
      if (events_.trouble)
        events_.trouble(
            fmt::format("The checkpoint of step {} cannot be told what was done since, and a run "
                        "that goes on from it does that again: {} {}",
                        step_, error.what(), error.remedy()));
    }
  if (session_.ranks().sum<int>(is_noted) > 0) saved_ = step_;
}

// `what`: "validation"; `are`: its verb.
void Trainer::cut_short(const char* what, const char* are) {
  cut_short_ = true;
  if (events_.trouble)
    events_.trouble(fmt::format("The {} after step {} {} left {}, since the run stops.", what, step_, are,
                                at_end_ == AtEnd::checkpoint ? "to --resume auto" : "out"));
}

bool Trainer::validate() {
  note("the validation");
  const std::optional<Evaluation> found =
      evaluate(session_, bodies(), *data_.validation, data_.validation_batches, stop_, failure_);
  failed_ = session_.ranks().sum<int>(failure_ != nullptr) > 0;
  if (!found && !failed_) cut_short("validation", "is");
  if (!found) return false;
  if (std::isfinite(found->loss) && found->labels > 0)
    state_.validation = {found->loss, found->labels, data_.validation_checksum()};
  if (events_.validation) events_.validation({step_, found->loss, found->router_loss});
  return true;
}

bool Trainer::sample() {
  note("the samples");
  try {
    std::optional<std::vector<SampledText>> texts = write_samples(session_, bodies(), *data_.samples, stop_);
    if (!texts) cut_short("samples", "are");
    if (!texts) return false;
    if (events_.samples) events_.samples({step_, *std::move(texts)});
  } catch (const Error& error) {
    if (error.code() != ExitCode::numerics) throw;  // losses tell whether training can go on
    if (events_.trouble)
      events_.trouble(fmt::format("The samples after step {} are left out, since they cannot be drawn: {}",
                                  step_, error.what()));
  }
  return true;
}

// `unsaved`: why the run's state could not be saved; empty: it is. A rank that did not fail itself only says
// that another one did.
void Trainer::tell_failure(const std::string& unsaved) const {
  std::string then;
  if (!unsaved.empty())
    then = fmt::format(" The checkpoint could not be written: {} When that is mended, {}.", unsaved,
                       way_on(options_.run, directory()));
  else if (out_)
    then = " " + saved_words(step_, options_.batch.steps, *out_);
  if (!failure_)
    throw Error(ExitCode::rank_lost, "Another rank found that the run has to end.",
                "Its own error says why." + then);
  try {
    std::rethrow_exception(failure_);
  } catch (const Error& error) {
    const bool of_data = out_ && error.code() == ExitCode::malformed_file;
    const char* const data = of_data ? " A run keeps its training data; --val-data may be given anew." : "";
    throw Error(error.code(), error.what(), error.remedy() + data + then);
  }
}

bool Trainer::is_saved() {
  if (!session_.ranks().is_first()) return false;
  const SpareDescriptors::Lent lent(*spare_);
  return has_checkpoint(out_->where().value_or(options_.run.out), state_);
}

// If a rank fails in a checkpoint, other ranks wait for it there, so only a single rank may try again.
bool Trainer::save() {
  try {
    checkpoint();
    return true;
  } catch (const Error&) {
    const std::exception_ptr moved = moved_directory();
    if (!moved || session_.ranks().size() > 1 || session_.executor().error()) throw;
    failure_ = moved;
    failed_ = true;
    return false;
  }
}

bool Trainer::save_on_the_way() {
  if (!save()) return false;
  saved_ = step_;
  const SpareDescriptors::Lent lent(*spare_);
  if (session_.ranks().is_first()) delete_set_aside(out_->where().value_or(options_.run.out));
  return true;
}

std::exception_ptr Trainer::moved_directory() const {
  const std::optional<std::string> trouble = out_ ? out_->trouble() : std::nullopt;
  if (!trouble) return nullptr;
  return std::make_exception_ptr(Error(ExitCode::environment, *trouble,
                                       "Leave the directory of a run in its place until it has ended."));
}

// Where the run directory is. If it was removed, the first rank makes it again, for all.
std::string Trainer::place_of_checkpoint() {
  const Ranks& ranks = session_.ranks();
  if (ranks.sum<int>(!out_->where()) > 0) {
    std::exception_ptr refused;
    int number = 0;
    if (ranks.is_first()) try {
        number = out_->make_again();
      } catch (...) {
        refused = std::current_exception();
      }
    number = ranks.sum(number);
    if (refused) std::rethrow_exception(refused);
    if (number == 0)
      throw Error(ExitCode::rank_lost, "The first rank cannot make the run directory again.",
                  "Its own error says why.");
    if (!ranks.is_first()) out_->reopen(number);
  }
  return out_->where().value_or(options_.run.out);
}

bool Trainer::can_save(const char* then, bool on_the_way) {
  const std::optional<std::string> out = session_.ranks().is_first() ? out_->where() : std::nullopt;
  std::optional<std::string> obstacle;
  if (out) {
    const SpareDescriptors::Lent lent(*spare_);
    obstacle = on_the_way
                   ? obstacle_on_the_way(*out, checkpoint_space_, options_.run.keep, options_.run.keep_best)
                   : obstacle_to_checkpoint(*out, checkpoint_space_);
  }
  const bool waits = session_.ranks().sum<int>(obstacle.has_value()) > 0;
  const bool is_told = std::exchange(overdue_, waits);
  if (obstacle && !is_told && events_.trouble)
    events_.trouble(fmt::format("No room for the checkpoint after step {}: {}. {}", step_, *obstacle, then));
  return !waits;
}

// A signal that came before this wait does not end the wait: whoever sends a second signal wants the process
// to end at once.
void Trainer::await_place() {
  const auto stopping = [&] { return session_.ranks().sum<int>(stop_) > 0; };
  const bool was_stopping = stopping();
  overdue_ = false;
  while (!can_save(kWaits)) {
    std::this_thread::sleep_for(kBetweenLooksForRoom);
    if (!was_stopping && stopping()) return;
  }
}

bool Trainer::saves_best() {
  if (at_end_ != AtEnd::checkpoint || !options_.run.keep_best) return false;
  bool saves = false;
  if (session_.ranks().is_first() && state_.validation) {
    const SpareDescriptors::Lent lent(*spare_);
    const std::string out = out_->where().value_or(options_.run.out);
    const std::optional<BestCheckpoint> best = best_checkpoint(out);
    const ValidationRecord& now = *state_.validation;
    saves = !best || !now.is_over_same(best->validation) || now.loss < best->validation.loss;
    const auto obstacle = saves ? obstacle_to_checkpoint(out, checkpoint_space_) : std::nullopt;
    if (obstacle && events_.trouble)
      events_.trouble(
          fmt::format("No room for the checkpoint after step {}, the best one so far: {}. The run "
                      "goes on without it. Free some space.",
                      step_, *obstacle));
    saves = saves && !obstacle;
  }
  return session_.ranks().sum<int>(saves) > 0;
}

void Trainer::checkpoint() {
  note("the checkpoint");
  const double begin = steady_seconds();
  if (events_.forecast) events_.forecast->saves(begin);
  const SpareDescriptors::Lent lent(*spare_);
  const std::string out = place_of_checkpoint();
  CheckpointWriter writer(out, session_.plan().model, state_, owned_ranges(session_.plan().lowering),
                          session_.ranks());
  ShardHooks hooks;
  hooks.save = [&](uint32_t group, uint64_t first, const StatePlane& plane,
                   std::span<const std::byte> bytes) {
    return writer.begin_write(group, first, plane, bytes);
  };
  session_.runner().set_hooks(hooks);
  if (!writer.owns_nothing()) session_.executor().wait(session_.issue(*bodies().save));
  session_.runner().set_hooks({});  // they refer to the writer, which ends with this call
  session_.check();
  if (!writer.all_are_finite())
    throw Error(ExitCode::numerics,
                "The weights or moments after step " + std::to_string(step_) +
                    " are not finite, so they are not saved.",
                way_on_with("a smaller --lr", options_.run, directory()));
  writer.commit();
  if (session_.ranks().is_first()) prune_checkpoints(out, options_.run.keep, options_.run.keep_best);
  saved_at_ = steady_seconds();
  if (events_.forecast) events_.forecast->saved(saved_at_ - begin);
  if (events_.checkpoint) events_.checkpoint(writer.path());
}

}  // namespace sluice
