// The model:
// 1. An instruction starts when the one before on its lane has completed (on an overlapping lane: started),
//    its waits are met, and every body before the previous one has completed. After a body that guesses, the
//    next one is issued when it is known whether the guess was right.
// 2. First its fixed seconds pass (a task's overhead, a link's latency), without taking from any pool. Then
//    its work flows. Alone the work would take T, the longest of: the work at the lane's rates
//    (machine_rates.h), a collective on the network (network.h), bytes at the link's and drives' rates, and
//    what it needs of each pool at the pool's capacity. Alone it takes the fraction need / (T * capacity) of
//    a pool. If it occupies n > 1 times a pool's capacity, it takes n times as long, and all of the pool.
//    jobs.h works this out for all instructions before the first starts.
// 3. An overlapping lane moves the bytes of one instruction at a time, in order; only fixed seconds overlap
//    with the instructions before. So completions are in order, and a drive's rate is never divided among the
//    requests of one lane.
// 4. Whatever flows at a moment flows at a share x <= 1 of its speed alone. All shares rise together; when a
//    pool is full, its users stay at that share and the others go on (progressive filling, Bertsekas &
//    Gallager, Data Networks, 6.5.2).
// 5. A drive has a pool for reads and one for writes. While reads and writes both flow, the capacities of
//    these pools shrink to the drive's duplex rates. A drive moves its drive share of every copy (drives.h).
// 6. Time jumps to the next moment at which fixed seconds have passed or work is done.
#include "engine/simulate/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/base/error.h"
#include "engine/simulate/jobs.h"

namespace sluice {

namespace {

struct Started {
  uint32_t position, instruction;
  double begin;
};

struct LaneState {
  LaneId id = 0;
  bool overlapping = false;
  uint32_t position = 0, index = 0;  // next to start: position in the sequence, index on the lane
  uint64_t completed = 0;
  LaneId blocked_lane = 0;  // the next cannot start before blocked_lane has completed blocked_count
  uint64_t blocked_count = 0;
  std::vector<Started> queue;  // started and not completed, from `head`
  size_t head = 0;
  double ready = 0, left = 0;  // of the queue's head: end of its fixed seconds; seconds left if it is alone
  const Job* job = nullptr;    // of the queue's head; nullptr: nothing started
  bool flows = false;
  double share = 0, busy_until = 0;
  size_t full_pool = 0;  // the pool that keeps the share below 1
};

class Run {
 public:
  Run(const Program& program, const std::vector<CompiledBody>& bodies, size_t pools,
      const std::vector<DrivePools>& drives, std::span<const BodyId> sequence, bool with_times)
      : program_(program),
        bodies_(bodies),
        drives_(drives),
        sequence_(sequence),
        with_times_(with_times),
        lanes_(program.machine.lanes.size()),
        demand_(pools),
        room_(pools) {
    for (LaneId l = 0; l < lanes_.size(); ++l) {
      lanes_[l].id = l;
      lanes_[l].overlapping = program.machine.lanes[l].overlapping;
    }
    result_.lane_busy.assign(lanes_.size(), 0);
    result_.lane_slowed.assign(lanes_.size(), std::vector<double>(pools - drives.size()));
    if (with_times)
      for (const BodyId b : sequence) result_.times.emplace_back(program.bodies[b].instructions.size());
    bases_.emplace_back(lanes_.size());
    for (size_t s = 0; s < sequence.size(); ++s) {
      before_.push_back(s == 0 ? 0 : predecessor_index(sequence[s - 1], sequence[s]));
      decided_.push_back(s == 0 ? Wait{} : when_decided(program.bodies[sequence[s - 1]]));
      std::vector<uint64_t> base = bases_.back();
      for (size_t l = 0; l < lanes_.size(); ++l) base[l] += bodies_[sequence[s]].by_lane[l].size();
      bases_.push_back(std::move(base));
    }
  }

  SimulationResult run() {
    while (true) {
      start_all();
      share_pools();
      double next = kUnlimited;
      for (const LaneState* lane : busy_)
        next = std::min(next, lane->flows ? now_ + lane->left / lane->share : lane->ready);
      if (next == kUnlimited) break;
      advance(std::max(next, now_));
    }
    for (size_t l = 0; l < lanes_.size(); ++l)
      if (lanes_[l].completed != bases_.back()[l])
        throw std::invalid_argument("the waits of the program form a circle: lane " +
                                    program_.machine.lanes[l].name + " never ends");
    result_.seconds = now_;
    return std::move(result_);
  }

 private:
  size_t predecessor_index(BodyId before, BodyId body) const {
    const std::vector<BodyId>& all = program_.bodies[body].predecessors;
    const auto at = std::find(all.begin(), all.end(), before);
    if (at == all.end())
      throw std::invalid_argument("body " + program_.bodies[body].name + " cannot follow " +
                                  program_.bodies[before].name);
    return static_cast<size_t>(at - all.begin());
  }

  // An instruction can only start when another has completed.
  void start_all() {
    if (!std::exchange(completed_, false)) return;
    for (LaneState& lane : lanes_)
      while (start_next(lane)) {
      }
  }

  bool start_next(LaneState& lane) {
    if (lane.job != nullptr && !lane.overlapping) return false;
    if (lanes_[lane.blocked_lane].completed < lane.blocked_count) return false;
    while (lane.position < sequence_.size() &&
           lane.index == bodies_[sequence_[lane.position]].by_lane[lane.id].size()) {
      ++lane.position;
      lane.index = 0;
    }
    if (lane.position == sequence_.size()) return false;
    const BodyId body = sequence_[lane.position];
    const uint32_t instruction = bodies_[body].by_lane[lane.id][lane.index];
    if (blocked(lane, program_.bodies[body].instructions[instruction])) return false;
    lane.queue.push_back({lane.position, instruction, now_});
    ++lane.index;
    if (lane.job == nullptr) begin_head(lane);
    return true;
  }

  // Notes the first unmet condition, so that the lane is looked at again only when this condition is met.
  bool blocked(LaneState& lane, const Instruction& instruction) const {
    const auto needs = [&](LaneId other, uint64_t count) {
      lane.blocked_lane = other;
      lane.blocked_count = count;
      return lanes_[other].completed < count;
    };
    const uint32_t s = lane.position;
    if (s >= 1 && lane.index == 0 &&
        needs(decided_[s].lane, bases_[s - 1][decided_[s].lane] + decided_[s].count))
      return true;
    if (s >= 2 && lane.index == 0)
      for (size_t l = 0; l < lanes_.size(); ++l)
        if (needs(static_cast<LaneId>(l), bases_[s - 1][l])) return true;
    for (const Wait& w : instruction.waits)
      if (needs(w.lane, bases_[s][w.lane] + w.count)) return true;
    if (s >= 1 && !instruction.waits_before.empty())
      for (const Wait& w : instruction.waits_before[before_[s]])
        if (needs(w.lane, bases_[s - 1][w.lane] + w.count)) return true;
    return false;
  }

  void begin_head(LaneState& lane) {
    const Started& s = lane.queue[lane.head];
    lane.job = &bodies_[sequence_[s.position]].jobs[s.instruction];
    lane.ready = s.begin + lane.job->fixed;
    lane.left = lane.job->alone;
    lane.flows = lane.ready <= now_;
    changed_ = true;
  }

  const std::vector<PoolFraction>& uses_of(const LaneState& lane) const {
    return bodies_[sequence_[lane.queue[lane.head].position]].uses;
  }

  // Step 4. Pools that nobody fills leave every share at 1.
  void share_pools() {
    if (!changed_) return;
    changed_ = false;
    busy_.clear();
    std::fill(demand_.begin(), demand_.end(), 0.0);
    std::fill(room_.begin(), room_.end(), 1.0);
    rising_.clear();
    for (LaneState& lane : lanes_) {
      if (lane.job == nullptr) continue;
      busy_.push_back(&lane);
      if (!lane.flows) continue;
      lane.share = 1;
      if (lane.job->first_use == lane.job->last_use) continue;
      rising_.push_back(&lane);
      for (uint32_t u = lane.job->first_use; u < lane.job->last_use; ++u)
        demand_[uses_of(lane)[u].pool] += uses_of(lane)[u].fraction;
    }
    for (const DrivePools& d : drives_)
      if (demand_[d.read] > 0 && demand_[d.write] > 0) {
        room_[d.read] = d.read_share;
        room_[d.write] = d.write_share;
      }
    double level = 0;
    while (fill_one_pool(level)) {
    }
  }

  // Raises the shares from `level` until a pool is full, and takes that pool's users out. False when no pool
  // fills up before share 1.
  bool fill_one_pool(double& level) {
    constexpr double kFull = 1 - 1e-12;  // a pool that is full at share 1 slows nobody down
    double share = kFull;
    size_t full = demand_.size();
    for (size_t p = 0; p < demand_.size(); ++p)
      if (demand_[p] > 0 && room_[p] < share * demand_[p]) {
        share = room_[p] / demand_[p];
        full = p;
      }
    if (full == demand_.size()) return false;
    share = level = std::max(level, share);  // by rounding, `share` may be below the previous level
    for (size_t r = 0; r < rising_.size();) {
      LaneState& lane = *rising_[r];
      const PoolFraction* uses = uses_of(lane).data();
      const PoolFraction *begin = uses + lane.job->first_use, *end = uses + lane.job->last_use;
      if (std::none_of(begin, end, [&](const PoolFraction& u) { return u.pool == full; })) {
        ++r;
        continue;
      }
      lane.share = share;
      lane.full_pool = full;
      for (const PoolFraction* u = begin; u < end; ++u) {
        demand_[u->pool] -= u->fraction;
        room_[u->pool] = std::max(0.0, room_[u->pool] - share * u->fraction);
      }
      rising_.erase(rising_.begin() + static_cast<std::ptrdiff_t>(r));
    }
    demand_[full] = 0;
    return true;
  }

  void advance(double to) {
    const double passed = to - now_;
    now_ = to;
    for (LaneState* const busy : busy_) {
      LaneState& lane = *busy;
      if (!lane.flows) {
        lane.flows = lane.ready <= now_;
        changed_ |= lane.flows;
        if (!lane.flows || lane.left > 0) continue;
      } else {
        lane.left -= passed * lane.share;
        if (lane.share < 1)
          result_.lane_slowed[lane.id][shown_pool(lane.full_pool)] += passed * (1 - lane.share);
      }
      // What rounding leaves counts as done: 1e-12 of the job, or what is too short to move the clock.
      if (lane.left <= 1e-12 * lane.job->alone || now_ + lane.left / lane.share <= now_) complete(lane);
    }
  }

  // A drive's two pools are one in the result.
  size_t shown_pool(size_t pool) const {
    const size_t shared = demand_.size() - 2 * drives_.size();
    return pool < shared ? pool : shared + (pool - shared) / 2;
  }

  void complete(LaneState& lane) {
    const Started& s = lane.queue[lane.head];
    result_.lane_busy[lane.id] += now_ - std::max(s.begin, lane.busy_until);
    lane.busy_until = now_;
    if (with_times_) result_.times[s.position][s.instruction] = {s.begin, now_};
    ++lane.completed;
    changed_ = completed_ = true;
    lane.job = nullptr;
    if (++lane.head < lane.queue.size()) return begin_head(lane);
    lane.queue.clear();
    lane.head = 0;
  }

  const Program& program_;
  const std::vector<CompiledBody>& bodies_;
  const std::vector<DrivePools>& drives_;
  const std::span<const BodyId> sequence_;
  const bool with_times_;
  std::vector<LaneState> lanes_;
  // By position (and one past the last) and lane: instructions of all bodies before.
  std::vector<std::vector<uint64_t>> bases_;
  std::vector<size_t> before_;         // by position: index of the body before among the predecessors
  std::vector<Wait> decided_;          // by position: what the body before must do before this one is issued
  std::vector<double> demand_, room_;  // by pool
  std::vector<LaneState*> busy_, rising_;  // in order: lanes that run something; lanes with rising shares
  double now_ = 0;
  bool changed_ = false, completed_ = true;  // since shares were found; since start_all()
  SimulationResult result_;
};

class Simulator {
 public:
  Simulator(const Program& program, const MachineRates& rates, std::span<const BodyId> used)
      : program_(program), compiler_(program, rates), bodies_(program.bodies.size()) {
    std::vector<bool> done(program.bodies.size());
    for (const BodyId b : used) {
      if (b >= program.bodies.size()) throw std::invalid_argument(fmt::format("there is no body {}", b));
      if (!done[b]) bodies_[b] = compiler_.compile(program.bodies[b]);
      done[b] = true;
    }
  }
  SimulationResult run(std::span<const BodyId> sequence, bool with_times) const {
    return Run(program_, bodies_, compiler_.pools(), compiler_.drives(), sequence, with_times).run();
  }

 private:
  const Program& program_;
  JobCompiler compiler_;
  std::vector<CompiledBody> bodies_;
};

}  // namespace

SimulationResult simulate(const Program& program, const MachineRates& rates, std::span<const BodyId> sequence,
                          bool with_times) {
  return Simulator(program, rates, sequence).run(sequence, with_times);
}

Loads loads_of(const Program& program, const MachineRates& rates, std::span<const BodyId> bodies,
               const Counts& counts) {
  JobCompiler compiler(program, rates);
  std::vector<double> pools(compiler.pools());
  Loads loads;
  loads.lanes.resize(program.machine.lanes.size());
  for (const BodyId id : bodies) {
    const Body& body = program.bodies[id];
    const CompiledBody compiled = compiler.compile(body);
    for (size_t i = 0; i < compiled.jobs.size(); ++i) {
      const Job& job = compiled.jobs[i];
      if (counts && !counts(body, body.instructions[i])) continue;
      const LaneId lane = body.instructions[i].lane;
      loads.lanes[lane] += job.alone + (program.machine.lanes[lane].overlapping ? 0 : job.fixed);
      for (uint32_t u = job.first_use; u < job.last_use; ++u)
        pools[compiled.uses[u].pool] += compiled.uses[u].fraction * job.alone;
    }
  }
  for (const DrivePools& d : compiler.drives()) {
    const double read = pools[d.read], write = pools[d.write];
    const double both = std::min(read / d.read_share, write / d.write_share);
    // Seconds saved in each second in which reads and writes both flow.
    const double gain = std::max(0.0, d.read_share + d.write_share - 1);
    loads.drives.push_back(read + write - gain * both);
  }
  pools.resize(rates.pools.size());
  loads.pools = std::move(pools);
  return loads;
}

uint64_t bytes_to_files(const Program& program, std::span<const BodyId> bodies) {
  uint64_t bytes = 0;
  for (const BodyId body : bodies)
    for (const Instruction& in : program.bodies[body].instructions)
      if (in.task == kNoTask && program.machine.tiers[in.places[1].tier].file)
        bytes += operand_bytes(program.buffers[in.operands[0].buffer], in.operands[0]);
  return bytes;
}

std::vector<BodyId> repeated(std::span<const BodyId> step, size_t times) {
  std::vector<BodyId> sequence;
  for (size_t t = 0; t < times; ++t) sequence.insert(sequence.end(), step.begin(), step.end());
  return sequence;
}

double steady_step_seconds(const Program& program, const MachineRates& rates, std::span<const BodyId> step,
                           uint32_t warm, uint32_t more) {
  CHECK(warm > 0 && more > 0, "a steady step needs a run before and a run after");
  const std::vector<BodyId> sequence = repeated(step, warm + more);
  const Simulator simulator(program, rates, sequence);
  const double all = simulator.run(sequence, false).seconds;
  return (all - simulator.run(std::span(sequence).first(warm * step.size()), false).seconds) / more;
}

}  // namespace sluice
