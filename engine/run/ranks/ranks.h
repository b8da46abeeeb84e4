// What a run knows of the ranks that train with it: who it is, and how it reaches the others.
//
// Ranks run the same program over their own parts of the training state. Communicators are apart, since the
// collective lane and the trainer's thread call at the same time. Plain data; owner: the verb.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gpu/ranks/communicator.h"

namespace sluice {

struct Ranks {
  Communicator* lane = nullptr;     // the collective lane's; nullptr where there is one rank
  Communicator* trainer = nullptr;  // likewise, the trainer's
  int here = 0, all_here = 1;       // among the ranks of this machine, which share its cores, memory and GPUs
  int first_here = 0;               // the first of them, which names the machine
  int in_process = 1;               // of them, those of this process
  Communicator* device = nullptr;   // the collective lane's too, for the device's memory; nullptr: none

  int size() const { return lane ? lane->size() : 1; }
  int rank() const { return lane ? lane->rank() : 0; }
  bool is_first() const { return rank() == 0; }

  // Every rank's value, in order of rank. Called by all trainers.
  template <typename T>
  std::vector<T> all(const T& mine) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> values(static_cast<size_t>(size()), mine);
    if (trainer) trainer->all_gather(trainer->everyone(), &mine, sizeof(T), values.data());
    return values;
  }
  // Each as long as the others'.
  std::vector<uint64_t> all(const std::vector<uint64_t>& mine) const {
    if (!trainer) return mine;
    std::vector<uint64_t> everyone(mine.size() * static_cast<size_t>(size()));
    trainer->all_gather(trainer->everyone(), mine.data(), mine.size() * sizeof(uint64_t), everyone.data());
    return everyone;
  }
  // In order of rank, so that all ranks get the same bits.
  template <typename T>
  T sum(const T& mine) const {
    if (!trainer) return mine;
    T total{};
    for (const T& value : all(mine)) total += value;
    return total;
  }
  // By element; all ranks' are equally many.
  std::vector<uint64_t> sum(std::vector<uint64_t> mine) const {
    const std::vector<uint64_t> everyone = all(mine);
    for (size_t i = 0; i < mine.size(); ++i) {
      mine[i] = 0;
      for (size_t at = i; at < everyone.size(); at += mine.size()) mine[i] += everyone[at];
    }
    return mine;
  }
  // Likewise the least of all ranks' values.
  std::vector<uint64_t> least(std::vector<uint64_t> mine) const {
    const std::vector<uint64_t> everyone = all(mine);
    for (size_t i = 0; i < everyone.size(); ++i)
      mine[i % mine.size()] = std::min(mine[i % mine.size()], everyone[i]);
    return mine;
  }
  void barrier() const {
    if (trainer) trainer->barrier();
  }
  // How long a rank waits for another.
  void set_patience(double seconds) const;
  // What the trainer's calls to come are for, to be named when one waits for too long.
  void note(std::string_view purpose) const;
  // Ends the other ranks' calls too.
  void abort(const std::string& reason) const noexcept {
    if (!lane) return;
    lane->abort(reason);
    trainer->abort(reason);
  }
};

// Runs `rank` on so many threads of this process, each with its own Ranks, and returns when all have ended.
// What one throws ends the others; then it is thrown on, rather than what the others say of it. `stuck` is
// called with it when some have not ended five seconds later: no thread can be ended from outside, so it ends
// the process, or returns when they can end by themselves.
void run_in_process(int count, const std::function<void(const Ranks&)>& rank,
                    const std::function<void(const std::exception&)>& stuck);

}  // namespace sluice
