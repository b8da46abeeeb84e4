#include "engine/profile/attribute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/base/error.h"

namespace sluice {

namespace {

struct Node {  // an instruction, and when it was executed
  size_t position = 0;
  uint32_t instruction = kNoInstruction;
  double begin = 0, end = 0;
  bool ran() const { return instruction != kNoInstruction; }
};

// Finds causes. A lane's instructions are numbered from the start of the sequence.
class Causes {
 public:
  explicit Causes(const History& h) : h_(h), lanes_(h.program.machine.lanes.size()), number_(h.times.size()) {
    for (size_t s = 0; s < h.times.size(); ++s) {
      bases_.emplace_back();
      for (const std::vector<Node>& lane : lanes_) bases_.back().push_back(lane.size());
      const Body& body = h.program.bodies[h.sequence[s]];
      for (uint32_t i = 0; i < body.instructions.size(); ++i) add(s, i, body.instructions[i].lane);
    }
  }

  double begin() const { return begin_; }  // infinite: nothing ran
  const std::vector<Node>& lane(LaneId lane) const { return lanes_[lane]; }

  const Node& last() const { return last_; }  // the last to complete

  // The instruction's cause: the last to complete of the instructions that it has to follow.
  Node of(const Node& n) const {
    const Body& body = h_.program.bodies[h_.sequence[n.position]];
    const Instruction& in = body.instructions[n.instruction];
    Node cause;
    const size_t number = number_[n.position][n.instruction];  // how many instructions precede it on its lane
    consider(lanes_[in.lane], number, cause);
    for (const Wait& w : in.waits) consider(lanes_[w.lane], bases_[n.position][w.lane] + w.count, cause);
    if (n.position >= 1 && !in.waits_before.empty())
      for (const Wait& w : in.waits_before[predecessor(n.position)])
        consider(lanes_[w.lane], bases_[n.position - 1][w.lane] + w.count, cause);
    const bool is_first = number == bases_[n.position][in.lane];
    if (n.position >= 1 && is_first) {
      const Wait w = when_decided(h_.program.bodies[h_.sequence[n.position - 1]]);
      if (w.count > 0) consider(lanes_[w.lane], bases_[n.position - 1][w.lane] + w.count, cause);
    }
    if (n.position >= 2 && is_first)
      for (size_t l = 0; l < lanes_.size(); ++l) consider(lanes_[l], bases_[n.position - 1][l], cause);
    CHECK(!cause.ran() || cause.position < n.position || cause.instruction < n.instruction,
          "an instruction waits for one that its body lists later");
    return cause;
  }

 private:
  void add(size_t position, uint32_t instruction, LaneId lane) {
    std::vector<Node>& nodes = lanes_[lane];
    number_[position].push_back(nodes.size());
    const InstructionTime& t = h_.times[position][instruction];
    const double before = nodes.empty() ? -kUnlimited : nodes.back().end;
    Node node{position, kNoInstruction, before, before};
    if (std::isfinite(t.begin) && std::isfinite(t.end)) {
      begin_ = std::min(begin_, t.begin);
      node.instruction = instruction;
      node.begin = std::max(t.begin, before);  // completions are counted in order
      node.end = std::max(node.begin, t.end);
      if (!last_.ran() || node.end > last_.end) last_ = node;
    }
    nodes.push_back(node);
  }

  // A lane's first `count` instructions have completed when the last of them has.
  static void consider(const std::vector<Node>& lane, size_t count, Node& latest) {
    if (count == 0) return;
    const Node& n = lane[count - 1];
    if (n.ran() && (!latest.ran() || n.end > latest.end)) latest = n;
  }

  size_t predecessor(size_t position) const {
    const std::vector<BodyId>& all = h_.program.bodies[h_.sequence[position]].predecessors;
    return static_cast<size_t>(std::find(all.begin(), all.end(), h_.sequence[position - 1]) - all.begin());
  }

  const History& h_;
  std::vector<std::vector<Node>> lanes_;
  std::vector<std::vector<size_t>> bases_;   // by position and lane: instructions of the bodies before
  std::vector<std::vector<size_t>> number_;  // by position and instruction: how many before it on its lane
  double begin_ = kUnlimited;
  Node last_;
};

class Walker {
 public:
  Walker(const History& history, const Causes& causes) : history_(history), causes_(causes) {}

  // Charges [begin, end] to `cause` and the chain of causes before it; `next` begins at `end`.
  std::vector<Charge> walk(double begin, double end, Node next, Node cause) const {
    std::vector<Charge> charges;
    const auto charge = [&](double from, const Node& n, bool executed) {
      if (from < end) charges.push_back({from, end, n.position, n.instruction, lane_of(n), executed});
      end = std::min(from, end);
    };
    while (end > begin) {
      charge(cause.ran() ? std::max(cause.end, begin) : begin, next, false);
      if (end == begin) break;
      charge(std::max(cause.begin, begin), cause, true);
      next = cause;
      cause = causes_.of(next);
    }
    std::reverse(charges.begin(), charges.end());
    return charges;
  }

 private:
  LaneId lane_of(const Node& n) const {
    return history_.program.bodies[history_.sequence[n.position]].instructions[n.instruction].lane;
  }

  const History& history_;
  const Causes& causes_;
};

}  // namespace

LaneId compute_lane(const Machine& machine) {
  for (const Unit& unit : machine.units)
    if (unit.kind == TaskKind::forward) return unit.lane;
  return 0;
}

std::vector<Idle> idle_intervals(const History& history, LaneId lane) {
  const Causes causes(history);
  const Walker walker(history, causes);
  std::vector<Idle> idles;
  double until = causes.begin();
  for (const Node& n : causes.lane(lane)) {
    if (!n.ran()) continue;
    if (n.begin > until)
      idles.push_back(
          {until, n.begin, n.position, n.instruction, walker.walk(until, n.begin, n, causes.of(n))});
    until = n.end;
  }
  const Node last = causes.last();
  if (last.ran() && last.end > until)
    idles.push_back(
        {until, last.end, history.times.size(), kNoInstruction, walker.walk(until, last.end, last, last)});
  return idles;
}

std::vector<Charge> critical_path(const History& history) {
  const Causes causes(history);
  const Node last = causes.last();
  if (!last.ran()) return {};
  return Walker(history, causes).walk(causes.begin(), last.end, last, last);
}

std::vector<Charge> within(std::span<const Charge> charges, double begin, double end) {
  std::vector<Charge> out;
  for (Charge c : charges) {
    c.begin = std::max(c.begin, begin);
    c.end = std::min(c.end, end);
    if (c.begin < c.end) out.push_back(c);
  }
  return out;
}

Work work_of(const Program& program, const Body& body, const Instruction& instruction) {
  Work work;
  work.lane = instruction.lane;
  if (instruction.task != kNoTask) {
    work.task = body.tasks[instruction.task].kind;
    work.subject = body.tasks[instruction.task].subject;
    return work;
  }
  work.subject = instruction.operands[0].buffer;
  work.moved = program.buffers[work.subject].kind;
  work.from = instruction.places[0].tier;
  work.to = instruction.places[1].tier;
  return work;
}

std::string work_name(const Program& program, const Work& work) {
  if (!work.executed) return "start on " + program.machine.lanes[work.lane].name;
  if (work.task) return task_kind_name(*work.task);
  const std::vector<Tier>& tiers = program.machine.tiers;
  return fmt::format("{} from {} to {}", buffer_class_name(work.moved), tiers[work.from].name,
                     tiers[work.to].name);
}

std::vector<WorkSeconds> sum_by_work(const History& history, std::span<const Charge> charges,
                                     bool by_subject) {
  std::map<Work, double> sums;
  for (const Charge& c : charges) {
    const Body& body = history.program.bodies[history.sequence[c.position]];
    Work work = work_of(history.program, body, body.instructions[c.instruction]);
    work.executed = c.executed;
    if (!by_subject) work.subject = 0;
    sums[work] += c.seconds();
  }
  std::vector<WorkSeconds> out;
  for (const auto& [work, seconds] : sums) out.push_back({work, seconds});
  std::stable_sort(out.begin(), out.end(),
                   [](const WorkSeconds& a, const WorkSeconds& b) { return a.seconds > b.seconds; });
  return out;
}

}  // namespace sluice
