#include "models/weights/peft_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "models/families/family.h"
#include "models/weights/stacked.h"

namespace sluice {
namespace {

constexpr std::string_view kLayers = "model.layers.", kInner = ".base_layer";
// When PEFT 0.21.2 joins adapters of single experts, it assumes that only experts' matrices and routers have
// these names (_MOE_TARGET_MODULE_MAPPING of its transformers_weight_conversion.py).
constexpr std::string_view kTaken[] = {"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"};

bool has_two(const Stacked& stacked) { return *stacked.second != '\0'; }

// "mlp.experts" of "mlp.experts.gate_up_proj".
std::string_view module_of(const Stacked& stacked) {
  const std::string_view tensor = stacked.tensor;
  return tensor.substr(0, tensor.rfind('.'));
}

struct Factor {
  std::string_view layer;  // "model.layers.0."
  std::string_view module;
  bool is_down = false;
};

// The factor with this name, as its layer and module; an empty module: no factor has such a name.
Factor factor_of(std::string_view name) {
  Factor f;
  for (const std::string_view suffix : {kAdapterDown, kAdapterUp})
    if (name.starts_with(kLayers) && name.ends_with(suffix)) {
      const size_t dot = name.find('.', kLayers.size());
      if (dot + 1 + suffix.size() > name.size()) return {};
      f.layer = name.substr(0, dot + 1);
      f.module = name.substr(dot + 1, name.size() - suffix.size() - dot - 1);
      f.is_down = suffix == kAdapterDown;
    }
  return f;
}

// The targeted parameter to which the module's factors belong. PEFT wraps the first parameter innermost and
// the last one outermost.
const PeftTargets::Parameter* parameter_of(const PeftTargets& targets, std::string_view module) {
  const bool inner = module.ends_with(kInner);
  if (inner) module.remove_suffix(kInner.size());
  std::vector<const PeftTargets::Parameter*> of_module;
  for (const PeftTargets::Parameter& p : targets.parameters)
    if (module_of(*p.stacked) == module) of_module.push_back(&p);
  if (of_module.empty() || (inner && of_module.size() < 2)) return nullptr;
  return inner ? of_module.front() : of_module.back();
}

// The rows of a factor of rank `wanted` that is stored with rank r; the rest are zeros.
HfRows padded(bool is_down, int64_t r, int64_t wanted, int64_t columns, int64_t apart) {
  if (r == wanted) return {};
  const auto u = [](int64_t n) { return static_cast<uint64_t>(n); };
  if (is_down) return {u(wanted * columns), u(r * columns), 0};  // rows of zeros at the end
  return {u(wanted), u(r), u(apart)};
}

FactorPart plain_part(const PeftTargets& targets, const Factor& factor, const std::string& name,
                      const Shape& shape) {
  const int64_t wanted = targets.adapters.rank;
  FactorPart part{name, shape, 0, 1, {}};
  if (factor.module.empty() || shape.size() != 2) return part;
  int64_t& r = factor.is_down ? part.shape[0] : part.shape[1];
  if (r != targets.rank) return part;
  part.rows = padded(factor.is_down, r, wanted, shape[1], r);
  r = wanted;
  return part;
}

}  // namespace

StackSize factor_stack_size(const PeftTargets& targets, const std::string& name, const Shape& shape) {
  const Factor factor = factor_of(name);
  const PeftTargets::Parameter* const parameter =
      factor.module.empty() ? nullptr : parameter_of(targets, factor.module);
  if (parameter == nullptr || shape.size() != 2) return {};
  const int64_t matrices = has_two(*parameter->stacked) ? 2 : 1, all_ranks = shape[factor.is_down ? 0 : 1];
  if (all_ranks == 0 || all_ranks % parameter->rank != 0 || (!factor.is_down && shape[0] % matrices != 0))
    return {};
  return {all_ranks / parameter->rank, matrices};
}

std::vector<FactorPart> factor_parts(const Family& family, const PeftTargets& targets,
                                     const std::string& name, const Shape& shape) {
  const Factor factor = factor_of(name);
  const auto [experts, matrices] = factor_stack_size(targets, name, shape);
  if (experts == 0) return {plain_part(targets, factor, name, shape)};
  const PeftTargets::Parameter& parameter = *parameter_of(targets, factor.module);
  const Stacked& stacked = *parameter.stacked;
  const int64_t r = parameter.rank, wanted = targets.adapters.rank, all_ranks = r * experts;
  const int64_t in = shape[1], out = shape[0] / matrices;
  std::vector<FactorPart> parts;
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t which = 0; which < matrices; ++which) {
      const std::string linear = linear_name(which == 0 ? stacked.first : stacked.second);
      const std::string before = fmt::format("{}{}.{}.{}", factor.layer, family.experts, e, linear);
      if (factor.is_down)
        parts.push_back({before + std::string(kAdapterDown),
                         {wanted, in},
                         static_cast<uint64_t>(e * r * in),
                         1,
                         padded(true, r, wanted, in, 0)});
      else
        parts.push_back({before + std::string(kAdapterUp),
                         {out, wanted},
                         static_cast<uint64_t>(which * out * all_ranks + e),
                         static_cast<uint64_t>(experts),
                         padded(false, r, wanted, 0, all_ranks)});
    }
  return parts;
}

void check_peft_reads(const Adapters& adapters, const Model& model) {
  const Family& family = *find_family(model.family);
  if (family.stacked.empty() || family.stacks) return;
  std::set<std::string> of_experts, others;  // ends of names
  for (const Group& group : model.groups)
    for (const Parameter& p : group.parameters) {
      if (!group.adapter || !p.name.ends_with(kAdapterDown)) continue;
      const std::string linear = p.name.substr(0, p.name.size() - kAdapterDown.size());
      (expert_of(family, p.name) ? of_experts : others).insert(linear.substr(linear.rfind('.') + 1));
    }
  const auto refuse = [&](const std::string& what) {
    throw Error(ExitCode::usage, fmt::format("PEFT 0.21.2 has no form for these adapters: {}.", what),
                "Export the base and its adapters as a whole model with --merge.");
  };
  if (!family.peft_joins && !of_experts.empty())
    refuse(fmt::format("it does not convert those of single experts of {}", family.title));
  if (!family.peft_joins) return;
  for (const std::string& name : others)
    if (std::ranges::find(kTaken, name) != std::end(kTaken))
      refuse(fmt::format("it takes {} for a matrix of experts, and here layers without experts have it, too",
                         name));
  for (const Stacked& stacked : family.stacked) {
    if (!has_two(stacked)) continue;
    const std::string first = linear_name(stacked.first), second = linear_name(stacked.second);
    const bool has_first = of_experts.contains(first), has_second = of_experts.contains(second);
    if (has_first != has_second)
      refuse(fmt::format("{} has some and {} has none, which are one parameter there",
                         has_first ? first : second, has_first ? second : first));
    if (has_first && adapters.root_scale)
      refuse(
          fmt::format("it doubles the rank where it joins {} and {}, and with --rslora that changes what "
                      "they compute",
                      first, second));
  }
}

}  // namespace sluice
