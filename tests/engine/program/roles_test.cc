// Roles of operands: every kind of task has a table, and faults are named.
#include "engine/program/roles.h"

#include <gtest/gtest.h>

#include <set>

namespace sluice {
namespace {

Task task_of(TaskKind kind, const std::vector<std::pair<Role, Access>>& operands) {
  Task task{.kind = kind};
  for (const auto& [role, access] : operands)
    task.operands.push_back({.last = 1, .access = access, .role = role});
  return task;
}

TEST(Roles, EveryOneHasANameOfItsOwnAndSomeTaskHasIt) {
  std::set<std::string> names;
  std::set<Role> used = {Role::none};
  for (int r = 0; r < kRoles; ++r) names.insert(role_name(static_cast<Role>(r)));
  for (int kind = 0; kind < kTaskKinds; ++kind)
    for (const OperandRule& rule : operands_of(static_cast<TaskKind>(kind))) used.insert(rule.role);
  EXPECT_EQ(names.size(), size_t{kRoles});
  EXPECT_EQ(used.size(), size_t{kRoles});
}

TEST(Roles, FaultsAreNamed) {
  const auto fault = [](TaskKind kind, const std::vector<std::pair<Role, Access>>& operands) {
    return operand_fault(task_of(kind, operands));
  };
  using enum Access;
  EXPECT_EQ(fault(TaskKind::gather, {{Role::part, read}, {Role::whole, write}}), "");
  EXPECT_EQ(fault(TaskKind::gather, {{Role::part, read}}), "gather has 0 operands as whole");
  EXPECT_EQ(fault(TaskKind::gather, {{Role::part, read}, {Role::part, read}, {Role::whole, write}}),
            "gather has 2 operands as part");
  EXPECT_EQ(fault(TaskKind::gather, {{Role::part, read}, {Role::sum, write}}),
            "gather has no operand as sum");
  EXPECT_EQ(fault(TaskKind::gather, {{Role::part, write}, {Role::whole, write}}),
            "gather does not write what it has as part");
  EXPECT_EQ(fault(TaskKind::forward, {{Role::input, read}, {Role::output, write}, {Role::input, read}}),
            "forward has operands as input apart");
  EXPECT_EQ(fault(TaskKind::forward, {{Role::input, read}, {Role::input, read}, {Role::output, write}}), "");
}

TEST(Roles, AClonesOperandsArePairs) {
  const std::pair<Role, Access> source{Role::source, Access::read}, copy{Role::copy, Access::write};
  const auto fault = [](const std::vector<std::pair<Role, Access>>& operands) {
    return operand_fault(task_of(TaskKind::clone, operands));
  };
  EXPECT_EQ(fault({source, copy, source, copy}), "");
  EXPECT_EQ(fault({source, source, copy, copy}), "clone has operands as source apart");
  EXPECT_EQ(fault({copy, source}), "clone has operands as copy apart");
  EXPECT_EQ(fault({source, copy, source}), "clone has operands as source apart");
}

TEST(Roles, OperandsOfARoleAreFoundByNumber) {
  const Task task =
      task_of(TaskKind::forward,
              {{Role::input, Access::read}, {Role::input, Access::read}, {Role::output, Access::write}});
  EXPECT_EQ(find_operand(task.operands, Role::input), 0u);
  EXPECT_EQ(find_operand(task.operands, Role::input, 1), 1u);
  EXPECT_EQ(find_operand(task.operands, Role::input, 2), std::nullopt);
  EXPECT_EQ(find_operand(task.operands, Role::output), 2u);
  EXPECT_EQ(find_operand(task.operands, Role::loss), std::nullopt);
}

}  // namespace
}  // namespace sluice
