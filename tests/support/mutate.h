// Single faults to plant in correct programs, and a slow oracle that says whether a fault really is one.
//
// The oracle (`still_correct`) knows the rules of program.h and nothing of the verifier. It tracks contents
// cell by cell, keeps order as explicit sets of completed instructions, and compares all pairs of accesses.
// It is for small programs only. Typical use:
//   for (const Mutation& m : all_single_wait_drops(p)) {
//     const Mutated guard(p, m);
//     EXPECT_FALSE(verify(p, 1).empty()) << m.name();
//   }
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/program/program.h"
#include "tests/support/random_program.h"
#include "tests/support/sanitized.h"

namespace sluice::testing {

constexpr uint64_t kPrograms = kSanitized ? 30 : 200;  // a sanitizer costs ten times the time

enum class MutationKind { drop_wait, drop_wait_before, shift_offset, swap_pieces };

struct Mutation {
  MutationKind kind;
  BodyId body;
  uint32_t instruction;
  uint32_t index = 0;        // of the wait or operand
  uint32_t predecessor = 0;  // drop_wait_before
  int64_t shift = 0;         // shift_offset: bytes; swap_pieces: pieces

  std::string name() const {
    constexpr const char* kNames[] = {"drop wait", "drop wait on the body before", "shift offset",
                                      "swap pieces"};
    return std::string(kNames[static_cast<int>(kind)]) + ", body " + std::to_string(body) + ", instruction " +
           std::to_string(instruction) + ", index " + std::to_string(index) + ", predecessor " +
           std::to_string(predecessor) + ", by " + std::to_string(shift);
  }
};

// Applies a mutation; the destructor undoes it.
class Mutated {
 public:
  Mutated(Program& program, const Mutation& m)
      : target_(program.bodies[m.body].instructions[m.instruction]), original_(target_) {
    switch (m.kind) {
      case MutationKind::drop_wait:
        target_.waits.erase(target_.waits.begin() + m.index);
        break;
      case MutationKind::drop_wait_before: {
        std::vector<Wait>& waits = target_.waits_before[m.predecessor];
        waits.erase(waits.begin() + m.index);
        break;
      }
      case MutationKind::shift_offset:
        target_.places[m.index].offset += static_cast<uint64_t>(m.shift);
        break;
      case MutationKind::swap_pieces:
        for (Operand& o : target_.operands) {
          o.first += static_cast<uint32_t>(m.shift);
          o.last += static_cast<uint32_t>(m.shift);
        }
        break;
    }
  }
  ~Mutated() { target_ = std::move(original_); }
  Mutated(const Mutated&) = delete;
  Mutated& operator=(const Mutated&) = delete;

 private:
  Instruction& target_;
  Instruction original_;
};

inline std::vector<Mutation> all_single_wait_drops(const Program& p) {
  std::vector<Mutation> all;
  for (BodyId b = 0; b < p.bodies.size(); ++b)
    for (uint32_t i = 0; i < p.bodies[b].instructions.size(); ++i) {
      const Instruction& in = p.bodies[b].instructions[i];
      for (uint32_t w = 0; w < in.waits.size(); ++w) all.push_back({MutationKind::drop_wait, b, i, w});
      for (uint32_t a = 0; a < in.waits_before.size(); ++a)
        for (uint32_t w = 0; w < in.waits_before[a].size(); ++w)
          all.push_back({MutationKind::drop_wait_before, b, i, w, a});
    }
  return all;
}

// Returns a mutation for every operand, which shifts the operand's place by `shift` bytes. Leaves out
// operands whose offset would become negative.
inline std::vector<Mutation> offset_shifts(const Program& p, int64_t shift) {
  std::vector<Mutation> all;
  for (BodyId b = 0; b < p.bodies.size(); ++b)
    for (uint32_t i = 0; i < p.bodies[b].instructions.size(); ++i)
      for (uint32_t k = 0; k < p.bodies[b].instructions[i].places.size(); ++k)
        if (shift >= 0 || p.bodies[b].instructions[i].places[k].offset >= static_cast<uint64_t>(-shift))
          all.push_back({MutationKind::shift_offset, b, i, k, 0, shift});
  return all;
}

// Returns mutations by which a transfer copies the pieces one before or one after its own, if these have as
// many bytes as its own.
inline std::vector<Mutation> piece_swaps(const Program& p) {
  std::vector<Mutation> all;
  for (BodyId b = 0; b < p.bodies.size(); ++b)
    for (uint32_t i = 0; i < p.bodies[b].instructions.size(); ++i) {
      const Instruction& in = p.bodies[b].instructions[i];
      if (in.task != kNoTask) continue;
      const Operand& o = in.operands[0];
      const Buffer& buffer = p.buffers[o.buffer];
      for (const int64_t shift : {-1, 1}) {
        if (o.first + shift < 0 || o.last + shift > buffer.pieces()) continue;
        Operand other = o;
        other.first += static_cast<uint32_t>(shift);
        other.last += static_cast<uint32_t>(shift);
        if (operand_bytes(buffer, other) == operand_bytes(buffer, o))
          all.push_back({MutationKind::swap_pieces, b, i, 0, 0, shift});
      }
    }
  return all;
}

// --- the oracle ---
class Oracle {
 public:
  explicit Oracle(const Program& p) : p_(p) {
    for (BufferId b = 0; b < p.buffers.size(); ++b) {
      const Buffer& buffer = p.buffers[b];
      if (!buffer.permanent) continue;
      for (uint64_t slot = 0; slot < slots_of(p_, buffer); ++slot)
        for (uint64_t at = 0; at < buffer.bytes(); at += kCell)
          homes_[{buffer.home, (buffer.home_offset + slot * buffer.slot_stride + at) / kCell}] = b;
    }
  }

  bool correct() {
    for (BodyId b = 0; b < p_.bodies.size(); ++b) {
      if (!contents(p_.bodies[b]) || !ordered(nullptr, p_.bodies[b], 0)) return false;
      for (uint32_t a = 0; a < p_.bodies[b].predecessors.size(); ++a)
        if (!ordered(&p_.bodies[p_.bodies[b].predecessors[a]], p_.bodies[b], a)) return false;
    }
    return true;
  }

 private:
  struct Content {
    BufferId buffer;
    uint8_t back;
    uint64_t byte;
    uint32_t version;
    bool operator==(const Content&) const = default;
  };
  using Newest = std::map<std::tuple<BufferId, uint8_t, uint64_t>, uint32_t>;  // by buffer, back, byte

  Operand whole(BufferId b, uint8_t back) const {
    return {b, 0, p_.buffers[b].pieces(), Access::read, 0, back};
  }
  template <typename Visit>
  void for_each_home(const Visit& visit) const {
    for (BufferId b = 0; b < p_.buffers.size(); ++b)
      for (uint8_t back = 0; back < slots_of(p_, p_.buffers[b]) && p_.buffers[b].permanent; ++back) {
        uint64_t byte = 0;
        for_each_cell(p_, whole(b, back), {p_.buffers[b].home, p_.buffers[b].home_offset}, 0,
                      [&](const Cell& c) {
                        visit(c, b, back, byte);
                        byte += kCell;
                      });
      }
  }

  bool contents(const Body& body) const {
    std::map<Cell, Content> cells;
    Newest newest;
    for_each_home([&](const Cell& c, BufferId b, uint8_t back, uint64_t byte) {
      cells[c] = {b, back, byte, 0};
    });
    for (const Instruction& in : body.instructions)
      if (!replay(body, in, cells, newest)) return false;
    bool good = true;
    for_each_home([&](const Cell& c, BufferId b, uint8_t back, uint64_t byte) {
      good &= cells[c] == Content{b, back, byte, newest[{b, back, byte}]};
    });
    return good;
  }

  bool replay(const Body& body, const Instruction& in, std::map<Cell, Content>& cells, Newest& newest) const {
    bool good = true;
    std::set<Cell> read, written;
    for (const bool writing : {false, true})
      for (size_t k = 0; k < in.operands.size(); ++k) {
        const Operand& o = in.operands[k];
        const Buffer& b = p_.buffers[o.buffer];
        const bool work = b.kind == BufferClass::workspace, home = ring_at_home(p_, o, in.places[k]);
        good &= in.places[k].offset % kCell == 0 &&
                in.places[k].offset + operand_bytes(b, o) <= body.peak_bytes[in.places[k].tier];
        uint64_t byte = operand_begin(b, o);
        for_each_cell(p_, o, in.places[k], 0, [&](const Cell& c) {
          const Content wanted{o.buffer, o.back, byte, o.version};
          if (!writing && o.access != Access::write && !work) good &= cells.contains(c) && cells[c] == wanted;
          if (!writing && !writes(p_, o)) read.insert(c);
          if (writing && writes(p_, o)) {
            good &= !read.contains(c) && written.insert(c).second;
            const auto protectee = home ? homes_.end() : homes_.find(c);
            good &= protectee == homes_.end() ||
                    (protectee->second == o.buffer && b.ring == kNoRing && !work &&
                     in.places[k].offset + byte - operand_begin(b, o) == b.home_offset + byte);
            if (work)
              cells.erase(c);
            else if (in.task == kNoTask)
              cells[c] = {o.buffer, o.back, byte, in.operands[0].version};
            else {
              uint32_t& latest = newest[{o.buffer, o.back, byte}];
              good &= latest == o.version;
              cells[c] = {o.buffer, o.back, byte, latest = o.version + 1};
            }
          }
          byte += kCell;
        });
      }
    return good;
  }

  struct Node {
    const Instruction* in;
    uint32_t behind_body;   // 1: of the body before
    std::set<size_t> done;  // nodes that have completed when this one starts
  };

  // Whether every pair of conflicting accesses is ordered, where the later access is in `body`.
  bool ordered(const Body* before, const Body& body, uint32_t predecessor) const {
    std::vector<Node> nodes;
    std::vector<size_t> lanes[2];
    std::map<std::pair<uint32_t, LaneId>, std::vector<size_t>> of_lane;
    const auto complete = [&](Node& n, size_t other) {
      n.done.insert(other);
      n.done.insert(nodes[other].done.begin(), nodes[other].done.end());
    };
    const auto wait = [&](Node& n, uint32_t behind, const Wait& w) {
      for (uint32_t k = 0; k < w.count; ++k) complete(n, of_lane[{behind, w.lane}].at(k));
      if (behind == 0)
        for (const size_t other : of_lane[{1, w.lane}]) complete(n, other);
    };
    for (const Body* b : {before, &body})
      for (size_t i = 0; b != nullptr && i < b->instructions.size(); ++i) {
        const uint32_t behind = b == before && nodes.size() < before->instructions.size() ? 1 : 0;
        Node n{&b->instructions[i], behind, {}};
        const LaneId lane = n.in->lane;
        for (const uint32_t side : {behind, 1u}) {
          const std::vector<size_t>& queue = of_lane[{side, lane}];
          if (queue.empty()) continue;
          if (p_.machine.lanes[lane].overlapping)
            n.done = nodes[queue.back()].done;
          else
            complete(n, queue.back());
          break;
        }
        for (const Wait& w : n.in->waits) wait(n, behind, w);
        if (behind == 0 && before != nullptr)
          for (const Wait& w : n.in->waits_before[predecessor]) wait(n, 1, w);
        of_lane[{behind, lane}].push_back(nodes.size());
        nodes.push_back(std::move(n));
        if (behind == 0 && !check(nodes, body, before != nullptr)) return false;
      }
    return true;
  }

  bool check(const std::vector<Node>& nodes, const Body& body, bool pair) const {
    const Node& late = nodes.back();
    for (size_t e = 0; e + 1 < nodes.size(); ++e)
      if ((nodes[e].behind_body == 1) == pair && !late.done.contains(e) && conflict(nodes[e], late, body))
        return false;
    return true;
  }
  bool conflict(const Node& a, const Node& b, const Body& body) const {
    for (size_t k = 0; k < a.in->operands.size(); ++k)
      for (size_t m = 0; m < b.in->operands.size(); ++m) {
        if (!writes(p_, a.in->operands[k]) && !writes(p_, b.in->operands[m])) continue;
        std::set<Cell> cells;
        const uint8_t ring = p_.buffers[a.in->operands[k].buffer].ring;
        const uint32_t behind = a.behind_body == 1 && ring != kNoRing ? body.advance[ring] : 0;
        for_each_cell(p_, a.in->operands[k], a.in->places[k], behind,
                      [&](const Cell& c) { cells.insert(c); });
        bool overlap = false;
        for_each_cell(p_, b.in->operands[m], b.in->places[m], 0,
                      [&](const Cell& c) { overlap |= cells.contains(c); });
        if (overlap) return true;
      }
    return false;
  }

  const Program& p_;
  std::map<Cell, BufferId> homes_;  // which buffer's home each cell of a tier is
};

inline bool still_correct(const Program& p) { return Oracle(p).correct(); }

// Whether, in the program before the mutation, only the mutated instruction needs the operand's bytes. This
// is true of a workspace, and of bytes that nobody reads before they are overwritten and that no home needs.
inline bool alone_in_its_life(const Program& p, const Mutation& m) {
  const Body& body = p.bodies[m.body];
  const Instruction& in = body.instructions[m.instruction];
  const Operand& o = in.operands[m.index];
  const Buffer& b = p.buffers[o.buffer];
  if (b.kind == BufferClass::workspace) return true;
  if (!writes(p, o)) return false;
  std::set<Cell> cells;
  for_each_cell(p, o, in.places[m.index], 0, [&](const Cell& c) { cells.insert(c); });
  for (size_t i = m.instruction + 1; i < body.instructions.size() && !cells.empty(); ++i) {
    const Instruction& later = body.instructions[i];
    bool needed = false;
    for (const bool writing : {false, true})
      for (size_t k = 0; k < later.operands.size(); ++k)
        for_each_cell(p, later.operands[k], later.places[k], 0, [&](const Cell& c) {
          const bool work = p.buffers[later.operands[k].buffer].kind == BufferClass::workspace;
          if (!writing && later.operands[k].access != Access::write && !work) needed |= cells.contains(c);
          if (writing && writes(p, later.operands[k])) cells.erase(c);
        });
    if (needed) return false;
  }
  return cells.empty() || !b.permanent || in.places[m.index].tier != b.home;
}

}  // namespace sluice::testing
