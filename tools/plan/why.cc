#include "tools/plan/why.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include "engine/base/error.h"
#include "engine/base/suggest.h"
#include "engine/base/units.h"
#include "engine/plan/search/task_costs.h"
#include "engine/profile/attribute.h"
#include "engine/simulate/simulate.h"
#include "tools/command/wrap.h"

namespace sluice {

namespace {

constexpr size_t kWhyIndent = 13;  // columns
constexpr size_t kShown = 1;       // of three simulated steps, the one in the middle is steady

// The permanent buffers of a parameter group: weights, gradient and optimizer state.
std::vector<BufferId> buffers_of(const Plan& plan, uint32_t group) {
  const GroupBuffers& b = plan.lowering.groups[group];
  std::vector<BufferId> list{b.weights};
  if (b.updated.whole != kNone) list.push_back(b.updated.whole);
  if (b.gradient != kNone) list.push_back(b.gradient);
  list.insert(list.end(), b.state.begin(), b.state.end());
  return list;
}

// "1", "1 to 3"; counted from 1, as people do.
std::string numbers(uint32_t first, uint32_t last) {
  return first == last ? std::to_string(first + 1) : fmt::format("{} to {}", first + 1, last + 1);
}

std::string wave_heading(size_t wave, size_t waves) {
  if (wave == 0) return "in the first wave\n";
  if (wave + 1 == waves) return "in the last wave\n";
  return waves == 3 ? "in the second wave\n" : "in the second wave, and likewise in the next\n";
}

class Life {
 public:
  // The buffer's life in one body: the one at `position` in the list of bodies that were simulated. `idle`:
  // idle times of all lanes.
  Life(const Plan& plan, BufferId buffer, const FetchNotes& notes, const History& history,
       const std::vector<Idle>& idle, size_t position)
      : plan_(plan),
        program_(plan.program),
        body_(program_.bodies[history.sequence[position]]),
        buffer_(buffer),
        b_(program_.buffers[buffer]),
        history_(history),
        times_(history.times[position]),
        notes_(notes.bodies[history.sequence[position]]) {
    const LaneId compute = compute_lane(program_.machine);
    for (uint32_t i = 0; i < body_.instructions.size(); ++i) {
      if (body_.instructions[i].task != kNoTask) at_task_[body_.instructions[i].task] = i;
      if (body_.instructions[i].lane == compute && origin_ < 0) origin_ = times_[i].begin;
    }
    for (const Idle& one : idle)
      if (one.position == position && one.instruction != kNoInstruction) idle_before_[one.instruction] = &one;
  }

  std::string text() {
    std::string out = fmt::format("{}: {} in {} piece{}, {}\n", printable(b_.name), format_size(b_.bytes()),
                                  b_.pieces(), b_.pieces() == 1 ? "" : "s", buffer_class_name(b_.kind));
    append_wrapped(out, "  lives in", home_words(), kWhyIndent);
    append_transfers(out);
    append_uses(out);
    return out;
  }

 private:
  const std::string& tier(TierId t) const { return program_.machine.tiers[t].name; }

  std::string task_words(uint32_t task) const {
    if (task == kNoTask) return "the end of the step";
    const Task& t = body_.tasks[task];
    return task_kind_name(t.kind) + subject_words(t.kind, t.subject) + slice_words(t.kind, t.slice, t.slice);
  }
  static bool is_of_step(TaskKind kind) { return kind == TaskKind::norm || kind == TaskKind::set_scalars; }
  // " of h.3"
  std::string subject_words(TaskKind kind, uint32_t subject) const {
    if (is_of_step(kind)) return "";
    return " of " + printable(is_of_segment(kind)
                                  ? plan_.model.layers[plan_.lowering.uses[subject].layer].name
                                  : plan_.model.groups[subject].name);
  }
  // ", micro-batch 1", ", shards 1 to 3"
  static std::string slice_words(TaskKind kind, uint32_t first, uint32_t last) {
    if (is_of_step(kind)) return "";
    return fmt::format(", {}{} {}", is_of_segment(kind) ? "micro-batch" : "shard",
                       first == last         ? ""
                       : is_of_segment(kind) ? "es"
                                             : "s",
                       numbers(first, last));
  }

  // ---- the home ----

  std::string home_words() const {
    const std::string home = tier(b_.home) + ", from step to step.";
    if (plan_.placement != Placement::automatic) return home + " That is the rule which --placement names.";
    if (!plan_.home_rule)
      return home + " It is the arrangement that needs least memory: no other was found to fit.";
    const HomeRule& rule = *plan_.home_rule;
    if (std::count(rule.moved.begin(), rule.moved.end(), buffer_))
      return fmt::format("{} The search moved {} there, since that made the step faster.", home,
                         moved_as_class(rule)
                             ? fmt::format("all buffers of class {}", buffer_class_name(b_.kind))
                             : "this buffer by itself");
    if (b_.kind == BufferClass::caches)
      return home + " Caches of samples claim it before all others, or live in the lowest tier.";
    std::string words = home;
    for (const HomeClaim& claim : rule.claims)
      if (claim.buffer == buffer_) words += claim_words(rule, claim);
    return words;
  }

  bool moved_as_class(const HomeRule& rule) const {
    for (BufferId other = 0; other < program_.buffers.size(); ++other) {
      const Buffer& o = program_.buffers[other];
      if (!o.owns_home() || o.kind != b_.kind) continue;
      if (o.home != b_.home || std::count(rule.moved.begin(), rule.moved.end(), other) == 0) return false;
    }
    return true;
  }

  // Why a tier has a place for the buffer, or has none.
  std::string claim_words(const HomeRule& rule, const HomeClaim& claim) const {
    const uint64_t capacity = program_.machine.tiers[claim.tier].capacity;
    const std::string& name = tier(claim.tier);
    if (rule.left_to_staging[claim.tier] >= capacity)
      return fmt::format(" All of {} is left to staged copies.", name);
    if (claim.granted())
      return fmt::format(" When its turn came ({}), {} of {}'s {} were free.", order_words(rule),
                         format_size(claim.room), name, format_size(capacity));
    if (claim.share < std::min(claim.bytes, claim.room))
      return fmt::format(" Its class may have a part of {}, of which {} were left when its turn came.", name,
                         format_size(claim.share));
    return fmt::format(
        " Of {}'s {}, {} are left to staged copies; {} were left when its turn came ({}), which is not "
        "enough.",
        name, format_size(capacity), format_size(rule.left_to_staging[claim.tier]), format_size(claim.room),
        order_words(rule));
  }
  static std::string order_words(const HomeRule& rule) {
    constexpr const char* kNames[] = {"weights", "gradients", "state"};
    if (rule.turns[0] == rule.turns[1] && rule.turns[1] == rule.turns[2]) return "layer by layer";
    std::array<size_t, 3> order{0, 1, 2};
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t x, size_t y) { return rule.turns[x] < rule.turns[y]; });
    return fmt::format("{} claim first, then {}, then {}", kNames[order[0]], kNames[order[1]],
                       kNames[order[2]]);
  }

  // ---- the transfers of a step ----

  struct Transfer {
    uint32_t instruction = 0;
    uint32_t first = 0, last = 0;     // pieces
    const FetchNote* note = nullptr;  // nullptr: a write-back
    double begin = 0, end = 0;
  };

  // Consecutive pieces that move together count as one transfer.
  std::vector<Transfer> transfers() const {
    std::vector<Transfer> list;
    std::map<std::pair<TierId, uint32_t>, size_t> next;  // by tier and piece: where to look for the next note
    for (uint32_t i = 0; i < body_.instructions.size(); ++i) {
      const Instruction& in = body_.instructions[i];
      if (in.task != kNoTask || in.operands[0].buffer != buffer_) continue;
      const uint32_t piece = in.operands[0].first;
      const TierId into = in.places[1].tier;
      const FetchNote* note = leaves_home(in) ? find_note(into, piece, next[{into, piece}]) : nullptr;
      const InstructionTime& time = times_[i];
      if (!list.empty() && continues(list.back(), in, note)) {
        list.back().last = piece;
        list.back().end = std::max(list.back().end, time.end);
      } else {
        list.push_back({i, piece, piece, note, time.begin, time.end});
      }
    }
    return list;
  }
  // A fetch leads away from the home, up or down; a write-back leads towards it.
  bool leaves_home(const Instruction& in) const {
    const auto distance = [&](size_t place) { return std::abs(int{in.places[place].tier} - int{b_.home}); };
    return distance(1) > distance(0);
  }
  bool continues(const Transfer& before, const Instruction& in, const FetchNote* note) const {
    const Instruction& last = body_.instructions[before.instruction];
    if (in.lane != last.lane || in.operands[0].first != before.last + 1) return false;
    if (!note || !before.note) return !note && !before.note;
    return note->begins == before.note->begins && note->needed == before.note->needed &&
           note->bound == before.note->bound;
  }
  const FetchNote* find_note(TierId into, uint32_t piece, size_t& next) const {
    for (; next < notes_.size(); ++next)
      if (notes_[next].tier == into && notes_[next].buffer == buffer_ && notes_[next].piece == piece)
        return &notes_[next++];
    return nullptr;
  }

  std::string at_time(double seconds) const { return readable_seconds(seconds - origin_); }

  void append_transfers(std::string& out) const {
    const std::vector<Transfer> list = transfers();
    if (list.empty()) {
      append_wrapped(out, "  in a step", "it is not moved: tasks use it where it lives.", kWhyIndent);
      return;
    }
    for (const Transfer& t : list) {
      const Instruction& in = body_.instructions[t.instruction];
      const std::string pieces = b_.pieces() == 1 ? ""
                                                  : fmt::format(" piece{} {},", t.first == t.last ? "" : "s",
                                                                numbers(t.first, t.last));
      append_wrapped(out, t.note ? "  fetch" : "  write back",
                     fmt::format("from {} to {} by lane {},{} from {}, for {}: {}", tier(in.places[0].tier),
                                 tier(in.places[1].tier), program_.machine.lanes[in.lane].name, pieces,
                                 at_time(t.begin), readable_seconds(t.end - t.begin),
                                 t.note ? need_words(t) : "what was written goes home."),
                     kWhyIndent);
      if (t.note) append_wrapped(out, "", bound_words(t), kWhyIndent);
    }
  }

  std::string need_words(const Transfer& t) const {
    const auto found = at_task_.find(t.note->needed);
    const std::string who = task_words(t.note->needed);
    if (found == at_task_.end()) return who + " needs it.";
    const double needed = times_[found->second].begin, early = needed - t.end;
    return fmt::format("{} needs it at {}, {}", who, at_time(needed),
                       early > 0 ? readable_seconds(early) + " after it has come." : "and waits for it.");
  }

  std::string bound_words(const Transfer& t) const {
    const FetchNote& n = *t.note;
    const std::string other = printable(program_.buffers[n.other].name);
    std::string words = fmt::format("It stands in front of {}. ", task_words(n.begins));
    switch (n.bound) {
      case FetchBound::begin:
        words += begin_words(t);
        break;
      case FetchBound::write:
        words +=
            "Its content is made just before. The fetch can come earlier only if the content is made "
            "earlier.";
        break;
      case FetchBound::address:
        words += fmt::format(
            "Until then its place in {} holds {}: a plan with more memory there could fetch it "
            "earlier{}.",
            tier(n.tier), n.other == buffer_ ? "another piece of it" : other, see_words(n.other));
        break;
      case FetchBound::order:
        words += fmt::format(
            "There stands a fetch of {}, which is needed earlier. Fetches keep the order in which they are "
            "needed, so that one would have to come earlier{}.",
            other, see_words(n.other));
        break;
      case FetchBound::share:
        words += fmt::format("Its place in {} begins there, with the use of another piece.", tier(n.tier));
        break;
      case FetchBound::lead:
        words += "In the arrangement that needs least memory, no fetch stands earlier than its lead says.";
        break;
    }
    if (n.lead > 0)
      words += fmt::format(" Its lead should cover {:.3g} {}{}.", static_cast<double>(n.lead) / kSegmentCost,
                           n.lead == kSegmentCost ? "forward or backward" : "forwards or backwards",
                           n.lead_cut ? fmt::format("; {} had no room for all of that", tier(n.tier)) : "");
    return words;
  }
  // Where to read on about the other buffer.
  std::string see_words(BufferId other) const {
    const Buffer& o = program_.buffers[other];
    return o.permanent && other != buffer_ ? fmt::format(" (see --why {})", printable(o.name)) : "";
  }
  // Says that a fetch cannot come earlier because the step begins. If another transfer of the step has to
  // come first, names that transfer.
  std::string begin_words(const Transfer& t) const {
    const Instruction& fetch = body_.instructions[t.instruction];
    for (uint32_t i = t.instruction; i-- > 0;) {
      const Instruction& in = body_.instructions[i];
      if (in.task != kNoTask || in.operands[0].buffer != buffer_ || in.operands[0].first != t.first) continue;
      const bool brings = in.places[1].tier == fetch.places[0].tier;
      return fmt::format("The step begins there, with the transfer that {} {}, which ends at {}.",
                         brings ? "brings it to" : "takes its last content from",
                         tier(brings ? in.places[1].tier : in.places[0].tier), at_time(times_[i].end));
    }
    return "The step begins there: nothing can come earlier.";
  }

  // ---- the tasks of a step ----

  // Consecutive tasks that differ only in micro-batch or shard share a line.
  void append_uses(std::string& out) const {
    struct Uses {
      uint32_t first = 0, last = 0;  // instructions
    };
    std::vector<Uses> list;
    for (uint32_t i = 0; i < body_.instructions.size(); ++i) {
      const Instruction& in = body_.instructions[i];
      const auto is_it = [&](const Operand& o) { return o.buffer == buffer_; };
      if (in.task == kNoTask || std::none_of(in.operands.begin(), in.operands.end(), is_it)) continue;
      if (!list.empty() && task_at(list.back().last).kind == task_at(i).kind &&
          task_at(list.back().last).subject == task_at(i).subject)
        list.back().last = i;
      else
        list.push_back({i, i});
    }
    for (const Uses& u : list) {
      const Task &first = task_at(u.first), &last = task_at(u.last);
      append_wrapped(
          out, "  used by",
          fmt::format(
              "{}{}{}, from {}, for {}.{}", task_kind_name(first.kind),
              subject_words(first.kind, first.subject),
              slice_words(first.kind, std::min(first.slice, last.slice), std::max(first.slice, last.slice)),
              at_time(times_[u.first].begin), readable_seconds(times_[u.last].end - times_[u.first].begin),
              wait_words(u.first)),
          kWhyIndent);
    }
  }

  const Task& task_at(uint32_t instruction) const {
    return body_.tasks[body_.instructions[instruction].task];
  }

  // What the instruction's lane waited for longest, just before the instruction began.
  std::string wait_words(uint32_t instruction) const {
    const auto found = idle_before_.find(instruction);
    if (found == idle_before_.end()) return "";
    const Idle& idle = *found->second;
    const std::vector<WorkSeconds> sums = sum_by_work(history_, idle.charges, true);
    if (sums.empty()) return "";
    const Work& w = sums.front().work;
    const std::string subject = w.task ? subject_words(*w.task, w.subject)
                                       : fmt::format(" ({})", printable(program_.buffers[w.subject].name));
    return fmt::format(" Before that its lane was idle for {}; it waited longest for {}{}.",
                       readable_seconds(idle.end - idle.begin), work_name(program_, w), subject);
  }

  const Plan& plan_;
  const Program& program_;
  const Body& body_;
  const BufferId buffer_;
  const Buffer& b_;
  const History& history_;
  const std::vector<InstructionTime>& times_;  // of the body that is shown
  const std::vector<FetchNote>& notes_;
  std::map<uint32_t, const Idle*> idle_before_;  // by the instruction that its lane then starts
  std::map<uint32_t, uint32_t> at_task_;         // index of its instruction, by task
  double origin_ = -1;                           // time 0: when lane `compute` first begins in the step
};

}  // namespace

std::vector<BufferId> buffers_named(const Plan& plan, const std::string& name) {
  const Program& program = plan.program;
  for (BufferId b = 0; b < program.buffers.size(); ++b)
    if (program.buffers[b].permanent && program.buffers[b].name == name) return {b};
  std::vector<BufferId> list;
  const auto add = [&](uint32_t group) {
    for (const BufferId b : buffers_of(plan, group))
      if (program.buffers[b].permanent && !std::count(list.begin(), list.end(), b)) list.push_back(b);
  };
  for (uint32_t g = 0; g < plan.model.groups.size(); ++g)
    if (plan.model.groups[g].name == name) add(g);
  for (const Layer& layer : plan.model.layers)
    if (layer.name == name)
      for (const SegmentUse& use : layer.segments)
        for (const uint32_t g : use.groups) add(g);
  if (!list.empty()) return list;
  std::vector<std::string> known;
  for (const Layer& layer : plan.model.layers) known.push_back(layer.name);
  const std::string a_layer = known[known.size() / 2];
  const std::string examples = fmt::format(
      "Give a layer, such as {0}, or weights, gradients or optimizer state: w.{0}, g.{0}, s.{0}.0.", a_layer);
  for (const Buffer& buffer : program.buffers) {
    if (buffer.permanent) known.push_back(buffer.name);
    if (buffer.name == name)
      throw Error(ExitCode::usage,
                  fmt::format("--why: {} lives within a step only, so it has no home.", name), examples);
  }
  const std::string near = did_you_mean(name, known);
  throw Error(ExitCode::usage, fmt::format("--why: the plan has no layer or buffer {}.", printable(name)),
              near.empty() ? examples : near);
}

std::string why_text(const Plan& plan, const std::string& name) {
  const std::vector<BufferId> buffers = buffers_named(plan, name);
  std::vector<bool> wanted(plan.program.buffers.size(), false);
  for (const BufferId b : buffers) wanted[b] = true;
  const FetchNotes notes = fetch_notes(plan, std::move(wanted));
  const std::vector<BodyId> step = plan.lowering.bodies().usual(), steps = repeated(step, 3);
  const SimulationResult run = simulate(plan.program, plan.rates, steps, true);
  std::string out =
      "Times are simulated. Time 0 is when lane compute begins the step; what begins earlier runs while\n"
      "the step before ends.\n";
  const History history{plan.program, steps, run.times};
  std::vector<Idle> idle;
  for (LaneId lane = 0; lane < plan.program.machine.lanes.size(); ++lane)
    for (Idle& one : idle_intervals(history, lane)) idle.push_back(std::move(one));
  for (const BufferId b : buffers)
    for (size_t wave = 0; wave < step.size(); ++wave) {
      if (wave > 1 && wave + 1 < step.size()) continue;  // the same as the second wave
      if (step.size() > 1) out += wave_heading(wave, step.size());
      out += Life(plan, b, notes, history, idle, kShown * step.size() + wave).text();
    }
  return out;
}

}  // namespace sluice
