#include "engine/plan/stage.h"

#include <algorithm>
#include <numeric>

#include "engine/error.h"
#include "engine/pack.h"
#include "engine/plan/address_map.h"
#include "engine/plan/range_load.h"

namespace sluice {

namespace {

constexpr uint32_t kNever = UINT32_MAX;

struct Use {                  // one operand in this tier whose storage is not a permanent home here
  uint32_t at;                // position in the list
  uint32_t operand;
  Operand o;
  uint32_t floor = 0;         // its fetches cannot stand before this position
  bool fetches = false;       // some piece must be fetched if the interval begins here
};

struct LowerEvent {           // the same storage touched in a tier below
  uint32_t at;
  Operand o;
};

struct Storage {              // a buffer, or one slot of a ring buffer
  BufferId buffer = 0;
  bool resident = false;      // transient with its home here
  std::vector<uint32_t> uses;
  std::vector<LowerEvent> lower;
};

struct Gap {                  // from one use to the next that reads some of the same pieces
  uint32_t from, to;          // uses
  uint32_t length;
};

struct Fetch {
  uint32_t at, needed, use, piece;
};

struct Interval {
  uint32_t storage = 0;
  uint32_t first = 0, last = 0;    // pieces
  uint32_t start = 0, end = 0;     // positions, inclusive
  uint32_t first_use_at = 0;
  uint32_t floor = 0;
  bool fetched = false;            // begins with a fetch
  std::vector<uint32_t> uses;
  uint64_t offset = 0;
};

class Stager {
 public:
  Stager(const Program& program, Body& body, const StageOptions& options)
      : program_(program), body_(body), options_(options), alignment_(placement_alignment(program.machine, options.tier)),
        positions_(static_cast<uint32_t>(body.instructions.size())), load_(std::max(positions_, 1u)),
        room_(static_cast<int64_t>(options.capacity) - static_cast<int64_t>(options.base)) {}

  std::optional<Shortage> run() {
    collect();
    find_floors_and_gaps();
    if (auto shortage = load_single_uses()) return shortage;
    lengthen();
    singles_ = intervals_;
    if (options_.keep) keep_gaps();
    if (auto shortage = lay_out()) return shortage;
    grow();
    emit();
    return std::nullopt;
  }

 private:
  bool least() const { return !options_.keep && options_.lead == 0; }
  const Buffer& buffer(const Storage& s) const { return program_.buffers[s.buffer]; }
  uint64_t bytes(const Storage& s, uint32_t first, uint32_t last) const {
    const Buffer& b = buffer(s);
    return round_up(b.cuts[last] - b.cuts[first], alignment_);
  }

  // 1. ---------------------------------------------------------------------------------------------------------------
  void collect() {
    std::vector<uint32_t> index(2 * program_.buffers.size(), kNever);
    for (uint32_t at = 0; at < positions_; ++at) {
      const Instruction& in = body_.instructions[at];
      for (uint32_t k = 0; k < in.operands.size(); ++k) {
        const Operand& o = in.operands[k];
        const Buffer& b = program_.buffers[o.buffer];
        const TierId tier = in.places[k].tier;
        if (tier < options_.tier || (b.permanent && b.home == options_.tier)) continue;
        if (b.kind == BufferClass::workspace) {
          if (tier != options_.tier) continue;
          storages_.push_back({o.buffer, true, {}, {}});
          add_use(static_cast<uint32_t>(storages_.size() - 1), at, k, o);
          continue;
        }
        uint32_t& s = index[2 * o.buffer + o.back];
        if (s == kNever) {
          s = static_cast<uint32_t>(storages_.size());
          storages_.push_back({o.buffer, !b.permanent && b.home == options_.tier, {}, {}});
        }
        if (tier == options_.tier) add_use(s, at, k, o);
        else storages_[s].lower.push_back({at, o});
      }
    }
  }
  void add_use(uint32_t storage, uint32_t at, uint32_t operand, const Operand& o) {
    CHECK(storages_[storage].resident || buffer(storages_[storage]).home > options_.tier,
          buffer(storages_[storage]).name + ": home above a tier that uses it");
    storages_[storage].uses.push_back(static_cast<uint32_t>(uses_.size()));
    uses_.push_back({at, operand, o});
  }

  void find_floors_and_gaps() {
    for (const Storage& s : storages_) {
      if (s.resident || s.uses.empty()) continue;
      const uint32_t pieces = buffer(s).pieces();
      last_use_.assign(pieces, kNever);
      last_write_.assign(pieces, kNever);        // position of the newest write, here or below
      last_lower_write_.assign(pieces, kNever);
      size_t lower = 0;
      for (const uint32_t u : s.uses) {
        Use& use = uses_[u];
        for (; lower < s.lower.size() && s.lower[lower].at < use.at; ++lower) {
          const LowerEvent& e = s.lower[lower];
          if (e.o.access == Access::read) continue;
          for (uint32_t p = e.o.first; p < e.o.last; ++p) last_write_[p] = last_lower_write_[p] = e.at;
        }
        visit_use(u);
      }
    }
    std::sort(gaps_.begin(), gaps_.end(), [&](const Gap& a, const Gap& b) {
      return std::tie(a.length, uses_[a.to].at, a.from, a.to) < std::tie(b.length, uses_[b.to].at, b.from, b.to);
    });
  }
  void visit_use(uint32_t u) {
    Use& use = uses_[u];
    const bool reads = use.o.access != Access::write;
    uint32_t newest_gap = kNever;
    for (uint32_t p = use.o.first; p < use.o.last; ++p) {
      if (reads) {
        use.fetches = true;
        if (last_write_[p] != kNever) use.floor = std::max(use.floor, last_write_[p] + 1);
        const uint32_t before = last_use_[p];
        const bool valid = before != kNever && (last_lower_write_[p] == kNever || last_lower_write_[p] < uses_[before].at);
        if (valid && before != newest_gap) gaps_.push_back({before, u, use.at - uses_[before].at});
        if (valid) newest_gap = before;
      }
      last_use_[p] = u;
      if (use.o.access != Access::read) last_write_[p] = use.at;
    }
  }

  // 2. ---------------------------------------------------------------------------------------------------------------
  std::optional<Shortage> load_single_uses() {
    parent_.resize(uses_.size());
    std::iota(parent_.begin(), parent_.end(), 0u);
    intervals_.resize(uses_.size());
    for (uint32_t s = 0; s < storages_.size(); ++s) {
      for (const uint32_t u : storages_[s].uses) {
        const Use& use = uses_[u];
        intervals_[u] = {s, use.o.first, use.o.last, use.at, use.at, use.at, use.floor, use.fetches, {u}};
        if (storages_[s].resident) intervals_[u].fetched = false;
      }
      if (storages_[s].resident) join_resident(s);
      for (const uint32_t u : storages_[s].uses)
        if (parent_[u] == u) add_load(intervals_[u], 1);
    }
    if (positions_ == 0) return std::nullopt;
    const auto most = static_cast<uint64_t>(load_.max(0, positions_ - 1));
    if (options_.base + most <= options_.capacity) return std::nullopt;
    return shortage(options_.base + most);
  }
  // Names the task at the position of the largest load, or the next one after it.
  Shortage shortage(uint64_t bytes_needed) const {
    const int64_t most = load_.max(0, positions_ - 1);
    uint32_t at = 0;
    while (load_.max(at, at) < most) ++at;
    while (at + 1 < positions_ && body_.instructions[at].task == kNoTask) ++at;
    return {options_.tier, body_.instructions[at].task, bytes_needed};
  }
  void join_resident(uint32_t s) {
    const std::vector<uint32_t>& uses = storages_[s].uses;
    if (uses.empty()) return;
    Interval& whole = intervals_[uses.front()];
    for (const uint32_t u : uses) {  // pieces at the ends may never come here
      whole.first = std::min(whole.first, uses_[u].o.first);
      whole.last = std::max(whole.last, uses_[u].o.last);
    }
    whole.end = uses_[uses.back()].at;
    whole.uses = uses;
    for (const uint32_t u : uses) parent_[u] = uses.front();
  }
  void add_load(const Interval& i, int sign) {
    load_.add(i.start, i.end, sign * static_cast<int64_t>(bytes(storages_[i.storage], i.first, i.last)));
  }
  bool overloaded(const Interval& i) const {
    return load_.max(i.start, i.end) > room_;
  }

  void lengthen() {
    if (options_.lead == 0) return;
    std::vector<uint64_t> elapsed(positions_ + 1);  // weight of the tasks before a position
    for (uint32_t at = 0; at < positions_; ++at) {
      const uint32_t task = body_.instructions[at].task;
      const uint32_t weight = task == kNoTask ? 0 : options_.task_weights.empty() ? 1 : options_.task_weights[task];
      elapsed[at + 1] = elapsed[at] + weight;
    }
    for (uint32_t u = 0; u < uses_.size(); ++u) {
      Interval& i = intervals_[u];
      if (parent_[u] != u || !i.fetched) continue;
      for (uint32_t lead = options_.lead; lead > 0; lead /= 2) {
        const uint64_t begin = elapsed[i.end] - std::min<uint64_t>(elapsed[i.end], lead);
        const auto last = std::upper_bound(elapsed.begin(), elapsed.begin() + i.end + 1, begin) - elapsed.begin();
        const uint32_t start = std::max(i.floor, static_cast<uint32_t>(last - 1));
        if (start >= i.start) break;
        const uint32_t old = i.start;
        add_load(i, -1);
        i.start = start;
        add_load(i, 1);
        if (!overloaded(i)) break;
        add_load(i, -1);
        i.start = old;
        add_load(i, 1);
      }
    }
  }

  // 3. ---------------------------------------------------------------------------------------------------------------
  uint32_t find(uint32_t u) {
    while (parent_[u] != u) u = parent_[u] = parent_[parent_[u]];
    return u;
  }
  static Interval joined(const Interval& a, const Interval& b) {  // a begins before b
    Interval i = a;
    i.first = std::min(a.first, b.first);
    i.last = std::max(a.last, b.last);
    i.start = std::min(a.start, b.start);
    i.end = std::max(a.end, b.end);
    i.uses.insert(i.uses.end(), b.uses.begin(), b.uses.end());
    return i;
  }
  void keep_gaps() {
    for (const Gap& gap : gaps_) join(gap);
  }
  void join(const Gap& gap) {
    uint32_t a = find(gap.from), b = find(gap.to);
    if (a == b) return;
    if (intervals_[b].first_use_at < intervals_[a].first_use_at) std::swap(a, b);
    Interval both = joined(intervals_[a], intervals_[b]);
    both.start = intervals_[a].start;
    add_load(intervals_[a], -1);
    add_load(intervals_[b], -1);
    add_load(both, 1);
    if (overloaded(both)) {
      add_load(both, -1);
      add_load(intervals_[a], 1);
      add_load(intervals_[b], 1);
      return;
    }
    parent_[b] = a;
    intervals_[a] = std::move(both);
  }

  // 4. ---------------------------------------------------------------------------------------------------------------
  std::optional<Shortage> lay_out() {
    const uint64_t room = options_.capacity - options_.base;
    if (!least())
      for (const uint64_t percent_free : {0, 1, 2, 4, 8, 16, 32}) {
        if (percent_free > 0) keep_gaps_again(room - room / 100 * percent_free);
        const std::vector<PackItem> items = pack_all(options_.capacity);
        if (std::all_of(items.begin(), items.end(), [](const PackItem& i) { return i.placed; })) return std::nullopt;
      }
    give_up_everything();
    pack_all(UINT64_MAX);
    if (peak_ <= options_.capacity) return std::nullopt;
    return shortage(peak_);
  }
  // What transient buffers need of the lowest tier in the least arrangement must not depend on where permanent homes are
  // (least.h), and how many transfers stand between two tasks does: there, time is counted in tasks.
  std::vector<uint32_t> timeline() const {
    std::vector<uint32_t> time(positions_);
    const bool by_tasks = least() && program_.machine.tiers[options_.tier].file;
    uint32_t tasks = 0;
    for (uint32_t at = 0; at < positions_; ++at) {
      time[at] = by_tasks ? tasks : at;
      if (body_.instructions[at].task != kNoTask) ++tasks;
    }
    return time;
  }
  std::vector<PackItem> pack_all(uint64_t capacity) {
    const std::vector<uint32_t> time = timeline();
    std::vector<uint32_t> roots;
    std::vector<PackItem> items;
    for (uint32_t u = 0; u < uses_.size(); ++u) {
      if (parent_[u] != u) continue;
      const Interval& i = intervals_[u];
      roots.push_back(u);
      items.push_back({time[i.start], time[i.end], bytes(storages_[i.storage], i.first, i.last)});
    }
    peak_ = pack(items, options_.base, capacity);
    for (size_t k = 0; k < items.size(); ++k) intervals_[roots[k]].offset = items[k].offset;
    return items;
  }
  // Starts over from single uses, with less room for what is kept and for leads.
  void keep_gaps_again(uint64_t room) {
    room_ = static_cast<int64_t>(room);
    start_over(true);
    for (Interval& i : intervals_)
      if (i.start < i.end && i.uses.size() == 1 && i.fetched && overloaded(i)) {
        add_load(i, -1);
        i.start = i.end;
        add_load(i, 1);
      }
    if (options_.keep) keep_gaps();
  }
  void give_up_everything() { start_over(false); }
  void start_over(bool with_leads) {
    intervals_ = singles_;
    std::iota(parent_.begin(), parent_.end(), 0u);
    load_ = RangeLoad(std::max(positions_, 1u));
    for (const Storage& s : storages_)
      if (s.resident)
        for (const uint32_t u : s.uses) parent_[u] = s.uses.front();
    for (uint32_t u = 0; u < uses_.size(); ++u) {
      if (parent_[u] != u) continue;
      if (!with_leads && intervals_[u].fetched) intervals_[u].start = uses_[u].at;
      add_load(intervals_[u], 1);
    }
  }

  // 5. ---------------------------------------------------------------------------------------------------------------
  void grow() {
    std::vector<uint32_t> roots;
    for (uint32_t u = 0; u < uses_.size(); ++u)
      if (parent_[u] == u) roots.push_back(u);
    std::sort(roots.begin(), roots.end(), [&](uint32_t a, uint32_t b) {
      return std::tie(intervals_[a].start, a) < std::tie(intervals_[b].start, b);
    });
    AddressMap ends;  // address -> first position at which nothing placed so far uses it
    std::vector<uint32_t> fetched;
    for (const uint32_t u : roots) {
      Interval& i = intervals_[u];
      const uint64_t end = i.offset + bytes(storages_[i.storage], i.first, i.last);
      i.floor = std::max(i.floor, ends.max(i.offset, end));
      ends.assign(i.offset, end, i.end + 1);
      // In the least arrangement, transient buffers leave the tier below when their task comes (see timeline()).
      if (i.fetched && (!least() || buffer(storages_[i.storage]).permanent)) fetched.push_back(u);
    }
    std::sort(fetched.begin(), fetched.end(), [&](uint32_t a, uint32_t b) {
      return std::tie(intervals_[a].first_use_at, a) < std::tie(intervals_[b].first_use_at, b);
    });
    uint32_t latest = 0;
    for (const uint32_t u : fetched) {
      Interval& i = intervals_[u];
      i.start = std::min(i.start, std::max(i.floor, latest));
      latest = std::max(latest, i.start);
    }
  }

  // 6. ---------------------------------------------------------------------------------------------------------------
  struct Store {
    uint32_t use, piece;
  };

  void emit() {
    std::vector<std::vector<Fetch>> fetches(positions_);
    std::vector<std::vector<Store>> stores(positions_);
    for (uint32_t u = 0; u < uses_.size(); ++u)
      if (parent_[u] == u && !storages_[intervals_[u].storage].resident) plan_transfers(intervals_[u], fetches, stores);
    std::vector<Instruction> out;
    out.reserve(positions_ * 2);
    std::vector<uint32_t> first_use(positions_ + 1, 0);  // uses are in list order
    for (const Use& use : uses_) ++first_use[use.at + 1];
    std::partial_sum(first_use.begin(), first_use.end(), first_use.begin());
    for (uint32_t at = 0; at < positions_; ++at) {
      std::sort(fetches[at].begin(), fetches[at].end(), [&](const Fetch& a, const Fetch& b) {
        return std::tie(a.needed, a.use, a.piece) < std::tie(b.needed, b.use, b.piece);
      });
      for (const Fetch& f : fetches[at]) out.push_back(transfer(f.use, f.piece, uses_[f.use].o.version, true));
      Instruction in = std::move(body_.instructions[at]);
      place_permanent(in);
      for (uint32_t u = first_use[at]; u < first_use[at + 1]; ++u) {
        const Interval& i = intervals_[find(u)];
        const Buffer& b = buffer(storages_[i.storage]);
        in.places[uses_[u].operand].offset = i.offset + b.cuts[uses_[u].o.first] - b.cuts[i.first];
      }
      out.push_back(std::move(in));
      // A task makes a new version; a transfer brings the one that it names.
      const uint32_t made = out.back().task == kNoTask ? 0 : 1;
      for (const Store& s : stores[at]) out.push_back(transfer(s.use, s.piece, uses_[s.use].o.version + made, false));
    }
    body_.instructions = std::move(out);
    body_.peak_bytes[options_.tier] = std::max(peak_, options_.base);
  }

  void place_permanent(Instruction& in) const {
    for (size_t k = 0; k < in.operands.size(); ++k) {
      const Buffer& b = program_.buffers[in.operands[k].buffer];
      if (in.places[k].tier != options_.tier || !b.permanent || b.home != options_.tier) continue;
      in.places[k].offset = b.home_offset + b.cuts[in.operands[k].first];
    }
  }

  // Which pieces of an allocation are fetched before which use, and stored behind which.
  void plan_transfers(const Interval& i, std::vector<std::vector<Fetch>>& fetches, std::vector<std::vector<Store>>& stores) {
    std::vector<uint32_t> uses = i.uses;
    std::sort(uses.begin(), uses.end());
    std::vector<uint32_t> valid_since(i.last - i.first, kNever);  // position from which the copy is current
    for (size_t k = 0; k < uses.size(); ++k) {
      const Use& use = uses_[uses[k]];
      for (uint32_t p = use.o.first; p < use.o.last; ++p) {
        uint32_t& valid = valid_since[p - i.first];
        const uint32_t written = last_foreign_write(i, p, use.at);
        if (valid != kNever && written != kNever && written >= valid) valid = kNever;
        if (use.o.access != Access::write && valid == kNever) {
          const uint32_t floor = written == kNever ? 0 : written + 1;
          fetches[std::max(i.start, floor)].push_back({std::max(i.start, floor), use.at, uses[k], p});
        }
        valid = use.at;
        if (use.o.access != Access::read && store_needed(i, uses, k, p)) stores[use.at].push_back({uses[k], p});
      }
    }
  }
  // The newest write of a piece before `at` that did not go through this allocation: below, or in another one.
  uint32_t last_foreign_write(const Interval& i, uint32_t piece, uint32_t at) {
    const Storage& s = storages_[i.storage];
    uint32_t newest = kNever;
    const auto consider = [&](const Operand& o, uint32_t position) {
      if (position >= at || o.access == Access::read || piece < o.first || piece >= o.last) return;
      if (newest == kNever || position > newest) newest = position;
    };
    for (const LowerEvent& e : s.lower) consider(e.o, e.at);
    const uint32_t root = find(i.uses.front());
    for (const uint32_t u : s.uses)
      if (find(u) != root) consider(uses_[u].o, uses_[u].at);
    return newest;
  }
  // Whether what uses[k] wrote must reach the tier below before the allocation's next write of the piece.
  bool store_needed(const Interval& i, const std::vector<uint32_t>& uses, size_t k, uint32_t piece) {
    const Storage& s = storages_[i.storage];
    const uint32_t at = uses_[uses[k]].at;
    uint32_t next_write = kNever;
    for (size_t n = k + 1; n < uses.size() && next_write == kNever; ++n) {
      const Operand& o = uses_[uses[n]].o;
      if (o.access != Access::read && o.first <= piece && piece < o.last) next_write = uses_[uses[n]].at;
    }
    if (next_write == kNever && buffer(s).permanent) return true;
    const auto reads_between = [&](const Operand& o, uint32_t position) {
      return position > at && position < next_write && o.access != Access::write && o.first <= piece && piece < o.last;
    };
    for (const LowerEvent& e : s.lower)
      if (reads_between(e.o, e.at)) return true;
    const uint32_t root = find(i.uses.front());
    for (const uint32_t u : s.uses)
      if (find(u) != root && reads_between(uses_[u].o, uses_[u].at)) return true;
    return false;
  }

  Instruction transfer(uint32_t use, uint32_t piece, uint32_t version, bool fetch) {
    const Interval& i = intervals_[find(use)];
    const Buffer& b = buffer(storages_[i.storage]);
    Operand o = uses_[use].o;
    o.first = piece;
    o.last = piece + 1;
    o.version = version;
    const Place here{options_.tier, i.offset + b.cuts[piece] - b.cuts[i.first]};
    const Place below{static_cast<TierId>(options_.tier + 1), 0};
    Operand source = o, target = o;
    source.access = Access::read;
    target.access = Access::write;
    Instruction in;
    in.lane = link_lane(fetch ? below.tier : here.tier, fetch ? here.tier : below.tier);
    in.operands = {source, target};
    in.places = fetch ? std::vector<Place>{below, here} : std::vector<Place>{here, below};
    return in;
  }
  LaneId link_lane(TierId from, TierId to) const {
    for (const Link& link : program_.machine.links)
      if (link.from == from && link.to == to) return link.lane;
    CHECK(false, "no link between tiers " + std::to_string(from) + " and " + std::to_string(to));
    return 0;
  }

  const Program& program_;
  Body& body_;
  const StageOptions& options_;
  uint64_t alignment_;
  uint32_t positions_;
  RangeLoad load_;
  int64_t room_;                             // bytes that intervals may take together
  std::vector<Storage> storages_;
  std::vector<Use> uses_;                    // in list order
  std::vector<Gap> gaps_;                    // by length
  std::vector<uint32_t> parent_;             // union-find over uses: uses of one allocation
  std::vector<Interval> intervals_, singles_;  // by root use; singles_: before any gap is kept
  std::vector<uint32_t> last_use_, last_write_, last_lower_write_;
  uint64_t peak_ = 0;
};

}  // namespace

uint64_t placement_alignment(const Machine& machine, TierId tier) {
  uint64_t alignment = machine.tiers[tier].alignment;
  for (const Link& link : machine.links)
    if (link.from == tier || link.to == tier) alignment = std::max(alignment, link.alignment);
  return alignment;
}

std::optional<Shortage> stage(const Program& program, Body& body, const StageOptions& options) {
  return Stager(program, body, options).run();
}

}  // namespace sluice
