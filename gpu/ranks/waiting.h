// How long a rank waits for others, and what it says when that was too long.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/base/error.h"

namespace sluice {

// The patience until the plan tells how long a step takes. It is enough for planning and loading.
constexpr double kPatienceAtStart = 600;  // seconds

// Time as told by looks at the clock every now and then. A gap between two looks counts as kLookMax at most:
// in a longer gap this process was stopped or got no core, and others may have answered. One thread.
class WatchedTime {
 public:
  explicit WatchedTime(double now) : last_(now) {}
  void look(double now) {
    seconds_ += std::min(now - last_, kLookMax);
    last_ = now;
  }
  void restart() { seconds_ = 0; }
  double seconds() const { return seconds_; }

 private:
  static constexpr double kLookMax = 0.2;  // four times the longest planned gap, for delays of a busy core
  double last_, seconds_ = 0;
};

// What a rank does with others, as a part of a sentence. One thread writes, any thread reads. Writing
// allocates nothing.
class Purpose {
 public:
  Purpose() { set("at the start"); }
  void set(std::string_view text) noexcept {
    const std::lock_guard lock(mutex_);
    length_ = std::min(text.size(), text_.size());
    std::memcpy(text_.data(), text.data(), length_);
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return {text_.data(), length_};
  }

 private:
  mutable std::mutex mutex_;
  std::array<char, 160> text_{};
  size_t length_ = 0;
};

// Returns an Error(rank_lost) that says what to do.
Error lost_error(const std::string& reason);

// `doing`: "rank 0 waits at step 12 for ..."
std::string not_answered(int missing, double seconds, const std::string& doing);

}  // namespace sluice
