#include "engine/verify/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/error.h"
#include "engine/verify/ranges.h"

namespace sluice {

AddressLine::AddressLine(const Program& program) : program_(program), ring_base_(program.buffers.size()) {
  std::vector<uint64_t> ring_bytes(program.rings.size());
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (!is_ring(buffer)) continue;
    ring_base_[b] = ring_bytes[buffer.ring];
    ring_bytes[buffer.ring] += buffer.bytes();
  }
  begins_.push_back(0);
  for (const uint64_t bytes : program.arena_bytes) begins_.push_back(begins_.back() + bytes);
  for (size_t ring = 0; ring < ring_bytes.size(); ++ring) {
    ring_spaces_.push_back(spaces());
    for (uint16_t back = 0; back < program.rings[ring].slots; ++back)
      begins_.push_back(begins_.back() + ring_bytes[ring]);
  }
}

uint32_t AddressLine::space_before(uint32_t space, const Body& body) const {
  const auto after = std::upper_bound(ring_spaces_.begin(), ring_spaces_.end(), space);
  if (after == ring_spaces_.begin()) return space;
  const auto ring = static_cast<size_t>(after - ring_spaces_.begin()) - 1;
  const uint32_t slots = program_.rings[ring].slots, back = space - ring_spaces_[ring];
  return ring_spaces_[ring] + (back + slots - body.advance[ring]) % slots;
}

uint64_t AddressLine::of(const Operand& o, const Place& p) const {
  const Buffer& b = program_.buffers[o.buffer];
  if (is_ring(b) && at_home(b, o, p)) return ring_home(o.buffer, o.back) + operand_begin(b, o);
  return begins_[p.tier] + p.offset;
}

std::string AddressLine::name(uint64_t begin, uint64_t end) const {
  const auto space =
      static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin()) - 1;
  const uint64_t from = begin - begins_[space], to = end - begins_[space];
  const std::vector<Tier>& tiers = program_.machine.tiers;
  if (space < tiers.size()) return fmt::format("{} [{}, {})", printable(tiers[space].name), from, to);
  const auto after = std::upper_bound(ring_spaces_.begin(), ring_spaces_.end(), static_cast<uint32_t>(space));
  const auto ring = static_cast<size_t>(after - ring_spaces_.begin()) - 1;
  return fmt::format("ring {} back {} [{}, {})", printable(program_.rings[ring].name),
                     space - ring_spaces_[ring], from, to);
}

namespace {

constexpr uint32_t kNobody = UINT32_MAX;

struct Segment {              // a run of bytes with one history
  uint64_t anchor = 0;        // address that the buffer's first byte would have
  uint32_t buffer = kNobody;  // kNobody: garbage
  uint32_t version = 0;
  uint32_t writer = kNobody;  // instruction of this body
  uint16_t back = 0;
  bool home = false;  // part of a permanent buffer's home: only that buffer may be written here
};

struct Range {
  uint32_t begin, end;  // positions
};

class Replay {
 public:
  Replay(const Program& program, const AddressLine& line, BodyId id, Report& report)
      : program_(program),
        body_(program.bodies[id]),
        line_(line),
        id_(id),
        report_(report),
        lanes_(program.machine.lanes.size()),
        index_(4 * body_.instructions.size()) {}

  BodyFacts run() {
    number_lanes();
    compute_clocks();
    index_addresses();
    place_homes();
    for (uint32_t i = 0; i < body_.instructions.size() && !report_.full(); ++i) replay(i);
    if (!report_.full()) finish();
    return std::move(facts_);
  }

 private:
  const Buffer& buffer(const Operand& o) const { return program_.buffers[o.buffer]; }
  uint32_t* started(uint32_t i) { return &facts_.started[i * lanes_]; }

  void number_lanes() {
    facts_.by_lane.resize(lanes_);
    facts_.ordinal.reserve(body_.instructions.size());
    for (uint32_t i = 0; i < body_.instructions.size(); ++i) {
      std::vector<uint32_t>& lane = facts_.by_lane[body_.instructions[i].lane];
      lane.push_back(i);
      facts_.ordinal.push_back(static_cast<uint32_t>(lane.size()));
    }
  }

  // started(i)[l]: how many of lane l's instructions have completed for certain when instruction i starts.
  void compute_clocks() {
    facts_.started.assign(body_.instructions.size() * lanes_, 0);
    for (uint32_t i = 0; i < body_.instructions.size(); ++i) {
      const Instruction& instruction = body_.instructions[i];
      const LaneId lane = instruction.lane;
      const uint32_t ordinal = facts_.ordinal[i];
      if (ordinal > 1) {
        std::copy_n(started(facts_.by_lane[lane][ordinal - 2]), lanes_, started(i));
        if (!program_.machine.lanes[lane].overlapping) started(i)[lane] = ordinal - 1;
      }
      for (const Wait& w : instruction.waits) {
        const uint32_t* other = started(facts_.by_lane[w.lane][w.count - 1]);
        for (size_t l = 0; l < lanes_; ++l) started(i)[l] = std::max(started(i)[l], other[l]);
        started(i)[w.lane] = std::max(started(i)[w.lane], w.count);
      }
    }
  }

  void index_addresses() {
    for (const Instruction& instruction : body_.instructions)
      for (size_t k = 0; k < instruction.operands.size(); ++k) {
        const Operand& o = instruction.operands[k];
        const uint64_t begin =
            line_.of(o, {instruction.places[k].tier, touched_begin(program_, o, instruction.places[k])});
        const uint64_t bytes = touched_bytes(program_, o, instruction.places[k]);
        ranges_.push_back({index_.add(begin), index_.add(begin + bytes)});
      }
    for_each_home([&](uint64_t begin, uint64_t bytes, const Segment&) {
      index_.add(begin), index_.add(begin + bytes);
    });
    index_.add(0);
    index_.add(line_.end(line_.spaces() - 1));
    index_.sort();
    for (Range& r : ranges_) r = {index_.position(r.begin), index_.position(r.end)};
    segments_.resize(index_.size());
    readers_.assign(index_.size() * lanes_, 0);
    first_readers_.assign(index_.size() * lanes_, 0);
    live_ = PositionSet(index_.size());
    live_.insert(0);
    live_.insert(index_.size() - 1);
  }

  // Homes of ring buffers lie in spaces of their own. Their addresses in the tier are out of bounds for every
  // operand.
  template <typename Visit>
  void for_each_home(const Visit& visit) const {
    for (BufferId b = 0; b < program_.buffers.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (!buffer.owns_home()) continue;
      const uint64_t begin = line_.tier_begin(buffer.home) + buffer.home_offset;
      if (!is_ring(buffer)) {
        visit(begin, buffer.bytes(), Segment{begin, b, 0, kNobody, 0, true});
        continue;
      }
      for (uint16_t slot = 0; slot < slots_of(program_, buffer); ++slot) {
        visit(begin + slot * buffer.slot_stride, buffer.bytes(), Segment{0, kNobody, 0, kNobody, 0, true});
        const uint64_t home = line_.ring_home(b, slot);
        visit(home, buffer.bytes(), Segment{home, b, 0, kNobody, slot, true});
      }
    }
  }

  void place_homes() {
    latest_base_.reserve(program_.buffers.size());
    uint32_t pieces = 0;
    for (const Buffer& b : program_.buffers) {
      latest_base_.push_back(pieces);
      pieces += b.pieces() * slots_of(program_, b);
    }
    latest_.assign(pieces, 0);
    for_each_home([&](uint64_t begin, uint64_t bytes, const Segment& home) {
      const uint32_t first = index_.position(index_.add(begin)),
                     last = index_.position(index_.add(begin + bytes));
      split(last);
      split(first);
      segments_[first] = home;
    });
  }

  void split(uint32_t position) {
    if (live_.contains(position)) return;
    const uint32_t from = live_.at_or_before(position);
    segments_[position] = segments_[from];
    std::copy_n(&readers_[from * lanes_], lanes_, &readers_[position * lanes_]);
    std::copy_n(&first_readers_[from * lanes_], lanes_, &first_readers_[position * lanes_]);
    live_.insert(position);
  }

  template <typename Visit>
  void for_each_segment(Range r, const Visit& visit) {
    split(r.begin);
    split(r.end);
    for (uint32_t s = r.begin; s < r.end; s = live_.at_or_after(s + 1)) visit(s);
  }

  void replay(uint32_t i) {
    const Instruction& instruction = body_.instructions[i];
    const size_t count = instruction.operands.size();
    const Range* ranges = &ranges_[next_range_];
    next_range_ += count;
    for (size_t k = 0; k < count; ++k) {
      const Operand& o = instruction.operands[k];
      if (buffer(o).kind != BufferClass::workspace && o.access != Access::write)
        check_content(i, k, ranges[k]);
      if (!exclusive(buffer(o), o.access)) read(i, ranges[k]);
    }
    for (size_t k = 0; k < count; ++k) {
      const Operand& o = instruction.operands[k];
      if (exclusive(buffer(o), o.access)) write(i, k, ranges[k]);
    }
  }

  std::string operand_name(const Operand& o) const {
    const std::string slot = o.back ? fmt::format(" ({} back)", o.back) : "";
    return fmt::format("{}{}[{}, {})", printable(buffer(o).name), slot, o.first, o.last);
  }

  void check_content(uint32_t i, size_t k, Range range) {
    const Operand& o = body_.instructions[i].operands[k];
    const bool of_bank = buffer(o).pick && body_.instructions[i].places[k].tier == buffer(o).home;
    const BufferId demanded = of_bank ? buffer(o).pick->bank : o.buffer;  // any part of it may be picked
    const uint64_t anchor = index_.address_at(range.begin) - (of_bank ? 0 : operand_begin(buffer(o), o));
    bool good = true;
    for_each_segment(range, [&](uint32_t s) {
      const Segment& seg = segments_[s];
      if (!good || (seg.buffer == demanded && seg.back == o.back && seg.anchor == anchor &&
                    seg.version == o.version && !(seg.version == 0 && is_empty_in(buffer(o), body_.start))))
        return;
      good = false;
      report_.add(id_, i,
                  fmt::format("demands {} version {} at {} and finds {}", operand_name(o), o.version,
                              range_name(s), content_name(seg, index_.address_at(s))));
    });
  }
  // Before the first load there are no weights, state and caches, only what the run itself sets (scalars,
  // tokens).
  bool is_empty_in(const Buffer& b, BodyState state) const {
    const bool is_loaded =
        b.kind == BufferClass::weights || b.kind == BufferClass::state || b.kind == BufferClass::caches;
    return b.is_empty_in(state) || (!state.loaded && is_loaded);
  }
  std::string range_name(uint32_t s) const {
    return line_.name(index_.address_at(s), index_.address_at(live_.at_or_after(s + 1)));
  }
  std::string content_name(const Segment& s, uint64_t address) const {
    if (s.buffer == kNobody) return "garbage";
    return fmt::format("version {} of {} from its byte {}{}", s.version,
                       printable(program_.buffers[s.buffer].name), address - s.anchor,
                       s.back ? fmt::format(" ({} back)", s.back) : "");
  }

  void unordered(uint32_t i, uint32_t other, uint32_t s, const char* what) {
    const std::string& lane = program_.machine.lanes[body_.instructions[other].lane].name;
    report_.add(id_, i,
                i == other ? fmt::format("has overlapping operands at {}, one of them written", range_name(s))
                           : fmt::format("{} {} by instruction {} ({} {}), which may not have completed",
                                         what, range_name(s), other, printable(lane), facts_.ordinal[other]));
  }

  void check_after_writer(uint32_t i, uint32_t s, const char* what) {
    const uint32_t w = segments_[s].writer;
    if (w != kNobody && started(i)[body_.instructions[w].lane] < facts_.ordinal[w]) unordered(i, w, s, what);
  }

  void read(uint32_t i, Range range) {
    const LaneId lane = body_.instructions[i].lane;
    for_each_segment(range, [&](uint32_t s) {
      check_after_writer(i, s, "reads what was written to");
      readers_[s * lanes_ + lane] = facts_.ordinal[i];
      uint32_t& first = first_readers_[s * lanes_ + lane];
      if (segments_[s].writer == kNobody && first == 0) first = facts_.ordinal[i];
    });
  }

  void write(uint32_t i, size_t k, Range range) {
    const Instruction& instruction = body_.instructions[i];
    const Operand& o = instruction.operands[k];
    Segment next{index_.address_at(range.begin) - operand_begin(buffer(o), o), o.buffer, 0, i, o.back, false};
    if (instruction.task == kNoTask)
      next.version = instruction.operands[0].version;  // a copy has the version of its source
    else if (buffer(o).kind == BufferClass::workspace)
      next.buffer = kNobody;
    else
      next.version = next_version(i, o);
    bool stranger = false;
    for_each_segment(range, [&](uint32_t s) {
      const Segment& seg = segments_[s];
      stranger |=
          seg.home && (next.buffer == kNobody || seg.buffer != next.buffer || seg.anchor != next.anchor);
      next.home |= seg.home;
      check_after_writer(i, s, "overwrites what was written to");
      for (size_t l = 0; l < lanes_; ++l)
        if (readers_[s * lanes_ + l] > started(i)[l])
          unordered(i, facts_.by_lane[l][readers_[s * lanes_ + l] - 1], s, "overwrites what is read from");
      if (seg.writer == kNobody) emit(facts_.first, s, i, first_readers_);
      if (s != range.begin) live_.erase(s);
    });
    if (stranger)
      report_.add(id_, i,
                  fmt::format("writes {} over a home of another range at {}", operand_name(o),
                              line_.name(index_.address_at(range.begin), index_.address_at(range.end))));
    segments_[range.begin] = next;
    std::fill_n(&readers_[range.begin * lanes_], lanes_, 0u);
  }

  uint32_t next_version(uint32_t i, const Operand& o) {
    uint32_t* latest = &latest_[latest_base_[o.buffer] + o.back * buffer(o).pieces()];
    for (uint32_t p = o.first; p < o.last; ++p) {
      if (latest[p] != o.version)
        report_.add(id_, i,
                    fmt::format("replaces version {} of {} when piece {} is at version {}", o.version,
                                operand_name(o), p, latest[p]));
      latest[p] = o.version + 1;
    }
    return o.version + 1;
  }

  void emit(Touches& to, uint32_t s, uint32_t writer, const std::vector<uint32_t>& readers) {
    to.begin.push_back(index_.address_at(s));
    to.end.push_back(index_.address_at(live_.at_or_after(s + 1)));
    to.writer.push_back(writer);
    to.readers.insert(to.readers.end(), &readers[s * lanes_], &readers[s * lanes_] + lanes_);
  }

  // Completes the facts for check_pair(). Checks that homes hold the newest versions.
  void finish() {
    for (uint32_t s = 0; s + 1 < index_.size(); s = live_.at_or_after(s + 1)) {
      const Segment& seg = segments_[s];
      const auto any = [&](const std::vector<uint32_t>& readers) {
        return std::any_of(&readers[s * lanes_], &readers[s * lanes_] + lanes_,
                           [](uint32_t r) { return r != 0; });
      };
      if (seg.writer != kNobody || any(readers_)) emit(facts_.last, s, seg.writer, readers_);
      if (seg.writer == kNobody && any(first_readers_)) emit(facts_.first, s, kNobody, first_readers_);
      if (seg.home && seg.buffer != kNobody) check_home(s);
    }
    sort_first();
  }

  void check_home(uint32_t s) {
    const Segment& seg = segments_[s];
    const Buffer& b = program_.buffers[seg.buffer];
    const uint64_t begin = index_.address_at(s) - seg.anchor;
    const uint64_t end = index_.address_at(live_.at_or_after(s + 1)) - seg.anchor;
    const auto after = std::upper_bound(b.cuts.begin(), b.cuts.end(), begin);
    const uint32_t* latest = &latest_[latest_base_[seg.buffer] + seg.back * b.pieces()];
    for (auto p = static_cast<uint32_t>(after - b.cuts.begin()) - 1; p < b.pieces() && b.cuts[p] < end; ++p)
      if (latest[p] != seg.version && !is_empty_in(b, body_.end))
        report_.add(id_, kNoInstruction,
                    fmt::format("ends with version {} of piece {} of {}{} at home, but version {} was made",
                                seg.version, p, printable(b.name),
                                seg.back ? fmt::format(" ({} back)", seg.back) : "", latest[p]));
    if (seg.version == 0 && is_empty_in(b, body_.start) && !is_empty_in(b, body_.end))
      report_.add(id_, kNoInstruction, fmt::format("ends without content of {}", printable(b.name)));
  }

  void sort_first() {
    const Touches& from = facts_.first;
    std::vector<uint32_t> order(from.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return from.begin[a] < from.begin[b]; });
    Touches sorted;
    for (const uint32_t t : order) {
      sorted.begin.push_back(from.begin[t]);
      sorted.end.push_back(from.end[t]);
      sorted.writer.push_back(from.writer[t]);
      sorted.readers.insert(sorted.readers.end(), &from.readers[t * lanes_],
                            &from.readers[t * lanes_] + lanes_);
    }
    facts_.first = std::move(sorted);
  }

  const Program& program_;
  const Body& body_;
  const AddressLine& line_;
  const BodyId id_;
  Report& report_;
  const size_t lanes_;
  BodyFacts facts_;
  AddressIndex index_;
  std::vector<Range> ranges_;  // by operand, in list order
  size_t next_range_ = 0;
  PositionSet live_{1};            // positions where a segment begins
  std::vector<Segment> segments_;  // by position, where live
  // By position and lane. readers_: the last read since the last write; first_readers_: the first read before
  // any write.
  std::vector<uint32_t> readers_, first_readers_;
  std::vector<uint32_t> latest_base_, latest_;  // newest version of every piece
};

}  // namespace

BodyFacts replay_body(const Program& program, const AddressLine& line, BodyId body, Report& report) {
  return Replay(program, line, body, report).run();
}

}  // namespace sluice
