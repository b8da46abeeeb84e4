#include "engine/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <tuple>

#include "engine/base/error.h"
#include "engine/program/roles.h"
#include "engine/verify/replay.h"

namespace sluice {

struct Name {  // made printable only when a message needs it
  const std::string& text;
};

}  // namespace sluice

template <>
struct fmt::formatter<sluice::Name> : fmt::formatter<std::string> {
  template <typename Context>
  auto format(const sluice::Name& name, Context& context) const {
    return fmt::formatter<std::string>::format(sluice::printable(name.text), context);
  }
};

namespace sluice {

namespace {

// Limit of the sum of all arenas and rings, so that no sum below overflows.
constexpr uint64_t kAddressLimit = uint64_t{1} << 62;

bool in_bounds(uint64_t offset, uint64_t bytes, uint64_t limit) {
  return bytes <= limit && offset <= limit - bytes;
}

class Tables {
 public:
  Tables(const Program& program, Report& report)
      : program_(program), machine_(program.machine), report_(report) {}

  void check() {
    check_machine();
    for (size_t b = 0; b < program_.buffers.size() && !report_.full(); ++b) check_buffer(program_.buffers[b]);
    check_arenas();
    if (!report_.empty()) return;
    check_homes();
    check_picks();
    if (!report_.empty()) return;
    for (size_t b = 0; b < program_.bodies.size(); ++b) check_body(static_cast<BodyId>(b));
    if (report_.empty()) check_peaks();
  }

 private:
  template <typename... Args>
  void require(bool good, fmt::format_string<Args...> what, Args&&... args) {
    if (!good) report_.add(fmt::format(what, std::forward<Args>(args)...));
  }

  void check_machine() {
    const size_t tiers = machine_.tiers.size(), lanes = machine_.lanes.size();
    require(tiers > 0 && tiers < 255, "there are {} tiers", tiers);
    require(lanes > 0 && lanes < 255, "there are {} lanes", lanes);
    require(program_.bodies.size() < kNoBody, "there are {} bodies", program_.bodies.size());
    for (const Tier& t : machine_.tiers)
      require(std::has_single_bit(t.alignment), "tier {} has alignment {}", Name{t.name}, t.alignment);
    for (const Link& l : machine_.links)
      require(std::has_single_bit(l.alignment), "a link has alignment {}", l.alignment);
    for (const Link& l : machine_.links)
      require(l.from < tiers && l.to < tiers && l.lane < lanes, "a link names tiers {}, {} and lane {}",
              l.from, l.to, l.lane);
    for (const Ring& r : program_.rings)
      require(r.slots >= 2 && r.slots <= kRingSlotsMax, "ring {} has {} slots", Name{r.name}, r.slots);
    for (const Unit& u : machine_.units)
      require(static_cast<size_t>(u.kind) < kTaskKinds && u.tier < tiers && u.lane < lanes,
              "a unit of kind {} names tier {} and lane {}", static_cast<size_t>(u.kind), u.tier, u.lane);
  }

  void check_buffer(const Buffer& b) {
    const Name name{b.name};
    require(b.cuts.size() > 1 && b.cuts.front() == 0, "buffer {} has no pieces", name);
    require(std::adjacent_find(b.cuts.begin(), b.cuts.end(), std::greater_equal<>()) == b.cuts.end(),
            "the cuts of buffer {} do not rise", name);
    require(b.home < machine_.tiers.size(), "buffer {} has its home in tier {}", name, b.home);
    require(b.empty_in.none() || (b.permanent && !is_ring(b)),
            "buffer {} is empty in some states and not permanent, or in a ring", name);
    for (int i = 0; i < kBodyStates * kBodyStates; ++i) {
      const BodyState end = BodyState::at(i / kBodyStates), start = BodyState::at(i % kBodyStates);
      require(!can_follow(end, start) || !b.is_empty_in(end) || b.is_empty_in(start),
              "buffer {} may be empty at the end of a body where the next one finds content", name);
    }
    if (!is_ring(b)) return;
    require(b.ring < program_.rings.size(), "buffer {} is in ring {}", name, b.ring);
    require(b.permanent, "buffer {} is in a ring and not permanent", name);
  }

  void check_arenas() {
    const size_t tiers = machine_.tiers.size();
    require(program_.arena_bytes.size() == tiers, "there are {} arenas for {} tiers",
            program_.arena_bytes.size(), tiers);
    uint64_t sum = 0;  // every summand is at most the limit
    const auto add = [&](uint64_t bytes) {
      sum = std::min(kAddressLimit, sum + std::min(kAddressLimit, bytes));
    };
    for (size_t t = 0; t < std::min(tiers, program_.arena_bytes.size()); ++t) {
      const Tier& tier = machine_.tiers[t];
      require(program_.arena_bytes[t] <= tier.capacity, "the arena of {} has {} bytes, its capacity is {}",
              Name{tier.name}, program_.arena_bytes[t], tier.capacity);
      add(program_.arena_bytes[t]);
    }
    for (const Buffer& b : program_.buffers)
      if (is_ring(b) && b.ring < program_.rings.size() && !b.cuts.empty())
        for (uint32_t slot = 0; slot < slots_of(program_, b); ++slot) add(b.bytes());
    require(sum < kAddressLimit, "arenas and rings together exceed {} bytes", kAddressLimit);
  }

  struct Home {
    TierId tier;
    uint64_t begin, end;
    const Buffer* buffer;
  };

  void check_homes() {
    std::vector<Home> homes;
    for (const Buffer& b : program_.buffers) {
      if (!b.owns_home()) continue;
      const uint64_t arena = program_.arena_bytes[b.home], alignment = machine_.tiers[b.home].alignment;
      const uint64_t stride = is_ring(b) ? b.slot_stride : 0;
      const uint64_t slots = slots_of(program_, b);
      const bool fits = stride <= arena && in_bounds(b.home_offset, (slots - 1) * stride, arena) &&
                        in_bounds(b.home_offset + (slots - 1) * stride, b.bytes(), arena);
      require(fits, "the home of buffer {} is not inside the arena", Name{b.name});
      require(b.home_offset % alignment == 0 && stride % alignment == 0,
              "the home of buffer {} is not aligned", Name{b.name});
      for (uint64_t slot = 0; fits && slot < slots; ++slot)
        homes.push_back(
            {b.home, b.home_offset + slot * stride, b.home_offset + slot * stride + b.bytes(), &b});
    }
    std::sort(homes.begin(), homes.end(), [](const Home& a, const Home& b) {
      return std::tie(a.tier, a.begin) < std::tie(b.tier, b.begin);
    });
    for (size_t h = 1; h < homes.size(); ++h) {
      const Home &a = homes[h - 1], &b = homes[h];
      require(a.tier != b.tier || a.end <= b.begin, "the homes of buffers {} and {} overlap at {} {}",
              Name{a.buffer->name}, Name{b.buffer->name}, Name{machine_.tiers[a.tier].name}, b.begin);
    }
  }

  // A bank consists of equal parts, each cut into pieces as its picked buffers are. The index has a number
  // for each part, and one more.
  void check_picks() {
    const size_t buffers = program_.buffers.size();
    for (const Buffer& b : program_.buffers) {
      if (!b.pick) continue;
      if (b.pick->bank >= buffers || b.pick->index >= buffers) {
        require(false, "buffer {} is picked from no buffer, or by none", Name{b.name});
        continue;
      }
      const Buffer &bank = program_.buffers[b.pick->bank], &index = program_.buffers[b.pick->index];
      require(b.permanent && !is_ring(b) && b.kind != BufferClass::workspace && b.empty_in == bank.empty_in,
              "picked buffer {} is not permanent as its bank is", Name{b.name});
      require(bank.owns_home() && !is_ring(bank) && b.kind == bank.kind,
              "buffer {} is picked from {}, which is no bank", Name{b.name}, Name{bank.name});
      require(b.home == bank.home && b.home_offset == bank.home_offset, "buffer {} is not at its bank",
              Name{b.name});
      require(b.pick->place < b.pick->places, "buffer {} has place {} of {}", Name{b.name}, b.pick->place,
              b.pick->places);
      const uint64_t parts = bank.slot_stride == 0 ? 0 : bank.bytes() / bank.slot_stride;
      bool equal = parts > 0 && parts * bank.slot_stride == bank.bytes() &&
                   bank.pieces() == parts * b.pieces() && b.bytes() == bank.slot_stride;
      for (uint32_t p = 0; equal && p < bank.pieces(); ++p)
        equal = bank.cuts[p] == p / b.pieces() * bank.slot_stride + b.cuts[p % b.pieces()];
      require(equal, "the parts of {} are not as buffer {}", Name{bank.name}, Name{b.name});
      require(
          !index.permanent && !index.pick && index.pieces() == 1 && index.bytes() / sizeof(int32_t) > parts,
          "buffer {} is picked by {}, which is no index of {} parts", Name{b.name}, Name{index.name}, parts);
    }
  }

  void check_body(BodyId id) {
    const Body& body = program_.bodies[id];
    const auto fail = [&](std::string what) { report_.add(id, kNoInstruction, std::move(what)); };
    std::vector<BodyId> expected;
    for (size_t b = 0; b < program_.bodies.size(); ++b)
      if (can_follow(program_.bodies[b].end, body.start)) expected.push_back(static_cast<BodyId>(b));
    if (body.predecessors != expected)
      fail("its predecessors are not the bodies that end in a state where it can start");
    if (body.advance.size() != program_.rings.size() ||
        std::any_of(body.advance.begin(), body.advance.end(), [](uint8_t a) { return a > 1; }))
      fail("it does not advance every ring by 0 or 1");
    if (body.peak_bytes.size() != machine_.tiers.size())
      return fail("it does not state a peak for every tier");
    for (size_t t = 0; t < machine_.tiers.size(); ++t)
      if (body.peak_bytes[t] > program_.arena_bytes[t])
        fail(fmt::format("its peak of {} bytes exceeds the arena of {}, {}", body.peak_bytes[t],
                         Name{machine_.tiers[t].name}, program_.arena_bytes[t]));
    for (const Buffer& b : program_.buffers)
      if (b.permanent &&
          b.home_offset + (slots_of(program_, b) - 1) * b.slot_stride + b.bytes() > body.peak_bytes[b.home])
        fail(fmt::format("its peak leaves out the home of {}", Name{b.name}));
  }

  void check_peaks() {
    for (size_t t = 0; t < machine_.tiers.size() && !program_.bodies.empty(); ++t) {
      uint64_t peak = 0;
      for (const Body& b : program_.bodies) peak = std::max(peak, b.peak_bytes[t]);
      require(peak == program_.arena_bytes[t], "the arena of {} has {} bytes, but the largest peak is {}",
              Name{machine_.tiers[t].name}, program_.arena_bytes[t], peak);
    }
  }

  const Program& program_;
  const Machine& machine_;
  Report& report_;
};

class Structure {
 public:
  Structure(const Program& program, BodyId id, Report& report)
      : program_(program),
        machine_(program.machine),
        body_(program.bodies[id]),
        id_(id),
        report_(report),
        issued_(machine_.lanes.size()),
        instructions_of_(body_.tasks.size()),
        is_index_(program.buffers.size()) {
    for (const Buffer& b : program.buffers)
      if (b.pick) is_index_[b.pick->index] = true;
  }

  void check() {
    for (BodyId before : body_.predecessors) {
      std::vector<uint32_t>& counts = before_.emplace_back(machine_.lanes.size());
      for (const Instruction& i : program_.bodies[before].instructions)
        if (i.lane < counts.size()) ++counts[i.lane];
    }
    for (uint32_t i = 0; i < body_.instructions.size() && !report_.full(); ++i) check_instruction(i);
    for (size_t t = 0; t < body_.tasks.size(); ++t)
      if (instructions_of_[t] != 1)
        report_.add(id_, kNoInstruction,
                    fmt::format("task {} is in {} instructions", t, instructions_of_[t]));
  }

 private:
  template <typename... Args>
  bool require(bool good, fmt::format_string<Args...> what, Args&&... args) {
    if (!good) report_.add(id_, at_, fmt::format(what, std::forward<Args>(args)...));
    return good;
  }

  void check_instruction(uint32_t i) {
    at_ = i;
    const Instruction& instruction = body_.instructions[i];
    if (!require(instruction.lane < machine_.lanes.size(), "is on lane {}", instruction.lane)) return;
    check_waits(instruction);
    ++issued_[instruction.lane];
    if (!require(instruction.places.size() == instruction.operands.size(), "has {} places for {} operands",
                 instruction.places.size(), instruction.operands.size()))
      return;
    for (size_t k = 0; k < instruction.operands.size(); ++k)
      if (!check_operand(instruction.operands[k], instruction.places[k])) return;
    if (!check_by_host(instruction) || !check_index(instruction)) return;
    if (instruction.task == kNoTask)
      check_transfer(instruction);
    else
      check_task(instruction);
  }

  bool check_operand(const Operand& o, const Place& place) {
    if (!require(o.buffer < program_.buffers.size(), "names buffer {}", o.buffer)) return false;
    const Buffer& b = program_.buffers[o.buffer];
    if (!require(o.first < o.last && o.last <= b.pieces(), "names pieces [{}, {}) of {}", o.first, o.last,
                 Name{b.name}) ||
        !require(o.back < slots_of(program_, b), "names slot {} back of {}", o.back, Name{b.name}) ||
        !require(o.access <= Access::add, "has an unknown access to {}", Name{b.name}) ||
        !require(place.tier < machine_.tiers.size(), "has {} in tier {}", Name{b.name}, place.tier))
      return false;
    if (!require(!b.pick || place.tier != b.home || at_home(b, o, place), "has {} at {} {}, beside its bank",
                 Name{b.name}, Name{machine_.tiers[place.tier].name}, place.offset))
      return false;
    const Tier& tier = machine_.tiers[place.tier];
    // A piece in its home need not be aligned, except in a file: the buffer's cuts decide where it lies.
    const bool aligned = place.offset % tier.alignment == 0 || (!tier.file && at_home(b, o, place));
    return require(aligned, "has {} at {} {}, which is not aligned to {}", Name{b.name}, Name{tier.name},
                   place.offset, tier.alignment) &&
           require(in_bounds(place.offset, operand_bytes(b, o), body_.peak_bytes[place.tier]),
                   "has {} at {} {}, beyond the body's peak of {}", Name{b.name}, Name{tier.name},
                   place.offset, body_.peak_bytes[place.tier]);
  }

  // The operand that the host reads has content before the host carries out the instruction, since this body
  // has written it.
  bool check_by_host(const Instruction& instruction) {
    const std::vector<Operand>& operands = instruction.operands;
    if (!require(std::ranges::count_if(operands, &Operand::by_host) <= 1, "has two operands for the host"))
      return false;
    const std::optional<size_t> k = by_host(operands);
    if (!k) return true;
    const Buffer& b = program_.buffers[operands[*k].buffer];
    TierId memory = 0;
    for (size_t t = 0; t < machine_.tiers.size(); ++t)
      if (!machine_.tiers[t].file) memory = static_cast<TierId>(t);
    return require(operands[*k].access == Access::read && operands[*k].version > 0 && !b.permanent &&
                       b.pieces() == 1 && !b.pick,
                   "has {} for the host, which is not what this body has made", Name{b.name}) &&
           require(instruction.places[*k].tier == memory, "has {} for the host in tier {}", Name{b.name},
                   Name{machine_.tiers[instruction.places[*k].tier].name});
  }

  // All picked operands have one index, which the host reads. The index is written once in a body, so what it
  // picks stays the same.
  bool check_index(const Instruction& instruction) {
    const std::vector<Operand>& operands = instruction.operands;
    for (const Operand& o : operands)
      if (instruction.task != kNoTask && is_index_[o.buffer] && o.access != Access::read &&
          !require(o.access == Access::write && o.version == 0, "writes index {} again",
                   Name{program_.buffers[o.buffer].name}))
        return false;
    const std::optional<BufferId> index = index_of(program_, operands);
    if (!index) return true;
    for (const Operand& o : operands) {
      const Buffer& b = program_.buffers[o.buffer];
      if (b.pick && (!require(b.pick->index == *index, "has operands that two indices pick") ||
                     !require(instruction.task == kNoTask || o.access == Access::read,
                              "writes picked buffer {}", Name{b.name})))
        return false;
    }
    const std::optional<size_t> k = by_host(operands);
    return require(k && operands[*k].buffer == *index && operands[*k].version == 1,
                   "has picked operands, and does not show the host their index {}",
                   Name{program_.buffers[*index].name});
  }

  void check_transfer(const Instruction& instruction) {
    const size_t count = index_of(program_, instruction.operands) ? 3 : 2;
    if (!require(instruction.operands.size() == count && by_host(instruction.operands).value_or(2) == 2,
                 "is a transfer of {} operands", instruction.operands.size()))
      return;
    const Operand &from = instruction.operands[0], &to = instruction.operands[1];
    require(from.access == Access::read && to.access == Access::write,
            "is a transfer that does not read, then write");
    require(std::ranges::all_of(instruction.operands, [](const Operand& o) { return o.role == Role::none; }),
            "is a transfer whose operands have roles");
    require(
        from.buffer == to.buffer && from.first == to.first && from.last == to.last && from.back == to.back,
        "copies between different ranges");
    require(program_.buffers[from.buffer].kind != BufferClass::workspace, "copies a workspace");
    const TierId source = instruction.places[0].tier, target = instruction.places[1].tier;
    const auto link = std::find_if(machine_.links.begin(), machine_.links.end(), [&](const Link& l) {
      return l.from == source && l.to == target && l.lane == instruction.lane;
    });
    if (!require(link != machine_.links.end(), "copies from {} to {} on lane {}, which no link does",
                 Name{machine_.tiers[source].name}, Name{machine_.tiers[target].name},
                 Name{machine_.lanes[instruction.lane].name}))
      return;
    const uint64_t bytes = operand_bytes(program_.buffers[from.buffer], from);
    require((instruction.places[0].offset | instruction.places[1].offset | bytes) % link->alignment == 0,
            "copies a range that is not aligned to {}", link->alignment);
  }

  void check_collective(const Task& task) {
    require(task.processes < program_.processes.size(), "names process group {}", task.processes);
    if (is_of_segment(task.kind)) return;
    require(task.operands.size() == 2 && task.operands[0].access == Access::read &&
                task.operands[1].access == Access::write,
            "is a collective that does not read, then write");
  }

  void check_task(const Instruction& instruction) {
    if (!require(instruction.task < body_.tasks.size(), "runs task {}", instruction.task)) return;
    const uint32_t pass = body_.tasks[instruction.task].pass;
    require(pass == kNoPass || pass < program_.passes.size(), "names pass {}", pass);
    ++instructions_of_[instruction.task];
    const Task& task = body_.tasks[instruction.task];
    require(task.operands == instruction.operands, "has other operands than its task {}", instruction.task);
    if (is_collective(task.kind)) check_collective(task);
    const bool has_roles =
        std::ranges::any_of(task.operands, [](const Operand& o) { return o.role != Role::none; });
    if (const std::string fault = has_roles ? operand_fault(task) : ""; !fault.empty())
      require(false, "{}", fault);
    const auto runs_on = [&](LaneId lane) {
      return [&, lane](const Unit& u) { return u.kind == task.kind && u.lane == lane; };
    };
    const std::vector<Unit>& units = machine_.units;
    require(std::any_of(units.begin(), units.end(), runs_on(instruction.lane)), "runs {} on lane {}",
            task_kind_name(task.kind), Name{machine_.lanes[instruction.lane].name});
    std::vector<Place> places = instruction.places;
    if (const auto k = by_host(task.operands))  // check_by_host() looks at this place
      places.erase(places.begin() + static_cast<std::ptrdiff_t>(*k));
    for (const Place& p : places) {
      const auto is_in_tier = [&](const Unit& u) { return runs_on(instruction.lane)(u) && u.tier == p.tier; };
      const bool together = p.tier == places.front().tier && !machine_.tiers[p.tier].file;
      if (!require(together && std::any_of(units.begin(), units.end(), is_in_tier),
                   "runs {} on operands in tier {}", task_kind_name(task.kind),
                   Name{machine_.tiers[p.tier].name}))
        return;
    }
  }

  void check_waits(const Instruction& instruction) {
    check_wait_list(instruction.waits, issued_, "an earlier one of this body");
    if (!require(instruction.waits_before.size() == body_.predecessors.size(),
                 "has {} lists of waits for {} predecessors", instruction.waits_before.size(),
                 body_.predecessors.size()))
      return;
    for (size_t p = 0; p < before_.size(); ++p)
      check_wait_list(instruction.waits_before[p], before_[p], "in the body before");
  }

  void check_wait_list(const std::vector<Wait>& waits, const std::vector<uint32_t>& limits,
                       const char* which) {
    for (size_t w = 0; w < waits.size(); ++w) {
      const Wait& wait = waits[w];
      if (!require(wait.lane < limits.size(), "waits for lane {}", wait.lane)) continue;
      require(wait.count > 0 && wait.count <= limits[wait.lane],
              "waits for instruction {} of lane {}, which is not {}", wait.count,
              Name{machine_.lanes[wait.lane].name}, which);
      for (size_t v = 0; v < w; ++v)
        require(waits[v].lane != wait.lane, "waits twice for lane {}", Name{machine_.lanes[wait.lane].name});
    }
  }

  const Program& program_;
  const Machine& machine_;
  const Body& body_;
  const BodyId id_;
  Report& report_;
  uint32_t at_ = 0;
  std::vector<uint32_t> issued_;               // by lane, before the instruction at hand
  std::vector<std::vector<uint32_t>> before_;  // by predecessor: instructions of each lane
  std::vector<uint32_t> instructions_of_;      // by task
  std::vector<bool> is_index_;                 // by buffer
};

}  // namespace

std::vector<Violation> verify(const Program& program, size_t limit) {
  CHECK(limit > 0, "the limit allows no violation to be reported");
  Report report(limit);
  Tables(program, report).check();
  if (!report.empty()) return report.take();
  const auto bodies = static_cast<BodyId>(program.bodies.size());
  for (BodyId b = 0; b < bodies && !report.full(); ++b) Structure(program, b, report).check();
  if (!report.empty()) return report.take();
  const AddressLine line(program);
  std::vector<BodyFacts> facts;
  for (BodyId b = 0; b < bodies && !report.full(); ++b)
    facts.push_back(replay_body(program, line, b, report));
  if (report.full()) return report.take();
  for (BodyId b = 0; b < bodies; ++b)
    for (uint32_t p = 0; p < program.bodies[b].predecessors.size() && !report.full(); ++p)
      check_pair(program, line, facts, b, p, report);
  return report.take();
}

std::string describe(const Program& program, const Violation& v) {
  if (v.body == kNoBody) return "program: " + v.what;
  const Body& body = program.bodies[v.body];
  std::string text = "body " + printable(body.name);
  if (v.before != kNoBody) text += " after " + printable(program.bodies[v.before].name);
  if (v.instruction == kNoInstruction) return text + ": " + v.what;
  const LaneId lane = body.instructions[v.instruction].lane;
  const auto ordinal = 1 + std::count_if(body.instructions.begin(), body.instructions.begin() + v.instruction,
                                         [&](const Instruction& i) { return i.lane == lane; });
  const std::string name =
      lane < program.machine.lanes.size() ? printable(program.machine.lanes[lane].name) : "?";
  return fmt::format("{}, instruction {} ({} {}): {}", text, v.instruction, name, ordinal, v.what);
}

}  // namespace sluice
