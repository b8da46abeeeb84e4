// How ranks exchange bytes: collective instructions and trainers call a communicator.
//
// A communicator belongs to one rank and is used by one thread at a time. Every rank makes the same calls in
// the same order, among all ranks or within its own process group. Calls return when the caller's memory may
// be used again; only calls between accelerators return earlier (gpu/accelerator.h). Communicators do no
// arithmetic: gpu/ranks/reduce.h adds, so that all transports give the same bits. Any thread may call
// abort(), set_patience() and throw_if_lost().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/mesh.h"
#include "gpu/ranks/waiting.h"

namespace sluice {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string transport() const = 0;  // for people: "MPI, through host memory"
  ProcessGroup everyone() const { return {"all", static_cast<uint32_t>(size()), 1}; }

  // All calls throw Error(rank_lost) once a rank was lost or has called abort(). A call that gets nothing
  // from another rank for longer than the patience throws too, and ends all ranks' calls.
  void set_patience(double seconds) { patience_ = seconds; }
  // Says what later calls are for. Their errors quote it: "at step 12 for ...". Allocates nothing.
  void note(std::string_view purpose) noexcept { purpose_.set(purpose); }

  // `among` divides all ranks into groups; the call is among the ranks of this rank's group. On each rank,
  // `all` gets the parts of the group's ranks, in order. `part` is what this rank gives, and may lie at this
  // rank's place in `all`.
  virtual void all_gather(const ProcessGroup& among, const void* part, uint64_t bytes, void* all) = 0;
  // Part i of `parts` goes to the i-th rank of `among`. `received` gets what the ranks of `among` have for
  // this rank, in the order of ranks. `parts` and `received` do not overlap.
  virtual void all_to_all(const ProcessGroup& among, const void* parts, uint64_t bytes, void* received) = 0;
  // Like all_to_all, but parts lie anywhere and have lengths of their own. `parts` and `received` have an
  // entry for each rank of `among`. Sender and receiver give the same length for a part.
  virtual void exchange(const ProcessGroup& among, std::span<const std::span<const std::byte>> parts,
                        std::span<const std::span<std::byte>> received);
  // Sends the root's bytes to every rank.
  virtual void broadcast(void* data, uint64_t bytes, int root) = 0;
  // Returns when every rank has called it.
  virtual void barrier() = 0;
  // Move bytes from one rank to another. The sender calls send(), the receiver receive().
  virtual void send(const void* data, uint64_t bytes, int to) = 0;
  virtual void receive(void* data, uint64_t bytes, int from) = 0;
  // Returns when the memory of all calls so far may be used again.
  virtual void finish() {}

  // Throws Error(rank_lost) if a rank was lost; otherwise does nothing.
  virtual void throw_if_lost() = 0;

  // Ends all ranks' calls, now and later. The first reason is kept.
  virtual void abort(const std::string& reason) noexcept = 0;

 protected:
  // This rank's place in its group, and the rank at a place of that group.
  int place_in(const ProcessGroup& group) const {
    return static_cast<int>(group.place_of(static_cast<uint32_t>(rank())));
  }
  int rank_at(const ProcessGroup& group, int place) const {
    return static_cast<int>(group.rank_at(static_cast<uint32_t>(place), static_cast<uint32_t>(rank())));
  }

  double patience() const { return patience_; }
  // "rank 0 waits at step 12 for ..."
  std::string doing(const char* verb = "waits") const { return doing(purpose_.text(), verb); }
  std::string doing(std::string_view purpose, const char* verb) const;

 private:
  std::atomic<double> patience_{kPatienceAtStart};
  Purpose purpose_;
};

// Makes a communicator for each rank, where ranks are threads of one process.
std::vector<std::unique_ptr<Communicator>> make_in_process_communicators(int ranks);

}  // namespace sluice
