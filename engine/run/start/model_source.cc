#include "engine/run/start/model_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "models/families/family.h"
#include "models/weights/hf_weights.h"
#include "models/weights/peft.h"
#include "models/weights/stacked.h"

namespace sluice {

namespace {

constexpr uint64_t kConfigBytesMax = 1 << 20;

// Throws for a path that names nothing, which may be meant as a model on Hugging Face.
void check_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) || path.extension() == ".json") return;
  const bool is_hub_name = path.is_relative() && path.parent_path().filename() == path.parent_path() &&
                           !path.string().starts_with('.') && !path.filename().empty();
  const std::string name = printable(path.string()), here = printable(path.filename().string());
  throw Error(ExitCode::usage, fmt::format("There is no directory {}.", name),
              is_hub_name
                  ? fmt::format("Sluice downloads no model. If it is one on Hugging Face: hf download {} "
                                "--local-dir {}, then --model ./{}.",
                                name, here, here)
                  : "Check the path.");
}

}  // namespace

Adapters adapters_of(const LoraOptions& options) {
  const bool all = options.targets == std::vector<std::string>{"all-linear"};
  return {.rank = options.rank,
          .alpha = options.alpha.value_or(static_cast<double>(options.rank)),
          .root_scale = options.root_scale,
          .targets = all ? std::vector<std::string>() : options.targets};
}

Adapters settle_adapters(LoraOptions& options, std::vector<std::string>& notes, const ModelConfig& base) {
  if (options.from.empty()) return adapters_of(options);
  Adapters stored = read_adapter_config(options.from, notes, find_family(base.family));
  const std::vector<std::string> parameters =
      HfWeights::open_adapters(options.from, base.family, {base.layers, base.experts}).names();
  for (std::string& note : notes_on_targets(options.from, parameters)) notes.push_back(std::move(note));
  settle_targets(parameters, base, stored);
  const auto agree = [&](const char* name, bool agrees) {
    if (!agrees)
      throw Error(ExitCode::usage,
                  fmt::format("--{} differs from the adapters of {}.", name, printable(options.from)),
                  fmt::format("Leave out --{}: it comes with --lora-from.", name));
  };
  const Adapters given = adapters_of(options);
  agree("lora", options.rank == 0 || given.rank == stored.rank);
  agree("lora-alpha", !options.alpha || given.alpha == stored.alpha);
  agree("lora-targets", options.targets.empty() || given.targets == stored.targets);
  agree("rslora", !options.root_scale || stored.root_scale);
  options.rank = stored.rank;
  options.alpha = stored.alpha;
  options.targets = stored.targets;
  options.root_scale = stored.root_scale;
  return stored;
}

void check_base(const HfWeights& weights, const Model& model, const BaseModel& base) {
  check_weights(weights, model);
  if (sampled_checksum(weights, model) == base.checksum) return;
  throw Error(ExitCode::malformed_file,
              printable(weights.directory()) + " is not the base of the run: its weights have other values.",
              "Name the directory that has the base with --base DIR.");
}

std::string base_directory(const BaseModel& base, const LoraOptions& options) {
  const std::string& directory = options.base.empty() ? base.directory : options.base;
  std::error_code ignored;
  const bool exists = std::filesystem::is_directory(directory, ignored);
  if (exists && has_weights(directory)) return directory;
  throw Error(ExitCode::usage,
              fmt::format("The base of the run is not there: {} {}.", printable(directory),
                          exists ? "has no model.safetensors, nor its index" : "is no directory"),
              "A checkpoint holds adapters only. Name the directory that has the base now with --base DIR.");
}

namespace {

uint64_t table_bytes_of(const std::string& directory, const ModelConfig& config) {
  const Family& family = *find_family(config.family);
  const auto two_matrices =
      static_cast<uint64_t>(2 * config.width * config.expert_ffn);  // gate and up are one matrix
  return table_bytes_at_most(directory, stacked_parameters(family, {config.layers, config.experts})) +
         (family.mxfp4 ? Mxfp4Reader::bytes_most(two_matrices) : 0);
}

void set_router_loss(const ModelOptions& options, ModelConfig& config) {
  if (config.experts == 0 && (options.router_loss || options.router_z_loss > 0))
    throw Error(ExitCode::usage,
                fmt::format("--router-{}loss is for models with experts, and this one has none.",
                            options.router_loss ? "" : "z-"),
                "Leave it out.");
  config.router_z_loss = options.router_z_loss;
  if (!options.router_loss) return;
  config.router_loss = *options.router_loss;
  config.has_router_loss = *options.router_loss > 0;
}

ModelSource model_of(const ModelOptions& options) {
  ModelSource source;
  const std::filesystem::path path(options.model);
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(path, ignored);
  // A description may have slashes behind its colon: "gpt2-moe:experts=8/16".
  const bool described = options.model.find(':') < options.model.find('/');
  const bool file_name = std::filesystem::exists(path, ignored) || (path.has_parent_path() && !described) ||
                         path.extension() == ".json";
  if (!file_name) {
    source.config = config_from_name(options.model);
    return source;
  }
  check_exists(path);
  if (directory && std::filesystem::exists(path / kAdapterConfig, ignored) &&
      !std::filesystem::exists(path / "config.json", ignored))
    throw Error(ExitCode::usage,
                "The directory " + printable(options.model) + " holds adapters, not a model.",
                fmt::format("Give their base as --model, and --lora-from {}.", printable(options.model)));
  if (directory && !std::filesystem::exists(path / "config.json", ignored))
    throw Error(ExitCode::usage, "The directory " + printable(options.model) + " has no config.json.",
                "Give a Hugging Face directory; `sluice export` makes one of a run.");
  const std::string file = directory ? (path / "config.json").string() : path.string();
  source.config = config_from_json(read_text_file(file, kConfigBytesMax), file);
  if (directory) source.directory = options.model;
  if (directory && !options.from_scratch && has_weights(options.model)) {
    source.weights_directory = options.model;
    source.table_bytes = table_bytes_of(options.model, source.config);
  }
  return source;
}

}  // namespace

ModelSource resolve_model(const ModelOptions& options) {
  ModelSource source = model_of(options);
  set_router_loss(options, source.config);
  return source;
}

ModelSource source_of_run(const CheckpointReader& checkpoint, const Options& options, bool opens_base) {
  ModelSource source;
  const CheckpointState& state = checkpoint.state();
  source.config = config_from_json(state.model_config, checkpoint.path() + "/manifest.json");
  source.config.adapters = adapters_of(options.lora);
  source.config.router_z_loss = options.model.router_z_loss;
  if (state.base.has_value() != (options.lora.rank > 0))
    throw Error(ExitCode::malformed_file,
                fmt::format("{}: the manifest {} a base, and its option --lora is {}.",
                            printable(checkpoint.path()), state.base ? "names" : "lacks", options.lora.rank),
                "Use another checkpoint; this manifest is damaged.");
  if (!state.base || !opens_base) return source;
  source.weights_directory = base_directory(*state.base, options.lora);
  source.table_bytes = table_bytes_of(source.weights_directory, source.config);
  return source;
}

}  // namespace sluice
