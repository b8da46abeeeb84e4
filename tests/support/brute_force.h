// Brute force tries all ways in which the first groups of weights, of gradients and of state live higher than
// the rest, with many sets of levels of recomputation. It leaves out a combination if the lower bound of its
// step is no better than the best step so far.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "engine/simulate/simulate.h"
#include "tests/support/search_support.h"

namespace sluice::testing {

constexpr uint32_t kLead = 3;  // tasks

// Groups before the first bound live in the top tier, those before the next bound in the tier below, and so
// on.
using Division = std::vector<uint32_t>;

// Returns all ways to divide `groups` groups over `tiers` tiers. Groups from the last bound on live in the
// lowest tier.
inline std::vector<Division> divisions(uint32_t groups, size_t tiers) {
  std::vector<Division> all{{}};
  for (size_t tier = 0; tier + 1 < tiers; ++tier) {
    std::vector<Division> longer;
    for (const Division& d : all)
      for (uint32_t bound = d.empty() ? 0 : d.back(); bound <= groups; ++bound) {
        longer.push_back(d);
        longer.back().push_back(bound);
      }
    all = std::move(longer);
  }
  return all;
}

inline TierId home_of(uint32_t group, const Division& d) {
  return static_cast<TierId>(std::upper_bound(d.begin(), d.end(), group) - d.begin());
}

// Returns the home of each buffer. `divided` has a division for each class: weights, gradients, state. A
// gradient accumulator that stays between waves lives where the group's gradient lives.
inline std::vector<TierId> homes_of(const Program& p, const Lowering& lowering,
                                    const std::array<const Division*, 3>& divided) {
  std::vector<TierId> homes(p.buffers.size(), lowest_tier(p.machine));
  for (uint32_t g = 0; g < lowering.groups.size(); ++g) {
    const GroupBuffers& b = lowering.groups[g];
    homes[b.weights] = home_of(g, *divided[0]);
    homes[b.gradient] = home_of(g, *divided[1]);
    for (const BufferId a : b.accumulators)
      if (p.buffers[a].permanent) homes[a] = home_of(g, *divided[1]);
    for (const BufferId s : b.state) homes[s] = home_of(g, *divided[2]);
  }
  return homes;
}

// A part of a permanent buffer that a task reads from the buffer's home (`read`) or leaves there. All units
// that can run this task lie in tiers [highest, lowest].
struct Moved {
  BufferId buffer;
  uint64_t bytes;
  bool read;
  TierId highest, lowest;
};

inline bool has_home(const Buffer& b) {
  return b.owns_home() && (b.kind == BufferClass::state || b.kind == BufferClass::gradients);
}

// Returns what the bodies of a step must move, wherever homes are: each piece that a task reads before any
// task writes it, and each piece that is changed and has content at the body's end. Homes are current between
// bodies.
inline std::vector<Moved> must_move(const Program& p, const std::vector<BodyId>& step) {
  struct Uses {
    const Task *first = nullptr, *last_change = nullptr;
    bool begins_with_read = false;
  };
  std::vector<Moved> all;
  for (const BodyId id : step) {
    const Body& body = p.bodies[id];
    std::map<std::pair<BufferId, uint32_t>, Uses> pieces;
    for (const Task& task : body.tasks)
      for (const Operand& o : task.operands)
        for (uint32_t piece = o.first; piece < o.last && has_home(p.buffers[o.buffer]); ++piece) {
          Uses& uses = pieces[{o.buffer, piece}];
          if (uses.first == nullptr) uses.first = &task, uses.begins_with_read = o.access != Access::write;
          if (o.access != Access::read) uses.last_change = &task;
        }
    for (const auto& [at, uses] : pieces) {
      const Buffer& b = p.buffers[at.first];
      const auto add = [&, piece = at.second](bool read, TaskKind kind) {
        all.push_back({at.first, b.cuts[piece + 1] - b.cuts[piece], read, lowest_tier(p.machine), 0});
        for (const Unit& u : p.machine.units) {
          if (u.kind != kind) continue;
          all.back().highest = std::min(all.back().highest, u.tier);
          all.back().lowest = std::max(all.back().lowest, u.tier);
        }
      };
      if (uses.begins_with_read) add(true, uses.first->kind);
      if (uses.last_change != nullptr && !b.is_empty_in(body.end)) add(false, uses.last_change->kind);
    }
  }
  return all;
}

// Returns the seconds that the busiest lane computes at least. Only tasks that a single lane can run are
// counted.
inline double computing_seconds(const Program& p, const MachineRates& rates,
                                const std::vector<BodyId>& step) {
  std::map<LaneId, double> lanes;
  for (const BodyId id : step)
    for (const Task& task : p.bodies[id].tasks) {
      std::map<LaneId, double> taken;
      for (const Unit& u : p.machine.units)
        if (u.kind == task.kind) taken[u.lane] = unit_seconds(p, rates, task, u);
      if (taken.size() == 1) lanes[taken.begin()->first] += taken.begin()->second;
    }
  double most = 0;
  for (const auto& [lane, seconds] : lanes) most = std::max(most, seconds);
  return most;
}

// Returns the seconds that the busiest link or the busiest drives need at least to move the bytes of `moves`.
inline double moving_seconds(const Machine& machine, const std::vector<Moved>& moves,
                             const std::vector<TierId>& homes, const MachineRates& rates) {
  std::map<std::pair<std::string, std::string>, double> links;  // bytes
  std::map<std::string, double> drives;
  for (const Moved& m : moves) {
    const TierId home = homes[m.buffer], nearest = std::clamp(home, m.highest, m.lowest);
    for (TierId t = std::min(home, nearest); t < std::max(home, nearest); ++t) {
      const bool up = m.read == (nearest < home);
      const Tier &above = machine.tiers[t], &below = machine.tiers[t + 1u];
      links[up ? std::pair{below.name, above.name} : std::pair{above.name, below.name}] +=
          static_cast<double>(m.bytes);
      if (below.file) drives[below.name] += static_cast<double>(m.bytes);
    }
  }
  double least = 0;
  for (const LinkRates& r : rates.links) least = std::max(least, links[{r.from, r.to}] / r.bytes_per_second);
  for (const DriveRates& r : rates.drives)
    least = std::max(least, drives[r.tier] / std::max({r.read, r.write, r.mixed}));
  return least;
}

using Levels = std::vector<Recompute>;  // by layer

// Returns the seconds of the fastest step of `waves` waves at each of `rates`, over all divisions and all
// `sets`. All bodies of the fastest program must fit, not only those of a step. Programs do not depend on
// rates, so each is assembled once for all rates.
inline std::vector<double> best_of_all(const PlanRequest& request, const std::vector<MachineRates>& rates,
                                       const std::vector<Levels>& sets, uint32_t waves = 1) {
  struct Tried {
    std::vector<TierId> homes;
    std::vector<double> least;  // seconds, by rates
  };
  // If only a few steps are simulated, a step may seem a little shorter than it is on average.
  constexpr double kBelow = 0.98;
  const size_t tiers = request.machine.tiers.size();
  std::vector<double> best(rates.size(), 1e300);
  for (const Levels& set : sets) {
    LowerOptions options = request.lower;
    options.waves = waves;
    options.recompute = {Recompute::none};  // the embedding; the choice matters neither here nor for the head
    options.recompute.insert(options.recompute.end(), set.begin(), set.end());
    options.recompute.push_back(Recompute::none);
    Program whole;
    whole.machine = request.machine;
    const Lowering lowering = lower(request.model(2, request.sequence), options, whole);
    const std::vector<BodyId> step = lowering.bodies().step_from(*lowering.bodies().step);
    Program tasks = whole;
    for (size_t b = 0; b < tasks.bodies.size(); ++b)
      if (!std::count(step.begin(), step.end(), b)) tasks.bodies[b].tasks.clear();
    const std::vector<Moved> moves = must_move(tasks, step);
    std::vector<double> computing;  // by rates
    for (const MachineRates& r : rates) computing.push_back(computing_seconds(tasks, r, step));
    std::vector<Tried> tried;
    const bool gradients_stay = request.lower.update_waits_for_norm || waves > 1;
    const std::vector<Division> all = divisions(static_cast<uint32_t>(lowering.groups.size()), tiers);
    const std::vector<Division> none{Division(tiers - 1, 0)};
    for (const Division& weights : all)
      for (const Division& gradients : gradients_stay ? all : none)
        for (const Division& state : all) {
          tried.push_back({homes_of(tasks, lowering, {&weights, &gradients, &state}), {}});
          for (size_t r = 0; r < rates.size(); ++r)
            tried.back().least.push_back(
                kBelow *
                std::max(computing[r], moving_seconds(tasks.machine, moves, tried.back().homes, rates[r])));
        }
    std::ranges::stable_sort(tried, {}, &Tried::least);  // the best ones tend to come first
    for (const Tried& t : tried) {
      bool may_be_best = false;
      for (size_t r = 0; r < rates.size(); ++r) may_be_best = may_be_best || t.least[r] < best[r];
      if (!may_be_best) continue;
      const Arrangement a{t.homes, std::vector<uint32_t>(tiers, kLead)};
      Program p = tasks;
      if (assemble(p, a)) continue;
      std::vector<double> least = best;
      for (size_t r = 0; r < rates.size(); ++r) {
        const double seconds = steady_step_seconds(p, rates[r], step);
        EXPECT_GE(seconds, t.least[r]);
        least[r] = std::min(least[r], seconds);
      }
      if (least == best) continue;
      p = whole;
      if (!assemble(p, a)) best = least;
    }
  }
  return best;
}

// Sequences are too short for the level `products` to differ much from `all`.
inline std::vector<Levels> all_sets(uint32_t layers) {
  std::vector<Levels> sets{{}};
  for (uint32_t l = 0; l < layers; ++l) {
    std::vector<Levels> longer;
    for (const Levels& set : sets)
      for (const Recompute level : {Recompute::none, Recompute::cheap, Recompute::all}) {
        longer.push_back(set);
        longer.back().push_back(level);
      }
    sets = std::move(longer);
  }
  return sets;
}

}  // namespace sluice::testing
