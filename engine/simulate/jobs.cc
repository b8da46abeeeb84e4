#include "engine/simulate/jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/rates/network.h"
#include "engine/simulate/simulate.h"

namespace sluice {

namespace {

double op_seconds(const LaneRates& lane, DType precision, const OpWork& work) {
  const auto bytes = static_cast<double>(work.bytes);
  for (const OpRates& row : lane.ops)
    if (row.kind == work.kind) return work.flops / row.flops.of(precision) + bytes / row.bytes.of(precision);
  return std::max(work.flops / lane.flops.of(precision), bytes / lane.bytes_per_second);
}

// A checkpoint goes to a drive that writes as fast as the description's first drive, unless the lane has a
// rate.
double bytes_rate(const LaneRates& lane, const MachineRates& rates, const Task& task) {
  if (task.kind != TaskKind::save || lane.bytes_per_second < kUnlimited) return lane.bytes_per_second;
  return rates.drives.empty() ? 0 : rates.drives.front().write;
}

// Seconds of a task at the rates of the lane, or the network, without its overhead.
double seconds_at(const LaneRates& lane, const Program& program, const MachineRates& rates,
                  const Task& task) {
  const double of_network = network_seconds(program, rates.network, task);
  if (task.pass == kNoPass)
    return std::max({task.flops / lane.flops.of(rates.precision),
                     static_cast<double>(task.bytes) / bytes_rate(lane, rates, task), of_network});
  double seconds = 0;
  for (const OpWork& work : program.passes[task.pass].ops) seconds += op_seconds(lane, rates.precision, work);
  return std::max(seconds, of_network);
}

}  // namespace

double unit_seconds(const Program& program, const MachineRates& rates, const Task& task, const Unit& unit) {
  const Machine& machine = program.machine;
  const LaneRates* lane = find_lane(rates, machine.lanes[unit.lane].name, machine.tiers[unit.tier].name);
  return lane ? lane->overhead_seconds + seconds_at(*lane, program, rates, task) : kUnlimited;
}

double task_seconds(const Program& program, const MachineRates& rates, const Task& task) {
  for (const Unit& unit : program.machine.units) {
    if (unit.kind != task.kind) continue;
    const double seconds = unit_seconds(program, rates, task, unit);
    if (seconds < kUnlimited) return seconds;
  }
  return 0;
}

JobCompiler::JobCompiler(const Program& program, const MachineRates& rates)
    : program_(program), rates_(rates) {
  for (const PoolRate& p : rates.pools) capacities_.push_back(p.capacity);
  for (const DriveRates& d : rates.drives) {
    const DuplexRates both = duplex_rates(d);
    const auto pool = static_cast<uint32_t>(capacities_.size());
    drives_.push_back({pool, pool + 1, both.read / d.read, both.write / d.write});
    capacities_.push_back(d.read);
    capacities_.push_back(d.write);
  }
  const std::vector<Tier>& tiers = program.machine.tiers;
  for (const Lane& lane : program.machine.lanes)
    for (const Tier& tier : tiers) lane_rates_.push_back(find_lane(rates, lane.name, tier.name));
  for (const Tier& from : tiers)
    for (const Tier& to : tiers) link_rates_.push_back(find_link(from.name, to.name));
  for (const Tier& tier : tiers) tier_drives_.push_back(drive_parts(rates.drives, tier.name));
}

CompiledBody JobCompiler::compile(const Body& body) {
  CompiledBody out;
  out.by_lane.resize(program_.machine.lanes.size());
  out.jobs.reserve(body.instructions.size());
  out.uses.reserve(3 * body.instructions.size());
  for (uint32_t i = 0; i < body.instructions.size(); ++i) {
    const Instruction& instruction = body.instructions[i];
    out.by_lane[instruction.lane].push_back(i);
    needs_.clear();
    Job job =
        instruction.task == kNoTask ? copy(instruction) : task(instruction, body.tasks[instruction.task]);
    for (const PoolUse& u : *occupies_) job.alone *= std::max(1.0, u.amount / capacities_[u.pool]);
    for (const Need& n : needs_) job.alone = std::max(job.alone, n.seconds);
    job.first_use = static_cast<uint32_t>(out.uses.size());
    add_uses(job.alone, out.uses);
    job.last_use = static_cast<uint32_t>(out.uses.size());
    out.jobs.push_back(job);
  }
  return out;
}

const LinkRates* JobCompiler::find_link(const std::string& from, const std::string& to) const {
  for (const LinkRates& l : rates_.links)
    if (l.from == from && l.to == to) return &l;
  return nullptr;
}

void JobCompiler::lacks(const std::string& what) const {
  throw Error(
      ExitCode::usage,
      fmt::format("The machine description `{}` has no rates for {}.", printable(rates_.name),
                  printable(what)),
      "Measure a description on all that the run will use (several ranks: `mpirun -n 2 sluice bench`), add "
      "them as docs/machine.md describes, or leave out --machine.");
}

Job JobCompiler::task(const Instruction& instruction, const Task& task) {
  const TierId tier = instruction.places.empty() ? TierId{0} : instruction.places.front().tier;
  const LaneRates* lane = lane_rates_[instruction.lane * program_.machine.tiers.size() + tier];
  if (lane == nullptr) lacks("tasks on lane " + program_.machine.lanes[instruction.lane].name);
  const auto bytes = static_cast<double>(task.bytes);
  add_needs(lane->sharing, bytes);
  return {lane->overhead_seconds, seconds_at(*lane, program_, rates_, task)};
}

Job JobCompiler::copy(const Instruction& instruction) {
  const TierId from = instruction.places[0].tier, to = instruction.places[1].tier;
  const std::vector<Tier>& tiers = program_.machine.tiers;
  const LinkRates* link = link_rates_[from * tiers.size() + to];
  if (link == nullptr) lacks("copies from " + tiers[from].name + " to " + tiers[to].name);
  const Operand& o = instruction.operands[0];
  const auto bytes = static_cast<double>(operand_bytes(program_.buffers[o.buffer], o));
  add_needs(link->sharing, bytes);
  for (const DrivePart& p : tier_drives_[from]) add_drive_need(drives_[p.drive].read, bytes * p.part);
  for (const DrivePart& p : tier_drives_[to]) add_drive_need(drives_[p.drive].write, bytes * p.part);
  return {link->latency_seconds, bytes / link->bytes_per_second};
}

void JobCompiler::add_needs(const Sharing& sharing, double bytes) {
  for (const PoolUse& u : sharing.per_byte)
    needs_.push_back({u.pool, bytes * u.amount / capacities_[u.pool]});
  occupies_ = &sharing.occupies;
}

void JobCompiler::add_uses(double alone, std::vector<PoolFraction>& uses) const {
  if (alone <= 0) return;
  const auto begin = static_cast<std::ptrdiff_t>(uses.size());
  const auto add = [&](uint32_t pool, double fraction) {
    const auto at =
        std::find_if(uses.begin() + begin, uses.end(), [&](const PoolFraction& u) { return u.pool == pool; });
    if (at != uses.end())
      at->fraction = std::min(1.0, at->fraction + fraction);
    else
      uses.push_back({pool, std::min(1.0, fraction)});
  };
  for (const Need& n : needs_) add(n.pool, n.seconds / alone);
  for (const PoolUse& u : *occupies_) add(u.pool, u.amount / capacities_[u.pool]);
}

}  // namespace sluice
