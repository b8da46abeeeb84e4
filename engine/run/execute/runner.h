// The runner carries out single instructions: it turns operands into pointers and calls devices, optimizer
// and files.
//
// It keeps no order: executors decide when. Different lanes may call it at the same time, each lane from one
// thread; the program's waits order instructions that share bytes. A step's calls allocate nothing. Segments
// share the vectors of tensor views, so one lane runs them all.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cpu_optim/optimizer.h"
#include "engine/base/parallel.h"
#include "engine/plan/plan.h"
#include "engine/program/roles.h"
#include "engine/run/ranks/ranks.h"
#include "gpu/device.h"
#include "offload/nvme_files.h"
#include "offload/transfer_lane.h"

namespace sluice {

constexpr size_t kRings = 4;  // the most rings that a program may have
using RingPositions = std::array<uint64_t, kRings>;

// Where bytes are: each tier's arena (nullptr for a file tier), the nvme files and their checksums.
struct Memory {
  std::vector<std::byte*> tiers;
  const NvmeFiles* files = nullptr;
  std::span<uint64_t> checksums;  // one for each MiB of the file tier
  Streams* streams = nullptr;     // an accelerator's: they carry out transfers on the lanes that they have
};

struct UpdateRules {
  OptimizerKind optimizer = OptimizerKind::adamw;
  OptimizerSettings settings;
  double clip = 1;  // 0: off
};
constexpr double kFirstLossScale = 65536;  // fp16
constexpr int64_t kCleanStepsToDouble = 2000;

// One shard of a group in memory, as the tasks `load` and `save` see it.
struct ShardView {
  uint32_t group = 0;
  uint64_t first = 0, elements = 0;    // within the group's flat buffer
  std::span<const StatePlane> planes;  // of its state, the master weights first; none in a frozen group
  std::array<std::byte*, kStatePlanesMax> values{};  // by plane
  void* weights = nullptr;                           // working precision; fp32: the master weights
  // With compressed gradients: the rank's compression error of the whole shard and, in a group's first shard,
  // the group's right factors.
  uint64_t error_first = 0, error_elements = 0, factor_elements = 0;
  float *error = nullptr, *factors = nullptr;
};
struct FileTarget {
  int fd = -1;
  uint64_t offset = 0;
  const char* name = "";
};

struct ShardHooks {
  std::function<void(const ShardView&)> load;  // fills the shard, weights included
  // Returns where a shard's plane goes. Called once for each plane, when its write begins, with its bytes in
  // whole pages.
  std::function<FileTarget(uint32_t group, uint64_t first, const StatePlane&, std::span<const std::byte>)>
      save;
};

// Whether the instruction is a transfer to or from a file tier.
bool is_file_transfer(const Machine& machine, const Instruction& in);

class Runner {
 public:
  // All references outlive the runner. `threads` is the number of the optimizer's workers.
  Runner(const Plan& plan, const Memory& memory, Device& device, const UpdateRules& rules, int threads,
         const Ranks& ranks = {});

  // Steps of the run before this session's first. Messages count steps from the start of the run.
  void set_steps_before(int64_t steps) { steps_before_ = steps; }
  void set_hooks(ShardHooks hooks) { hooks_ = std::move(hooks); }

  // Whether the instruction moves bytes to or from files. If so, transfers() says which; otherwise run()
  // carries it out.
  bool is_file_io(const Body& body, const Instruction& in) const;
  static constexpr size_t kTransfersMax = kStatePlanesMax + 2;  // for saving a shard; two are for compression
  size_t transfers(const Body& body, const Instruction& in, const RingPositions& rings,
                   std::span<Transfer, kTransfersMax> out);
  void run(const Body& body, const Instruction& in, const RingPositions& rings);

  // Where a lane is a stream, run() only enqueues an instruction. synchronize() blocks until the marked
  // instruction is done and, if other ranks take part in the instruction, watches these ranks. An instruction
  // that will not be synchronized must be abandoned, so that no stream waits for other ranks for ever. Any
  // thread may call synchronize() and abandon().
  void synchronize(const Body& body, const Instruction& in, const RingPositions& rings, const Mark& mark);
  void abandon(const Body& body, const Instruction& in);

  // Overwrites buffers that have no content in the state, if their homes are in host memory. The bytes are
  // NaN in every precision.
  void poison(BodyState state) const;

  // The end of the highest range of the tier's arena that any instruction was given so far. Any thread.
  uint64_t high_water_bytes(TierId tier) const { return high_water_[tier]; }

  // Bytes that the lane's transfers have moved so far; transfers to file tiers count when they begin. Any
  // thread.
  uint64_t moved_bytes(LaneId lane) const { return moved_[lane]; }

  // A ring buffer's slot at home, for the trainer.
  std::byte* ring_slot(BufferId buffer, uint64_t position) const;

  // Bytes that this rank sent to other ranks' experts, and back from its own, in the wave at this position of
  // kWaveRing. The wave has run.
  uint64_t sent_to_experts(uint64_t position) const {
    const Sent& sent = sent_to_experts_[position % sent_to_experts_.size()];
    return sent.position == position ? sent.bytes : 0;
  }

 private:
  uint64_t offset(const Instruction& in, size_t operand, const RingPositions& rings) const;  // in its arena
  std::byte* address(const Instruction& in, size_t operand, const RingPositions& rings) const;
  uint64_t bytes_of(const Instruction& in, size_t operand) const;
  // These return the position and the address of the operand of a role; kNone and nullptr if the task has
  // none.
  static uint32_t position_of(const Instruction& in, Role role);
  template <typename T = std::byte>
  T* operand(const Instruction& in, const RingPositions& rings, Role role) const {
    const uint32_t k = position_of(in, role);
    return k == kNone ? nullptr : reinterpret_cast<T*>(address(in, k, rings));
  }
  // Returns the position of the n-th operand of a role, which the task must have, or kNone if n is kNone.
  static uint32_t nth(const Instruction& in, Role role, uint32_t n);
  void check_operands(const Task& task) const;  // CHECKs that they fit its kind and segment
  // The part of the bank that the index gives an instruction's picked operands; nullopt: it gives none.
  // Requires picked operands and an index that has been written. Throws Error(bug) for an index that no
  // router writes.
  std::optional<uint32_t> picked_part(const Instruction& in, const Buffer& picked) const;
  const Buffer* picked_buffer(const Instruction& in) const;  // the first one; null: nothing is picked
  // Whether a transfer has something to move; counts what it moves.
  bool moves(const Instruction& in);
  void note_high_water(const Instruction& in, const RingPositions& rings);
  void copy(const Instruction& in, const RingPositions& rings);
  // These copy and zero within the memory in which the lane's tasks work.
  void copy_inside(LaneId lane, std::byte* to, const std::byte* from, uint64_t bytes);
  void zero(LaneId lane, std::byte* to, uint64_t bytes);
  void run_segment(const Task& task, const Instruction& in, const RingPositions& rings);
  void run_step(const SegmentPlan& plan, const Segment& segment, const PassPlan& pass, const OpStep& step,
                const Task& task, const SegmentOperands& operands, const Instruction& in,
                const RingPositions& rings);
  const SegmentUse& use_of(const Task& task) const {
    const UseInfo& info = plan_.lowering.uses[task.subject];
    return plan_.model.layers[info.layer].segments[info.position];
  }
  int64_t of_rank(const Op& op, uint32_t part) const;
  void shift_to_next_part(const Segment& segment, const Op& op, const OpShapes& shapes);
  void round(const Task& task, const Instruction& in, const RingPositions& rings);
  using PurposeText = std::array<char, 160>;
  std::string_view purpose(const Instruction& in, const RingPositions& rings, PurposeText& text) const;
  Communicator& communicator(const Instruction& in, const RingPositions& rings);
  const ProcessGroup& among(const Task& task) const;  // the ranks that carry it out together
  void gather(const Task& task, const Instruction& in, const RingPositions& rings);
  void exchange(const Task& task, const Instruction& in, const RingPositions& rings);
  struct OperandsOfOp;
  void count_sent(uint64_t bytes, const RingPositions& rings);
  void travel(const Task& task, const Instruction& in, const RingPositions& rings);
  void exchange_rows(const Task& task, const OpShapes& shapes, const OperandsOfOp& operands,
                     const Instruction& in, const RingPositions& rings);
  void sum(const Task& task, const Instruction& in, const RingPositions& rings);
  void compress(const Task& task, const Instruction& in, const RingPositions& rings);
  void project(const Task& task, const Instruction& in, const RingPositions& rings);
  void expand(const Task& task, const Instruction& in, const RingPositions& rings);
  void zero_rest(const Instruction& in, Role factor, uint64_t elements, const RingPositions& rings);
  void clone(const Instruction& in, const RingPositions& rings);
  void norm(const Instruction& in, const RingPositions& rings);
  // The constants belong to the update that follows `previous`.
  UpdateConstants constants(const StepScalars::Input& input, const StepScalars::Update& previous,
                            double clip_factor) const;
  void set_scalars(const Instruction& in, const RingPositions& rings);
  void set_guess(const Instruction& in, const RingPositions& rings);
  void update(const Task& task, const Instruction& in, const RingPositions& rings);
  void load(const Task& task, const Instruction& in, const RingPositions& rings);
  uint64_t own_part(const GroupBuffers& group) const {
    return group.sharing.part_of(static_cast<uint32_t>(ranks_.rank()));
  }
  // Whether this rank writes what it has of a group's state into checkpoints.
  bool owns_state(uint32_t group) const {
    return plan_.lowering.groups[group].sharing.is_owner(static_cast<uint32_t>(ranks_.rank()));
  }
  // The state and weights that the instruction has of its shard.
  ShardView shard_view(const Task& task, const Instruction& in, const RingPositions& rings) const;

  struct PassOperands {
    SegmentOperands forward, backward;
  };
  using PlanOperands = std::array<PassOperands, kRecomputes.size()>;  // by level
  struct ByteRange {
    uint64_t begin, end;
  };
  struct RateRange {
    uint64_t begin, end;  // elements of the group
    double weight_decay, learning_rate_factor;
  };

  static std::unordered_map<const Instruction*, std::string> collective_names(const Program& program);
  void find_rates(const Group& group);
  void find_added(const UseInfo& info);

  const Plan& plan_;
  Memory memory_;
  std::vector<std::atomic<uint64_t>> high_water_;  // by tier
  std::vector<std::atomic<uint64_t>> moved_;       // by lane: bytes of transfers
  Device& device_;
  UpdateRules rules_;
  const std::vector<StatePlane> planes_;  // of a group that trains
  std::optional<LaneId> device_lane_;     // the lane of the device's tasks
  Workers optimizer_workers_;
  const Ranks ranks_;
  std::unordered_map<const Instruction*, std::string> collectives_;  // names, for errors
  std::atomic<int64_t> steps_before_{0};
  ShardHooks hooks_;

  std::vector<PlanOperands> operands_;  // by segment plan
  // By segment use and slot: the parts of the group's accumulator that ops only add to. Some are empty.
  std::vector<std::vector<std::vector<ByteRange>>> added_to_;
  std::vector<std::vector<bool>> sums_;              // by segment, output: whether forwards add to it
  std::vector<std::vector<RateRange>> rate_ranges_;  // by group
  std::vector<TensorView> views_[6];                 // of the op that the compute lane runs
  std::vector<std::span<const std::byte>> sent_;     // rows that travel, by rank
  std::vector<std::span<std::byte>> received_;
  struct Sent {
    uint64_t position = 0, bytes = 0;
  };
  std::vector<Sent> sent_to_experts_;  // by slot of kWaveRing
};

}  // namespace sluice
