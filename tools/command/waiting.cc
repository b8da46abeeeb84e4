#include "tools/command/waiting.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "engine/base/units.h"
#include "engine/run/start/budgets.h"
#include "tools/command/screen.h"

namespace sluice {

namespace {

// Seconds that planning seldom exceeds: some for any search (kSearchWork), more for each task. Measured on
// two cores: up to 2 s for few tasks, and 30 to 130 microseconds for each of 25,000 to 200,000.
constexpr double kSecondsAtLeast = 4, kSecondsATask = 300e-6;

std::string size_words(std::span<const ProgramSize> sizes) {
  uint64_t tasks = 0;
  for (const ProgramSize& size : sizes) tasks += size.tasks;
  return fmt::format("planning {} tasks; that takes up to {} of memory and usually less than {}", tasks,
                     format_size(runtime_reserve_bytes(1) + planning_bytes_beside_reserve(sizes)),
                     readable_seconds(kSecondsAtLeast + kSecondsATask * static_cast<double>(tasks)));
}

}  // namespace

Waiting::Waiting(std::FILE* err, std::string what)
    : err_(err), what_(std::move(what)), thread_([this] { run(); }) {}

Waiting::~Waiting() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  end_.notify_one();
  thread_.join();
}

void Waiting::tell(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Waiting::run() {
  std::unique_lock lock(mutex_);
  const bool rewrites = screen_of(err_).is_terminal;
  for (int seconds = 1; !end_.wait_for(lock, std::chrono::seconds(1), [&] { return ended_; }); ++seconds)
    if (rewrites || said_ != what_) say(seconds);
  if (shown_ == 0) return;
  std::fprintf(err_, "\r%*s\r", static_cast<int>(shown_), "");
  std::fflush(err_);
}

void Waiting::say(int seconds) {
  said_ = what_;
  const Screen screen = screen_of(err_);
  if (!screen.is_terminal) return show(err_, "sluice: " + what_ + ".\n");
  const std::string line = (what_ + fmt::format(" ({} s)", seconds)).substr(0, screen.columns - 1);
  std::fprintf(err_, "\r%s", line.c_str());
  std::fflush(err_);
  shown_ = line.size();
}

std::variant<Plan, Infeasible> make_plan_patiently(PlanRequest request, const Budgets& budgets) {
  Waiting waiting(stderr, "planning");
  request.program_memory.planning =
      [&waiting, planning = request.program_memory.planning](std::span<const ProgramSize> sizes) {
        waiting.tell(size_words(sizes));
        return planning(sizes);
      };
  return plan_within(request, budgets);
}

}  // namespace sluice
