// Single faults planted in the planner's programs: the verifier objects to every one. (verify_test.cc does
// the same with programs that the planner did not make.)
#include "tests/support/mutate.h"

#include <gtest/gtest.h>

#include "engine/verify/verify.h"
#include "tests/support/figures.h"
#include "tests/support/plan_support.h"

namespace sluice::testing {
namespace {

constexpr size_t kShifts = 40;  // of each program; other faults are all planted

struct Count {
  std::string kind;
  size_t planted = 0, caught = 0;

  void add(bool is_caught, const std::string& name) {
    EXPECT_TRUE(is_caught) << name;
    ++planted;
    caught += is_caught;
  }
};

std::vector<Mutation> some(std::vector<Mutation> all, uint64_t seed) {
  std::shuffle(all.begin(), all.end(), Random(seed));
  all.resize(std::min(all.size(), kShifts));
  return all;
}

void plant(Count& count, Program& program, const std::vector<Mutation>& mutations) {
  for (const Mutation& m : mutations) {
    const Mutated guard(program, m);
    count.add(!verify(program, 1).empty(), m.name());
  }
}

// A shift is no fault when only this instruction uses the range, or when the bytes already hold what is
// written. Oracles decide that. They are slow, so they are asked only about shifts that the verifier accepts.
void plant_shifts(Count& count, Program& program, const std::vector<Mutation>& shifts) {
  for (const Mutation& m : shifts) {
    bool caught = false, harmless = false;
    if (const Mutated guard(program, m); !verify(program, 1).empty()) caught = true;
    if (!caught) harmless = alone_in_its_life(program, m);
    if (const Mutated guard(program, m); !caught && !harmless) harmless = still_correct(program);
    if (!harmless) count.add(caught, m.name());
  }
}

// Plants a transfer that moves nothing: its target stays as it was, and waits on the transfer are met.
void plant_losses(Count& count, Program& program) {
  for (Body& body : program.bodies)
    for (Instruction& in : body.instructions) {
      if (in.task != kNoTask) continue;
      const Place target = std::exchange(in.places[1], in.places[0]);
      count.add(!verify(program, 1).empty(), "lost transfer, body " + body.name);
      in.places[1] = target;
    }
}

// Every other program has the least budgets of all tiers.
TEST(Mutate, EveryFaultIsCaught) {
  Count waits{"dropped waits, all"}, swaps{"swapped pieces, all"}, losses{"lost transfers, all"}, shifts;
  size_t possible_shifts = 0;
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE("random_case(" + std::to_string(seed) + ")");
    Case c = random_case(seed);
    Program& p = c.program;
    for (TierId t = 0; t < p.machine.tiers.size() && seed % 2 == 1; ++t) shrink(c, t);
    ASSERT_FALSE(assemble(p, c.arrangement));
    const int64_t step = seed % 4 < 2 ? 64 : kDirectAlignment;
    const auto all_shifts = offset_shifts(p, seed % 3 == 0 ? -step : step);
    possible_shifts += all_shifts.size();
    plant(waits, p, all_single_wait_drops(p));
    plant(swaps, p, piece_swaps(p));
    plant_losses(losses, p);
    plant_shifts(shifts, p, some(all_shifts, seed));
    if (HasFailure()) break;
  }
  shifts.kind = fmt::format("shifted offsets, of {} possible", possible_shifts);
  for (const Count* count : {&waits, &swaps, &losses, &shifts}) {
    EXPECT_GT(count->planted, 30 * kPrograms) << count->kind;
    figures.holds(fmt::format("planned programs ({}): {}", kPrograms, count->kind), count->caught,
                  count->planted);
  }
}

}  // namespace
}  // namespace sluice::testing
