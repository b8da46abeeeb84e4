// Order between two bodies that run back to back; see replay.h.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/verify/replay.h"

namespace sluice {

namespace {

constexpr uint32_t kNone = kNoInstruction;

class PairCheck {
 public:
  PairCheck(const Program& program, const AddressLine& line, const std::vector<BodyFacts>& facts, BodyId body,
            uint32_t predecessor, Report& report)
      : program_(program),
        line_(line),
        id_(body),
        predecessor_(predecessor),
        before_id_(program.bodies[body].predecessors[predecessor]),
        body_(program.bodies[body]),
        facts_(facts[body]),
        before_(facts[before_id_]),
        report_(report),
        lanes_(program.machine.lanes.size()) {}

  void run() {
    compute_clocks();
    for (uint32_t space = 0; space < line_.spaces() && !report_.full(); ++space) {
      check_space(line_.space_before(space, body_), space);
    }
  }

 private:
  uint32_t* started(uint32_t i) { return &started_[i * lanes_]; }
  void join(uint32_t* clock, const uint32_t* other) const {
    for (size_t l = 0; l < lanes_; ++l) clock[l] = std::max(clock[l], other[l]);
  }
  // Adds to the clock the completion of the lane's first `count` instructions of the body before.
  void join_completed(uint32_t* clock, LaneId lane, uint32_t count) const {
    if (count == 0) return;
    join(clock, &before_.started[before_.by_lane[lane][count - 1] * lanes_]);
    clock[lane] = std::max(clock[lane], count);
  }

  // started(i)[l]: how many of lane l's instructions of the body before have completed when instruction i
  // starts.
  void compute_clocks() {
    started_.assign(body_.instructions.size() * lanes_, 0);
    for (uint32_t i = 0; i < body_.instructions.size(); ++i) {
      const Instruction& instruction = body_.instructions[i];
      const LaneId lane = instruction.lane;
      const std::vector<uint32_t>& earlier = before_.by_lane[lane];
      uint32_t* clock = started(i);
      if (facts_.ordinal[i] > 1)
        join(clock, started(facts_.by_lane[lane][facts_.ordinal[i] - 2]));
      else if (!program_.machine.lanes[lane].overlapping)
        join_completed(clock, lane, static_cast<uint32_t>(earlier.size()));
      else if (!earlier.empty())
        join(clock, &before_.started[earlier.back() * lanes_]);
      // Completions are counted in order: a lane that has completed an instruction of this body has completed
      // the whole body before.
      for (const Wait& w : instruction.waits) {
        join(clock, started(facts_.by_lane[w.lane][w.count - 1]));
        join_completed(clock, w.lane, static_cast<uint32_t>(before_.by_lane[w.lane].size()));
      }
      for (const Wait& w : instruction.waits_before[predecessor_]) join_completed(clock, w.lane, w.count);
    }
  }

  // The ranges of last and first are sorted and free of overlaps.
  void check_space(uint32_t source, uint32_t space) {
    const uint64_t shift = line_.begin(space) - line_.begin(source);  // modulo 2^64
    const Touches &last = before_.last, &first = facts_.first;
    const auto position = [](const Touches& t, uint64_t address) {
      return static_cast<size_t>(std::lower_bound(t.begin.begin(), t.begin.end(), address) - t.begin.begin());
    };
    size_t a = position(last, line_.begin(source)), b = position(first, line_.begin(space));
    const size_t a_end = position(last, line_.end(source)), b_end = position(first, line_.end(space));
    while (a < a_end && b < b_end) {
      const uint64_t begin = std::max(last.begin[a] + shift, first.begin[b]);
      const uint64_t end = std::min(last.end[a] + shift, first.end[b]);
      if (begin < end) check_overlap(a, b, begin, end);
      if (last.end[a] + shift <= first.end[b])
        ++a;
      else
        ++b;
    }
  }

  void check_overlap(size_t a, size_t b, uint64_t begin, uint64_t end) {
    const uint32_t earlier = before_.last.writer[a], later = facts_.first.writer[b];
    const uint32_t* reads_before = &before_.last.readers[a * lanes_];
    const uint32_t* reads_after = &facts_.first.readers[b * lanes_];
    for (LaneId l = 0; l < lanes_; ++l) {
      if (earlier != kNone && reads_after[l] > 0)
        check(earlier, facts_.by_lane[l][reads_after[l] - 1], "reads what was written to", begin, end);
      if (later != kNone && reads_before[l] > 0)
        check(before_.by_lane[l][reads_before[l] - 1], later, "overwrites what is read from", begin, end);
    }
    if (earlier != kNone && later != kNone)
      check(earlier, later, "overwrites what was written to", begin, end);
  }

  void check(uint32_t earlier, uint32_t later, const char* what, uint64_t begin, uint64_t end) {
    const Body& before = program_.bodies[before_id_];
    const LaneId lane = before.instructions[earlier].lane;
    if (started(later)[lane] >= before_.ordinal[earlier]) return;
    report_.add(before_id_, id_, later,
                fmt::format("{} {} by instruction {} ({} {}) of body {}, which may not have completed", what,
                            line_.name(begin, end), earlier, printable(program_.machine.lanes[lane].name),
                            before_.ordinal[earlier], printable(before.name)));
  }

  const Program& program_;
  const AddressLine& line_;
  const BodyId id_;
  const uint32_t predecessor_;
  const BodyId before_id_;
  const Body& body_;
  const BodyFacts &facts_, &before_;
  Report& report_;
  const size_t lanes_;
  std::vector<uint32_t> started_;
};

}  // namespace

void check_pair(const Program& program, const AddressLine& line, const std::vector<BodyFacts>& facts,
                BodyId body, uint32_t predecessor, Report& report) {
  PairCheck(program, line, facts, body, predecessor, report).run();
}

}  // namespace sluice
