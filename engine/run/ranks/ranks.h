// What a rank knows of the ranks that train together: which one it is, and how it reaches the others.
//
// Ranks run the same program over their own parts of the training state. The collective lane and the
// trainer's thread have a communicator each, since they call at the same time. Plain data; owner: the verb.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gpu/accelerator.h"
#include "gpu/ranks/communicator.h"

namespace sluice {

struct Ranks {
  Communicator* lane = nullptr;     // the collective lane's; nullptr where there is one rank
  Communicator* trainer = nullptr;  // the trainer's; nullptr where there is one rank
  int here = 0, all_here = 1;       // this rank's index among the ranks of this machine, and the number of
                                    // these ranks, which share its cores, memory and GPUs
  int first_here = 0;               // first rank of this machine, by which the machine is told from others
  int in_process = 1;               // ranks of this process
  StreamCommunicator* device = nullptr;  // the collective lane's for an accelerator's memory; nullptr: none

  int size() const { return lane ? lane->size() : 1; }
  int rank() const { return lane ? lane->rank() : 0; }
  bool is_first() const { return rank() == 0; }

  // Every rank's value, in order of rank. The trainers of all ranks must call this function, and likewise the
  // next five.
  template <typename T>
  std::vector<T> all(const T& mine) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> values(static_cast<size_t>(size()), mine);
    if (trainer) trainer->all_gather(trainer->everyone(), &mine, sizeof(T), values.data());
    return values;
  }
  // Every rank's vector, one after the other. The vectors are equally long on all ranks.
  std::vector<uint64_t> all(const std::vector<uint64_t>& mine) const {
    if (!trainer) return mine;
    std::vector<uint64_t> everyone(mine.size() * static_cast<size_t>(size()));
    trainer->all_gather(trainer->everyone(), mine.data(), mine.size() * sizeof(uint64_t), everyone.data());
    return everyone;
  }
  // Adds in order of rank, so that all ranks get the same bits.
  template <typename T>
  T sum(const T& mine) const {
    if (!trainer) return mine;
    T total{};
    for (const T& value : all(mine)) total += value;
    return total;
  }
  // The sum of all ranks' vectors, by element. The vectors are equally long on all ranks.
  std::vector<uint64_t> sum(std::vector<uint64_t> mine) const {
    const std::vector<uint64_t> everyone = all(mine);
    for (size_t i = 0; i < mine.size(); ++i) {
      mine[i] = 0;
      for (size_t at = i; at < everyone.size(); at += mine.size()) mine[i] += everyone[at];
    }
    return mine;
  }
  // The least of all ranks' values, by element.
  std::vector<uint64_t> least(std::vector<uint64_t> mine) const {
    const std::vector<uint64_t> everyone = all(mine);
    for (size_t i = 0; i < everyone.size(); ++i)
      mine[i % mine.size()] = std::min(mine[i % mine.size()], everyone[i]);
    return mine;
  }
  void barrier() const {
    if (trainer) trainer->barrier();
  }
  // How long a rank waits for another before it gives up.
  void set_patience(double seconds) const;
  // Says what the trainer's next calls are for. If one of them waits too long, the error has this text.
  void note(std::string_view purpose) const;
  // Ends the calls of all ranks.
  void abort(const std::string& reason) const noexcept {
    if (!lane) return;
    lane->abort(reason);
    trainer->abort(reason);
  }
};

// Runs `rank` on `count` threads of this process, each with its own Ranks, and returns when all have ended.
// The first exception makes the communicators' calls throw in the other threads. It is rethrown at the end;
// exceptions that follow from it are dropped. If some threads have not ended five seconds later, `stuck` is
// called with that first exception. No thread can be ended from outside: `stuck` ends the process, or returns
// where the threads can still end by themselves.
void run_in_process(int count, const std::function<void(const Ranks&)>& rank,
                    const std::function<void(const std::exception&)>& stuck);

}  // namespace sluice
