// The planner. In: model, batch, machine and budgets. Out: a program, or why there is none and which budgets
// would do.
//
// The search picks the home of every permanent buffer, what each layer keeps for its backward, which updates
// run in backward, the waves of a step, the leads and, where several are offered, the micro-batch. The
// budgets must hold. Of what fits, the plan with the shortest simulated step wins, with one exception:
// kWorthWear. A plan is a function of its request: no clock and no random choice is involved.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/assemble/assemble.h"
#include "engine/plan/assemble/program_size.h"
#include "engine/plan/choices.h"
#include "engine/plan/lower/lower.h"
#include "engine/program/program.h"
#include "engine/rates/machine_rates.h"

namespace sluice {

// Bytes of the lowest memory tier that a program itself takes. An empty function: none.
struct ProgramMemory {
  std::function<uint64_t(const ProgramSize& size)> running;  // beside the arena
  // While the plan is made, before the arena is filled. `sizes`: the sizes of the programs, one for each
  // micro-batch offered.
  std::function<uint64_t(std::span<const ProgramSize> sizes)> planning;
};

// What decides which bodies and collectives a program has. All ranks must choose the same.
struct StepShape {
  int64_t micro_batch = 1;
  uint32_t waves = 1;
  uint32_t backward = 0;   // how many of kBackwardParts groups are updated in backward
  bool plain_step = true;  // whether there is a body `step`
  bool operator==(const StepShape&) const = default;
};

// Units of work that the searches for all micro-batches of a plan share. If none of them finds a plan,
// further searches, without picks or with long waves, have as much work once more. A unit takes about a
// microsecond for short programs, and less for long ones. A plan of short steps gets less work. A model of
// few layers gets 1.5 times as much, and a second search with the plan's own shards has as much as the first.
constexpr uint64_t kSearchWork = 2'000'000;

struct PlanRequest {
  Machine machine;  // capacities are arena bytes
  MachineRates rates;
  Mesh mesh;  // of the ranks that the models are for
  std::function<Model(int64_t micro_batch, int64_t sequence)> model;
  int64_t sequence = 1;                // tokens
  std::vector<int64_t> micro_batches;  // candidates, largest first; each divides the batch
  int64_t micro_batch_tokens = 0;      // of a micro-batch that keeps the device busy
  std::optional<Recompute> recompute;  // of all layers; none: the search chooses for each
  std::optional<uint32_t> waves;       // of a step; none: the search chooses
  std::optional<StepShape> shape;      // of another plan, to be kept; its micro-batch is the only candidate
  bool long_waves = false;  // waves may have more than kLongWaveTasks; make_plan() sets it if it must
  Placement placement = Placement::automatic;
  Overlap overlap = Overlap::automatic;
  // The search sets recompute, waves, plain_step, updated_in_backward and usual_only itself. Where `lower`
  // allows it, the search also tries other shard_elements and no picks_experts.
  LowerOptions lower;
  ProgramMemory program_memory;
  uint64_t search_work = kSearchWork;  // less: a plan sooner, whose steps may take longer
  std::vector<uint64_t> most;          // by tier: bytes that an arena could have at all; empty: not known
};

// Numbers of forwards and backwards of a wave. If waves of at most kLongWaveTasks fit, the search leaves out
// longer ones, since these take long to plan. No wave of several micro-batches has more than kWaveTasksMax.
constexpr uint64_t kLongWaveTasks = 10'000, kWaveTasksMax = 15'000;

// A plan wins over the fastest one if it writes at most half as much to drives and its step takes at most
// kWorthWear times as long.
constexpr double kWorthWear = 1.01;

// One of the candidates that the search weighed: how it uses memory.
struct Weighed {
  std::optional<BufferClass> first;  // claims homes (HomeClaim) before other classes; none: by layer
  std::array<uint32_t, kRecomputes.size()> segments{};  // by level of Recompute: how many, without the loss
  bool first_keep_more = false;  // if levels differ: the first layers keep more than the last, not less
  uint32_t waves = 1;            // of a step
  bool upper_is_free = true;     // no home is above the lowest memory tier; staging has the tiers above
  bool moved = false;            // buffers or classes have other homes than they claimed
  double seconds = 0;            // of a step, as the search predicted it; 0: it does not fit
  uint64_t written = 0;          // bytes to files, by a step of one rank
};

// A buffer's turn to claim a home in a tier.
struct HomeClaim {
  BufferId buffer = 0;
  TierId tier = 0;
  uint64_t bytes = 0;  // that it needs there, with padding
  uint64_t room = 0;   // bytes of the tier that were neither claimed before nor left to staging
  uint64_t share = 0;  // bytes of the tier that its class could still have
  bool granted() const { return bytes <= room && bytes <= share; }
};

// How the search gave permanent buffers their homes. From the top memory tier down, classes of buffers claim
// what is not left to staging, in the order of their turns. Classes with the same turn claim layer by layer.
struct HomeRule {
  std::array<uint8_t, 3> turns{};         // of weights, gradients, state
  std::vector<uint64_t> left_to_staging;  // by tier; 0 where nothing claims
  std::vector<HomeClaim> claims;          // in the order of turns
  std::vector<BufferId> moved;            // after the claims, whatever these say
};

// Seconds of a step, simulated, if all steps are alike.
struct StepOrders {
  double plain = 0;                         // the update waits for the norm; infinite: does not fit
  std::optional<double> guessed, repaired;  // by right guesses; by wrong ones. None: the plan has no guess

  // The share of wrong guesses from which the plain order is faster; 1: never.
  double break_even() const {
    if (!guessed || *repaired <= plain) return 1;
    return std::max(0.0, (plain - *guessed) / (*repaired - *guessed));
  }
};

struct Plan {
  StepShape shape;
  Model model;
  Lowering lowering;
  Program program;
  MachineRates rates;  // those that the search predicted with
  Placement placement = Placement::automatic;
  std::vector<uint32_t> leads;        // by tier, in cost units of tasks
  bool keeps_copies = true;           // staged copies may outlive their use
  std::optional<HomeRule> home_rule;  // none: the arrangement that needs least memory
  uint64_t program_bytes = 0;         // of the lowest memory tier's capacity, beside its arena
  double step_seconds = 0;            // simulated, steady state, of the usual step
  StepOrders orders;
  double least_seconds = 0;  // lower bound under any placement (limit.h)
  uint32_t candidates = 0;   // that were weighed
  std::vector<Weighed> weighed;
};

// All figures include the program's own memory.
struct Infeasible {
  TierId tier = 0;          // the one that is too small
  std::string task;         // whose operands need most of the tier, in words; may be empty
  int64_t micro_batch = 1;  // of those offered, the one that needs least; `task` belongs to it
  // By tier: the least size that works while the other tiers stay as given. None: no size that
  // PlanRequest::most allows works and, in the entry of `tier`, no size up to its least_together.
  std::vector<std::optional<uint64_t>> least;
  std::vector<uint64_t> least_together;  // by tier: the top tier's; given that, the next tier's; ...
  uint64_t planning = 0;  // bytes of the lowest memory tier that planning takes; no least size is below
};

std::variant<Plan, Infeasible> make_plan(const PlanRequest& request);

// The size of the program for a micro-batch, with as few waves as the request allows and one level of
// recomputation for all layers: the one that gives the largest program. The search leaves out a plan whose
// program is larger.
ProgramSize program_size(const PlanRequest& request, int64_t micro_batch);

// Tasks of the program for a micro-batch, if layers recompute all that they may. Takes a fraction of the time
// of program_size(). The result is never more than ProgramSize::tasks.
uint64_t program_tasks(const PlanRequest& request, int64_t micro_batch);

// Whether the request allows waves of at most kWaveTasksMax forwards and backwards, or of one micro-batch.
bool is_short_enough(const PlanRequest& request, int64_t micro_batch);

// Whether there is a plan; a plan with long waves counts if the request has long_waves. Takes a fraction of
// the time of make_plan().
bool is_feasible(const PlanRequest& request);

// What kept each fetch of the `wanted` buffers from beginning earlier. Assembles the plan's program once
// more, and CHECKs that it is the same.
FetchNotes fetch_notes(const Plan& plan, std::vector<bool> wanted);

}  // namespace sluice
