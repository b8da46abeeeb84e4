#include "engine/profile/profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "engine/rates/drives.h"
#include "engine/rates/network.h"
#include "engine/run/execute/executor.h"

namespace sluice {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

bool ran(const InstructionTime& time) { return std::isfinite(time.begin); }

void begin_at_zero(Timeline& timeline) {
  double origin = kNever;
  for (const auto& body : timeline.times)
    for (const InstructionTime& t : body) origin = std::min(origin, t.begin);
  if (!std::isfinite(origin)) return;
  for (auto& body : timeline.times)
    for (InstructionTime& t : body) t.begin -= origin, t.end -= origin;
}

bool ends_step(const Body& body) {
  return std::any_of(body.tasks.begin(), body.tasks.end(),
                     [](const Task& t) { return t.kind == TaskKind::norm; });
}

// The steps that ended, in order, up to the first step that did not end.
std::vector<ProfiledStep> ended_steps(const Program& program, const Recorder& recorder,
                                      const Timeline& measured, const Timeline& predicted) {
  std::vector<ProfiledStep> steps;
  Compared before;
  for (size_t p = 0; p < recorder.bodies().size(); ++p) {
    const Recorder::Recorded& recorded = recorder.bodies()[p];
    const Body& body = program.bodies[recorded.body];
    if (recorded.step == 0 || !ends_step(body)) continue;
    const Compared end{norm_end(body, measured.times[p]), norm_end(body, predicted.times[p])};
    if (!std::isfinite(end.measured) || !std::isfinite(end.predicted)) break;
    steps.push_back({recorded.step,
                     p,
                     steps.size() < kWarmUpSteps,
                     end,
                     {end.measured - before.measured, end.predicted - before.predicted}});
    before = end;
  }
  return steps;
}

Work kind_of(const Program& program, const Body& body, const Instruction& in) {
  Work work = work_of(program, body, in);
  work.subject = 0;
  return work;
}

// Calls f(position, instruction, begin, end) for every instruction that a lane executes in [begin, end]. As
// in attribute.h, an instruction on an overlapping lane is executed from the completion of the one before.
template <typename F>
void for_each_executed(const History& h, double begin, double end, F f) {
  std::vector<double> until(h.program.machine.lanes.size(), begin);
  for (size_t p = 0; p < h.times.size(); ++p) {
    const Body& body = h.program.bodies[h.sequence[p]];
    for (uint32_t i = 0; i < body.instructions.size(); ++i) {
      if (!ran(h.times[p][i])) continue;
      double& lane = until[body.instructions[i].lane];
      const double from = std::max(h.times[p][i].begin, lane), to = std::min(h.times[p][i].end, end);
      lane = std::max(lane, h.times[p][i].end);
      if (from < to) f(p, i, from, to);
    }
  }
}

std::map<Work, double> executed_seconds(const History& h, double begin, double end) {
  std::map<Work, double> seconds;
  for_each_executed(h, begin, end, [&](size_t p, uint32_t i, double from, double to) {
    const Body& body = h.program.bodies[h.sequence[p]];
    seconds[kind_of(h.program, body, body.instructions[i])] += to - from;
  });
  return seconds;
}

// `step`: the bodies of one step.
void add_work(const Program& program, std::span<const BodyId> step, Profile& profile) {
  const auto steps = static_cast<double>(profile.counted);
  const auto measured = executed_seconds(profile.measured.history(program), profile.begin.measured,
                                         profile.end.measured),
             predicted = executed_seconds(profile.predicted.history(program), profile.begin.predicted,
                                          profile.end.predicted);
  std::map<Work, WorkRow> rows;
  for (const BodyId id : step) {
    const Body& body = program.bodies[id];
    for (const Instruction& in : body.instructions) {
      const Work work = kind_of(program, body, in);
      WorkRow& row = rows[work];
      row.work = work;
      ++row.count;
      row.bytes += counted_bytes(program, body, in);
      if (in.task != kNoTask) row.flops += body.tasks[in.task].flops;
    }
  }
  const auto of = [steps](const std::map<Work, double>& seconds, const Work& work) {
    const auto at = seconds.find(work);
    return at == seconds.end() ? 0.0 : at->second / steps;
  };
  for (auto& [work, row] : rows) {
    row.seconds = {of(measured, work), of(predicted, work)};
    profile.work.push_back(row);
  }
  std::stable_sort(profile.work.begin(), profile.work.end(), [](const WorkRow& a, const WorkRow& b) {
    return a.seconds.measured > b.seconds.measured;
  });
}

// The most bytes a second between two tiers, by the machine description: the least of what the link, the
// drives and the pools allow.
double described_bandwidth(const MachineRates& rates, const Tier& from, const Tier& to) {
  double most = kUnlimited;
  for (const LinkRates& link : rates.links) {
    if (link.from != from.name || link.to != to.name) continue;
    most = std::min(most, link.bytes_per_second);
    for (const PoolUse& use : link.sharing.per_byte)
      if (use.amount > 0) most = std::min(most, rates.pools[use.pool].capacity / use.amount);
  }
  for (const DrivePart& p : drive_parts(rates.drives, from.name))
    most = std::min(most, rates.drives[p.drive].read / p.part);
  for (const DrivePart& p : drive_parts(rates.drives, to.name))
    most = std::min(most, rates.drives[p.drive].write / p.part);
  return most;
}

void add_lanes_and_links(const Plan& plan, Profile& profile) {
  const Machine& machine = plan.program.machine;
  for (LaneId l = 0; l < machine.lanes.size(); ++l) profile.lanes.push_back({l, 0, {}});
  for (const Link& link : machine.links) profile.links.push_back({link.from, link.to, link.lane});
  for (const WorkRow& row : profile.work) {
    LaneRow& lane = profile.lanes[row.work.lane];
    lane.busy.measured += row.seconds.measured;
    lane.busy.predicted += row.seconds.predicted;
    if (!row.work.task || is_collective(*row.work.task)) lane.moved_bytes += row.bytes;
    for (LinkRow& link : profile.links)
      if (!row.work.task && link.from == row.work.from && link.to == row.work.to)
        link.bytes += row.bytes, link.seconds += row.seconds.measured;
  }
  std::erase_if(profile.links, [](const LinkRow& link) { return link.bytes == 0; });
  for (LinkRow& link : profile.links) {
    if (link.seconds > 0) link.bytes_per_second = static_cast<double>(link.bytes) / link.seconds;
    link.described = described_bandwidth(plan.rates, machine.tiers[link.from], machine.tiers[link.to]);
  }
}

// Waits for instructions that could have begun but had not are told apart by lane only, not by work.
Work wait_kind(Work work) {
  work.subject = 0;
  return work.executed ? work : Work{work.lane, false};
}

void add_stalls(const Program& program, Profile& profile) {
  const auto steps = static_cast<double>(profile.counted);
  const History measured = profile.measured.history(program), predicted = profile.predicted.history(program);
  std::map<Work, Stall> stalls;
  for (const WorkSeconds& w : waits_of(measured, profile.compute, profile.begin.measured,
                                       profile.end.measured, true)) {  // most first
    const Work kind = wait_kind(w.work);
    const auto [at, fresh] = stalls.try_emplace(kind, Stall{kind, 0, 0, w.work.subject, w.seconds / steps});
    at->second.seconds += w.seconds / steps;
    profile.idle.measured += w.seconds / steps;
  }
  for (const WorkSeconds& w :
       waits_of(predicted, profile.compute, profile.begin.predicted, profile.end.predicted, false)) {
    profile.idle.predicted += w.seconds / steps;
    if (const auto at = stalls.find(wait_kind(w.work)); at != stalls.end())
      at->second.predicted += w.seconds / steps;
  }
  for (const auto& [kind, stall] : stalls) profile.stalls.push_back(stall);
  std::stable_sort(profile.stalls.begin(), profile.stalls.end(),
                   [](const Stall& a, const Stall& b) { return a.seconds > b.seconds; });
}

}  // namespace

Timeline measured_timeline(const Program& program, const Recorder& recorder) {
  Timeline t;
  for (const Recorder::Recorded& body : recorder.bodies()) {
    t.sequence.push_back(body.body);
    t.times.emplace_back(program.bodies[body.body].instructions.size(), InstructionTime{kNever, kNever});
    for (const TraceRecord& r : recorder.records(body))
      if (!r.skipped) t.times.back()[r.instruction] = {r.begin, r.end};
  }
  begin_at_zero(t);
  return t;
}

Timeline predicted_timeline(const Program& program, const MachineRates& rates,
                            const std::vector<BodyId>& sequence) {
  if (sequence.empty()) return {};
  Timeline t{sequence, simulate(program, rates, sequence, true).times};
  begin_at_zero(t);
  return t;
}

double norm_end(const Body& body, const std::vector<InstructionTime>& times) {
  for (size_t i = body.instructions.size(); i-- > 0;) {
    const uint32_t task = body.instructions[i].task;
    if (task == kNoTask || body.tasks[task].kind != TaskKind::norm) continue;
    return ran(times[i]) ? times[i].end : kNever;
  }
  return kNever;
}

std::vector<std::vector<std::optional<Obstacle>>> obstacles_of(const History& h) {
  const LaneOrders orders = lane_orders(h.program);
  std::vector<double> idle_since(h.program.machine.lanes.size(), 0.0);
  std::vector<std::vector<std::optional<Obstacle>>> obstacles;
  for (size_t p = 0; p < h.times.size(); ++p) {
    const Body& body = h.program.bodies[h.sequence[p]];
    const auto& before = body.predecessors;
    const size_t predecessor =
        p == 0 ? 0
               : static_cast<size_t>(std::find(before.begin(), before.end(), h.sequence[p - 1]) -
                                     before.begin());
    obstacles.emplace_back(body.instructions.size());
    for (uint32_t i = 0; i < body.instructions.size(); ++i) {
      const Instruction& in = body.instructions[i];
      if (!ran(h.times[p][i])) continue;
      double last = idle_since[in.lane];
      const auto consider = [&](const Wait& w, size_t position) {
        if (w.lane == in.lane || w.count == 0) return;
        const uint32_t other = orders[h.sequence[position]][w.lane][w.count - 1];
        if (!ran(h.times[position][other]) || h.times[position][other].end <= last) return;
        last = h.times[position][other].end;
        obstacles[p][i] = {position, other, h.times[p][i].begin - idle_since[in.lane]};
      };
      for (const Wait& w : in.waits) consider(w, p);
      if (p > 0 && predecessor < in.waits_before.size())
        for (const Wait& w : in.waits_before[predecessor]) consider(w, p - 1);
      if (p > 0 && orders[h.sequence[p]][in.lane].front() == i)
        consider(when_decided(h.program.bodies[h.sequence[p - 1]]), p - 1);
      idle_since[in.lane] = std::max(idle_since[in.lane], h.times[p][i].end);
    }
  }
  return obstacles;
}

std::vector<WorkSeconds> waits_of(const History& history, LaneId lane, double begin, double end,
                                  bool by_subject) {
  std::vector<Charge> all;
  for (const Idle& idle : idle_intervals(history, lane)) {
    const std::vector<Charge> inside = within(idle.charges, begin, end);
    all.insert(all.end(), inside.begin(), inside.end());
  }
  return sum_by_work(history, all, by_subject);
}

Profile make_profile(const Plan& plan, const Recorder& recorder) {
  const Program& program = plan.program;
  Profile profile;
  profile.measured = measured_timeline(program, recorder);
  profile.predicted = predicted_timeline(program, plan.rates, profile.measured.sequence);
  profile.compute = compute_lane(program.machine);
  profile.steps = ended_steps(program, recorder, profile.measured, profile.predicted);
  profile.occupancy = occupancy(program, profile.measured.sequence, profile.measured.times);
  if (profile.steps.size() <= kWarmUpSteps) return profile;
  profile.counted = profile.steps.size() - kWarmUpSteps;
  profile.begin = profile.steps[kWarmUpSteps - 1].end;
  profile.end = profile.steps.back().end;
  const auto steps = static_cast<double>(profile.counted);
  profile.step_seconds = {(profile.end.measured - profile.begin.measured) / steps,
                          (profile.end.predicted - profile.begin.predicted) / steps};
  const std::span<const BodyId> sequence(profile.measured.sequence);
  const size_t waves = plan.lowering.waves;
  add_work(program, sequence.subspan(profile.steps.back().position + 1 - waves, waves), profile);
  add_lanes_and_links(plan, profile);
  add_stalls(program, profile);
  return profile;
}

}  // namespace sluice
