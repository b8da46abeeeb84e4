// The planner on random programs: what it accepts is correct, least budgets are monotone and exact, waits are
// minimal.
#include <gtest/gtest.h>

#include "engine/plan/plan.h"
#include "engine/plan/search/least.h"
#include "engine/rates/machine_rates.h"
#include "engine/verify/verify.h"
#include "tests/support/plan_support.h"
#include "tests/support/same_program.h"

namespace sluice::testing {
namespace {

constexpr uint64_t kPrograms = 220;

TierId tier_count(const Case& c) { return static_cast<TierId>(c.program.machine.tiers.size()); }

std::string seed_text(uint64_t seed) { return "random_case(" + std::to_string(seed) + ")"; }

::testing::AssertionResult verifies(const Program& p) {
  const std::vector<Violation> v = verify(p);
  return v.empty() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << describe(p, v.front());
}

// By tier: the highest address that a home or an operand of `body` reaches, rounded up to the alignment of
// allocations.
std::vector<uint64_t> highest_places(const Program& p, const Body& body) {
  std::vector<uint64_t> end(p.machine.tiers.size());
  for (const Buffer& b : p.buffers) {
    if (!b.permanent) continue;
    end[b.home] = std::max(end[b.home], b.home_offset + home_bytes(p, b));
  }
  for (const Instruction& in : body.instructions)
    for (size_t k = 0; k < in.operands.size(); ++k) {
      const uint64_t bytes = operand_bytes(p.buffers[in.operands[k].buffer], in.operands[k]);
      end[in.places[k].tier] = std::max(end[in.places[k].tier], in.places[k].offset + bytes);
    }
  for (size_t t = 0; t < end.size(); ++t)
    end[t] = round_up(end[t], placement_alignment(p.machine, static_cast<TierId>(t)));
  return end;
}

void expect_exact_peaks(const Program& p) {
  std::vector<uint64_t> most(p.machine.tiers.size());
  for (const Body& body : p.bodies) {
    const std::vector<uint64_t> end = highest_places(p, body);
    EXPECT_EQ(body.peak_bytes, end) << "body " << body.name;
    for (size_t t = 0; t < most.size(); ++t) most[t] = std::max(most[t], end[t]);
  }
  EXPECT_EQ(p.arena_bytes, most);
  for (size_t t = 0; t < most.size(); ++t) EXPECT_LE(p.arena_bytes[t], p.machine.tiers[t].capacity);
}

void expect_good(const Program& p) {
  ASSERT_TRUE(verifies(p));
  expect_exact_peaks(p);
  EXPECT_TRUE(same(program_from_text(to_text(p)), p));
}

// Programs are planned with plenty of memory, with the least that each tier can do with (found from the top
// down), and with capacities in between.
TEST(PlanProperty, ProgramsAreCorrectFromPlentyToTheLeast) {
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed_text(seed));
    Case c = random_case(seed);
    ASSERT_FALSE(assemble(c.program, c.arrangement));
    expect_good(c.program);
    const std::vector<uint64_t> plenty = c.program.arena_bytes;
    std::vector<uint64_t> least;
    for (TierId t = 0; t < tier_count(c); ++t) least.push_back(shrink(c, t));
    expect_good(c.program);
    EXPECT_EQ(c.program.arena_bytes, least);
    Random random(seed);
    for (TierId t = 0; t < tier_count(c); ++t) set_capacity(c, t, least[t] + random() % (plenty[t] + 1));
    if (!assemble(c.program, c.arrangement)) expect_good(c.program);
    if (HasFailure()) return;
  }
}

// Without leads and kept copies nothing depends on capacities, so what fits in some memory also fits in more.
// (With them it need not: what one tier keeps changes what the tier below must hold. The search falls back on
// the least arrangement.)
TEST(PlanProperty, LargerMachinesHoldTheLeastArrangement) {
  for (uint64_t seed = 0; seed < kPrograms; seed += 3) {
    SCOPED_TRACE(seed_text(seed));
    Case c = random_case(seed);
    c.arrangement.keep = false;
    c.arrangement.leads.assign(tier_count(c), 0);
    std::vector<uint64_t> least;
    for (TierId t = 0; t < tier_count(c); ++t) least.push_back(shrink(c, t));
    for (TierId t = 0; t < tier_count(c); ++t) {
      const uint64_t step = placement_alignment(c.program.machine, t);
      for (const uint64_t more : {step, 3 * step, least[t] / 100, least[t] / 5, kPlenty}) {
        set_capacity(c, t, least[t] + more);
        EXPECT_FALSE(assemble(c.program, c.arrangement))
            << "tier " << int{t} << ", " << least[t] << " + " << more;
        EXPECT_EQ(c.program.arena_bytes, least);
      }
      set_capacity(c, t, least[t]);
    }
    if (HasFailure()) return;
  }
}

// The memory that `Least` names suffices, one step less does not, and the figures of `Least` agree.
TEST(PlanProperty, TheLeastIsExact) {
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed_text(seed));
    Case c = random_case(seed);
    const Least least(c.program);
    const auto fits = [&](const std::vector<uint64_t>& capacities) {
      const auto arrangement = least.arrangement(capacities);
      if (!arrangement) return false;
      for (TierId t = 0; t < tier_count(c); ++t) set_capacity(c, t, capacities[t]);
      const auto shortage = assemble(c.program, *arrangement);
      EXPECT_FALSE(shortage) << "tier " << int{shortage->shortage.tier} << " of " << int{tier_count(c)}
                             << " needs " << shortage->shortage.bytes_needed
                             << ", Least promised that it can do with "
                             << capacity(c, shortage->shortage.tier);
      return true;
    };
    const std::vector<uint64_t> together = least.together();
    EXPECT_TRUE(fits(together));
    EXPECT_TRUE(verifies(c.program));
    EXPECT_EQ(c.program.arena_bytes, together);
    Random random(seed);
    const TierId last = static_cast<TierId>(tier_count(c) - 1);
    for (int k = 0; k < 4; ++k) {  // the lowest tier does not hold every home
      std::vector<uint64_t> capacities = together;
      capacities[last] = pick(random, least.working_bytes(last), together[last]);
      if (chance(random, 50)) capacities[0] += random() % (2 * together[last]);  // state may rise
      for (TierId t = 0; t < last; ++t) {
        const auto needed = least.of_tier(t, capacities);
        if (!needed) continue;
        capacities[t] = *needed;
        EXPECT_TRUE(fits(capacities)) << "tier " << int{t};
        capacities[t] = *needed + random() % (*needed + 1);
        EXPECT_TRUE(fits(capacities)) << "tier " << int{t};
        capacities[t] = *needed - 1;
        EXPECT_FALSE(fits(capacities)) << "tier " << int{t};
        capacities[t] = *needed;
      }
    }
    if (HasFailure()) return;
  }
}

// Where lower tiers cannot hold transient buffers, upper tiers hold them if they can. The figures that
// `Least` then names suffice, and so does more memory.
TEST(PlanProperty, WhatIsTransientMayLiveAbove) {
  int above = 0;  // arrangements in which activations live above
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed_text(seed));
    Case c = random_case(seed);
    const Least least(c.program);
    const TierId lowest = lowest_tier(c.program.machine);
    const std::vector<uint64_t> together = least.together();
    Random random(seed);
    for (int k = 0; k < 6 && lowest > 0; ++k) {
      std::vector<uint64_t> capacities = together;
      for (TierId t = 0; t < lowest; ++t) capacities[t] += random() % (2 * together[lowest]);
      capacities[lowest] = random() % together[lowest];
      if (const auto tier = static_cast<TierId>(random() % lowest); chance(random, 50))
        capacities[tier] = least.of_tier(tier, capacities).value_or(capacities[tier]);
      const auto arrangement = least.arrangement(capacities);
      std::vector<uint64_t> more = capacities;
      for (uint64_t& bytes : more) bytes += chance(random, 50) ? random() % (bytes + 1) : 0;
      EXPECT_TRUE(!arrangement || least.arrangement(more)) << "more is not enough";
      if (!arrangement) continue;
      for (TierId t = 0; t <= lowest; ++t) set_capacity(c, t, capacities[t]);
      ASSERT_FALSE(assemble(c.program, *arrangement));
      expect_good(c.program);
      above += std::any_of(c.program.buffers.begin(), c.program.buffers.end(), [&](const Buffer& b) {
        return !b.permanent && b.home < lowest && b.kind == BufferClass::activations;
      });
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(above, 100);
}

PlanRequest request_for(const Case& c, Random& random) {
  PlanRequest r;
  r.machine = c.program.machine;
  r.rates = default_machine_rates();
  r.model = [&c](int64_t, int64_t) { return c.model; };
  r.micro_batches = {c.model.micro_batch};
  if (const uint64_t level = pick(random, 0, kRecomputes.size()); level < kRecomputes.size())
    r.recompute = kRecomputes[level];
  r.lower = c.options;
  const uint64_t planning = chance(random, 50) ? 0 : pick(random, 1, 1 << 21);
  r.program_memory = {program_bytes, [planning](std::span<const ProgramSize>) { return planning; }};
  return r;
}

// The budgets that an infeasible plan names suffice, and so do larger ones. One byte less in a tier does not
// suffice, even with plenty in the tiers below. Planning may take more memory than arena and program.
TEST(PlanProperty, NamedBudgetsWork) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed_text(seed));
    const Case c = random_case(seed);
    Random random(seed);
    PlanRequest request = request_for(c, random);
    const auto plan_with = [&](const std::vector<uint64_t>& capacities) {
      for (size_t t = 0; t < capacities.size(); ++t) request.machine.tiers[t].capacity = capacities[t];
      return make_plan(request);
    };
    const uint64_t most = program_bytes(program_size(request, c.model.micro_batch));
    const auto expect_plan = [&](const std::vector<uint64_t>& capacities) {
      const auto result = plan_with(capacities);
      ASSERT_TRUE(std::holds_alternative<Plan>(result));
      const Plan& plan = std::get<Plan>(result);
      expect_good(plan.program);
      EXPECT_GT(plan.step_seconds, 0);
      EXPECT_LE(program_bytes(size_of(plan.program)), most);
    };
    const auto nothing = plan_with(std::vector<uint64_t>(tier_count(c), 1));
    ASSERT_TRUE(std::holds_alternative<Infeasible>(nothing));
    const std::vector<uint64_t> together = std::get<Infeasible>(nothing).least_together;
    request.most.assign(tier_count(c), 1);
    const auto limited = std::get<Infeasible>(plan_with(std::vector<uint64_t>(tier_count(c), 1)));
    EXPECT_EQ(limited.least_together, together);
    for (TierId t = 0; t < tier_count(c); ++t)
      EXPECT_LE(limited.least[t].value_or(0), t == limited.tier ? together[t] : 0) << "tier " << int{t};
    request.most.clear();
    expect_plan(together);
    for (TierId t = 0; t < tier_count(c); ++t) {
      std::vector<uint64_t> capacities = together;
      capacities[t] += random() % (together[t] + 1);
      expect_plan(capacities);
      if (together[t] == 0) continue;  // of files, where planning takes more memory than the plan
      capacities = together;
      capacities[t] -= 1;
      for (size_t below = t + 1u; below < capacities.size(); ++below) capacities[below] = kPlenty;
      const auto less = plan_with(capacities);
      ASSERT_TRUE(std::holds_alternative<Infeasible>(less)) << "tier " << int{t};
      EXPECT_EQ(std::get<Infeasible>(less).least[t], together[t]);
      EXPECT_EQ(std::get<Infeasible>(less).tier, t);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::testing
