#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/plan/stage/staging.h"

namespace sluice::staging {

namespace {

struct Fetch {
  uint32_t needed;  // position of the use
  uint32_t use, piece;
};
struct Store {
  uint32_t use, piece;
};

struct Touch {  // of a storage, in list order
  uint32_t at;
  const Operand* o;
  uint32_t use;  // kNever: away
};

std::vector<Touch> touches_of(const Storage& s, const std::vector<Use>& uses) {
  std::vector<Touch> touches;
  touches.reserve(s.uses.size() + s.events.size());
  for (const uint32_t u : s.uses) touches.push_back({uses[u].at, &uses[u].o, u});
  for (const AwayEvent& e : s.events) touches.push_back({e.at, &e.o, kNever});
  std::inplace_merge(touches.begin(), touches.begin() + static_cast<std::ptrdiff_t>(s.uses.size()),
                     touches.end(), [](const Touch& a, const Touch& b) { return a.at < b.at; });
  return touches;
}

class Emitter {
 public:
  Emitter(const Allocations& allocations, const std::vector<StartBound>& bounds, Body& body)
      : allocations_(allocations),
        bounds_(bounds),
        tier_(allocations.tier()),
        body_(body),
        fetches_(tier_.positions()),
        stores_(tier_.positions()) {}

  void run() {
    for (const Storage& s : tier_.storages) {
      if (s.resident || s.uses.empty()) continue;
      if (tier_.options.transient_only && tier_.program.buffers[s.buffer].permanent) continue;
      const std::vector<Touch> touches = touches_of(s, tier_.uses);
      plan_fetches(s, touches);
      plan_stores(s, touches);
    }
    std::vector<Instruction> out;
    out.reserve(tier_.positions() + transfers_);
    size_t next_use = 0;  // uses are in list order
    for (uint32_t at = 0; at < tier_.positions(); ++at) {
      for (const Fetch& f : in_order_of_need(at)) {
        if (!bounds_.empty()) note(f, at);
        out.push_back(transfer(f.use, f.piece, version_of(f.use), true));
      }
      Instruction in = std::move(body_.instructions[at]);
      place_permanent(in);
      for (; next_use < tier_.uses.size() && tier_.uses[next_use].at == at; ++next_use)
        in.places[tier_.uses[next_use].operand].offset = address(static_cast<uint32_t>(next_use));
      // A task makes a new version; a transfer brings the one that it names.
      const uint32_t made = in.task == kNoTask ? 0 : 1;
      out.push_back(std::move(in));
      for (const Store& s : in_operand_order(at))
        out.push_back(transfer(s.use, s.piece, version_of(s.use) + made, false));
    }
    body_.instructions = std::move(out);
  }

 private:
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

  std::vector<Store>& in_operand_order(uint32_t at) {
    std::sort(stores_[at].begin(), stores_[at].end(), [](const Store& a, const Store& b) {
      return std::tie(a.use, a.piece) < std::tie(b.use, b.piece);
    });
    return stores_[at];
  }

  void place_permanent(Instruction& in) const {
    const TierId here = tier_.options.tier;
    for (size_t k = 0; k < in.operands.size(); ++k) {
      const Buffer& b = tier_.program.buffers[in.operands[k].buffer];
      if (in.places[k].tier != here || !b.permanent || b.home != here) continue;
      in.places[k].offset = b.home_offset + b.cuts[in.operands[k].first];
    }
  }

  // The first task at a position or behind it.
  uint32_t task_from(uint32_t at) const {
    while (at < tier_.positions() && tier_.body.instructions[at].task == kNoTask) ++at;
    return at < tier_.positions() ? tier_.body.instructions[at].task : kNoTask;
  }
  void note(const Fetch& f, uint32_t at) {
    FetchNotes& notes = *tier_.options.notes;
    const Operand& o = tier_.uses[f.use].o;
    if (!notes.wanted[o.buffer]) return;
    const uint32_t root = allocations_.root(f.use);
    const Interval& allocation = allocations_.at_root(root);
    StartBound bound = bounds_[root];
    if (at > allocation.start)
      bound.bound = FetchBound::write;  // this piece is written after the start
    else if (!allocation.fetched)
      bound.bound = FetchBound::share;
    notes.bodies.back().push_back({.tier = tier_.options.tier,
                                   .buffer = o.buffer,
                                   .back = o.back,
                                   .piece = f.piece,
                                   .begins = task_from(at),
                                   .needed = task_from(f.needed),
                                   .lead = tier_.options.lead,
                                   .lead_cut = bound.lead_cut,
                                   .bound = bound.bound,
                                   .other = bound.other});
  }

  // Positions by allocation and piece of one storage.
  class Positions {
   public:
    explicit Positions(const Allocations& allocations) : allocations_(allocations) {}
    uint32_t& of(uint32_t root, uint32_t piece) {
      const Interval& i = allocations_.at_root(root);
      std::vector<uint32_t>& by_piece = by_root_[root];
      if (by_piece.empty()) by_piece.assign(i.last - i.first, kNever);
      return by_piece[piece - i.first];
    }

   private:
    const Allocations& allocations_;
    std::unordered_map<uint32_t, std::vector<uint32_t>> by_root_;
  };

  // A use fetches what its allocation does not hold, or holds in an older version.
  void plan_fetches(const Storage& s, const std::vector<Touch>& touches) {
    std::vector<uint32_t> written(tier_.program.buffers[s.buffer].pieces(), kNever);  // newest, by piece
    Positions current_since(allocations_);
    for (const Touch& t : touches) {
      for (uint32_t p = t.o->first; p < t.o->last && t.use != kNever; ++p) {
        const uint32_t root = allocations_.root(t.use);
        uint32_t& since = current_since.of(root, p);
        const bool current = since != kNever && (written[p] == kNever || written[p] <= since);
        if (!current && t.o->access != Access::write) {
          const uint32_t floor = written[p] == kNever ? 0 : written[p] + 1;
          fetches_[std::max(allocations_.at_root(root).start, floor)].push_back({t.at, t.use, p});
          ++transfers_;
        }
        since = t.at;
      }
      if (t.o->access == Access::read) continue;
      for (uint32_t p = t.o->first; p < t.o->last; ++p) written[p] = t.at;
    }
  }

  struct Reader {
    uint32_t at = kNever;
    uint32_t root = kNever;  // kNever: away
  };
  struct NextReaders {  // the next reader, and the next through another allocation
    Reader first, other;
    void add(const Reader& r) {
      if (first.root != r.root) other = first;
      first = r;
    }
    uint32_t not_through(uint32_t root) const { return first.root == root ? other.at : first.at; }
  };

  // What a use writes is written back if another tier or another allocation reads it before this allocation
  // writes it again and before anything overwrites it. The last write of a permanent buffer that has content
  // after the body is written back, too.
  void plan_stores(const Storage& s, const std::vector<Touch>& touches) {
    const Buffer& b = tier_.program.buffers[s.buffer];
    const bool stays = b.permanent && !b.is_empty_in(body_.end);
    std::vector<NextReaders> readers(b.pieces());
    Positions next_write(allocations_);
    for (size_t k = touches.size(); k-- > 0;) {
      const Touch& t = touches[k];
      const uint32_t root = t.use == kNever ? kNever : allocations_.root(t.use);
      for (uint32_t p = t.o->first; p < t.o->last; ++p) {
        if (t.o->access != Access::read && t.use != kNever) {
          uint32_t& next = next_write.of(root, p);
          if (readers[p].not_through(root) < next || (next == kNever && stays)) {
            stores_[t.at].push_back({t.use, p});
            ++transfers_;
          }
          next = t.at;
        }
        if (t.o->access == Access::write)
          readers[p] = {};
        else
          readers[p].add({t.at, root});
      }
    }
  }

  Instruction transfer(uint32_t use, uint32_t piece, uint32_t version, bool fetch) const {
    const Interval& i = allocations_.of_use(use);
    const Buffer& b = tier_.buffer_of(i.storage);
    const Place here{tier_.options.tier, address(i, piece)};
    Place away{tier_.storages[i.storage].away, 0};
    if (away.tier < here.tier) away.offset = b.home_offset + b.cuts[piece];
    Operand source = tier_.uses[use].o;
    source.first = piece;
    source.last = piece + 1;
    source.version = version;
    source.access = Access::read;
    source.by_host = false;
    source.role = Role::none;
    Operand target = source;
    target.access = Access::write;
    Instruction in;
    in.lane = fetch ? link_lane(away.tier, here.tier) : link_lane(here.tier, away.tier);
    in.operands = {source, target};
    in.places = fetch ? std::vector<Place>{away, here} : std::vector<Place>{here, away};
    if (b.pick) add_index(*b.pick, in);
    return in;
  }
  // Adds the index in the tier where the host reads it. If that tier is not staged yet, the index gets its
  // address when it is.
  void add_index(const Pick& pick, Instruction& in) const {
    const Buffer& b = tier_.program.buffers[pick.index];
    const TierId memory = lowest_memory_tier(tier_.program.machine), here = tier_.options.tier;
    CHECK(memory >= here, "what is picked is fetched by a tier below the lowest memory");
    in.operands.push_back({pick.index, 0, b.pieces(), Access::read, 1, 0, true});
    in.places.push_back({memory, memory == here ? address_of_index(pick.index) : 0});
  }
  uint64_t address_of_index(BufferId index) const {
    for (const Storage& s : tier_.storages)
      if (s.buffer == index) {
        CHECK(s.resident && !s.uses.empty(), "an index does not live in the lowest memory");
        return address(allocations_.of_use(s.uses.front()), 0);
      }
    CHECK(false, "an index is not used in the lowest memory");
    return 0;
  }
  LaneId link_lane(TierId from, TierId to) const {
    for (const Link& link : tier_.program.machine.links)
      if (link.from == from && link.to == to) return link.lane;
    CHECK(false, "no link between tiers " + std::to_string(from) + " and " + std::to_string(to));
    return 0;
  }

  const Allocations& allocations_;
  const std::vector<StartBound>& bounds_;
  const TierUses& tier_;
  Body& body_;
  std::vector<std::vector<Fetch>> fetches_;  // by the position in front of which they stand
  std::vector<std::vector<Store>> stores_;   // by the position behind which they stand
  size_t transfers_ = 0;                     // fetches and stores
};

}  // namespace

void emit(const Allocations& allocations, const std::vector<StartBound>& bounds, Body& body) {
  Emitter(allocations, bounds, body).run();
}

}  // namespace sluice::staging
