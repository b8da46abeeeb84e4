#include "engine/run/train/stop_forecast.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string_view>

namespace sluice {

namespace {

// Builds a text, and calls only functions that a signal handler may call.
class Text {
 public:
  explicit Text(std::span<char> to) : to_(to) {}
  Text& add(std::string_view words) {
    const size_t count = std::min(words.size(), to_.size() - size_);
    std::copy_n(words.data(), count, to_.data() + size_);
    size_ += count;
    return *this;
  }
  // Seconds below ten get one digit after the point.
  Text& add_seconds(double seconds) {
    const auto tenths = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e9) * 10));
    add_number(tenths < 100 ? tenths / 10 : (tenths + 5) / 10);
    if (tenths < 100) add(".").add_number(tenths % 10);
    return add(" s");
  }
  size_t size() const { return size_; }

 private:
  void add_number(int64_t number) {
    char digits[24];
    const auto [end, error] = std::to_chars(std::begin(digits), std::end(digits), number);
    add({digits, static_cast<size_t>(end - digits)});
  }
  const std::span<char> to_;
  size_t size_ = 0;
};

}  // namespace

StopForecast::StopForecast(const StopParts& predicted)
    : predicted_step_(predicted.step),
      drain_part_(predicted.step > 0 ? predicted.drain / predicted.step : 0),
      save_(predicted.save) {
  rest_ = predicted.save;
}

double StopForecast::step_seconds() const {
  const size_t count = std::min(recent_count_, kRecent);
  if (count == 0) return steps_measured_ ? (first_ + predicted_step_) / 2 : predicted_step_;
  return std::accumulate(recent_.begin(), recent_.begin() + static_cast<std::ptrdiff_t>(count), 0.0) /
         static_cast<double>(count);
}

// Readers load the two values one after the other: a reader that comes between these two writes is wrong by a
// step.
void StopForecast::expect(double steps_end, double rest) {
  steps_end_ = steps_end;
  rest_ = rest;
}

void StopForecast::issued(double now, int64_t under_way) {
  if (under_way == 1) last_norm_ = now;
  expect(last_norm_ + static_cast<double>(under_way) * step_seconds(), drain_seconds() + save_);
}

void StopForecast::step_read(double norm_at, double seconds, int64_t under_way) {
  if (steps_measured_.exchange(true))
    recent_[recent_count_++ % kRecent] = seconds;
  else
    first_ = seconds;
  last_norm_ = norm_at;
  expect(last_norm_ + static_cast<double>(under_way) * step_seconds(), drain_seconds() + save_);
}

// A validation batch that is under way when a signal comes is completed.
void StopForecast::drained(double now, bool saved) {
  expect(now, kForwardPart * step_seconds() + (saved ? 0 : save_.load()));
}

void StopForecast::saves(double now) { expect(now + save_, 0); }

void StopForecast::saved(double seconds) {
  save_ = seconds;
  save_measured_ = true;
  expect(0, 0);
}

double StopForecast::longest(int steps) const { return steps * step_seconds() + drain_seconds() + save_; }

double StopForecast::seconds_left(double now) const { return std::max(0.0, steps_end_ - now) + rest_; }

size_t StopForecast::describe(double now, std::span<char> to) const {
  const double steps = std::max(0.0, steps_end_ - now), rest = rest_;
  Text text(to);
  if (!std::isfinite(steps + rest)) return 0;
  if (steps > 0 && steps + rest > limit_) {
    text.add(" What is under way is dropped where it can be, to stop within ").add_seconds(limit_).add(".");
    return text.size();
  }
  text.add(" That takes about ").add_seconds(steps + rest).add(", ");
  if (steps_measured_ && save_measured_)
    text.add("as steps and checkpoints of this run took.");
  else if (steps_measured_)
    text.add("as steps of this run took, and ")
        .add_seconds(rest)
        .add(" for the first checkpoint, as predicted.");
  else
    text.add("as predicted.");
  return text.size();
}

}  // namespace sluice
