// LowerOptions::usual_only: the bodies of the usual step are as ever, and no other body has a task.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/plan/lower/lower.h"
#include "tests/support/plan_support.h"

namespace sluice {
namespace {

using testing::Case;

// A text for each task of a body. It has names of buffers, since numbers differ where workspaces of other
// bodies are missing.
std::vector<std::string> tasks_of(const Case& c, BodyId body) {
  std::vector<std::string> tasks;
  for (const Task& t : c.program.bodies[body].tasks) {
    std::string& text = tasks.emplace_back(
        fmt::format("{} {} {} {} {}", task_kind_name(t.kind), t.subject, t.slice, t.flops, t.bytes));
    for (const Operand& o : t.operands)
      text += fmt::format(" {} {}-{} {} {} {}", c.program.buffers[o.buffer].name, o.first, o.last,
                          static_cast<int>(o.access), o.version, o.back);
  }
  return tasks;
}

TEST(UsualOnly, LeavesOutTheTasksOfOtherBodies) {
  size_t guessing = 0, in_waves = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    const Case whole = testing::random_case(seed);
    Case part = whole;
    part.options.usual_only = true;
    testing::lower_case(part, whole.program.machine);
    const std::vector<BodyId> usual = whole.lowering.bodies().usual();
    EXPECT_EQ(part.lowering.bodies().usual(), usual);
    guessing += whole.lowering.bodies().guess.has_value();
    in_waves += usual.size() > 1;
    ASSERT_EQ(part.program.bodies.size(), whole.program.bodies.size());
    for (BodyId b = 0; b < whole.program.bodies.size(); ++b) {
      EXPECT_EQ(part.program.bodies[b].name, whole.program.bodies[b].name);
      EXPECT_EQ(part.program.bodies[b].advance, whole.program.bodies[b].advance);
      EXPECT_EQ(part.program.bodies[b].predecessors, whole.program.bodies[b].predecessors);
      const bool is_usual = std::ranges::count(usual, b) > 0;
      EXPECT_EQ(tasks_of(part, b), is_usual ? tasks_of(whole, b) : std::vector<std::string>{});
    }
  }
  EXPECT_GT(guessing, 5u);
  EXPECT_GT(in_waves, 5u);
}

}  // namespace
}  // namespace sluice
