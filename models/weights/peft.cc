#include "models/weights/peft.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>

#include "engine/base/file.h"
#include "engine/base/strict_json.h"
#include "engine/graph/graph.h"
#include "models/families/config_reader.h"
#include "models/families/family.h"
#include "models/weights/peft_experts.h"
#include "models/weights/stacked.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr const char* kPrefix = "base_model.model.";
constexpr uint64_t kConfigBytesMax = 1 << 20;
constexpr const char* kOtherAdapter =
    "Choose another adapter: Sluice does not compute this, so results could be wrong.";
constexpr const char* kPattern = ".*\\.";  // before a name, in patterns that PEFT writes

// Keys that are read, and keys that do not change what a trained adapter computes.
constexpr std::string_view kKnown[] = {
    "peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias", "lora_dropout",
    "init_lora_weights", "fan_in_fan_out", "base_model_name_or_path", "task_type", "inference_mode",
    "revision", "auto_mapping", "megatron_core", "qalora_group_size", "peft_version", "target_parameters",
    // The weights say which modules have adapters.
    "exclude_modules", "layers_to_transform", "layers_pattern"};

Json parse(const std::string& text, const std::string& name) {
  constexpr const char* kRemedy = "Give a directory that PEFT or `sluice export` has written.";
  try {
    Json object = parse_strict_json(text);
    if (object.is_object()) return object;
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", name, error.what()), kRemedy);
  }
  throw Error(ExitCode::malformed_file, fmt::format("{} is not a JSON object.", name), kRemedy);
}

bool asks_for_nothing(const Json& value) {
  return value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty());
}

// Complains about keys that ask for what Sluice does not do: use_dora, modules_to_save and the like.
void reject_unknown(const Json& object, const ConfigReader& file) {
  const bool has_parameters =
      object.contains("target_parameters") && !asks_for_nothing(object["target_parameters"]);
  const auto is_of_parameters = [&](const std::string& key) {  // read_parameters() reads these
    return has_parameters && (key == "rank_pattern" || key == "alpha_pattern");
  };
  for (const auto& [key, value] : object.items())
    if (!is_of_parameters(key) && std::ranges::find(kKnown, key) == std::end(kKnown) &&
        !asks_for_nothing(value))
      file.complain(fmt::format("it sets {}, which is not supported.", printable(key)), kOtherAdapter);
}

// PiSSA, OLoRA and others change the base when training begins. The adapter then fits the changed base only.
void check_start(const Json& object, const ConfigReader& file) {
  const auto found = object.find("init_lora_weights");
  if (found == object.end() || found->is_null() || found->is_boolean()) return;
  file.require_text("init_lora_weights", {"gaussian"});
}

// Names of modules; none where target_modules is a pattern, which settle_targets() turns into names.
std::vector<std::string> targets_of(const Json& object, const ConfigReader& file) {
  const auto found = object.find("target_modules");
  if (found == object.end() || !found->is_string()) return file.texts("target_modules");
  return {};
}

// The pattern that PEFT writes for a targeted parameter, by the last part of its name.
std::string pattern_of(const std::string& parameter) {
  return kPattern + parameter.substr(parameter.rfind('.') + 1);
}

// Whether a targeted parameter has a rank or alpha of its own.
bool has_own(const Json& object, const ConfigReader& file, const char* key, const std::string& parameter) {
  return file.has(key) && object[key].contains(pattern_of(parameter));
}

// Complains about patterns that belong to no targeted parameter.
void check_patterns(const Json& object, const ConfigReader& file,
                    const std::vector<std::string>& parameters) {
  std::set<std::string> known;
  for (const std::string& name : parameters) known.insert(pattern_of(name));
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    if (!file.has(key)) continue;
    file.section(key);  // complains about what is no object
    for (const auto& [pattern, value] : object[key].items())
      if (!known.contains(pattern))
        file.complain(fmt::format("{} has {}, which is not supported.", key, printable(pattern)),
                      kOtherAdapter);
  }
}

// The tensor of Family::stacked that a name means: PEFT takes the tensor's whole name, or its end behind a
// dot. Complains where there is none.
const Stacked& stacked_named(const std::string& name, const Family* family, const ConfigReader& file) {
  if (family != nullptr && !family->stacks)
    for (const Stacked& stacked : family->stacked) {
      const std::string_view tensor = stacked.tensor;
      if (tensor == name || tensor.ends_with("." + name)) return stacked;
    }
  file.complain(fmt::format("target_parameters has {}, which gets no adapter here.", printable(name)),
                "Choose adapters of experts' matrices and of linear modules alone, without routers.");
}

// Adds the targeted parameters. Sets rank to the largest rank, and alpha so that the scale does not change.
void read_parameters(const Json& object, const ConfigReader& file, const Family* family,
                     PeftTargets& targets) {
  const std::vector<std::string> names = file.texts("target_parameters");
  check_patterns(object, file, names);
  Adapters& adapters = targets.adapters;
  const double scale = adapters.scale();
  int64_t most = adapters.targets.empty() ? 0 : targets.rank;
  std::map<const Stacked*, int64_t> ranks;
  for (const std::string& name : names) {
    const Stacked& stacked = stacked_named(name, family, file);
    Adapters own = adapters;
    if (has_own(object, file, "rank_pattern", name))
      own.rank = file.section("rank_pattern").integer(pattern_of(name).c_str(), kAdapterRankMax);
    if (has_own(object, file, "alpha_pattern", name))
      own.alpha = file.section("alpha_pattern").number(pattern_of(name).c_str());
    if (!(std::abs(own.scale() - scale) <= 1e-9 * scale))
      file.complain(fmt::format("adapters of {} have rank {} and alpha {}, and so another scale than {}.",
                                printable(name), own.rank, own.alpha, scale),
                    kOtherAdapter);
    ranks[&stacked] = own.rank;
    most = std::max(most, own.rank);
  }
  for (const Stacked& stacked : family->stacked) {
    if (!ranks.contains(&stacked)) continue;
    targets.parameters.push_back({&stacked, ranks[&stacked]});
    for (const char* matrix : {stacked.first, stacked.second})
      if (*matrix != '\0') adapters.targets.push_back(linear_name(matrix));
  }
  const double times = static_cast<double>(most) / static_cast<double>(targets.rank);
  adapters.alpha *= adapters.root_scale ? std::sqrt(times) : times;
  adapters.rank = most;
}

using Names = std::set<std::string>;

// The parameters of a model's adapters; nothing where the model cannot have these adapters.
std::optional<Names> parameters_of(const ModelConfig& base, const Adapters& adapters) {
  ModelConfig config = base;
  config.adapters = adapters;
  Names names;
  try {
    for (const Group& group : build_model(config, DType::f32, 1, 1).groups)
      for (const Parameter& p : group.parameters)
        if (group.adapter) names.insert(p.name);
  } catch (const Error&) {
    return std::nullopt;
  }
  return names;
}

// What stands behind the layer's number in a module's name; with `layer`, also the number and the word before
// it.
std::string in_layer(const std::string& module, bool layer) {
  for (size_t before = 0, begin = 0; begin < module.size();) {
    const size_t end = std::min(module.find('.', begin), module.size());
    const bool is_number = module.find_first_not_of("0123456789", begin) == end;
    if (is_number && begin > 0 && end < module.size()) return module.substr(layer ? before : end + 1);
    before = begin;
    begin = end + 1;
  }
  return module;
}

}  // namespace

void settle_targets(const std::vector<std::string>& parameters, const ModelConfig& base, Adapters& adapters) {
  const Names stored(parameters.begin(), parameters.end());
  const Family& family = *find_family(base.family);
  if (parameters_of(base, adapters) == stored) return;
  for (const bool layer : {false, true}) {
    Names targets;
    for (const std::string& name : stored)
      if (name.ends_with(kAdapterDown)) {
        const std::string module = name.substr(0, name.size() - kAdapterDown.size());
        const size_t last = module.rfind('.') + 1;
        targets.insert(expert_of(family, name) ? module.substr(last) : in_layer(module, layer));
      }
    Adapters named = adapters;
    named.targets.assign(targets.begin(), targets.end());
    if (parameters_of(base, named) != stored) continue;
    adapters = std::move(named);
    return;
  }
}

std::vector<std::string> notes_on_targets(const std::string& directory,
                                          const std::vector<std::string>& parameters) {
  const std::string path = (std::filesystem::path(directory) / kAdapterConfig).string();
  const std::string file = printable(path);
  const Json object = parse(read_text_file(path, kConfigBytesMax), file);
  const auto has = [&](const char* key) { return object.contains(key) && !asks_for_nothing(object[key]); };
  if (!has("target_modules") || !object["target_modules"].is_array()) return {};  // a pattern
  const auto targets = object["target_modules"].get<std::vector<std::string>>();
  Names lacking(targets.begin(), targets.end()), beyond;
  for (const std::string& name : parameters) {
    if (!name.ends_with(kAdapterDown)) continue;
    const std::string module = name.substr(0, name.size() - kAdapterDown.size());
    bool is_named = false;
    for (const std::string& target : targets) {  // as PEFT matches them
      if (module != target && !module.ends_with("." + target)) continue;
      lacking.erase(target);
      is_named = true;
    }
    if (!is_named) beyond.insert(module.substr(module.rfind('.') + 1));
  }
  std::vector<std::string> notes;
  const auto list = [](const Names& names) { return printable(fmt::format("{}", fmt::join(names, ", "))); };
  if (!lacking.empty() && !has("exclude_modules"))
    notes.push_back(
        fmt::format("{}: target_modules has {}, for which there are no weights: they get no adapters.", file,
                    list(lacking)));
  if (!beyond.empty() && !has("target_parameters"))
    notes.push_back(fmt::format(
        "{}: target_modules lacks {}, for which there are weights: they have adapters all the same.", file,
        list(beyond)));
  return notes;
}

Adapters read_adapter_config(const std::string& directory, std::vector<std::string>& notes,
                             const Family* family) {
  return read_peft_targets(directory, family, notes).adapters;
}

PeftTargets read_peft_targets(const std::string& directory, const Family* family,
                              std::vector<std::string>& notes) {
  const std::string path = (std::filesystem::path(directory) / kAdapterConfig).string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw Error(ExitCode::usage, fmt::format("{} has no {}.", printable(directory), kAdapterConfig),
                "Give a directory that PEFT or `sluice export` has written.");
  const std::string name = printable(path);
  const Json object = parse(read_text_file(path, kConfigBytesMax), name);
  const ConfigReader file(object, name);
  file.require_text("peft_type", {"LORA"});
  reject_unknown(object, file);
  file.require_text("bias", {"none"});
  check_start(object, file);
  PeftTargets targets;
  Adapters& adapters = targets.adapters;
  adapters.rank = file.integer_or("r", kAdapterRankMax, 8);
  adapters.alpha = file.number_or("lora_alpha", 8);
  if (adapters.alpha <= 0)
    file.complain(fmt::format("lora_alpha is {}, not a positive number.", adapters.alpha),
                  "Correct the file.");
  adapters.root_scale = file.flag_or("use_rslora", false);
  adapters.targets = targets_of(object, file);
  if (const double dropout = file.number_or("lora_dropout", 0); dropout != 0)
    notes.push_back(fmt::format("{}: dropout is not applied (lora_dropout {}).", name, dropout));
  targets.rank = adapters.rank;
  if (file.has("target_parameters") && !asks_for_nothing(object["target_parameters"]))
    read_parameters(object, file, family, targets);
  return targets;
}

std::string adapter_config_json(const Adapters& adapters, const Model& model, const std::string& base) {
  std::set<std::string> targets;
  for (const Group& group : model.groups)
    for (const Parameter& p : group.parameters)
      if (group.adapter && p.name.ends_with(kAdapterDown)) {
        const std::string linear = p.name.substr(0, p.name.size() - kAdapterDown.size());
        targets.insert(linear.substr(linear.rfind('.') + 1));
      }
  nlohmann::ordered_json object;
  object["peft_type"] = "LORA";
  object["task_type"] = "CAUSAL_LM";
  object["base_model_name_or_path"] = base;
  object["inference_mode"] = true;
  object["r"] = adapters.rank;
  object["lora_alpha"] = adapters.alpha;
  constexpr double kExact = 9007199254740992;  // 2^53: larger numbers are whole, and may be no int64_t
  if (std::abs(adapters.alpha) < kExact && adapters.alpha == std::floor(adapters.alpha))
    object["lora_alpha"] = static_cast<int64_t>(adapters.alpha);
  object["use_rslora"] = adapters.root_scale;
  object["target_modules"] =
      adapters.targets.empty() ? std::vector<std::string>(targets.begin(), targets.end()) : adapters.targets;
  object["fan_in_fan_out"] = find_family(model.family)->matrices_in_out;
  object["bias"] = "none";
  object["lora_dropout"] = 0.0;
  object["init_lora_weights"] = true;
  object["use_dora"] = false;
  object["rank_pattern"] = object["alpha_pattern"] = nlohmann::ordered_json::object();
  for (const char* none : {"layers_to_transform", "layers_pattern", "modules_to_save"})
    object[none] = nullptr;
  return object.dump(2) + "\n";
}

std::string peft_name(const Family& family, const std::string& parameter, bool nested) {
  constexpr std::string_view kModel = "model.";
  if (!nested) return kPrefix + (family.tensor_prefix + parameter);
  CHECK(parameter.starts_with(kModel), parameter);
  return kPrefix + (family.nested.tensor_prefix + parameter.substr(kModel.size()));
}

std::string without_peft_prefix(const std::string& tensor) {
  return tensor.starts_with(kPrefix) ? tensor.substr(std::string_view(kPrefix).size()) : tensor;
}

}  // namespace sluice
