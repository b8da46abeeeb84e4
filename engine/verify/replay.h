// The inside of the verifier: contents and order of one body, and order between two. See verify.h.
//
// Requires that tables and structure of the program were found correct. All addresses of all arenas lie on
// one line, so that one interval map serves. Ring operands at their homes get addresses of their own, one
// space per (ring, slot counted back), because where a slot lies depends on the bodies before; between
// bodies the spaces are rotated.
#pragma once

#include "engine/verify/verify.h"

namespace sluice {

class Report {
 public:
  explicit Report(size_t limit) : limit_(limit) {}
  bool full() const { return violations_.size() >= limit_; }
  bool empty() const { return violations_.empty(); }
  void add(BodyId before, BodyId body, uint32_t instruction, std::string what) {
    if (!full()) violations_.push_back({before, body, instruction, std::move(what)});
  }
  void add(BodyId body, uint32_t instruction, std::string what) {
    add(kNoBody, body, instruction, std::move(what));
  }
  void add(std::string what) { add(kNoBody, kNoInstruction, std::move(what)); }
  std::vector<Violation> take() { return std::move(violations_); }

 private:
  size_t limit_;
  std::vector<Violation> violations_;
};

inline bool is_ring(const Buffer& b) { return b.ring != kNoRing; }
inline bool at_home(const Buffer& b, const Operand& o, const Place& p) {
  return b.permanent && p.tier == b.home && p.offset == b.home_offset + operand_begin(b, o);
}
inline bool exclusive(const Buffer& b, Access access) {
  return access != Access::read || b.kind == BufferClass::workspace;
}

// The line of addresses: tiers first, then a space per (ring, back).
class AddressLine {
 public:
  explicit AddressLine(const Program& program);

  uint64_t of(const Operand& o, const Place& p) const;
  uint64_t ring_home(BufferId buffer, uint32_t back) const {
    return begins_[ring_space(program_.buffers[buffer].ring, back)] + ring_base_[buffer];
  }
  uint64_t tier_begin(TierId tier) const { return begins_[tier]; }
  uint32_t ring_space(uint32_t ring, uint32_t back) const { return ring_spaces_[ring] + back; }
  // The space in which the body before `body` saw the same bytes.
  uint32_t space_before(uint32_t space, const Body& body) const;
  uint32_t spaces() const { return static_cast<uint32_t>(begins_.size() - 1); }
  uint64_t begin(uint32_t space) const { return begins_[space]; }
  uint64_t end(uint32_t space) const { return begins_[space + 1]; }
  // "device [0, 4096)" or "ring step back 1 [0, 64)".
  std::string name(uint64_t begin, uint64_t end) const;

 private:
  const Program& program_;
  std::vector<uint64_t> begins_;       // by space, and one more
  std::vector<uint32_t> ring_spaces_;  // by ring: its first space
  std::vector<uint64_t> ring_base_;    // by buffer: first byte within its ring's spaces
};

// Ranges of bytes and who touched them. Readers are ordinals of instructions on their lanes, 0 = none.
struct Touches {
  std::vector<uint64_t> begin, end;
  std::vector<uint32_t> writer;   // index of an instruction, kNoInstruction = none
  std::vector<uint32_t> readers;  // by range and lane
  size_t size() const { return begin.size(); }
};

struct BodyFacts {
  std::vector<std::vector<uint32_t>> by_lane;  // instructions of each lane, in order
  std::vector<uint32_t> ordinal;               // by instruction: position on its lane, from 1
  std::vector<uint32_t> started;  // by instruction and lane: how many of the lane's are done when it starts
  Touches first;                  // of each byte: its first write, and each lane's first read before that
  Touches last;                   // of each byte: its last write, and each lane's last read after that
};

// Replays one body: contents, and order within the body.
BodyFacts replay_body(const Program& program, const AddressLine& line, BodyId body, Report& report);

// Checks the order of accesses where `body` follows entry `predecessor` of its Body::predecessors.
void check_pair(const Program& program, const AddressLine& line, const std::vector<BodyFacts>& facts,
                BodyId body, uint32_t predecessor, Report& report);

}  // namespace sluice
