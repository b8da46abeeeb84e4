#include "models/families/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/error.h"
#include "engine/graph/graph.h"

namespace sluice {
namespace {

constexpr std::string_view kWeight = ".weight";

bool is_matrix(const Parameter& parameter) {
  return parameter.shape.size() == 2 && parameter.name.ends_with(kWeight);
}

// PEFT's rule: whether `target` is the whole name, or what stands behind one of the name's dots.
bool is_named(std::string_view linear, std::string_view target) {
  if (!linear.ends_with(target)) return false;
  return linear.size() == target.size() || linear[linear.size() - target.size() - 1] == '.';
}

bool is_target(const Adapters& adapters, const std::string& linear) {
  return adapters.targets.empty() ||
         std::ranges::any_of(adapters.targets, [&](const auto& target) { return is_named(linear, target); });
}

Parameter factor(std::string name, int64_t rows, int64_t columns, Initializer initializer) {
  // PEFT's kaiming_uniform with a = sqrt(5): bounds of 1 / sqrt(columns), deviation 1 / sqrt(3 columns).
  return {.name = std::move(name),
          .shape = {rows, columns},
          .initializer = initializer,
          .standard_deviation = 1 / std::sqrt(3 * static_cast<double>(columns))};
}

}  // namespace

double Adapters::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (root_scale ? std::sqrt(r) : r);
}

std::string linear_name(std::string_view weight) {
  return std::string(weight.substr(0, weight.size() - kWeight.size()));
}

std::vector<Parameter> adapter_parameters(const Adapters& adapters, std::span<const Parameter> group,
                                          bool in_out) {
  std::vector<Parameter> factors;
  for (const Parameter& p : group) {
    const std::string name = is_matrix(p) ? linear_name(p.name) : "";
    if (name.empty() || !is_target(adapters, name)) continue;
    const int64_t in = p.shape[in_out ? 0 : 1], out = p.shape[in_out ? 1 : 0];
    if (adapters.rank > std::min(in, out))
      throw Error(
          ExitCode::usage,
          fmt::format("--lora {} is more than the rank of {}, a matrix of {} x {}.", adapters.rank,
                      printable(name), p.shape[0], p.shape[1]),
          fmt::format("Give --lora {} or less, or leave it out of --lora-targets.", std::min(in, out)));
    factors.push_back(factor(name + std::string(kAdapterDown), adapters.rank, in, Initializer::uniform));
    factors.push_back(factor(name + std::string(kAdapterUp), out, adapters.rank, Initializer::zeros));
  }
  return factors;
}

void check_targets(const Adapters& adapters, std::span<const Group> layers) {
  for (const std::string& target : adapters.targets) {
    std::set<std::string> known;
    bool found = false;
    for (const Group& group : layers)
      for (const Parameter& p : group.parameters) {
        if (!is_matrix(p)) continue;
        const std::string linear = linear_name(p.name);
        known.insert(linear.substr(linear.rfind('.') + 1));
        found |= is_named(linear, target);
      }
    if (!found)
      throw Error(ExitCode::usage,
                  fmt::format("--lora-targets names {}, which the layers of the model do not have.",
                              printable(target)),
                  fmt::format("Name some of {}, or all-linear.", fmt::join(known, ", ")));
  }
}

}  // namespace sluice
