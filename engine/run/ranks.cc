#include "engine/run/ranks.h"

#include <exception>
#include <string>
#include <thread>
#include <vector>

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
  struct End {  // kept until all have ended: others may still read what it says
    std::exception_ptr error;
    bool tells_of_another = false;
  };
  std::vector<End> ends(lanes.size());
  const auto run = [&](size_t i) {
    const Ranks ranks{lanes[i].get(), trainers[i].get(), static_cast<int>(i), count};
    try {
      rank(ranks);
    } catch (const std::exception& e) {
      ends[i] = {std::current_exception(), tells_of_another(e)};
      ranks.abort("Rank " + std::to_string(i) + " ended: " + e.what());
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < lanes.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& t : threads) t.join();
  for (const bool second_hand : {false, true})
    for (const End& end : ends)
      if (end.error && end.tells_of_another == second_hand) std::rethrow_exception(end.error);
}

}  // namespace sluice
