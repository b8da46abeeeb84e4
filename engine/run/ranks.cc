#include "engine/run/ranks.h"

#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "engine/error.h"

namespace sluice {

namespace {

bool tells_of_another(const std::exception& e) {
  const auto* error = dynamic_cast<const Error*>(&e);
  return error && error->code() == ExitCode::rank_lost;
}

}  // namespace

void run_in_process(int count, const std::function<void(const Ranks&)>& rank) {
  const auto lanes = make_in_process_communicators(count), trainers = make_in_process_communicators(count);
  std::mutex mutex;
  std::exception_ptr cause;
  bool found = false;
  const auto run = [&](size_t i) {
    const Ranks ranks{lanes[i].get(), trainers[i].get(), static_cast<int>(i), count};
    try {
      rank(ranks);
    } catch (const std::exception& e) {
      {
        const std::lock_guard lock(mutex);
        if (!cause || (!found && !tells_of_another(e))) cause = std::current_exception();
        found = found || !tells_of_another(e);
      }
      ranks.abort("Rank " + std::to_string(i) + " ended: " + e.what());
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < lanes.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& t : threads) t.join();
  if (cause) std::rethrow_exception(cause);
}

}  // namespace sluice
