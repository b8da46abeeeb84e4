#include "engine/program/roles.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/program/text_words.h"

namespace sluice {

namespace {

using enum OperandRule::Count;

constexpr uint8_t kRead = 1 << static_cast<int>(Access::read), kWrite = 1 << static_cast<int>(Access::write),
                  kAdd = 1 << static_cast<int>(Access::add);

constexpr OperandRule kForward[] = {
    {Role::input, any, kRead | kAdd},    // add: it stays from one body to the next (Activation::kept)
    {Role::weights, any, kRead},         // of a group, in the order of the segment's slots
    {Role::output, any, kWrite | kAdd},  // add: a sum, which another task has begun
    {Role::saved, at_most_one, kWrite},  // for the backward
    {Role::workspace, at_most_one, kWrite},
    {Role::loss, at_most_one, kWrite | kAdd},
    {Role::index, at_most_one, kRead},  // of what is picked
};
constexpr OperandRule kBackward[] = {
    {Role::input, any, kRead | kAdd},
    {Role::weights, any, kRead},
    {Role::output, any, kRead},
    {Role::saved, at_most_one, kRead},
    {Role::output_gradient, any, kRead | kAdd},  // add: the task works in the gradient's memory
    {Role::input_gradient, any, kWrite | kAdd},
    {Role::accumulator, any, kWrite | kAdd},  // of a group's gradient, in fp32
    {Role::workspace, at_most_one, kWrite},
    {Role::loss, at_most_one, kWrite | kAdd},
    {Role::input_scalars, at_most_one, kRead},
    {Role::previous_update, at_most_one, kRead},
};
// Makes the gradient if there is one rank, else this rank's addend of it.
constexpr OperandRule kRound[] = {
    {Role::accumulator, any, kRead}, {Role::gradient, one, kWrite}, {Role::block_sums, at_most_one, kWrite}};
constexpr OperandRule kGather[] = {{Role::part, one, kRead}, {Role::whole, one, kWrite}};
constexpr OperandRule kExchange[] = {{Role::sent, one, kRead}, {Role::received, one, kWrite}};
// The last sum of a gradient has block sums.
constexpr OperandRule kSum[] = {
    {Role::received, one, kRead}, {Role::sum, one, kWrite}, {Role::block_sums, at_most_one, kWrite}};
constexpr OperandRule kCompress[] = {{Role::gradient, one, kRead},
                                     {Role::error, one, kAdd},
                                     {Role::right_factor, one, kRead},
                                     {Role::left_factor, one, kWrite}};
constexpr OperandRule kProject[] = {
    {Role::left_factor, one, kAdd}, {Role::error, one, kAdd}, {Role::right_factor, one, kWrite}};
constexpr OperandRule kExpand[] = {{Role::left_factor, one, kRead},
                                   {Role::right_factor, one, kRead},
                                   {Role::gradient, one, kWrite},
                                   {Role::block_sums, one, kWrite}};
// In pairs: a source, then its copy.
constexpr OperandRule kClone[] = {{Role::source, any, kRead}, {Role::copy, any, kWrite}};
constexpr OperandRule kClear[] = {{Role::output, one, kWrite}};  // an activation that is kept
constexpr OperandRule kNorm[] = {{Role::norm_sums, any, kRead},  // of each trainable group
                                 {Role::previous_update, one, kRead},
                                 {Role::norm, one, kWrite}};
constexpr OperandRule kSetScalars[] = {{Role::input_scalars, one, kRead},
                                       {Role::previous_update, one, kRead},
                                       {Role::update, one, kWrite},
                                       {Role::norm, at_most_one, kRead}};  // where the update waits for it
constexpr OperandRule kSetGuess[] = {
    {Role::input_scalars, one, kRead}, {Role::previous_update, one, kRead}, {Role::guess, one, kWrite}};
// Weights in fp32 are the master weights, which the update also reads (add).
constexpr OperandRule kOptimize[] = {{Role::state, one, kAdd},
                                     {Role::gradient, one, kRead},
                                     {Role::update, one, kRead},
                                     {Role::weights, one, kWrite | kAdd}};
constexpr OperandRule kRepair[] = {{Role::state, one, kRead},
                                   {Role::gradient, one, kRead},
                                   {Role::update, one, kRead},
                                   {Role::weights, one, kWrite | kAdd}};
constexpr OperandRule kVisit[] = {{Role::state, one, kAdd},          {Role::gradient, one, kAdd},
                                  {Role::update, one, kRead},        {Role::weights, one, kWrite | kAdd},
                                  {Role::next_gradient, one, kRead}, {Role::guess, one, kRead}};
// Trainable groups have state. Compressed groups have an error, and the first shard of such a group has the
// right factors.
constexpr OperandRule kLoad[] = {{Role::state, at_most_one, kWrite},
                                 {Role::weights, one, kWrite},
                                 {Role::error, at_most_one, kWrite},
                                 {Role::right_factor, at_most_one, kWrite}};
// There are weights only if the checkpoint stores them: if the group is frozen, and in fp32.
constexpr OperandRule kSave[] = {{Role::state, at_most_one, kRead},
                                 {Role::weights, at_most_one, kRead},
                                 {Role::error, at_most_one, kRead},
                                 {Role::right_factor, at_most_one, kRead}};

size_t count(const Task& task, Role role) {
  return static_cast<size_t>(std::ranges::count(task.operands, role, &Operand::role));
}

}  // namespace

const char* role_name(Role role) {
  constexpr const char* kNames[kRoles] = {
      "none",          "input",     "weights",         "output",         "saved",           "workspace",
      "loss",          "index",     "output_gradient", "input_gradient", "accumulator",     "gradient",
      "next_gradient", "state",     "input_scalars",   "update",         "previous_update", "guess",
      "norm",          "norm_sums", "block_sums",      "part",           "whole",           "sent",
      "received",      "sum",       "error",           "left_factor",    "right_factor",    "source",
      "copy"};
  static_assert(kNames[kRoles - 1] != nullptr, "every role has a name");
  return kNames[static_cast<size_t>(role)];
}

std::span<const OperandRule> operands_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::forward:
    case TaskKind::travel:
      return kForward;
    case TaskKind::backward:
    case TaskKind::travel_back:
      return kBackward;
    case TaskKind::round:
      return kRound;
    case TaskKind::norm:
      return kNorm;
    case TaskKind::set_scalars:
      return kSetScalars;
    case TaskKind::set_guess:
      return kSetGuess;
    case TaskKind::optimize:
      return kOptimize;
    case TaskKind::visit:
      return kVisit;
    case TaskKind::repair:
      return kRepair;
    case TaskKind::load:
      return kLoad;
    case TaskKind::save:
      return kSave;
    case TaskKind::gather:
      return kGather;
    case TaskKind::exchange:
      return kExchange;
    case TaskKind::sum:
      return kSum;
    case TaskKind::compress:
      return kCompress;
    case TaskKind::project:
      return kProject;
    case TaskKind::expand:
      return kExpand;
    case TaskKind::clone:
      return kClone;
    case TaskKind::clear:
      return kClear;
  }
  return {};
}

std::string operand_fault(const Task& task) {
  const std::span<const OperandRule> rules = operands_of(task.kind);
  const auto at = [&](size_t k) { return k < task.operands.size() ? task.operands[k].role : Role::none; };
  for (size_t k = 0; k < task.operands.size(); ++k) {
    const Operand& o = task.operands[k];
    const auto rule = std::ranges::find(rules, o.role, &OperandRule::role);
    if (rule == rules.end())
      return fmt::format("{} has no operand as {}", task_kind_name(task.kind), role_name(o.role));
    if (!rule->allows(o.access))
      return fmt::format("{} does not {} what it has as {}", task_kind_name(task.kind),
                         kAccessWords[static_cast<size_t>(o.access)], role_name(o.role));
    const bool ends_run = at(k + 1) != o.role;
    if (task.kind == TaskKind::clone
            ? o.role != (k % 2 == 0 ? Role::source : Role::copy) || at(k ^ 1) == Role::none
            : ends_run && find_operand(task.operands, o.role).value() + count(task, o.role) != k + 1)
      return fmt::format("{} has operands as {} apart", task_kind_name(task.kind), role_name(o.role));
  }
  for (const OperandRule& rule : rules) {
    const size_t found = count(task, rule.role);
    if (found > 1 ? rule.count != any : found == 0 && rule.count == one)
      return fmt::format("{} has {} operands as {}", task_kind_name(task.kind), found, role_name(rule.role));
  }
  return "";
}

std::optional<size_t> find_operand(const std::vector<Operand>& operands, Role role, size_t n) {
  const auto first = std::ranges::find(operands, role, &Operand::role);
  const size_t at = static_cast<size_t>(first - operands.begin()) + n;
  if (at >= operands.size() || operands[at].role != role) return std::nullopt;
  return at;
}

}  // namespace sluice
