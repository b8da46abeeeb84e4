// What each operand of a task is for. Code that carries out a task finds its operands by role; the verifier
// checks that a task has the operands of its kind.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

inline constexpr int kRoles = static_cast<int>(Role::number_of_roles);
const char* role_name(Role role);  // "input"

struct OperandRule {
  enum class Count : uint8_t { one, at_most_one, any };

  Role role;
  Count count;
  uint8_t accesses;  // a set of Access values, each as bit 1 << Access

  bool allows(Access access) const { return (accesses >> static_cast<int>(access) & 1) != 0; }
};

// The operands of a kind of task, by role.
std::span<const OperandRule> operands_of(TaskKind kind);

// What is wrong with a task's operands; empty if they fit the task's kind. Operands of a role must stand
// together, except in a clone: its operands are pairs of a source and its copy.
std::string operand_fault(const Task& task);

// The position of the n-th operand of a role, from 0, where operands of a role stand together; none if there
// are fewer.
std::optional<size_t> find_operand(const std::vector<Operand>& operands, Role role, size_t n = 0);

}  // namespace sluice
