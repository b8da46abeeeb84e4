#include "engine/plan/assemble/program_size.h"

#include <algorithm>

#include "engine/base/pack.h"

namespace sluice {

namespace {

// malloc's chunks have a head of 8 bytes, are multiples of 16, and at least 32.
constexpr uint64_t chunk(uint64_t bytes) { return std::max<uint64_t>(32, round_up(bytes + 8, 16)); }

// An instruction waits for few lanes at a time. Waits for three lanes fit the smallest chunk.
constexpr uint64_t kWaitBytes = chunk(3 * sizeof(Wait));
// Most bodies have two predecessors, and few instructions wait for instructions of these.
constexpr uint64_t kWaitBeforeBytes = chunk(2 * sizeof(std::vector<Wait>)) + kWaitBytes;

// The number of boundaries between tiers that an operand of the task may cross. These are the boundaries
// below the highest unit that runs the task or, if there are none, one boundary to a home above.
uint64_t boundaries_of(const Machine& machine, TaskKind kind) {
  uint64_t most = machine.tiers.size() > 1 ? 1 : 0;
  for (const Unit& unit : machine.units)
    if (unit.kind == kind) most = std::max<uint64_t>(most, machine.tiers.size() - 1 - unit.tier);
  return most;
}

// Counts transfers of one operand over one boundary.
uint64_t transfers_of(const Program& program, const Operand& o) {
  if (program.buffers[o.buffer].kind == BufferClass::workspace) return 0;
  return uint64_t{o.last - o.first} * (o.access == Access::add ? 2 : 1);
}

// Bytes of waits for predecessors beyond kCounted. Bodies of a run that writes samples have up to seven
// predecessors, and every instruction has a vector for each of them.
uint64_t more_waits_bytes(const Body& body, uint64_t instructions) {
  constexpr size_t kCounted = 5;  // predecessors that kWaitBeforeBytes and the reserve have room for
  return instructions * sizeof(std::vector<Wait>) * (std::max(body.predecessors.size(), kCounted) - kCounted);
}

// The bytes by which transfers of picks are larger: such a transfer has a third operand, the index.
uint64_t index_bytes(uint64_t picked_transfers) {
  return picked_transfers * (chunk(3 * sizeof(Operand)) - chunk(2 * sizeof(Operand)) +
                             chunk(3 * sizeof(Place)) - chunk(2 * sizeof(Place)));
}

uint64_t table_bytes_of(const Program& program) {
  uint64_t bytes = 0;
  for (const Buffer& b : program.buffers)
    bytes += sizeof(Buffer) + chunk(b.name.size() + 1) + chunk(b.cuts.size() * sizeof(uint64_t));
  return bytes;
}

}  // namespace

ProgramSize size_at_most(const Program& lowered) {
  ProgramSize size;
  for (const Body& body : lowered.bodies) {
    uint64_t transfers = 0, picked = 0;
    for (const Task& task : body.tasks) {
      const uint64_t boundaries = boundaries_of(lowered.machine, task.kind);
      size.operands += task.operands.size();
      for (const Operand& o : task.operands) {
        transfers += boundaries * transfers_of(lowered, o);
        if (lowered.buffers[o.buffer].pick) picked += boundaries * transfers_of(lowered, o);
      }
    }
    size.tasks += body.tasks.size();
    size.transfers += transfers;
    size.longest = std::max(size.longest, body.tasks.size() + transfers);
    size.table_bytes += more_waits_bytes(body, body.tasks.size() + transfers) + index_bytes(picked);
  }
  size.table_bytes += table_bytes_of(lowered);
  return size;
}

ProgramSize size_of(const Program& program) {
  ProgramSize size;
  for (const Body& body : program.bodies) {
    size.tasks += body.tasks.size();
    for (const Task& task : body.tasks) size.operands += task.operands.size();
    size.transfers += body.instructions.size() - body.tasks.size();
    size.longest = std::max<uint64_t>(size.longest, body.instructions.size());
    const auto picked = std::ranges::count_if(body.instructions, [&](const Instruction& in) {
      return in.task == kNoTask && index_of(program, in.operands);
    });
    size.table_bytes +=
        more_waits_bytes(body, body.instructions.size()) + index_bytes(static_cast<uint64_t>(picked));
  }
  size.table_bytes += table_bytes_of(program);
  return size;
}

ProgramSize larger_of(const ProgramSize& a, const ProgramSize& b) {
  return {std::max(a.tasks, b.tasks), std::max(a.operands, b.operands), std::max(a.transfers, b.transfers),
          std::max(a.longest, b.longest), std::max(a.table_bytes, b.table_bytes)};
}

uint64_t program_bytes(const ProgramSize& size) {
  const uint64_t instruction = sizeof(Instruction) + kWaitBytes + kWaitBeforeBytes;
  const uint64_t task = sizeof(Task) + instruction + 3 * chunk(0);  // operands twice, and places
  const uint64_t operand = 2 * sizeof(Operand) + sizeof(Place);
  const uint64_t transfer = instruction + chunk(2 * sizeof(Operand)) + chunk(2 * sizeof(Place));
  return size.table_bytes + size.tasks * task + size.operands * operand + size.transfers * transfer;
}

}  // namespace sluice
