#include "engine/run/start/run_start.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "engine/run/start/devices.h"
#include "engine/run/start/loader.h"
#include "engine/run/start/run_directory.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

// Makes paths absolute, so that those in the manifest are valid in any working directory.
void make_absolute(Options& options) {
  const auto absolute = [](const std::string& path) {
    return fs::absolute(path).lexically_normal().string();
  };
  for (std::string& file : options.data.train) file = absolute(file);
  std::error_code ignored;
  if (fs::exists(options.model.model, ignored)) options.model.model = absolute(options.model.model);
}

// --resume auto without a checkpoint: a sentence, or Error(usage) where the run's options were not given
// anew.
std::string fresh_start(const Options& options, Verb verb) {
  if (options.model.model.empty() || (verb != Verb::plan && options.data.train.empty()))
    throw Error(ExitCode::usage, "--resume auto finds no checkpoint in " + printable(options.run.out) + ".",
                "Give the run's options again, --model and --data among them, to start it afresh.");
  return "No checkpoint in " + printable(options.run.out) + ": a fresh start.";
}

// The options that a run goes on with. On another number of ranks its micro-batch is chosen anew.
std::vector<ManifestOption> options_of(const CheckpointState& state, const Options& now) {
  std::vector<ManifestOption> options = state.options;
  if (state.writers == now.ranks.count) return options;
  for (ManifestOption& option : options)
    if (option.name == "micro-batch") option.values = option_values(now, *find_option(option.name));
  return options;
}

}  // namespace

RunStart open_run_start(Options& options, Verb verb, const MachineRates* elsewhere) {
  make_absolute(options);
  const bool resuming = !options.run.resume.empty();
  RunStart start;
  if (resuming || verb == Verb::train) start.checkpoint = open_resume(options.run);
  if (start.checkpoint)
    start.notes = apply_manifest(options, options_of(start.checkpoint->state(), options));
  else if (resuming)
    start.notes.push_back(fresh_start(options, verb));
  if (resuming) check_options(options, verb, false);
  if (start.checkpoint)
    start.source.config =
        config_from_json(start.checkpoint->state().model_config, "the checkpoint's config.json");
  else
    start.source = resolve_model(options.model);
  const std::vector<std::string>& notes = start.source.config.notes;
  start.notes.insert(start.notes.end(), notes.begin(), notes.end());
  options.batch.sequence = options.batch.sequence.value_or(start.source.config.context);
  for (const std::string& note : settle_device(options, start.checkpoint.has_value(), elsewhere))
    start.notes.push_back(note);
  return start;
}

std::vector<Fact> start_facts(const RunStart& start) {
  constexpr uint64_t kSample = 64;  // elements at the begin of a tensor, and at its end
  std::vector<Fact> facts{{"config.json of --model", config_to_json(start.source.config, DType::f32)}};
  std::string content;
  for (const std::string& name : start.weights ? start.weights->names() : std::vector<std::string>()) {
    const auto elements = start.weights->find(name)->elements();
    const uint64_t count = std::min(kSample, elements);
    std::array<float, 2 * kSample> values{};
    start.weights->read(name, 0, count, values.data());
    start.weights->read(name, elements - count, count, values.data() + kSample);
    content += name + std::string(reinterpret_cast<const char*>(values.data()), sizeof values);
  }
  facts.push_back({"content of --model", std::move(content)});
  return facts;
}

void check_start(RunStart& start, const Model& model) {
  if (start.checkpoint) return start.checkpoint->check(model);
  if (start.source.weights_directory.empty()) return;
  start.weights = HfWeights::open(start.source.weights_directory, start.source.config.family);
  check_weights(*start.weights, model);
}

void load_start(const RunStart& start, uint64_t seed, Session& session, Workers& workers) {
  const Model& model = session.plan().model;
  if (start.checkpoint)
    return load(session, load_from(model, *start.checkpoint, session.ranks(), workers),
                start.checkpoint->state().step);
  load(session, load_from(model, start.weights ? source_of(*start.weights) : source_of(seed), workers));
}

CheckpointState first_state(const Options& options, const ModelConfig& config) {
  CheckpointState state;
  state.loss_scale = options.numbers.precision == DType::f16 ? kFirstLossScale : 1;
  state.precision = options.numbers.precision;
  state.optimizer = options.optimizer.kind;
  state.model_config = config_to_json(config, options.numbers.precision);
  return state;
}

CheckpointState state_of(const RunStart& start, const Options& options, const TokenData& data) {
  CheckpointState state =
      start.checkpoint ? start.checkpoint->state() : first_state(options, start.source.config);
  state.tokens = data.tokens();
  state.data_checksum = data.sample_checksum();
  state.micro_batch = options.batch.micro_batch.value();
  state.options = manifest_options(options);
  return state;
}

}  // namespace sluice
