// Compares programs field by field, since most structs of program.h have no operator==.
#pragma once

#include <algorithm>
#include <tuple>
#include <vector>

#include "engine/program/program.h"

namespace sluice::testing {

struct Same {  // a struct, so that its functions can call each other
  static bool same(const Operand& a, const Operand& b) { return a == b; }
  static bool same(const Place& a, const Place& b) { return a.tier == b.tier && a.offset == b.offset; }
  static bool same(const Wait& a, const Wait& b) { return a.lane == b.lane && a.count == b.count; }
  template <typename T>
  static bool same(const std::vector<T>& a, const std::vector<T>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const T& x, const T& y) { return same(x, y); });
  }
  static bool same(const Tier& a, const Tier& b) {
    return std::tie(a.name, a.capacity, a.alignment, a.file) ==
           std::tie(b.name, b.capacity, b.alignment, b.file);
  }
  static bool same(const Link& a, const Link& b) {
    return std::tie(a.from, a.to, a.lane, a.alignment) == std::tie(b.from, b.to, b.lane, b.alignment);
  }
  static bool same(const Lane& a, const Lane& b) {
    return a.name == b.name && a.overlapping == b.overlapping;
  }
  static bool same(const Unit& a, const Unit& b) {
    return std::tie(a.kind, a.lane, a.tier) == std::tie(b.kind, b.lane, b.tier);
  }
  static bool same(const Buffer& a, const Buffer& b) {
    return std::tie(a.name, a.kind, a.cuts, a.home, a.permanent, a.ring, a.home_offset, a.slot_stride) ==
               std::tie(b.name, b.kind, b.cuts, b.home, b.permanent, b.ring, b.home_offset, b.slot_stride) &&
           a.empty_in == b.empty_in && a.pick == b.pick;
  }
  static bool same(const Task& a, const Task& b) {
    return std::tie(a.kind, a.subject, a.slice, a.recompute, a.processes, a.flops, a.bytes, a.pass) ==
               std::tie(b.kind, b.subject, b.slice, b.recompute, b.processes, b.flops, b.bytes, b.pass) &&
           same(a.operands, b.operands);
  }
  static bool same(const Instruction& a, const Instruction& b) {
    return a.lane == b.lane && a.task == b.task && same(a.operands, b.operands) && same(a.places, b.places) &&
           same(a.waits, b.waits) && same(a.waits_before, b.waits_before);
  }
  static bool same(const Body& a, const Body& b) {
    return std::tie(a.name, a.start, a.end, a.advance, a.predecessors, a.peak_bytes) ==
               std::tie(b.name, b.start, b.end, b.advance, b.predecessors, b.peak_bytes) &&
           same(a.tasks, b.tasks) && same(a.instructions, b.instructions);
  }
  static bool same(const ProcessGroup& a, const ProcessGroup& b) {
    return std::tie(a.name, a.count, a.stride) == std::tie(b.name, b.count, b.stride);
  }
  static bool same(const Ring& a, const Ring& b) { return a.name == b.name && a.slots == b.slots; }
  static bool same(const SegmentPass& a, const SegmentPass& b) {
    return std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(),
                      [](const OpWork& x, const OpWork& y) {
                        return std::tie(x.kind, x.flops, x.bytes) == std::tie(y.kind, y.flops, y.bytes);
                      });
  }
  static bool same(const Program& a, const Program& b) {
    return same(a.machine.tiers, b.machine.tiers) && same(a.machine.links, b.machine.links) &&
           same(a.machine.lanes, b.machine.lanes) && same(a.machine.units, b.machine.units) &&
           same(a.processes, b.processes) && same(a.passes, b.passes) && same(a.rings, b.rings) &&
           same(a.buffers, b.buffers) && same(a.bodies, b.bodies) && a.arena_bytes == b.arena_bytes;
  }
};

inline bool same(const Program& a, const Program& b) { return Same::same(a, b); }

}  // namespace sluice::testing
