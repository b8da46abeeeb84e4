// The planner on random programs: what it accepts is correct, budgets are monotone and tight, waits are minimal.
#include <gtest/gtest.h>

#include "engine/plan/least.h"
#include "engine/verify.h"
#include "tests/mutate.h"
#include "tests/plan_support.h"
#include "tests/same_program.h"

namespace sluice::testing {
namespace {

constexpr uint64_t kPrograms = 220;

TierId tier_count(const Case& c) { return static_cast<TierId>(c.program.machine.tiers.size()); }

std::string seed_text(uint64_t seed) { return "random_case(" + std::to_string(seed) + ")"; }

::testing::AssertionResult verifies(const Program& p) {
  const std::vector<Violation> v = verify(p);
  return v.empty() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << describe(p, v.front());
}

// By tier, where the last byte lies that a home or an operand of `body` occupies, up to the alignment of allocations.
std::vector<uint64_t> highest_places(const Program& p, const Body& body) {
  std::vector<uint64_t> end(p.machine.tiers.size());
  for (const Buffer& b : p.buffers) {
    if (!b.permanent) continue;
    const uint64_t bytes = b.ring == kNoRing ? b.bytes() : kRingSlots * b.slot_stride;
    end[b.home] = std::max(end[b.home], b.home_offset + bytes);
  }
  for (const Instruction& in : body.instructions)
    for (size_t k = 0; k < in.operands.size(); ++k) {
      const uint64_t bytes = operand_bytes(p.buffers[in.operands[k].buffer], in.operands[k]);
      end[in.places[k].tier] = std::max(end[in.places[k].tier], in.places[k].offset + bytes);
    }
  for (size_t t = 0; t < end.size(); ++t) end[t] = round_up(end[t], placement_alignment(p.machine, static_cast<TierId>(t)));
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

// With everything, with the least that each tier can do with (from the top down), and with something in between.
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

// What a tier holds with some capacity it holds with every larger one. Tiers below have plenty: what they must hold depends
// on what the tiers above keep.
void expect_monotone(Case& c, TierId tier, bool plenty_below, Random& random) {
  const uint64_t step = placement_alignment(c.program.machine, tier), least = capacity(c, tier);
  if (plenty_below)
    for (TierId t = tier + 1; t < tier_count(c); ++t) set_capacity(c, t, kPlenty);
  std::vector<uint64_t> larger{least + step, least + 2 * step, least + 3 * step, least + 5 * step, kPlenty};
  for (const uint64_t percent : {1, 3, 10, 30}) larger.push_back(least + least * percent / 100);
  for (int k = 0; k < 3; ++k) larger.push_back(least + random() % (least + 1));
  for (const uint64_t bytes : larger) {
    set_capacity(c, tier, bytes);
    const auto shortage = assemble(c.program, c.arrangement);
    EXPECT_FALSE(shortage) << "tier " << int{tier} << " holds it with " << least << " bytes, not with " << bytes
                           << ": body " << c.program.bodies[shortage->body].name << " needs "
                           << shortage->shortage.bytes_needed << " of tier " << int{shortage->shortage.tier};
  }
  set_capacity(c, tier, least);
}

TEST(PlanProperty, LargerTiersHoldTheSameArrangement) {
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed_text(seed));
    Case c = random_case(seed);
    Random random(seed);
    for (TierId t = 0; t < tier_count(c); ++t) {
      shrink(c, t);
      expect_monotone(c, t, true, random);
    }
    if (HasFailure()) return;
  }
}

// Without leads and kept copies transfers do not depend on capacities, so no tier can harm another.
TEST(PlanProperty, LargerMachinesHoldTheLeastArrangement) {
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed_text(seed));
    Case c = random_case(seed);
    c.arrangement.keep = false;
    c.arrangement.leads.assign(tier_count(c), 0);
    Random random(seed);
    for (TierId t = 0; t < tier_count(c); ++t) shrink(c, t);
    for (TierId t = 0; t < tier_count(c); ++t) expect_monotone(c, t, false, random);
    if (HasFailure()) return;
  }
}

// What Least says suffices does, one step less does not, and its figures agree with each other.
TEST(PlanProperty, TheLeastIsExact) {
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed_text(seed));
    Case c = random_case(seed);
    const Least least(c.program);
    const auto fits = [&](const std::vector<uint64_t>& capacities) {
      const auto arrangement = least.arrangement(capacities);
      if (!arrangement) return false;
      for (TierId t = 0; t < tier_count(c); ++t) set_capacity(c, t, capacities[t]);
      EXPECT_FALSE(assemble(c.program, *arrangement)) << "Least promised too much";
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

}  // namespace
}  // namespace sluice::testing
