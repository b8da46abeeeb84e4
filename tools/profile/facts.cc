#include "tools/profile/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "engine/rates/network.h"
#include "tools/page/html.h"
#include "tools/plan/advice.h"
#include "tools/profile/experts.h"
#include "tools/profile/names.h"
#include "tools/profile/text.h"

namespace sluice {

namespace {

using nlohmann::ordered_json;

constexpr size_t kLaneInstructionsMax = 150000;  // in the page: about ten megabytes

ordered_json json_of(const Compared& c) { return {{"measured", c.measured}, {"predicted", c.predicted}}; }

const std::string& lane_name(const Plan& plan, LaneId lane) { return plan.program.machine.lanes[lane].name; }

// The name of the layer, parameter group or buffer that was waited for; "" if it has none.
std::string subject_name(const Plan& plan, const Work& work, uint32_t subject) {
  if (!work.task) return plan.program.buffers[subject].name;
  if (is_of_segment(*work.task)) return fmt::format("layer {}", plan.lowering.uses[subject].layer);
  switch (*work.task) {
    case TaskKind::norm:
    case TaskKind::set_scalars:
      return "";
    default:
      return plan.model.groups[subject].name;
  }
}

ChangeWords words_told(const ProfiledRun& run, const Change& change) {
  ChangeWords words = words_of(change, run.budgets, run.plan.lowering.mesh.ranks());
  if (!words.besides.empty()) words.words += ", more than is here,";
  return words;
}

// A sentence about the change that removes most of a stall; "" if no change that was tried removes a tenth of
// the stall.
std::string remedy_of(const ProfiledRun& run, const Stall& stall, const std::vector<WorkSeconds>& now) {
  const auto seconds = [&](const std::vector<WorkSeconds>& waits) {
    for (const WorkSeconds& w : waits)
      if (w.work == stall.work) return w.seconds;
    return 0.0;
  };
  if (!run.changes) return "";
  const WhatIf* best = nullptr;
  double removed = 0.1 * seconds(now);
  for (const WhatIf& change : *run.changes) {
    const double less = seconds(now) - seconds(change.outlook.waits);
    if (change.change.kind == Change::Kind::batch || less <= removed) continue;
    best = &change;
    removed = less;
  }
  if (!best) return "";
  const double share = removed / seconds(now);
  return fmt::format("{} would remove {} of it (a predicted {:.0f} %)", words_told(run, best->change).words,
                     readable_seconds(stall.seconds * share), 100 * share);
}

std::string stall_sentence(const ProfiledRun& run, const Stall& stall, const std::string& remedy) {
  const Plan& plan = run.plan;
  std::string text = fmt::format("Compute waited {} of a step's {} for ", readable_seconds(stall.seconds),
                                 readable_seconds(run.profile.step_seconds.measured));
  const std::string name = work_name(plan.program, stall.work), &lane = lane_name(plan, stall.work.lane);
  if (!stall.work.executed)
    return text + fmt::format("the thread of {}: it could have begun, but slept or had no processor.", lane);
  text += fmt::format("{}: {} was busy", name, lane);
  const std::string subject = subject_name(plan, stall.work, stall.subject);
  if (!subject.empty() && stall.subject_seconds < 0.999 * stall.seconds)
    text += fmt::format(", longest with {} ({})", subject, readable_seconds(stall.subject_seconds));
  return text + (remedy.empty() ? "." : "; " + remedy + ".");
}

// A sentence that says what keeps a step from being shorter.
std::string bound_sentence(const ProfiledRun& run) {
  const Profile& p = run.profile;
  const double step = p.step_seconds.measured;
  const auto busy = [&](const LaneRow& lane) { return lane.busy.measured / step; };
  const LaneRow& busiest = *std::max_element(
      p.lanes.begin(), p.lanes.end(), [&](const LaneRow& a, const LaneRow& b) { return busy(a) < busy(b); });
  const std::string& name = lane_name(run.plan, busiest.lane);
  constexpr double kBottleneck = 0.9;
  if (busy(busiest) >= kBottleneck)
    return fmt::format("The bottleneck is {}: it is busy {:.0f} % of a step{}.", name, 100 * busy(busiest),
                       busiest.lane == p.compute
                           ? ""
                           : fmt::format(", and compute waits {:.0f} %", 100 * p.idle.measured / step));
  std::string text = fmt::format("No lane alone is the bottleneck: {} is the busiest, {:.0f} % of a step",
                                 name, 100 * busy(busiest));
  text += fmt::format("; compute waits {:.0f} %", 100 * p.idle.measured / step);
  if (!p.stalls.empty() && !p.stalls.front().work.executed)
    text += fmt::format(", most of all for the thread of {} to wake, or for a processor",
                        lane_name(run.plan, p.stalls.front().work.lane));
  else if (!p.stalls.empty())
    text += fmt::format(", most of all for {} on {}", work_name(run.plan.program, p.stalls.front().work),
                        lane_name(run.plan, p.stalls.front().work.lane));
  return text + ".";
}

// If the prediction is far off, says where the difference lies, and gives possible reasons. Else "".
std::string hint_sentence(const ProfiledRun& run) {
  constexpr double kFarOff = 0.2;  // of the measured step
  const Profile& p = run.profile;
  if (std::abs(p.step_seconds.error()) <= kFarOff) return "";
  const auto more = [](const Compared& c) {
    return fmt::format("{} {}", readable_seconds(std::abs(c.measured - c.predicted)),
                       c.measured < c.predicted ? "shorter" : "longer");
  };
  return fmt::format(
      "The prediction is far off: {} works {} a step and waits {} than predicted. Other processes took "
      "processors or drives meanwhile, or the machine description ({}) does not describe this machine in its "
      "present state. sluice bench measures it, for --machine. Until then, predictions of what would be "
      "faster are as uncertain.",
      lane_name(run.plan, p.compute), more(p.lanes[p.compute].busy), more(p.idle), run.plan.rates.name);
}

void add_run(const ProfiledRun& run, ordered_json& out) {
  const Options& o = run.options;
  const Plan& plan = run.plan;
  out["began"] = run.origin.time;
  out["host_name"] = run.origin.host_name;
  out["sluice_version"] = run.origin.version;
  out["command"] = o.profile.command;
  out["state"] = run.error ? "failed" : run.code == ExitCode::stopped ? "stopped" : "done";
  out["exit_code"] = static_cast<int>(run.code);
  out["error"] = nullptr;
  if (run.error) out["error"] = {{"what", run.error->what()}, {"remedy", run.error->remedy()}};
  out["model"] = o.model.model;
  out["parameters"] = parameter_count(plan.model);
  out["device"] = option_values(o, *find_option("device")).front();
  out["precision"] = option_values(o, *find_option("precision")).front();
  out["machine"] = plan.rates.name;
  out["batch"] = o.batch.batch;
  out["micro_batch"] = plan.model.micro_batch;
  out["sequence"] = plan.model.sequence;
  out["ranks"] = plan.lowering.mesh.ranks();
  out["record_bytes"] = run.recorder.bytes();
}

void add_steps(const ProfiledRun& run, ordered_json& out) {
  out["steps"] = ordered_json::array();
  for (const ProfiledStep& s : run.profile.steps) {
    ordered_json row{{"step", s.step}, {"warms_up", s.warms_up}, {"seconds", json_of(s.seconds)}};
    for (const StepMetrics& m : run.steps)
      if (m.step == s.step && std::isfinite(m.loss)) row["loss"] = m.loss;
    out["steps"].push_back(std::move(row));
  }
  out["steps_asked"] = run.options.profile.steps;
  out["steps_counted"] = run.profile.counted;
}

void add_lanes(const ProfiledRun& run, ordered_json& out) {
  const Machine& machine = run.plan.program.machine;
  out["lanes"] = ordered_json::array();
  for (const LaneRow& l : run.profile.lanes)
    out["lanes"].push_back({{"lane", lane_name(run.plan, l.lane)},
                            {"overlapping", run.plan.program.machine.lanes[l.lane].overlapping},
                            {"busy_seconds", json_of(l.busy)},
                            {"moved_bytes", l.moved_bytes}});
  out["work"] = ordered_json::array();
  for (const WorkRow& w : run.profile.work)
    out["work"].push_back({{"name", work_name(run.plan.program, w.work)},
                           {"lane", lane_name(run.plan, w.work.lane)},
                           {"instructions", w.count},
                           {"bytes", w.bytes},
                           {"flops", w.flops},
                           {"seconds", json_of(w.seconds)}});
  out["links"] = ordered_json::array();
  for (const LinkRow& l : run.profile.links) {
    ordered_json row{{"from", machine.tiers[l.from].name},
                     {"to", machine.tiers[l.to].name},
                     {"lane", lane_name(run.plan, l.lane)},
                     {"bytes", l.bytes},
                     {"seconds", l.seconds},
                     {"bytes_per_second", l.bytes_per_second},
                     {"described", nullptr}};
    if (std::isfinite(l.described)) row["described"] = l.described;
    out["links"].push_back(std::move(row));
  }
}

void add_stalls(const ProfiledRun& run, ordered_json& out) {
  const Profile& p = run.profile;
  const std::vector<WorkSeconds> now = outlook_of(run.plan).waits;
  out["idle_seconds"] = json_of(p.idle);
  out["stalls"] = ordered_json::array();
  for (const Stall& s : p.stalls) {
    const std::string remedy = remedy_of(run, s, now);
    out["stalls"].push_back({{"sentence", stall_sentence(run, s, remedy)},
                             {"work", work_name(run.plan.program, s.work)},
                             {"lane", lane_name(run.plan, s.work.lane)},
                             {"executed", s.work.executed},
                             {"longest", s.work.executed ? subject_name(run.plan, s.work, s.subject) : ""},
                             {"seconds", {{"measured", s.seconds}, {"predicted", s.predicted}}},
                             {"remedy", remedy}});
  }
}

void add_changes(const ProfiledRun& run, ordered_json& out) {
  const double now = tokens_of(run.plan) / run.plan.step_seconds;
  out["unchanged"] = {{"step_seconds", run.plan.step_seconds}, {"tokens_per_second", now}};
  out["changes_planned"] = run.changes.has_value();
  out["changes"] = ordered_json::array();
  if (!run.changes) return;
  for (size_t i = 0; i < run.changes->size(); ++i) {
    const WhatIf& w = (*run.changes)[i];
    const ChangeWords words = words_told(run, w.change);
    out["changes"].push_back({{"change", words.words},
                              {"arguments", words.arguments()},
                              {"step_seconds", w.outlook.step_seconds},
                              {"tokens_per_second", w.outlook.tokens_per_second},
                              {"gain", w.outlook.tokens_per_second / now - 1}});
  }
}

ordered_json points_of(const std::vector<OccupancyPoint>& curve) {
  ordered_json points = ordered_json::array();
  for (const OccupancyPoint& point : curve) {
    ordered_json row = ordered_json::array({point.seconds});
    for (const uint64_t bytes : point.bytes) row.push_back(bytes);
    points.push_back(std::move(row));
  }
  return points;
}

void add_occupancy(const ProfiledRun& run, ordered_json& out) {
  const Program& program = run.plan.program;
  for (size_t c = 0; c < kClassCount; ++c)
    out["classes"].push_back(buffer_class_name(static_cast<BufferClass>(c)));
  out["occupancy"] = ordered_json::array();
  for (size_t t = 0; t < run.profile.occupancy.size(); ++t)
    out["occupancy"].push_back(
        {{"tier", program.machine.tiers[t].name},
         {"budget", run.budgets.by_tier()[t]->limit},
         {"reserve", run.budgets.by_tier()[t]->limit - program.machine.tiers[t].capacity},
         {"allowed", program.machine.tiers[t].capacity},
         {"arena", program.arena_bytes[t]},
         {"points", points_of(run.profile.occupancy[t])}});
}

ordered_json json_of(const std::vector<NameMeaning>& rows) {
  ordered_json out = ordered_json::array();
  for (const NameMeaning& row : rows) out.push_back({{"name", row.name}, {"meaning", row.meaning}});
  return out;
}

void add_names(const ProfiledRun& run, ordered_json& out) {
  out["instruction_names"] = json_of(instruction_names());
  out["buffer_names"] = json_of(buffer_names(run.plan.program));
}

}  // namespace

ordered_json profile_facts(const ProfiledRun& run) {
  ordered_json out;
  out["version"] = 2;
  add_run(run, out);
  add_steps(run, out);
  if (run.profile.counted > 0) {
    const Compared& step = run.profile.step_seconds;
    const double tokens = tokens_of(run.plan);
    out["begin_seconds"] = run.profile.begin.measured;
    out["end_seconds"] = run.profile.end.measured;
    out["step_seconds"] = json_of(step);
    out["prediction_error"] = step.error();
    out["tokens_per_second"] = json_of({tokens / step.measured, tokens / step.predicted});
    out["bound"] = bound_sentence(run);
    out["hint"] = hint_sentence(run);
    add_lanes(run, out);
    add_stalls(run, out);
    add_changes(run, out);
  }
  out["experts"] = expert_facts(run.steps);
  add_occupancy(run, out);
  add_names(run, out);
  return out;
}

namespace {

// Numbers distinct texts in order of their first use.
class Names {
 public:
  size_t of(const std::string& name) {
    const auto [at, fresh] = index_.try_emplace(name, index_.size());
    if (fresh) names.push_back(name);
    return at->second;
  }
  ordered_json names = ordered_json::array();

 private:
  std::map<std::string, size_t> index_;
};

}  // namespace

ordered_json profile_lanes(const ProfiledRun& run) {
  const Program& program = run.plan.program;
  const Timeline& t = run.profile.measured;
  const auto obstacles = obstacles_of(t.history(program));
  size_t first = t.sequence.size();  // if not all bodies fit, the last are taken
  for (size_t count = 0; first > 0; --first)
    if ((count += t.times[first - 1].size()) > kLaneInstructionsMax) break;
  Names names, work;
  ordered_json columns;
  for (const char* c : {"lane", "name", "work", "begin", "seconds", "bytes", "wait", "for", "step"})
    columns[c] = ordered_json::array();
  const auto micro = [](double seconds) { return std::round(seconds * 1e7) / 1e7; };
  for (size_t p = first; p < t.sequence.size(); ++p) {
    const Body& body = program.bodies[t.sequence[p]];
    for (uint32_t i = 0; i < body.instructions.size(); ++i) {
      const InstructionTime& time = t.times[p][i];
      if (!std::isfinite(time.begin)) continue;
      const Instruction& in = body.instructions[i];
      const auto& obstacle = obstacles[p][i];
      columns["lane"].push_back(in.lane);
      columns["name"].push_back(names.of(instruction_name(program, body, in)));
      Work kind = work_of(program, body, in);
      columns["work"].push_back(work.of(work_name(program, kind)));
      columns["begin"].push_back(micro(time.begin));
      columns["seconds"].push_back(micro(time.end - time.begin));
      columns["bytes"].push_back(counted_bytes(program, body, in));
      columns["wait"].push_back(obstacle ? micro(obstacle->seconds) : 0.0);
      int64_t waited_for = -1;
      if (obstacle) {
        const Body& other = program.bodies[t.sequence[obstacle->position]];
        waited_for = static_cast<int64_t>(
            names.of(instruction_name(program, other, other.instructions[obstacle->instruction])));
      }
      columns["for"].push_back(waited_for);
      columns["step"].push_back(run.recorder.bodies()[p].step);
    }
  }
  ordered_json lanes = ordered_json::array();
  for (const Lane& lane : program.machine.lanes)
    lanes.push_back({{"name", lane.name}, {"overlapping", lane.overlapping}});
  return {{"lanes", lanes},
          {"names", names.names},
          {"work", work.names},
          {"left_out", first},
          {"columns", columns}};
}

std::string json_lines(const ordered_json& object) {
  std::string out;
  for (const auto& [key, value] : object.items())
    out += (out.empty() ? "{" : ",\n ") + safe_json(key) + ": " + safe_json(value);
  return out + "}\n";
}

}  // namespace sluice
