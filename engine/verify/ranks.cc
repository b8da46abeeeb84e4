// A cycle is found by carrying out the programs without time. An instruction starts as soon as its lane and
// its waits let it, and is done at once; a collective is done when its matches on all ranks have started. A
// start never hinders another, so the order of trying does not matter: either all of a body gets done, or
// what is left waits in a cycle.
#include "engine/verify/ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"

namespace sluice {

namespace {

constexpr uint32_t kNoMatch = UINT32_MAX;

// A body of one program, carried out.
class Rank {
 public:
  Rank(const Program& program, const Body& body)
      : program_(program),
        body_(body),
        lanes_(program.machine.lanes.size()),
        match_(body.instructions.size(), kNoMatch) {
    for (uint32_t i = 0; i < body.instructions.size(); ++i)
      lanes_[body.instructions[i].lane].all.push_back(i);
  }

  const Program& program() const { return program_; }
  const Body& body() const { return body_; }
  const std::string& lane(size_t l) const { return program_.machine.lanes[l].name; }
  size_t lanes() const { return lanes_.size(); }

  std::vector<uint32_t> collectives_on(size_t l) const {
    std::vector<uint32_t> list;
    for (const uint32_t i : lanes_[l].all)
      if (is_collective(i)) list.push_back(i);
    return list;
  }
  const Instruction& instruction(uint32_t i) const { return body_.instructions[i]; }
  std::string name(uint32_t i) const { return collective_name(program_, body_, instruction(i)); }
  const Task& task(uint32_t i) const { return body_.tasks[instruction(i).task]; }

  const ProcessGroup& processes(uint32_t i) const { return program_.processes[task(i).processes]; }

  // Why the bytes that a collective gives and gets do not fit its process group; nothing if they do.
  std::optional<std::string> misfit(uint32_t i) const {
    if (is_of_segment(task(i).kind)) return std::nullopt;  // the rule of its op has checked them
    const auto bytes = [&](size_t operand) {
      const Operand& o = instruction(i).operands[operand];
      return operand_bytes(program_.buffers[o.buffer], o);
    };
    const uint64_t count = processes(i).count;
    const bool fits = task(i).kind == TaskKind::gather ? bytes(1) == count * bytes(0)
                                                       : bytes(1) == bytes(0) && bytes(0) % count == 0;
    if (fits) return std::nullopt;
    return fmt::format("{} is not for {} ranks", name(i), count);
  }

  void set_match(uint32_t i, uint32_t match) { match_[i] = match; }

  // Carries out instructions until none can go on. `started` counts, by match, the ranks that have started
  // it. False: no instruction could go on.
  bool advance(std::vector<uint32_t>& started, uint32_t ranks) {
    bool moved = false;
    for (bool again = true; again; moved |= again) {
      again = false;
      for (size_t l = 0; l < lanes_.size(); ++l)
        while (step(l, started, ranks)) again = true;
    }
    return moved;
  }

  // Returns nothing if all instructions are done, else a collective that has started and is not done, or an
  // instruction that could not start.
  std::optional<uint32_t> stuck() const {
    std::optional<uint32_t> waiting;
    for (const LaneState& lane : lanes_) {
      if (lane.done == lane.all.size()) continue;
      if (lane.started > lane.done) return lane.all[lane.done];
      waiting = lane.all[lane.done];
    }
    return waiting;
  }

 private:
  struct LaneState {
    std::vector<uint32_t> all;  // instructions
    size_t started = 0, done = 0;
  };

  bool is_collective(uint32_t i) const {
    return instruction(i).task != kNoTask && sluice::is_collective(task(i).kind);
  }

  bool may_start(const LaneState& lane, size_t l) const {
    if (lane.started == lane.all.size()) return false;
    if (lane.started > lane.done && !program_.machine.lanes[l].overlapping) return false;
    const std::vector<Wait>& waits = instruction(lane.all[lane.started]).waits;
    return std::all_of(waits.begin(), waits.end(),
                       [&](const Wait& w) { return lanes_[w.lane].done >= w.count; });
  }

  bool step(size_t l, std::vector<uint32_t>& started, uint32_t ranks) {
    LaneState& lane = lanes_[l];
    if (may_start(lane, l)) {
      const uint32_t match = match_[lane.all[lane.started++]];
      if (match != kNoMatch) ++started[match];
      return true;
    }
    if (lane.started == lane.done) return false;
    const uint32_t match = match_[lane.all[lane.done]];
    if (match != kNoMatch && started[match] < ranks) return false;
    ++lane.done;
    return true;
  }

  const Program& program_;
  const Body& body_;
  std::vector<LaneState> lanes_;
  std::vector<uint32_t> match_;  // by instruction
};

// The same body in all programs.
class Meeting {
 public:
  explicit Meeting(std::vector<Rank> ranks) : ranks_(std::move(ranks)) {}

  std::optional<std::string> fault() {
    std::optional<std::string> fault;
    for (size_t l = 0; l < ranks_.front().lanes() && !fault; ++l) fault = match_lane(l);
    if (!fault) fault = unknown_lane();
    if (!fault) fault = circle();
    if (fault) fault = "body " + printable(ranks_.front().body().name) + ": " + *fault;
    return fault;
  }

 private:
  std::optional<size_t> find_lane(const Rank& rank, const std::string& name) const {
    for (size_t l = 0; l < rank.lanes(); ++l)
      if (rank.lane(l) == name) return l;
    return std::nullopt;
  }

  std::optional<std::string> match_lane(size_t l) {
    Rank& first = ranks_.front();
    const std::vector<uint32_t> wanted = first.collectives_on(l);
    for (uint32_t n = 0; n < wanted.size(); ++n) {
      if (auto misfit = first.misfit(wanted[n])) return misfit;
      first.set_match(wanted[n], matches_ + n);
    }
    for (size_t r = 1; r < ranks_.size(); ++r) {
      const auto lane = find_lane(ranks_[r], first.lane(l));
      const std::vector<uint32_t> found = lane ? ranks_[r].collectives_on(*lane) : std::vector<uint32_t>{};
      for (size_t n = 0; n < std::min(wanted.size(), found.size()); ++n) {
        if (!same(first, wanted[n], ranks_[r], found[n]))
          return fmt::format("program {} has {} on lane {} where program 0 has {}", r,
                             ranks_[r].name(found[n]), printable(first.lane(l)), first.name(wanted[n]));
        ranks_[r].set_match(found[n], matches_ + static_cast<uint32_t>(n));
      }
      if (found.size() != wanted.size())
        return fmt::format("program {} has {} collectives on lane {}, and program 0 has {}", r, found.size(),
                           printable(first.lane(l)), wanted.size());
    }
    matches_ += static_cast<uint32_t>(wanted.size());
    return std::nullopt;
  }

  // Collectives on a lane that the first program does not have.
  std::optional<std::string> unknown_lane() const {
    for (size_t r = 1; r < ranks_.size(); ++r)
      for (size_t l = 0; l < ranks_[r].lanes(); ++l)
        if (!find_lane(ranks_.front(), ranks_[r].lane(l)) && !ranks_[r].collectives_on(l).empty())
          return fmt::format("program {} has collectives on lane {}, which program 0 lacks", r,
                             printable(ranks_[r].lane(l)));
    return std::nullopt;
  }

  static bool same(const Rank& a, uint32_t i, const Rank& b, uint32_t j) {
    const auto bytes = [](const Rank& rank, uint32_t at, size_t operand) {
      const Operand& o = rank.instruction(at).operands[operand];
      return operand_bytes(rank.program().buffers[o.buffer], o);
    };
    const ProcessGroup &of_a = a.processes(i), &of_b = b.processes(j);
    const size_t operands = a.instruction(i).operands.size();
    if (a.task(i).kind != b.task(j).kind || !of_a.is_same_as(of_b) ||
        operands != b.instruction(j).operands.size())
      return false;
    for (size_t k = 0; k < operands; ++k)
      if (bytes(a, i, k) != bytes(b, j, k)) return false;
    return true;
  }

  std::optional<std::string> circle() {
    std::vector<uint32_t> started(matches_);
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank& rank : ranks_) moved |= rank.advance(started, static_cast<uint32_t>(ranks_.size()));
    }
    std::string waiting;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Rank& rank = ranks_[r];
      if (const auto at = rank.stuck())
        waiting += fmt::format("{} program {} in instruction {} ({})", waiting.empty() ? "" : ",", r, *at,
                               instruction_name(rank.program(), rank.body(), rank.instruction(*at)));
    }
    if (waiting.empty()) return std::nullopt;
    return "ranks wait for one another:" + waiting;
  }

  std::vector<Rank> ranks_;
  uint32_t matches_ = 0;
};

}  // namespace

std::string collective_name(const Program& program, const Body& body, const Instruction& instruction) {
  const Operand &gives = instruction.operands[0], &takes = instruction.operands[1];
  const Buffer& from = program.buffers[gives.buffer];
  const uint8_t processes = body.tasks[instruction.task].processes;
  return fmt::format("{} of {} among {}, {} bytes for {}", instruction_name(program, body, instruction),
                     printable(from.name), printable(program.processes[processes].name),
                     operand_bytes(from, gives), operand_bytes(program.buffers[takes.buffer], takes));
}

std::vector<uint32_t> collectives_of(const Body& body) {
  std::vector<uint32_t> list;
  for (uint32_t i = 0; i < body.instructions.size(); ++i) {
    const uint32_t task = body.instructions[i].task;
    if (task != kNoTask && is_collective(body.tasks[task].kind)) list.push_back(i);
  }
  return list;
}

std::optional<std::string> verify_ranks(std::span<const Program* const> programs) {
  CHECK(!programs.empty(), "no program to verify");
  const std::vector<Body>& bodies = programs.front()->bodies;
  for (size_t r = 1; r < programs.size(); ++r)
    if (programs[r]->bodies.size() != bodies.size())
      return fmt::format("program {} has {} bodies, and program 0 has {}", r, programs[r]->bodies.size(),
                         bodies.size());
  for (size_t b = 0; b < bodies.size(); ++b) {
    std::vector<Rank> ranks;
    for (size_t r = 0; r < programs.size(); ++r) {
      const Body& body = programs[r]->bodies[b];
      if (body.name != bodies[b].name)
        return fmt::format("program {} has the body {} where program 0 has {}", r, printable(body.name),
                           printable(bodies[b].name));
      ranks.emplace_back(*programs[r], body);
    }
    if (auto fault = Meeting(std::move(ranks)).fault()) return fault;
  }
  return std::nullopt;
}

}  // namespace sluice
