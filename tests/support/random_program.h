// Small programs for tests, made without the planner: a demand-paging scheduler over random tasks, and waits
// derived cell by cell. It is simple on purpose. Bytes come in cells of kCell.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/program/program.h"

namespace sluice::testing {

constexpr uint64_t kCell = 64;

// --- cells: (space, cell). Each tier is a space, and so is each slot of a ring buffer at home ---
using Cell = std::pair<uint32_t, uint64_t>;

inline bool ring_at_home(const Program& p, const Operand& o, const Place& place) {
  const Buffer& b = p.buffers[o.buffer];
  return b.ring != kNoRing && place.tier == b.home && place.offset == b.home_offset + operand_begin(b, o);
}
// `behind`: by how many slots of the buffer's ring the issuing body lies behind the observing body.
template <typename Visit>
void for_each_cell(const Program& p, const Operand& o, const Place& place, uint32_t behind,
                   const Visit& visit) {
  const Buffer& b = p.buffers[o.buffer];
  const bool ring = ring_at_home(p, o, place);
  const uint32_t slot = (o.back + behind) % slots_of(p, b);
  const uint32_t space = ring ? 1000 + o.buffer * kRingSlotsMax + slot : place.tier;
  const uint64_t begin = ring ? operand_begin(b, o) : place.offset;
  for (uint64_t at = begin; at < begin + operand_bytes(b, o); at += kCell) visit(Cell{space, at / kCell});
}
inline bool writes(const Program& p, const Operand& o) {
  return o.access != Access::read || p.buffers[o.buffer].kind == BufferClass::workspace;
}

// --- waits ---
// Derives the minimal waits of `body`. Without a predecessor, these are the waits within the body. With a
// predecessor, they are the waits on that earlier body, and the waits within `body` stay as they are.
class WaitDeriver {
 public:
  WaitDeriver(Program& program, BodyId body, std::optional<uint32_t> predecessor)
      : p_(program),
        body_(program.bodies[body]),
        predecessor_(predecessor),
        lanes_(program.machine.lanes.size()) {}

  void run() {
    if (predecessor_) run_before();
    current_ = 1;
    for (size_t i = 0; i < body_.instructions.size(); ++i) step(body_, static_cast<uint32_t>(i));
  }

 private:
  // Ordinals are counted per body. A clock has an entry for each lane of the body before, then for each lane
  // of this body.
  using Clock = std::vector<uint32_t>;
  struct Access2 {
    size_t entry;  // in a clock
    uint32_t ordinal;
  };
  struct CellState {
    std::optional<Access2> writer;
    std::map<size_t, uint32_t> readers;
  };

  void run_before() {
    const Body& before = p_.bodies[body_.predecessors[*predecessor_]];
    current_ = 0;
    for (size_t i = 0; i < before.instructions.size(); ++i) step(before, static_cast<uint32_t>(i));
  }

  Clock completed(size_t entry, uint32_t ordinal) const {
    Clock c = starts_[entry][ordinal - 1];
    c[entry] = std::max(c[entry], ordinal);
    if (entry >= lanes_ && !starts_[entry - lanes_].empty())  // completions are in order across bodies
      join(c, completed(entry - lanes_, static_cast<uint32_t>(starts_[entry - lanes_].size())));
    return c;
  }
  static void join(Clock& a, const Clock& b) {
    for (size_t e = 0; e < a.size(); ++e) a[e] = std::max(a[e], b[e]);
  }

  void step(const Body& body, uint32_t index) {
    Instruction& in = const_cast<Body&>(body).instructions[index];
    const size_t entry = current_ * lanes_ + in.lane;
    if (starts_.empty()) starts_.resize(2 * lanes_);
    Clock clock(2 * lanes_);
    const bool overlapping = p_.machine.lanes[in.lane].overlapping;
    for (const size_t from : {in.lane + lanes_ * current_, size_t{in.lane}})
      if (!starts_[from].empty()) {
        const auto last = static_cast<uint32_t>(starts_[from].size());
        join(clock, overlapping ? starts_[from][last - 1] : completed(from, last));
        break;
      }
    const bool derive_inner = current_ == 1 && !predecessor_;
    if (!derive_inner)
      for (const Wait& w : in.waits) join(clock, completed(current_ * lanes_ + w.lane, w.count));
    const Clock needs = hazards(body, in);
    if (current_ == 1) {
      std::vector<Wait>& list = predecessor_ ? in.waits_before[*predecessor_] : in.waits;
      list = reduce(needs, clock, predecessor_ ? 0 : lanes_);
      for (const Wait& w : list) join(clock, completed((predecessor_ ? 0 : lanes_) + w.lane, w.count));
    }
    starts_[entry].push_back(clock);
    record(body, in, {entry, static_cast<uint32_t>(starts_[entry].size())});
  }

  template <typename Visit>
  void visit_cells(const Body& body, const Instruction& in, const Visit& visit) {
    for (size_t k = 0; k < in.operands.size(); ++k) {
      const Operand& o = in.operands[k];
      const uint8_t ring = p_.buffers[o.buffer].ring;
      const uint32_t behind = current_ == 0 && ring != kNoRing ? body_.advance[ring] : 0;
      (void)body;
      for_each_cell(p_, o, in.places[k], behind, [&](const Cell& c) { visit(cells_[c], writes(p_, o)); });
    }
  }
  Clock hazards(const Body& body, const Instruction& in) {
    Clock needs(2 * lanes_);
    const auto need = [&](size_t entry, uint32_t ordinal) { needs[entry] = std::max(needs[entry], ordinal); };
    visit_cells(body, in, [&](CellState& c, bool write) {
      if (c.writer) need(c.writer->entry, c.writer->ordinal);
      if (write)
        for (const auto& [entry, ordinal] : c.readers) need(entry, ordinal);
    });
    return needs;
  }
  void record(const Body& body, const Instruction& in, Access2 by) {
    visit_cells(body, in, [&](CellState& c, bool write) {
      if (!write) c.readers[by.entry] = by.ordinal;
    });
    visit_cells(body, in, [&](CellState& c, bool write) {
      if (!write) return;
      c.writer = by;
      c.readers.clear();
    });
  }
  // Returns the waits for the lanes_ entries of `needs` from `first` on. Leaves out waits that follow from
  // `clock` or from another wait.
  std::vector<Wait> reduce(const Clock& needs, const Clock& clock, size_t first) const {
    std::vector<Wait> waits;
    for (size_t l = 0; l < lanes_; ++l) {
      const uint32_t count = needs[first + l];
      bool implied = count <= clock[first + l];
      for (size_t k = 0; k < lanes_ && !implied; ++k)
        implied =
            k != l && needs[first + k] > 0 && completed(first + k, needs[first + k])[first + l] >= count;
      if (!implied) waits.push_back({static_cast<LaneId>(l), count});
    }
    return waits;
  }

  Program& p_;
  const Body& body_;
  const std::optional<uint32_t> predecessor_;
  const size_t lanes_;
  size_t current_ = 1;                      // 0: the body before is replayed
  std::vector<std::vector<Clock>> starts_;  // by clock entry and ordinal
  std::map<Cell, CellState> cells_;
};

inline void derive_waits(Program& p) {
  for (BodyId b = 0; b < p.bodies.size(); ++b) {
    for (Instruction& i : p.bodies[b].instructions) i.waits_before.resize(p.bodies[b].predecessors.size());
    WaitDeriver(p, b, std::nullopt).run();
  }
  for (BodyId b = 0; b < p.bodies.size(); ++b)
    for (uint32_t a = 0; a < p.bodies[b].predecessors.size(); ++a) WaitDeriver(p, b, a).run();
}

// Fills in predecessors, peaks and arenas, and derives the waits.
inline void finish(Program& p) {
  const size_t tiers = p.machine.tiers.size();
  p.arena_bytes.assign(tiers, 0);
  for (Body& body : p.bodies) {
    body.predecessors.clear();
    for (size_t b = 0; b < p.bodies.size(); ++b)
      if (p.bodies[b].end == body.start) body.predecessors.push_back(static_cast<BodyId>(b));
    body.peak_bytes.assign(tiers, 0);
    const auto cover = [&](TierId tier, uint64_t end) {
      body.peak_bytes[tier] = std::max(body.peak_bytes[tier], end);
      p.arena_bytes[tier] = std::max(p.arena_bytes[tier], body.peak_bytes[tier]);
    };
    for (const Buffer& b : p.buffers)
      if (b.permanent) cover(b.home, b.home_offset + (slots_of(p, b) - 1) * b.slot_stride + b.bytes());
    for (const Instruction& i : body.instructions)
      for (size_t k = 0; k < i.operands.size(); ++k)
        cover(i.places[k].tier,
              i.places[k].offset + operand_bytes(p.buffers[i.operands[k].buffer], i.operands[k]));
  }
  derive_waits(p);
}

// Tiers device, host and nvme, and the seven lanes. The nvme lanes overlap.
inline Machine test_machine(uint64_t device, uint64_t host, uint64_t nvme) {
  Machine m;
  m.tiers = {{"device", device, kCell, false}, {"host", host, kCell, false}, {"nvme", nvme, kCell, true}};
  m.lanes = {{"compute"},          {"h2d"},       {"d2h"},       {"nvme_read", true},
             {"nvme_write", true}, {"optimizer"}, {"collective"}};
  m.links = {{1, 0, 1, kCell}, {0, 1, 2, kCell}, {2, 1, 3, kCell}, {1, 2, 4, kCell}};
  for (const TaskKind k : {TaskKind::forward, TaskKind::backward, TaskKind::round})
    m.units.push_back({k, 0, 0});
  for (const TaskKind k :
       {TaskKind::norm, TaskKind::set_scalars, TaskKind::optimize, TaskKind::load, TaskKind::save})
    m.units.push_back({k, 5, 1});
  return m;
}

// --- random programs ---
struct RandomOptions {
  int groups = 3, activations = 4, tasks = 12;  // tasks in each of the larger bodies
  uint64_t device_cells = 40, host_cells = 80;  // room for staged copies, above the homes
};

class RandomProgram {
 public:
  RandomProgram(uint64_t seed, const RandomOptions& options) : random_(seed), options_(options) {}

  // Throws std::runtime_error when the arenas are too small for some task.
  Program make() {
    p_.machine = test_machine(0, 0, 0);
    for (const char* ring : {"train", "validation"})
      p_.rings.push_back({ring, static_cast<uint8_t>(2 + below(4))});
    make_buffers();
    make_homes();
    using S = BodyState;
    begin("load", S::empty, S::clean);
    for (BufferId b = 0; b < p_.buffers.size(); ++b)
      if (p_.buffers[b].kind == BufferClass::weights || p_.buffers[b].kind == BufferClass::state)
        for (uint32_t piece = 0; piece < p_.buffers[b].pieces(); ++piece)
          task(TaskKind::load, {{b, piece, piece + 1, Access::write}});
    end();
    random_body("first", S::clean, S::pending, options_.tasks);
    random_body("step", S::pending, S::pending, options_.tasks);
    random_body("drain", S::pending, S::clean, options_.tasks / 2);
    random_body("evaluate", S::clean, S::clean, options_.tasks / 2);
    for (size_t t = 0; t < p_.machine.tiers.size(); ++t)
      p_.machine.tiers[t].capacity = kCell * cells_[t].size();
    finish(p_);
    return std::move(p_);
  }

 private:
  struct Want {
    BufferId buffer;
    uint32_t first, last;
    Access access;
    uint8_t back = 0;
  };
  struct Copy {  // a place for a whole buffer in one tier, and the version of each piece there
    uint64_t cell = 0;
    bool home = false, pinned = false;
    std::vector<int64_t> versions;  // -1: nothing
  };
  using Key = std::pair<BufferId, uint8_t>;  // buffer, back

  uint32_t below(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_); }

  void add_buffer(std::string name, BufferClass kind, uint32_t pieces, bool permanent,
                  uint8_t ring = kNoRing) {
    Buffer b{std::move(name), kind, {0}, static_cast<TierId>(below(3)), permanent, ring};
    if (ring != kNoRing && b.home == 2) b.home = 1;
    for (uint32_t i = 0; i < pieces; ++i) b.cuts.push_back(b.cuts.back() + kCell * (1 + below(3)));
    if (ring != kNoRing) b.slot_stride = b.bytes() + kCell * below(2);
    p_.buffers.push_back(std::move(b));
  }
  void make_buffers() {
    for (int g = 0; g < options_.groups; ++g) {
      const std::string name = std::to_string(g);
      add_buffer("w." + name, BufferClass::weights, 1 + below(3), true);
      add_buffer("s." + name, BufferClass::state, 1 + below(2), true);
      add_buffer("g." + name, BufferClass::gradients, 1 + below(3), true);
    }
    for (int a = 0; a < options_.activations; ++a)
      add_buffer("x " + std::to_string(a), BufferClass::activations, 1 + below(2), false);
    add_buffer("work", BufferClass::workspace, 1, false);
    add_buffer("scalars", BufferClass::scalars, 4, true, 0);
    add_buffer("validation tokens", BufferClass::scalars, 2, true, 1);
  }
  void make_homes() {
    uint64_t used[3] = {0, 0, 0};
    for (Buffer& b : p_.buffers) {
      if (!b.permanent) continue;
      b.home_offset = kCell * (used[b.home] + below(2));
      used[b.home] = (b.home_offset + (slots_of(p_, b) - 1) * b.slot_stride + b.bytes()) / kCell;
    }
    const uint64_t extra[3] = {options_.device_cells, options_.host_cells, 400};
    for (int t = 0; t < 3; ++t) {
      cells_.emplace_back(used[t] + extra[t], 0);
      std::fill_n(cells_[static_cast<size_t>(t)].begin(), used[t], 1);
    }
    home_cells_ = cells_;
  }

  void begin(const char* name, BodyState start, BodyState end) {
    body_ = Body{name, start, end};
    body_.advance = {static_cast<uint8_t>(below(2)), static_cast<uint8_t>(below(2))};
    cells_ = home_cells_;
    copies_.clear();
    latest_.clear();
    for (BufferId b = 0; b < p_.buffers.size(); ++b)
      for (uint8_t back = 0; back < slots_of(p_, p_.buffers[b]); ++back) {
        latest_[{b, back}].assign(p_.buffers[b].pieces(), 0);
        if (!p_.buffers[b].permanent) continue;
        Copy& home = copies_[p_.buffers[b].home][{b, back}];
        home = {p_.buffers[b].home_offset / kCell, true, false,
                std::vector<int64_t>(p_.buffers[b].pieces(), 0)};
      }
  }
  void end() {
    for (BufferId b = 0; b < p_.buffers.size(); ++b)
      if (p_.buffers[b].permanent)
        for (auto& [key, latest] : latest_)
          if (key.first == b)
            for (uint32_t piece = 0; piece < latest.size(); ++piece) fetch(key, piece, p_.buffers[b].home);
    p_.bodies.push_back(std::move(body_));
  }

  Copy& room(const Key& key, TierId tier) {
    const auto it = copies_[tier].find(key);
    if (it != copies_[tier].end()) return it->second;
    const uint64_t need = p_.buffers[key.first].bytes() / kCell;
    std::vector<char>& cells = cells_[tier];
    while (true) {
      std::vector<uint64_t> fits;
      for (uint64_t at = 0; at + need <= cells.size(); ++at)
        if (std::all_of(&cells[at], &cells[at] + need, [](char c) { return c == 0; })) fits.push_back(at);
      if (!fits.empty()) {
        const uint64_t at = fits[below(static_cast<uint32_t>(std::min<size_t>(fits.size(), 4)))];
        std::fill_n(&cells[at], need, 1);
        Copy copy{at, false, false, std::vector<int64_t>(p_.buffers[key.first].pieces(), -1)};
        return copies_[tier][key] = copy;
      }
      evict_one(tier);
    }
  }
  void evict_one(TierId tier) {
    std::vector<Key> candidates;
    for (const auto& [key, copy] : copies_[tier])
      if (!copy.home && !copy.pinned) candidates.push_back(key);
    if (candidates.empty()) throw std::runtime_error("the arenas are too small");
    evict(candidates[below(static_cast<uint32_t>(candidates.size()))], tier);
  }
  void evict(const Key& key, TierId tier) {
    const Buffer& b = p_.buffers[key.first];
    copies_[tier][key].pinned = true;
    for (uint32_t piece = 0; piece < b.pieces() && b.kind != BufferClass::workspace; ++piece) {
      const bool newest = holds(key, piece, tier) && (b.permanent || latest_[key][piece] > 0);
      bool elsewhere = false;
      for (TierId t = 0; t < 3; ++t) elsewhere |= t != tier && holds(key, piece, t);
      if (newest && !elsewhere) fetch(key, piece, static_cast<TierId>(b.permanent ? b.home : tier + 1));
    }
    std::fill_n(&cells_[tier][copies_[tier][key].cell], b.bytes() / kCell, 0);
    copies_[tier].erase(key);
  }
  bool holds(const Key& key, uint32_t piece, TierId tier) {
    const auto it = copies_[tier].find(key);
    return it != copies_[tier].end() && it->second.versions[piece] == latest_[key][piece];
  }

  // Brings the newest version of a piece to a tier, one link at a time.
  void fetch(const Key& key, uint32_t piece, TierId tier) {
    if (holds(key, piece, tier)) return;
    int best = -1;
    for (int t = 0; t < 3; ++t)
      if (holds(key, piece, static_cast<TierId>(t)) &&
          (best < 0 || std::abs(t - tier) < std::abs(best - tier)))
        best = t;
    if (best < 0) throw std::runtime_error("nothing holds the piece");
    while (best != tier) {
      const auto from = static_cast<TierId>(best),
                 to = static_cast<TierId>(best < tier ? best + 1 : best - 1);
      const bool pinned = copies_[from][key].pinned;
      copies_[from][key].pinned = true;
      Copy& target = room(key, to);
      copies_[from][key].pinned = pinned;
      copy(key, piece, from, to);
      target.versions[piece] = latest_[key][piece];
      best = to;
    }
  }
  void copy(const Key& key, uint32_t piece, TierId from, TierId to) {
    Instruction in;
    for (const Link& l : p_.machine.links)
      if (l.from == from && l.to == to) in.lane = l.lane;
    const auto version = static_cast<uint32_t>(latest_[key][piece]);
    in.operands = {{key.first, piece, piece + 1, Access::read, version, key.second},
                   {key.first, piece, piece + 1, Access::write, version, key.second}};
    in.places = {place(key, piece, from), place(key, piece, to)};
    body_.instructions.push_back(std::move(in));
  }
  Place place(const Key& key, uint32_t piece, TierId tier) {
    return {tier, copies_[tier][key].cell * kCell + p_.buffers[key.first].cuts[piece]};
  }

  void task(TaskKind kind, const std::vector<Want>& wants) {
    const Unit& unit = *std::find_if(p_.machine.units.begin(), p_.machine.units.end(),
                                     [&](const Unit& u) { return u.kind == kind; });
    Task t{kind, below(5), below(3), kRecomputes[below(kRecomputes.size())], below(1000) * 0.25, below(1000)};
    Instruction in;
    in.lane = unit.lane;
    for (const Want& w : wants) {
      const Key key{w.buffer, w.back};
      room(key, unit.tier).pinned = true;
      if (w.access != Access::write)
        for (uint32_t piece = w.first; piece < w.last; ++piece) fetch(key, piece, unit.tier);
    }
    for (const Want& w : wants) {
      const Key key{w.buffer, w.back};
      const auto version = static_cast<uint32_t>(latest_[key][w.first]);
      t.operands.push_back({w.buffer, w.first, w.last, w.access, version, w.back});
      in.places.push_back(place(key, w.first, unit.tier));
      Copy& here = copies_[unit.tier][key];
      here.pinned = false;
      for (uint32_t piece = w.first; piece < w.last && w.access != Access::read; ++piece)
        here.versions[piece] = ++latest_[key][piece];
      if (p_.buffers[w.buffer].kind == BufferClass::workspace) evict(key, unit.tier);
    }
    in.operands = t.operands;
    in.task = static_cast<uint32_t>(body_.tasks.size());
    body_.tasks.push_back(std::move(t));
    body_.instructions.push_back(std::move(in));
  }

  void random_body(const char* name, BodyState start, BodyState state_end, int tasks) {
    begin(name, start, state_end);
    for (int i = 0; i < tasks; ++i) {
      std::vector<BufferId> some(p_.buffers.size());
      for (BufferId b = 0; b < some.size(); ++b) some[b] = b;
      std::shuffle(some.begin(), some.end(), random_);
      some.resize(1 + below(4));
      std::vector<Want> wants;
      for (const BufferId b : some) wants.push_back(random_want(b));
      task(below(3) == 0 ? TaskKind::optimize : below(2) ? TaskKind::forward : TaskKind::backward, wants);
    }
    end();
  }
  // A range of pieces that are all at the same version.
  Want random_want(BufferId id) {
    const Buffer& b = p_.buffers[id];
    const auto back = static_cast<uint8_t>(b.ring == kNoRing ? 0 : below(slots_of(p_, b)));
    const std::vector<int64_t>& latest = latest_[{id, back}];
    const uint32_t first = below(b.pieces());
    uint32_t last = first + 1;
    while (last < b.pieces() && latest[last] == latest[first] && below(3) > 0) ++last;
    if (b.kind == BufferClass::workspace) return {id, 0, 1, Access::write};
    const bool content = b.permanent || latest[first] > 0;
    return {id, first, last, content ? static_cast<Access>(below(3)) : Access::write, back};
  }

  std::mt19937_64 random_;
  const RandomOptions options_;
  Program p_;
  Body body_;
  std::vector<std::vector<char>> cells_, home_cells_;  // by tier: in use
  std::map<TierId, std::map<Key, Copy>> copies_;
  std::map<Key, std::vector<int64_t>> latest_;
};

inline Program random_program(uint64_t seed, RandomOptions options = {}) {
  while (true) {
    try {
      return RandomProgram(seed, options).make();
    } catch (const std::runtime_error&) {
      options.device_cells += options.device_cells / 2;
      options.host_cells += options.host_cells / 2;
    }
  }
}

}  // namespace sluice::testing
