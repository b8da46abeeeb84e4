#include "engine/run/start/run_start.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "engine/run/start/devices.h"
#include "engine/run/start/loader.h"
#include "engine/run/start/run_data.h"
#include "engine/run/start/run_directory.h"
#include "models/families/family.h"
#include "models/weights/stacked.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

// Makes paths absolute, so that those in the manifest are valid in any working directory.
void make_absolute(Options& options) {
  const auto absolute = [](const std::string& path) {
    return fs::absolute(path).lexically_normal().string();
  };
  std::error_code ignored;
  for (std::string& file : options.data.train) file = absolute(file);
  for (std::string& file : options.data.validation) file = absolute(file);
  for (std::string& directory : options.memory.nvme_directories) directory = absolute(directory);
  for (std::string* path :
       {&options.run.metrics, &options.lora.from, &options.lora.base, &options.sample.prompts})
    if (!path->empty()) *path = absolute(*path);
  for (std::string* path : {&options.text.tokenizer, &options.text.cache})
    if (!path->empty()) *path = absolute(*path);
  // These options and the chat template may be a name or a path. A folder is no chat template.
  for (std::string* name : {&options.model.model, &options.memory.machine})
    if (fs::exists(*name, ignored)) *name = absolute(*name);
  if (std::string& chosen = options.text.chat_template; fs::is_regular_file(chosen, ignored))
    chosen = absolute(chosen);
}

// What happens where --resume auto finds no checkpoint: returns a sentence which says that the run starts
// afresh, or throws Error(usage) if the options that a fresh run needs are missing.
std::string fresh_start(const Options& options, Verb verb) {
  if (options.model.model.empty() || (verb != Verb::plan && options.data.train.empty()))
    throw Error(ExitCode::usage, "--resume auto finds no checkpoint in " + printable(options.run.out) + ".",
                "Give the run's options again, --model and --data among them, to start it afresh.");
  return "No checkpoint in " + printable(options.run.out) + ": a fresh start.";
}

const ManifestOption* find_in(const std::vector<ManifestOption>& manifest, const std::string& name) {
  const auto found = std::find_if(manifest.begin(), manifest.end(),
                                  [&](const ManifestOption& option) { return option.name == name; });
  return found == manifest.end() ? nullptr : &*found;
}

// Takes the checkpoint's options into `options`. A launcher decides how many ranks there are, and on another
// number of ranks the micro-batch is chosen anew. A branch, in another --out, has metrics of its own.
std::vector<std::string> go_on_with(const CheckpointReader& checkpoint, bool is_same_run, Options& options) {
  std::vector<ManifestOption> manifest = checkpoint.state().options;
  const auto drop = [&](const std::string& name) {
    std::erase_if(manifest, [&](const ManifestOption& option) { return option.name == name; });
  };
  if (options.ranks.launched) drop("gpus");
  if (!is_same_run) drop("metrics");
  const OptionRow& gpus = *find_option("gpus");
  if (const ManifestOption* stored = find_in(manifest, gpus.name); stored && !is_given(options, gpus.name))
    set_option(options, gpus, stored->values);
  if (!options.ranks.launched) options.ranks.count = options.ranks.gpus;
  const int64_t ranks = options.ranks.count, before = checkpoint.state().writers;
  for (ManifestOption& option : manifest)
    if (option.name == "micro-batch" && before != ranks)
      option.values = option_values(options, *find_option(option.name));
  std::vector<std::string> notes = apply_manifest(options, manifest);
  adopt_kept_text(options, checkpoint.path());
  std::optional<int64_t>& waves = options.batch.waves;
  if (waves && !is_given(options, "waves") && !waves_fit(options, ranks)) {
    notes.push_back(fmt::format("--waves {} of the run does not fit here: the planner chooses.", *waves));
    waves.reset();
  }
  if (before != ranks)
    notes.push_back("The run goes on with " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
                    ", and had " + std::to_string(before) + ": sums are rounded in another order" +
                    (is_given(options, "micro-batch") ? "." : ", and the micro-batch is chosen anew."));
  return notes;
}

// Where the weights come from: a sentence. Throws Error(usage) for a directory that has none, since a model
// that is published without weights is rare, and one that was copied or exported in part is not.
std::string weights_text(const RunStart& start, const Options& options, Verb verb) {
  const ModelSource& source = start.source;
  const bool adapts = source.config.adapters.rank > 0;
  const std::string of_base = adapts && !source.weights_directory.empty()
                                  ? " Base: " + printable(source.weights_directory) + "."
                                  : "";
  const std::string kind = adapts ? "Adapters" : "Weights";
  if (start.checkpoint)
    return kind + ": of checkpoint " + printable(start.checkpoint->path()) + "." + of_base;
  if (!of_base.empty())
    return kind +
           (options.lora.from.empty() ? ": new, by --seed " + std::to_string(options.numbers.seed) + "."
                                      : ": of " + printable(options.lora.from) + ".") +
           of_base;
  if (!source.weights_directory.empty()) return "Weights: of " + printable(source.weights_directory) + ".";
  if (!source.directory.empty() && !options.model.from_scratch)
    throw Error(ExitCode::usage,
                "The directory " + printable(source.directory) +
                    " has a config.json, but no weights: neither model.safetensors nor its index.",
                "Complete the directory, or add --from-scratch to start from random weights.");
  if (adapts && verb == Verb::train)
    throw Error(ExitCode::usage,
                "--model " + printable(options.model.model) + " has no weights for --lora to adapt.",
                "Give a Hugging Face directory with weights, or train all weights: leave out --lora.");
  return "Weights: random, by --seed " + std::to_string(options.numbers.seed) + ".";
}

// Leaves out directories and files that the run named and that are gone by now. Returns a sentence for each.
std::vector<std::string> leave_out_lost(Options& options) {
  std::vector<std::string> notes;
  std::error_code ignored;
  std::vector<std::string>& directories = options.memory.nvme_directories;
  const size_t before = directories.size();
  if (!is_given(options, "nvme-dir"))
    std::erase_if(directories, [&](const std::string& directory) {
      if (fs::is_directory(directory, ignored)) return false;
      notes.push_back("--nvme-dir " + printable(directory) + " of the run is gone: it is left out.");
      return true;
    });
  if (before > 0 && directories.empty() && !is_given(options, "nvme-mem")) options.memory.nvme = {};
  const std::string prompts = options.sample.prompts;
  if (!prompts.empty() && !is_given(options, "sample-prompts") && !fs::exists(prompts, ignored)) {
    notes.push_back("--sample-prompts " + printable(prompts) + " of the run is gone: no more samples.");
    options.sample = {};
  }
  const std::string machine = options.memory.machine;
  if (!is_given(options, "machine") && machine.find('/') != std::string::npos &&
      !fs::exists(machine, ignored)) {
    notes.push_back("--machine " + printable(machine) + " of the run is gone: the built-in one holds.");
    options.memory.machine.clear();
  }
  return notes;
}

// A note if trained weights get the default of --lr, which is for weights that begin at random.
std::optional<std::string> rate_note(const RunStart& start, const Options& options) {
  const ModelSource& source = start.source;
  if (start.checkpoint || source.weights_directory.empty() || source.config.adapters.rank > 0 ||
      is_given(options, "lr"))
    return std::nullopt;
  return fmt::format("--lr is {}, as for new weights: those that were trained before commonly get 1e-5.",
                     options.optimizer.learning_rate);
}

// A sentence about the factors of the routers' losses, if the model has experts.
std::optional<std::string> router_note(const ModelConfig& config) {
  if (config.experts == 0) return std::nullopt;
  const std::string z_loss = config.router_z_loss > 0
                                 ? fmt::format(" Their z-loss counts with factor {}.", config.router_z_loss)
                                 : "";
  if (config.has_router_loss)
    return fmt::format("The routers' loss counts with factor {}.{}", config.router_loss, z_loss);
  return "The routers' loss does not count; in a new run with --router-loss X it does, with factor X." +
         z_loss;
}

ModelSource new_source(Options& options, RunStart& start) {
  ModelSource source = resolve_model(options.model);
  source.config.adapters = settle_adapters(options.lora, start.notes, source.config);
  start.adapters_directory = options.lora.from;
  if (!options.lora.from.empty()) {
    const uint64_t matrices =
        stacked_parameters(*find_family(source.config.family), {source.config.layers, source.config.experts});
    source.table_bytes += table_bytes_at_most(options.lora.from, 2 * matrices);  // each has two factors
  }
  return source;
}

}  // namespace

RunStart open_run_start(Options& options, Verb verb) {
  make_absolute(options);
  const bool resuming = !options.run.resume.empty();
  if (!options.ranks.launched) options.ranks.count = options.ranks.gpus;
  RunStart start;
  const auto note = [&](const std::vector<std::string>& sentences) {
    start.notes.insert(start.notes.end(), sentences.begin(), sentences.end());
  };
  note(open_folders(options));
  if (resuming || verb == Verb::train) start.checkpoint = open_resume(options.run, start.notes);
  if (start.checkpoint) {
    std::error_code missing;
    start.is_same_run = fs::equivalent(run_of(start.checkpoint->path()), options.run.out, missing);
    note(go_on_with(*start.checkpoint, start.is_same_run, options));
    note(leave_out_lost(options));
    if (start.checkpoint->state().numerics < kNumerics)
      note(
          {"The checkpoint is an older version's, which added gradients of tied embeddings in another order "
           "and on GPUs rounded before GELU elsewhere: losses may differ in their last bits from those that "
           "it would have had."});
  } else if (resuming) {
    note({fresh_start(options, verb)});
  }
  if (resuming) check_options(options, verb, start.checkpoint ? ManifestUse::applied : ManifestUse::none);
  if (start.checkpoint)
    start.source = source_of_run(*start.checkpoint, options, verb != Verb::plan);
  else
    start.source = new_source(options, start);
  if (verb != Verb::plan) note({weights_text(start, options, verb)});
  note(start.source.config.notes);
  if (const auto sentence = rate_note(start, options); sentence && verb == Verb::train) note({*sentence});
  if (const auto sentence = router_note(start.source.config); sentence && verb == Verb::train)
    note({*sentence});
  options.batch.sequence = options.batch.sequence.value_or(start.source.config.context);
  if (const auto sentence = length_note(start.source.config, *options.batch.sequence, "--seq"))
    note({*sentence});
  const std::optional<MachineRates> elsewhere =
      verb == Verb::plan ? described_machine(options.memory) : std::nullopt;
  note(settle_device(options, start.checkpoint.has_value(), elsewhere ? &*elsewhere : nullptr));
  const std::string algorithms =
      settle_algorithms(options.memory, start.checkpoint ? start.checkpoint->state().matmul_algorithms : "");
  if (!algorithms.empty()) note({algorithms});
  return start;
}

std::string text_directory(const RunStart& start) {
  return start.checkpoint ? tokenizer_directory(run_of(start.checkpoint->path())) : start.source.directory;
}

std::vector<Fact> start_facts(const RunStart& start) {
  constexpr uint64_t kSample = 64;  // elements at the start of a tensor, and at its end
  std::vector<Fact> facts{{"config.json of --model", config_to_json(start.source.config, DType::f32)}};
  std::string content;
  for (const auto* weights : {&start.weights, &start.adapters})
    for (const std::string& name : *weights ? (*weights)->names() : std::vector<std::string>()) {
      const auto elements = (*weights)->find(name)->elements();
      const uint64_t count = std::min(kSample, elements);
      std::array<float, 2 * kSample> values{};
      (*weights)->read(name, 0, count, values.data());
      (*weights)->read(name, elements - count, count, values.data() + kSample);
      content += name + std::string(reinterpret_cast<const char*>(values.data()), sizeof values);
    }
  facts.push_back({"content of --model", std::move(content)});
  return facts;
}

void check_start(RunStart& start, const Model& model) {
  const std::string &directory = start.source.weights_directory, &family = start.source.config.family;
  const ExpertCounts most{start.source.config.layers, start.source.config.experts};
  if (start.checkpoint) start.checkpoint->check(model);
  if (!start.adapters_directory.empty()) {
    start.adapters = HfWeights::open_adapters(start.adapters_directory, family, most);
    check_weights(*start.adapters, model);
  }
  if (directory.empty()) return;
  start.weights = HfWeights::open(directory, family, most);
  if (start.checkpoint)
    check_base(*start.weights, model, *start.checkpoint->state().base);
  else
    check_weights(*start.weights, model);
  if (has_adapters(model)) start.base = {directory, sampled_checksum(*start.weights, model)};
}

void load_start(const RunStart& start, uint64_t seed, Session& session, Workers& workers) {
  const Model& model = session.plan().model;
  const HfWeights* const weights = start.weights ? &*start.weights : nullptr;
  if (start.checkpoint)
    return load(session, load_from(model, *start.checkpoint, session.ranks(), workers, weights),
                start.checkpoint->state().step);
  ParameterSource others = start.adapters ? source_of(*start.adapters) : source_of(seed);
  load(session, load_from(model, weights ? source_of(*weights, std::move(others)) : others, workers));
}

CheckpointState first_state(const Options& options, const ModelConfig& config) {
  CheckpointState state;
  state.loss_scale = options.numbers.precision == DType::f16 ? kFirstLossScale : 1;
  state.precision = options.numbers.precision;
  state.optimizer = options.optimizer.kind;
  state.model_config = config_to_json(config, options.numbers.precision);
  return state;
}

CheckpointState state_of(const RunStart& start, const Options& options, const RowData& data,
                         uint64_t fresh_run) {
  CheckpointState state =
      start.checkpoint ? start.checkpoint->state() : first_state(options, start.source.config);
  if (!start.is_same_run) state.run = fresh_run;
  state.base = start.base;
  state.tokens = data.tokens();
  state.data_checksum = data.checksum();
  state.micro_batch = options.batch.micro_batch.value();
  state.matmul_algorithms = options.memory.chosen_algorithms;
  state.options = manifest_options(options);
  return state;
}

}  // namespace sluice
