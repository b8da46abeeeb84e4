#include "tools/plan/token_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "engine/profile/what_if.h"

namespace sluice {

namespace {

bool is_of_tokens(const Program& program, const Body& body, const Instruction& in) {
  if (in.task != kNoTask) return is_of_segment(body.tasks[in.task].kind);
  const BufferClass moved = program.buffers[in.operands[0].buffer].kind;
  return moved == BufferClass::activations || moved == BufferClass::caches || moved == BufferClass::workspace;
}

std::string resource_name(const Plan& plan, const Bottleneck& busiest) {
  constexpr const char* kWords[] = {"", "pool ", "drive "};  // by Bottleneck::Kind; a lane's name is enough
  return kWords[static_cast<size_t>(busiest.kind)] + bottleneck_name(plan.program, plan.rates, busiest);
}

// Two digits, since the count is a prediction, and the plan changes with the batch.
std::string about(double count) {
  const double unit = std::pow(10, std::floor(std::log10(std::max(count, 1.0))) - 1);
  return fmt::format("{:.0f}", unit > 1 ? std::round(count / unit) * unit : std::round(count));
}

// The index of the first plan such that tokens suffice in it and in all plans after it. The number of plans
// if there is no such plan.
size_t first_to_suffice(std::span<const TokenWork> plans) {
  size_t first = plans.size();
  while (first > 0 && plans[first - 1].suffice()) --first;
  return first;
}

}  // namespace

TokenWork token_work_of(const Plan& plan) {
  const auto busiest = [&](bool of_tokens) {
    const auto counts = [&](const Body& body, const Instruction& in) {
      return is_of_tokens(plan.program, body, in) == of_tokens;
    };
    return bottleneck_of(loads_of(plan.program, plan.rates, plan.lowering.bodies().usual(), counts));
  };
  TokenWork work{static_cast<uint64_t>(tokens_of(plan)), busiest(true), busiest(false), {}, {}};
  work.tokens_resource = resource_name(plan, work.of_tokens);
  work.state_resource = resource_name(plan, work.of_state);
  return work;
}

std::optional<double> tokens_to_suffice(const TokenWork& work) {
  if (work.of_tokens.seconds <= 0 || work.of_state.seconds <= 0) return {};
  return static_cast<double>(work.tokens) * work.of_state.seconds / work.of_tokens.seconds;
}

std::optional<double> tokens_to_suffice(std::span<const TokenWork> plans) {
  const size_t first = first_to_suffice(plans);
  if (first == 0 || first == plans.size()) return {};
  const TokenWork &before = plans[first - 1], &after = plans[first];
  const double lacking = before.of_state.seconds - before.of_tokens.seconds;
  const double spare = after.of_tokens.seconds - after.of_state.seconds;
  const auto from = static_cast<double>(before.tokens), to = static_cast<double>(after.tokens);
  return from + (to - from) * lacking / (lacking + spare);
}

std::string token_work_words(const TokenWork& work) {
  const std::optional<double> alike = tokens_to_suffice(work);
  if (!alike) return "";
  return fmt::format(
      "weights and state keep {} busy for {} a step, tokens keep {} busy for {}: with about {} tokens a "
      "step, "
      "both take as long, if the plan stays as it is",
      work.state_resource, readable_seconds(work.of_state.seconds), work.tokens_resource,
      readable_seconds(work.of_tokens.seconds), about(*alike));
}

std::string token_work_sentence(std::span<const TokenWork> plans, int64_t sequence, bool all_fit) {
  if (plans.empty()) return "";
  const auto batch_at = [&](size_t i) { return plans[i].tokens / static_cast<uint64_t>(sequence); };
  if (const std::optional<double> tokens = tokens_to_suffice(plans))
    return fmt::format(
        "Weights and state are the bottleneck with --batch {} and no longer with --batch {}: predicted, the "
        "turn is at about {} tokens a step.",
        batch_at(first_to_suffice(plans) - 1), batch_at(first_to_suffice(plans)), about(*tokens));
  const bool suffice = plans.back().suffice();
  const TokenWork& end = suffice ? plans.front() : plans.back();
  const std::string taken = fmt::format("{} busy for {}, and tokens keep {} busy for {} (predicted)",
                                        end.state_resource, readable_seconds(end.of_state.seconds),
                                        end.tokens_resource, readable_seconds(end.of_tokens.seconds));
  if (suffice)
    return fmt::format("Weights and state are nowhere the bottleneck: with {} tokens a step they keep {}.",
                       end.tokens, taken);
  return fmt::format("Weights and state stay the bottleneck: with {} tokens a step they keep {}.{}",
                     end.tokens, taken, all_fit ? "" : " More do not fit.");
}

void add_token_work(const TokenWork& work, nlohmann::ordered_json& out) {
  out["tokens"] = work.tokens;
  out["work_of_tokens"] = {{"resource", work.tokens_resource}, {"seconds", work.of_tokens.seconds}};
  out["work_of_state"] = {{"resource", work.state_resource}, {"seconds", work.of_state.seconds}};
}

}  // namespace sluice
