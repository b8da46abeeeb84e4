// The runner's part of picks (Pick): which part of a bank a pick has, if any.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/run/execute/runner.h"

namespace sluice {

const Buffer* Runner::picked_buffer(const Instruction& in) const {
  for (const Operand& o : in.operands)
    if (const Buffer& b = plan_.program.buffers[o.buffer]; b.pick) return &b;
  return nullptr;
}

// Each call checks the whole index: the number of needed parts must not exceed Pick::places.
std::optional<uint32_t> Runner::picked_part(const Instruction& in, const Buffer& picked) const {
  const Pick& pick = *picked.pick;
  const Place& place = in.places[*by_host(in.operands)];
  const auto* begins = reinterpret_cast<const int32_t*>(memory_.tiers[place.tier] + place.offset);
  const Buffer& bank = plan_.program.buffers[pick.bank];
  const uint64_t parts = bank.bytes() / bank.slot_stride;
  std::optional<uint32_t> part;
  uint32_t needed = 0;
  for (uint32_t p = 0; p < parts; ++p) {
    if (begins[p + 1] <= begins[p]) continue;
    if (needed == pick.place) part = p;
    ++needed;
  }
  if (begins[0] != 0 || !std::is_sorted(begins, begins + parts + 1) || needed > pick.places)
    throw Error(ExitCode::bug,
                fmt::format("The index {} does not tell at most {} of {} parts.",
                            printable(plan_.program.buffers[pick.index].name), pick.places, parts),
                "Report it, with the command and its output.");
  return part;
}

bool Runner::moves(const Instruction& in) {
  if (const Buffer* const picked = picked_buffer(in); picked && !picked_part(in, *picked)) return false;
  moved_[in.lane].fetch_add(bytes_of(in, 0), std::memory_order_relaxed);
  return true;
}

}  // namespace sluice
