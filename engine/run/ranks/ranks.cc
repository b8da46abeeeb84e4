#include "engine/run/ranks/ranks.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"

namespace sluice {

namespace {

constexpr auto kUnwinding = std::chrono::seconds(5);
constexpr double kAfterLanes = 1;  // seconds; a waiting lane fails first, since it can name the instruction

// How a rank ended. It is kept until all have ended, since others may still read the error.
struct End {
  std::exception_ptr error;
  bool tells_of_another = false;
};

// What ended the run: a rank's own error, or else one that only reports another rank's end. Null: nothing.
std::exception_ptr cause(const std::vector<End>& ends) {
  for (const bool second_hand : {false, true})
    for (const End& end : ends)
      if (end.error && end.tells_of_another == second_hand) return end.error;
  return nullptr;
}

bool tells_of_another(const std::exception& e) {
  const auto* error = dynamic_cast<const Error*>(&e);
  return error && error->code() == ExitCode::rank_lost;
}

}  // namespace

void Ranks::set_patience(double seconds) const {
  if (!lane) return;
  lane->set_patience(seconds);
  if (device) device->set_patience(seconds);
  trainer->set_patience(seconds + kAfterLanes);
}

void Ranks::note(std::string_view purpose) const {
  if (trainer) trainer->note(purpose);
}

void run_in_process(int count, const std::function<void(const Ranks&)>& rank,
                    const std::function<void(const std::exception&)>& stuck) {
  const auto lanes = make_in_process_communicators(count), trainers = make_in_process_communicators(count);
  std::mutex mutex;
  std::condition_variable changed;  // notified when `ends` and `ended` change
  std::vector<End> ends(lanes.size());
  size_t ended = 0;
  const auto run = [&](size_t i) {
    const Ranks ranks{lanes[i].get(), trainers[i].get(), static_cast<int>(i), count, 0, count};
    End end;
    try {
      rank(ranks);
    } catch (const std::exception& e) {
      end = {std::current_exception(), tells_of_another(e)};
      ranks.abort("Rank " + std::to_string(i) + " ended: " + e.what());
    }
    const std::lock_guard lock(mutex);
    ends[i] = end;
    ++ended;
    changed.notify_all();
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < lanes.size(); ++i) threads.emplace_back(run, i);
  {
    std::unique_lock lock(mutex);
    const auto all_ended = [&] { return ended == ends.size(); };
    changed.wait(lock, [&] { return all_ended() || cause(ends); });
    if (!changed.wait_for(lock, kUnwinding, all_ended)) {
      const std::exception_ptr error = cause(ends);
      lock.unlock();
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& e) {
        stuck(e);
      }
    }
  }
  for (std::thread& t : threads) t.join();
  if (const std::exception_ptr error = cause(ends)) std::rethrow_exception(error);
}

}  // namespace sluice
