#include "engine/run/start/weights_start.h"

#include <filesystem>

#include "engine/run/start/devices.h"
#include "engine/run/start/run_directory.h"
#include "engine/run/start/run_start.h"
#include "models/weights/peft.h"

namespace sluice {

WeightsStart open_weights_start(Options& options, Verb verb) {
  WeightsStart start;
  const std::string& from = options.transfer.from;
  if (const std::optional<std::string> path = find_source(options.transfer, start.notes)) {
    start.checkpoint = CheckpointReader::open(*path);
    const MemoryOptions memory = options.memory;
    adopt_manifest(options, start.checkpoint->state().options);
    adopt_kept_text(options, *path);
    options.memory = memory;  // the weights may be used on any device
    // The micro-batch of the run fits the batch of the run only.
    if (is_given(options, "batch") && !is_given(options, "micro-batch")) options.batch.micro_batch.reset();
    start.source = source_of_run(*start.checkpoint, options, true);
  } else {
    check_not_before_first(from);
    options.model.model = from;
    std::error_code ignored;
    if (std::filesystem::exists(std::filesystem::path(from) / kAdapterConfig, ignored) &&
        !std::filesystem::exists(std::filesystem::path(from) / "config.json", ignored))
      throw Error(
          ExitCode::usage, "--from " + printable(from) + " holds adapters, not a model.",
          "Name the run that trained them, or a whole model: `sluice export --merge` makes one of a run.");
    if (std::filesystem::exists(std::filesystem::path(from) / "config.json", ignored))
      start.source = resolve_model(options.model);
    if (!std::filesystem::exists(from, ignored))
      throw Error(ExitCode::usage, "--from " + printable(from) + " does not exist.",
                  "Name a run directory, one of its checkpoints, or a Hugging Face directory.");
    if (start.source.weights_directory.empty())
      throw Error(ExitCode::usage, "--from " + printable(from) + " holds no run, checkpoint or weights.",
                  "Name a run directory, one of its checkpoints, or a Hugging Face directory.");
  }
  check_options(options, verb, ManifestUse::applied);
  for (std::string& note : settle_device(options, start.checkpoint.has_value()))
    start.notes.push_back(std::move(note));
  settle_algorithms(options.memory, "");
  return start;
}

std::string text_directory(const WeightsStart& start) {
  return start.checkpoint ? tokenizer_directory(run_of(start.checkpoint->path())) : start.source.directory;
}

void check_weights_start(WeightsStart& start, const Model& model) {
  if (start.checkpoint) start.checkpoint->check_weights(model);
  if (start.source.weights_directory.empty()) return;
  const ModelConfig& config = start.source.config;
  start.weights =
      HfWeights::open(start.source.weights_directory, config.family, {config.layers, config.experts});
  if (start.checkpoint)
    check_base(*start.weights, model, *start.checkpoint->state().base);
  else
    check_weights(*start.weights, model);
}

ParameterSource source_of(const WeightsStart& start) {
  if (!start.checkpoint) return source_of(*start.weights);
  return start.weights ? source_of(*start.weights, source_of(*start.checkpoint))
                       : source_of(*start.checkpoint);
}

}  // namespace sluice
