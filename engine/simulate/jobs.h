// What every instruction of a body takes when it runs alone: seconds, and parts of shared pools.
//
// This is the first half of the simulator (step 2 of simulate.cc, and the drives of step 5); simulate.cc lets
// these jobs flow against each other. Everything is looked up by name here, once, so that simulate.cc works
// on indices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/program/program.h"
#include "engine/rates/drives.h"
#include "engine/rates/machine_rates.h"

namespace sluice {

struct PoolFraction {
  uint32_t pool;
  double fraction;  // of the pool's capacity when running alone
};

struct Job {                    // one instruction, compiled
  double fixed = 0, alone = 0;  // seconds: overhead or latency; the work after it, when nothing else runs
  uint32_t first_use = 0, last_use = 0;
};

struct CompiledBody {
  std::vector<Job> jobs;  // by instruction
  std::vector<PoolFraction> uses;
  std::vector<std::vector<uint32_t>> by_lane;  // instructions
};

struct DrivePools {
  uint32_t read, write;
  double read_share,
      write_share;  // while reads and writes flow: the part of its rate alone that each reaches
};

// `program` and `rates` outlive it.
class JobCompiler {
 public:
  JobCompiler(const Program& program, const MachineRates& rates);

  // Throws Error(usage) where the description has no rates for what the body does.
  CompiledBody compile(const Body& body);

  size_t pools() const { return capacities_.size(); }  // of the description, then two a drive
  const std::vector<DrivePools>& drives() const { return drives_; }

 private:
  struct Need {
    uint32_t pool;
    double seconds;  // at the pool's full capacity
  };

  const LinkRates* find_link(const std::string& from, const std::string& to) const;
  [[noreturn]] void lacks(const std::string& what) const;
  Job task(const Instruction& instruction, const Task& task);
  Job copy(const Instruction& instruction);
  void add_drive_need(uint32_t pool, double bytes) { needs_.push_back({pool, bytes / capacities_[pool]}); }
  void add_needs(const Sharing& sharing, double bytes);
  void add_uses(double alone, std::vector<PoolFraction>& uses) const;

  const Program& program_;
  const MachineRates& rates_;
  std::vector<double> capacities_;
  std::vector<DrivePools> drives_;
  std::vector<const LaneRates*> lane_rates_;         // by lane, tier
  std::vector<const LinkRates*> link_rates_;         // by from, to
  std::vector<std::vector<DrivePart>> tier_drives_;  // by tier
  std::vector<Need> needs_;                          // of the instruction at hand
  const std::vector<PoolUse>* occupies_ = nullptr;
};

}  // namespace sluice
