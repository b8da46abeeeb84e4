#include "engine/plan/assemble/sync.h"

#include <algorithm>

#include "engine/plan/assemble/access_map.h"

namespace sluice {

namespace {

struct Exposure {  // an access to bytes that the body has not written before
  uint32_t instruction;
  uint32_t space;
  uint64_t begin, end;
  bool writes;
};

struct BodyAnalysis {
  std::vector<AccessMap> spaces;    // by address space, at the end of the body
  std::vector<Exposure> exposures;  // in list order
  std::vector<LaneCounts> starts;   // by instruction, lane: how many of this body have completed at its start
  std::vector<uint32_t> numbers;    // by instruction: its number on its lane
  std::vector<std::vector<uint32_t>> of_lane;  // by lane: its instructions
};

// Address spaces: the tiers, then the slots of each ring. Ring buffers at home live in spaces of their own,
// one for each Operand::back: 0 is the body's newest slot.
class Spaces {
 public:
  explicit Spaces(const Program& program)
      : program_(program), count_(static_cast<uint32_t>(program.machine.tiers.size())) {
    for (const Ring& ring : program.rings) {
      first_.push_back(count_);
      count_ += ring.slots;
    }
  }
  uint32_t count() const { return count_; }
  uint32_t of(const Operand& o, const Place& place) const {
    const Buffer& b = program_.buffers[o.buffer];
    return b.ring == kNoRing || place.tier != b.home ? place.tier : first_[b.ring] + o.back;
  }
  // The space in which the body before saw the same bytes.
  uint32_t before(uint32_t space, const Body& body) const {
    for (size_t r = first_.size(); r-- > 0;) {
      if (space < first_[r]) continue;
      const uint32_t slots = program_.rings[r].slots;
      return first_[r] + (space - first_[r] + slots - body.advance[r]) % slots;
    }
    return space;
  }

 private:
  const Program& program_;
  std::vector<uint32_t> first_;  // by ring
  uint32_t count_;
};

class Synchroniser {
 public:
  explicit Synchroniser(Program& program) : program_(program), spaces_(program) {
    CHECK(program.machine.lanes.size() <= kLanesMax, "too many lanes");
  }

  void run() {
    for (Body& body : program_.bodies) analyses_.push_back(within(body));
    for (size_t b = 0; b < program_.bodies.size(); ++b)
      for (size_t p = 0; p < program_.bodies[b].predecessors.size(); ++p)
        between(program_.bodies[b], p, analyses_[b]);
  }

 private:
  bool overlapping(LaneId lane) const { return program_.machine.lanes[lane].overlapping; }

  // How many instructions of each lane are known to have completed in an analysed body, once the first
  // `count` of `lane` have.
  static LaneCounts known_at_end(const BodyAnalysis& a, LaneId lane, uint32_t count) {
    LaneCounts known = a.starts[a.of_lane[lane][count - 1]];
    raise(known, lane, count);
    return known;
  }

  static LaneCounts known_of_all(const BodyAnalysis& a, LaneId lane) {
    const auto count = static_cast<uint32_t>(a.of_lane[lane].size());
    return count == 0 ? LaneCounts{} : known_at_end(a, lane, count);
  }

  BodyAnalysis within(Body& body) {
    BodyAnalysis a;
    a.spaces.resize(spaces_.count());
    a.of_lane.resize(program_.machine.lanes.size());
    for (uint32_t i = 0; i < body.instructions.size(); ++i) {
      Instruction& in = body.instructions[i];
      const auto number = static_cast<uint32_t>(a.of_lane[in.lane].size() + 1);
      LaneCounts needs{};
      for (size_t k = 0; k < in.operands.size(); ++k) touch(a, i, in, k, number, needs);
      LaneCounts known{};
      if (number > 1) known = a.starts[a.of_lane[in.lane].back()];
      if (!overlapping(in.lane)) raise(known, in.lane, number - 1);
      in.waits = reduce(needs, known, [&](LaneId l, uint32_t n) { return known_at_end(a, l, n); });
      for (const Wait& w : in.waits) raise(known, known_at_end(a, w.lane, w.count));
      a.starts.push_back(known);
      a.numbers.push_back(number);
      a.of_lane[in.lane].push_back(i);
    }
    return a;
  }

  void touch(BodyAnalysis& a, uint32_t index, const Instruction& in, size_t k, uint32_t number,
             LaneCounts& needs) {
    const Operand& o = in.operands[k];
    const uint64_t begin = touched_begin(program_, o, in.places[k]);
    const uint64_t end = begin + touched_bytes(program_, o, in.places[k]);
    const uint32_t space = spaces_.of(o, in.places[k]);
    const bool writes = o.access != Access::read;
    LaneCounts found{};
    a.spaces[space].access(begin, end, writes, in.lane, number, found, [&](uint64_t from, uint64_t to) {
      a.exposures.push_back({index, space, from, to, writes});
    });
    if (found[in.lane] == number) found[in.lane] = 0;  // by another operand of the same instruction
    raise(needs, found);
  }

  // The waits for `needs` that neither `known` nor another of these waits implies.
  template <typename KnownAtEnd>
  std::vector<Wait> reduce(const LaneCounts& needs, const LaneCounts& known,
                           const KnownAtEnd& known_at_end) const {
    std::vector<Wait> candidates, kept;
    for (size_t l = 0; l < program_.machine.lanes.size(); ++l)
      if (needs[l] > known[l]) candidates.push_back({static_cast<LaneId>(l), needs[l]});
    for (const Wait& w : candidates) {
      const bool implied = std::any_of(candidates.begin(), candidates.end(), [&](const Wait& other) {
        return other.lane != w.lane && known_at_end(other.lane, other.count)[w.lane] >= w.count;
      });
      if (!implied) kept.push_back(w);
    }
    return kept;
  }

  // Derives the waits of `body` on its predecessor number `p`.
  void between(Body& body, size_t p, const BodyAnalysis& own) {
    const BodyAnalysis& before = analyses_[body.predecessors[p]];
    std::vector<LaneCounts> starts(body.instructions.size());  // known to be complete in the body before
    size_t next = 0;
    for (uint32_t i = 0; i < body.instructions.size(); ++i) {
      Instruction& in = body.instructions[i];
      in.waits_before.resize(body.predecessors.size());
      LaneCounts needs{};
      for (; next < own.exposures.size() && own.exposures[next].instruction == i; ++next)
        add_needs(before, own.exposures[next], body, needs);
      LaneCounts known = known_from_lane(before, own, starts, in.lane, own.numbers[i]);
      for (const Wait& w : in.waits) {  // completions are counted in order, across bodies too
        raise(known, starts[own.of_lane[w.lane][w.count - 1]]);
        raise(known, known_of_all(before, w.lane));
      }
      in.waits_before[p] =
          reduce(needs, known, [&](LaneId l, uint32_t n) { return known_at_end(before, l, n); });
      for (const Wait& w : in.waits_before[p]) raise(known, known_at_end(before, w.lane, w.count));
      starts[i] = known;
    }
  }

  void add_needs(const BodyAnalysis& before, const Exposure& e, const Body& body, LaneCounts& needs) const {
    before.spaces[spaces_.before(e.space, body)].needs_of(e.begin, e.end, e.writes, needs);
  }

  // How many instructions of the body before, by lane, have completed when instruction `number` of `lane`
  // starts, as far as lane order alone proves it.
  LaneCounts known_from_lane(const BodyAnalysis& before, const BodyAnalysis& own,
                             const std::vector<LaneCounts>& starts, LaneId lane, uint32_t number) const {
    if (number > 1) return starts[own.of_lane[lane][number - 2]];
    if (before.of_lane[lane].empty() || !overlapping(lane)) return known_of_all(before, lane);
    return before.starts[before.of_lane[lane].back()];
  }

  Program& program_;
  const Spaces spaces_;
  std::vector<BodyAnalysis> analyses_;
};

}  // namespace

void synchronise(Program& program) { Synchroniser(program).run(); }

}  // namespace sluice
