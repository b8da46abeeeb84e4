// A session: a plan with its memory, device, runner and executor, ready to issue bodies.
//
// Everything is allocated before the first step: the host's arenas, files and executor in the constructor, an
// accelerator's arena and streams with PreparedDevice. A step allocates nothing. With an accelerator the top
// tier is its memory, and the host's arenas are pinned. Owner: the trainer or a verb.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/run/execute/executor.h"
#include "engine/run/execute/runner.h"
#include "engine/run/ranks/ranks.h"
#include "gpu/device.h"
#include "offload/arena.h"
#include "offload/io/queue.h"
#include "offload/nvme_files.h"

namespace sluice {

struct SessionOptions {
  int threads = 1;
  UpdateRules rules;
  std::vector<NvmeDirectory> nvme_directories;
  IoChoice io = nullptr;
  ExecutorKind executor = ExecutorKind::threaded;
  uint64_t seed = 0;  // of the shuffled executor
  Ranks ranks;
  bool poison = false;  // fill the host's arenas with NaN patterns first (tests)
  std::function<std::unique_ptr<IoQueue>(std::unique_ptr<IoQueue>)> wrap_queue;  // tests inject faults here
  std::string system_root = "/";  // tests describe another machine's cards here
};

// How many of `threads` threads update parameters, on a machine with `processors` processors. Of eight
// processors or more, two are left to the threads of the lanes. The lanes' threads sleep most of the time,
// but if they hand out work late, a GPU or a drive idles; an update that is bound by memory loses next to
// nothing. With fewer processors, all threads update.
int optimizer_threads(int threads, int processors);

// What an accelerator allocates for a plan: its arena, streams, and whatever its ops look up or load. The
// accelerator allocates nothing later. Empty for other devices.
struct PreparedDevice {
  PreparedDevice(const Plan& plan, Device& device);
  std::shared_ptr<std::byte> arena;
  std::unique_ptr<Streams> streams;
  uint64_t library_bytes = 0;  // growth of the process: libraries, streams
};

class Session {
 public:
  // Throws Error(environment) when memory, directories or queues cannot be had.
  Session(const Plan& plan, Device& device, const SessionOptions& options)
      : Session(plan, device, options, PreparedDevice(plan, device)) {}
  Session(const Plan& plan, Device& device, const SessionOptions& options, PreparedDevice prepared);

  const Plan& plan() const { return plan_; }
  const Ranks& ranks() const { return ranks_; }
  // This rank's place among those that have other rows of a batch (Mesh).
  uint32_t data_rank() const { return plan_.lowering.mesh.data_rank(static_cast<uint32_t>(ranks_.rank())); }
  // Whether this rank counts what is made of its rows. If not, another rank that has the same rows does.
  bool counts_rows() const { return plan_.lowering.mesh.counts_rows(static_cast<uint32_t>(ranks_.rank())); }
  // The sum of `mine` over the ranks for which counts_rows() is true. All ranks call it.
  template <typename T>
  T sum_of_rows(const T& mine) const {
    return ranks_.sum(counts_rows() ? mine : T{});
  }
  Runner& runner() { return *runner_; }
  Executor& executor() { return *executor_; }
  // One line that names the I/O back end of the last lane with files, and says why it was chosen.
  const std::string& io_description() const { return io_description_; }

  // Moves rings as Body::advance says, issues the body after those issued before, and returns its ticket.
  uint64_t issue(BodyId body);
  // Moves rings back over a body that was dropped. Called for the newest such body first.
  void take_back(BodyId body);
  // The ring's position for the next body that advances it. The caller puts tokens there before it issues
  // that body.
  uint64_t next_position(uint8_t ring) const { return rings_[ring] + 1; }
  uint64_t position(uint8_t ring) const { return rings_[ring]; }
  StepScalars& scalars(uint64_t position);
  // Throws the executor's error, if there is one.
  void check() const;

 private:
  const Plan& plan_;
  const Ranks ranks_;
  std::vector<Arena> arenas_;  // by tier; empty for files and for an accelerator's memory
  std::shared_ptr<std::byte> device_arena_;
  std::vector<std::shared_ptr<void>> pinned_;
  std::unique_ptr<Streams> streams_;
  std::unique_ptr<NvmeFiles> files_;
  std::string io_description_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<Executor> executor_;
  RingPositions rings_{};
};

}  // namespace sluice
