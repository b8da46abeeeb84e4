#include <algorithm>
#include <tuple>

#include "engine/base/error.h"
#include "engine/plan/stage/staging.h"

namespace sluice::staging {

namespace {

void add_use(TierUses& tier, uint32_t storage, uint32_t at, uint32_t operand, const Operand& o) {
  tier.storages[storage].uses.push_back(static_cast<uint32_t>(tier.uses.size()));
  tier.uses.push_back({at, operand, o, storage});
}

void collect_storages(TierUses& tier) {
  const Program& program = tier.program;
  const TierId here = tier.options.tier;
  std::vector<uint32_t> first_slot{0};  // by buffer
  for (const Buffer& b : program.buffers) first_slot.push_back(first_slot.back() + slots_of(program, b));
  std::vector<uint32_t> known(first_slot.back(), kNever);  // by buffer and slot (Operand::back)
  const auto add_storage = [&](BufferId buffer, bool resident) {
    const Buffer& b = program.buffers[buffer];
    CHECK(b.permanent || b.home >= here, b.name + " is transient and touched below its home");
    const auto away = b.home < here ? b.home : static_cast<TierId>(here + 1);
    tier.storages.push_back({buffer, resident, away, {}, {}});
    return static_cast<uint32_t>(tier.storages.size() - 1);
  };
  for (uint32_t at = 0; at < tier.positions(); ++at) {
    const Instruction& in = tier.body.instructions[at];
    for (uint32_t k = 0; k < in.operands.size(); ++k) {
      const Operand& o = in.operands[k];
      const Buffer& b = program.buffers[o.buffer];
      const TierId operand_tier = in.places[k].tier;
      if (b.permanent && b.home == here) continue;
      if (operand_tier < here && !(b.permanent && b.home == operand_tier)) continue;
      if (b.kind == BufferClass::workspace) {  // every task has its own
        if (operand_tier == here) add_use(tier, add_storage(o.buffer, true), at, k, o);
        continue;
      }
      uint32_t& s = known[first_slot[o.buffer] + o.back];
      if (s == kNever) s = add_storage(o.buffer, !b.permanent && b.home == here);
      if (operand_tier == here)
        add_use(tier, s, at, k, o);
      else
        tier.storages[s].events.push_back({at, o});
    }
  }
}

// What is known of each piece of one storage, from use to use.
class PieceHistory {
 public:
  PieceHistory(TierUses& tier, uint32_t pieces)
      : tier_(tier),
        last_use_(pieces, kNever),
        last_write_(pieces, kNever),
        last_away_write_(pieces, kNever) {}

  void visit_away(const AwayEvent& e) {
    if (e.o.access == Access::read) return;
    for (uint32_t p = e.o.first; p < e.o.last; ++p) last_write_[p] = last_away_write_[p] = e.at;
  }

  // Sets the use's floor, and adds the gaps that end at this use.
  void visit(uint32_t u) {
    Use& use = tier_.uses[u];
    use.fetches = use.o.access != Access::write;
    if (const auto& pick = tier_.program.buffers[use.o.buffer].pick) use.floor = behind_index(*pick, use.at);
    uint32_t newest_gap = kNever;
    for (uint32_t p = use.o.first; p < use.o.last; ++p) {
      if (use.fetches) {
        if (last_write_[p] != kNever) use.floor = std::max(use.floor, last_write_[p] + 1);
        const uint32_t before = last_use_[p];
        const bool valid = before != kNever &&
                           (last_away_write_[p] == kNever || last_away_write_[p] < tier_.uses[before].at);
        if (valid && before != newest_gap) tier_.gaps.push_back({before, u, use.at - tier_.uses[before].at});
        if (valid) newest_gap = before;
      }
      last_use_[p] = u;
      if (use.o.access != Access::read) last_write_[p] = use.at;
    }
  }

 private:
  // What is picked cannot be fetched before the host has the index. If a tier above writes the index, the
  // transfer of the index to the host stands right behind that write.
  uint32_t behind_index(const Pick& pick, uint32_t at) const {
    const std::vector<uint32_t>& writes = tier_.index_writes.at(pick.index);
    const auto next = std::ranges::lower_bound(writes, at);
    CHECK(next != writes.begin(), "an index is used before it is written");
    return *std::prev(next) + 1;
  }

  TierUses& tier_;
  std::vector<uint32_t> last_use_;         // by piece
  std::vector<uint32_t> last_write_;       // position of the newest write, here or away
  std::vector<uint32_t> last_away_write_;  // the same, away
};

void find_index_writes(TierUses& tier) {
  for (const Buffer& b : tier.program.buffers)
    if (b.pick) tier.index_writes.try_emplace(b.pick->index);
  if (tier.index_writes.empty()) return;
  for (uint32_t at = 0; at < tier.positions(); ++at)
    for (const Operand& o : tier.body.instructions[at].operands) {
      const auto index = tier.index_writes.find(o.buffer);
      if (o.access != Access::read && index != tier.index_writes.end()) index->second.push_back(at);
    }
}

void find_floors_and_gaps(TierUses& tier) {
  for (const Storage& s : tier.storages) {
    if (s.resident || s.uses.empty()) continue;
    PieceHistory history(tier, tier.program.buffers[s.buffer].pieces());
    size_t event = 0;
    for (const uint32_t u : s.uses) {
      while (event < s.events.size() && s.events[event].at < tier.uses[u].at)
        history.visit_away(s.events[event++]);
      history.visit(u);
    }
  }
  std::sort(tier.gaps.begin(), tier.gaps.end(), [&](const Gap& a, const Gap& b) {
    return std::tie(a.length, tier.uses[a.to].at, a.from, a.to) <
           std::tie(b.length, tier.uses[b.to].at, b.from, b.to);
  });
}

}  // namespace

TierUses collect_uses(const Program& program, const Body& body, const StageOptions& options) {
  TierUses tier{program, body, options, placement_alignment(program.machine, options.tier), {}, {}, {}};
  collect_storages(tier);
  find_index_writes(tier);
  find_floors_and_gaps(tier);
  return tier;
}

}  // namespace sluice::staging
