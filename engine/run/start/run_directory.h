// The run directory of `sluice train`: what it holds already, where a run goes on, and a start that leaves
// nothing behind when it fails.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/checkpoint/directory.h"
#include "engine/run/options/options.h"
#include "engine/run/ranks/ranks.h"

namespace sluice {

// Holds the lock of --out, from before its checkpoints are looked at. What create() and open_metrics() made
// is removed again by the destructor, unless keep() was called or something was put into it.
class RunDirectory {
 public:
  explicit RunDirectory(const std::string& path);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  bool is_locked() const { return lock_.has_value(); }  // it was there, or create() was called
  void create();                                        // if it is not there; throws Error(environment)
  // Throws what MetricsFile would.
  void open_metrics(const std::string& path);
  void keep() { made_.clear(); }

 private:
  std::string path_;
  std::optional<DirectoryLock> lock_;
  std::vector<std::string> made_;  // outermost first
};

// Whether all ranks see and may change what the first writes into --out, since they write their checkpoints
// together. Throws Error(environment) on every rank; called by all, once the directory is there.
void check_shared(const std::string& out, const Ranks& ranks);

// The checkpoint to go on from; nullopt: a fresh start. Throws Error(usage) rather than write over a run or
// mix two in one directory.
std::optional<CheckpointReader> open_resume(const RunOptions& run);

// Makes `step` the last of the run: removes complete checkpoints of later steps, newest first, then cuts the
// metrics, so that a kill in between leaves a shorter run whose metrics --resume auto cuts to its end. Prints
// a line for each that was removed, or kept since it is damaged.
void go_back_to(int64_t step, const RunOptions& run, const std::string& metrics, std::FILE* out);

}  // namespace sluice
