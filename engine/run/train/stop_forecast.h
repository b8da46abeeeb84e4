// Says when a run that is asked to stop will have ended, by what its steps and checkpoints have taken so far
// and, until there are any, by predictions.
//
// The trainer's thread tells what happens. Any thread, and a signal handler, may ask at any time: the answers
// come from atomics, and nothing is allocated.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace sluice {

// Forwards take about a third of a step.
constexpr double kForwardPart = 1.0 / 3;

// Seconds, as predicted. `drain`: from the norm of the last step until its update has ended; `save`: from
// then until its checkpoint is written, infinite where no rate is known.
struct StopParts {
  double step = 0, drain = 0, save = 0;
};

class StopForecast {
 public:
  explicit StopForecast(const StopParts& predicted);
  StopForecast(const StopForecast&) = delete;

  // For the trainer's thread. Times are those of steady_seconds().
  void issued(double now, int64_t under_way);  // `under_way`: steps not read yet, this one included
  // A step was read. Its norm was known at `norm_at`, `seconds` after the norm of the step before.
  void step_read(double norm_at, double seconds, int64_t under_way);
  // No step is under way, and a validation or samples may follow. `saved`: the checkpoint is written.
  void drained(double now, bool saved);
  void saves(double now);      // begins to write a checkpoint
  void saved(double seconds);  // how long writing the checkpoint took

  void drops_beyond(double seconds) { limit_ = seconds; }  // a stop that takes longer drops steps under way

  double save_seconds() const { return save_; }
  bool has_measured() const { return recent_count_ >= kRecent; }
  // The most that a stop takes if it comes at the worst moment, when `steps` steps are under way.
  double longest(int steps) const;

  // For any thread. Seconds until the run has ended if it is asked to stop `now`.
  double seconds_left(double now) const;
  // Writes a sentence about seconds_left() to `to`, " That takes about 3.1 s, ...", and returns its length.
  size_t describe(double now, std::span<char> to) const;

 private:
  // Each of the next steps is expected to take the mean time of the last kRecent steps. The first step after
  // a start is left out, since it also fills memory for the first time. Until a second step was read, the
  // expected time is the mean of the first step's time and the prediction.
  static constexpr size_t kRecent = 4;
  double step_seconds() const;
  double drain_seconds() const { return drain_part_ * step_seconds(); }
  void expect(double steps_end, double rest);

  std::atomic<double> steps_end_{0};  // when the steps under way will have ended, by steady_seconds()
  std::atomic<double> rest_{0};       // seconds from then to the end of the run
  std::atomic<double> limit_{std::numeric_limits<double>::infinity()};
  std::atomic<bool> steps_measured_{false}, save_measured_{false};
  std::array<double, kRecent> recent_{};
  size_t recent_count_ = 0;
  double first_ = 0;
  double predicted_step_, drain_part_;
  std::atomic<double> save_;
  double last_norm_ = 0;  // when the last norm was known, or a step was issued with none under way
};
static_assert(std::atomic<double>::is_always_lock_free);

}  // namespace sluice
