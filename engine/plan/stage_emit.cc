#include <algorithm>
#include <numeric>
#include <tuple>

#include "engine/error.h"
#include "engine/plan/staging.h"

namespace sluice::staging {

namespace {

struct Fetch {
  uint32_t needed;  // position of the use
  uint32_t use, piece;
};
struct Store {
  uint32_t use, piece;
};

bool touches(const Operand& o, uint32_t piece) { return o.first <= piece && piece < o.last; }

class Emitter {
 public:
  Emitter(const Allocations& allocations, Body& body)
      : allocations_(allocations),
        tier_(allocations.tier()),
        body_(body),
        fetches_(tier_.positions()),
        stores_(tier_.positions()) {}

  void run() {
    for (const uint32_t u : allocations_.roots())
      if (!storage_of(allocations_.at_root(u)).resident) plan_transfers(u);
    std::vector<Instruction> out;
    out.reserve(tier_.positions() * 2);
    size_t next_use = 0;  // uses are in list order
    for (uint32_t at = 0; at < tier_.positions(); ++at) {
      for (const Fetch& f : in_order_of_need(at))
        out.push_back(transfer(f.use, f.piece, version_of(f.use), true));
      Instruction in = std::move(body_.instructions[at]);
      place_permanent(in);
      for (; next_use < tier_.uses.size() && tier_.uses[next_use].at == at; ++next_use)
        in.places[tier_.uses[next_use].operand].offset = address(static_cast<uint32_t>(next_use));
      // A task makes a new version; a transfer brings the one that it names.
      const uint32_t made = in.task == kNoTask ? 0 : 1;
      out.push_back(std::move(in));
      for (const Store& s : stores_[at])
        out.push_back(transfer(s.use, s.piece, version_of(s.use) + made, false));
    }
    body_.instructions = std::move(out);
  }

 private:
  const Storage& storage_of(const Interval& i) const { return tier_.storages[i.storage]; }
  uint32_t version_of(uint32_t use) const { return tier_.uses[use].o.version; }
  uint64_t address(const Interval& i, uint32_t piece) const {
    const Buffer& b = tier_.buffer_of(i.storage);
    return i.offset + b.cuts[piece] - b.cuts[i.first];
  }
  uint64_t address(uint32_t use) const { return address(allocations_.of_use(use), tier_.uses[use].o.first); }

  std::vector<Fetch>& in_order_of_need(uint32_t at) {
    std::sort(fetches_[at].begin(), fetches_[at].end(), [](const Fetch& a, const Fetch& b) {
      return std::tie(a.needed, a.use, a.piece) < std::tie(b.needed, b.use, b.piece);
    });
    return fetches_[at];
  }

  void place_permanent(Instruction& in) const {
    const TierId here = tier_.options.tier;
    for (size_t k = 0; k < in.operands.size(); ++k) {
      const Buffer& b = tier_.program.buffers[in.operands[k].buffer];
      if (in.places[k].tier != here || !b.permanent || b.home != here) continue;
      in.places[k].offset = b.home_offset + b.cuts[in.operands[k].first];
    }
  }

  // Which pieces of an allocation are fetched before which use, and stored behind which.
  void plan_transfers(uint32_t root) {
    const Interval& i = allocations_.at_root(root);
    std::vector<uint32_t> uses = i.uses;
    std::sort(uses.begin(), uses.end());
    std::vector<uint32_t> valid_since(i.last - i.first, kNever);  // position from which the copy is current
    for (size_t k = 0; k < uses.size(); ++k) {
      const Use& use = tier_.uses[uses[k]];
      for (uint32_t p = use.o.first; p < use.o.last; ++p) {
        uint32_t& valid = valid_since[p - i.first];
        const uint32_t written = last_foreign_write(root, p, use.at);
        if (valid != kNever && written != kNever && written >= valid) valid = kNever;
        if (use.o.access != Access::write && valid == kNever) {
          const uint32_t floor = written == kNever ? 0 : written + 1;
          fetches_[std::max(i.start, floor)].push_back({use.at, uses[k], p});
        }
        valid = use.at;
        if (use.o.access != Access::read && store_needed(root, uses, k, p))
          stores_[use.at].push_back({uses[k], p});
      }
    }
  }

  // Whether matches(operand, position) holds for anything that touches an allocation's storage but not the
  // allocation: below, or in another one.
  template <typename Matches>
  bool any_foreign(uint32_t root, const Matches& matches) const {
    const Storage& s = storage_of(allocations_.at_root(root));
    for (const LowerEvent& e : s.lower)
      if (matches(e.o, e.at)) return true;
    for (const uint32_t u : s.uses)
      if (allocations_.root(u) != root && matches(tier_.uses[u].o, tier_.uses[u].at)) return true;
    return false;
  }

  // The newest write of a piece before `at` that did not go through this allocation.
  uint32_t last_foreign_write(uint32_t root, uint32_t piece, uint32_t at) const {
    uint32_t newest = kNever;
    any_foreign(root, [&](const Operand& o, uint32_t position) {
      if (position >= at || o.access == Access::read || !touches(o, piece)) return false;
      if (newest == kNever || position > newest) newest = position;
      return false;
    });
    return newest;
  }

  // Whether what uses[k] wrote must reach the tier below before the allocation's next write of the piece.
  bool store_needed(uint32_t root, const std::vector<uint32_t>& uses, size_t k, uint32_t piece) const {
    const uint32_t at = tier_.uses[uses[k]].at;
    uint32_t next_write = kNever;
    for (size_t n = k + 1; n < uses.size() && next_write == kNever; ++n) {
      const Use& use = tier_.uses[uses[n]];
      if (use.o.access != Access::read && touches(use.o, piece)) next_write = use.at;
    }
    if (next_write == kNever && tier_.buffer_of(allocations_.at_root(root).storage).permanent) return true;
    return any_foreign(root, [&](const Operand& o, uint32_t position) {
      return position > at && position < next_write && o.access != Access::write && touches(o, piece);
    });
  }

  Instruction transfer(uint32_t use, uint32_t piece, uint32_t version, bool fetch) const {
    const Place here{tier_.options.tier, address(allocations_.of_use(use), piece)};
    const Place below{static_cast<TierId>(tier_.options.tier + 1), 0};
    Operand source = tier_.uses[use].o;
    source.first = piece;
    source.last = piece + 1;
    source.version = version;
    source.access = Access::read;
    Operand target = source;
    target.access = Access::write;
    Instruction in;
    in.lane = fetch ? link_lane(below.tier, here.tier) : link_lane(here.tier, below.tier);
    in.operands = {source, target};
    in.places = fetch ? std::vector<Place>{below, here} : std::vector<Place>{here, below};
    return in;
  }
  LaneId link_lane(TierId from, TierId to) const {
    for (const Link& link : tier_.program.machine.links)
      if (link.from == from && link.to == to) return link.lane;
    CHECK(false, "no link between tiers " + std::to_string(from) + " and " + std::to_string(to));
    return 0;
  }

  const Allocations& allocations_;
  const TierUses& tier_;
  Body& body_;
  std::vector<std::vector<Fetch>> fetches_;  // by the position in front of which they stand
  std::vector<std::vector<Store>> stores_;   // by the position behind which they stand
};

}  // namespace

void emit(const Allocations& allocations, Body& body) { Emitter(allocations, body).run(); }

}  // namespace sluice::staging
