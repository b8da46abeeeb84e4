#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/loader.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/run_directory.h"
#include "engine/run/start/run_start.h"
#include "engine/run/start/session_start.h"
#include "engine/run/train/batches.h"
#include "models/data/data_order.h"
#include "models/families/family.h"
#include "tools/command/screen.h"
#include "tools/command/verbs.h"

namespace sluice {

namespace {

// The weights to evaluate: of a checkpoint or of a Hugging Face directory.
struct EvalStart {
  std::optional<CheckpointReader> checkpoint;
  ModelSource source;
  std::optional<HfWeights> weights;  // opened by check_start()
  std::vector<std::string> notes;    // sentences to print
};

// Finds the weights of --from, and takes over the options that a checkpoint holds.
EvalStart open_start(Options& options) {
  EvalStart start;
  const std::string& from = options.transfer.from;
  if (const std::optional<std::string> path = find_checkpoint(from)) {
    start.checkpoint = CheckpointReader::open(*path);
    const MemoryOptions memory = options.memory;
    adopt_manifest(options, start.checkpoint->state().options);
    options.memory = memory;  // weights may be evaluated on any device
    // The micro-batch of the run fits the batch of the run only.
    if (is_given(options, "batch") && !is_given(options, "micro-batch")) options.batch.micro_batch.reset();
    start.source.config = config_from_json(start.checkpoint->state().model_config, *path + "/manifest.json");
  } else {
    check_not_before_first(from);
    options.model.model = from;
    std::error_code ignored;
    if (std::filesystem::exists(std::filesystem::path(from) / "config.json", ignored))
      start.source = resolve_model(options.model);
    if (start.source.weights_directory.empty())
      throw Error(ExitCode::usage, "--from " + printable(from) + " holds no run, checkpoint or weights.",
                  "Name a run directory, one of its checkpoints, or a Hugging Face directory.");
  }
  check_options(options, Verb::eval, ManifestUse::applied);
  start.notes = settle_device(options, start.checkpoint.has_value());
  settle_algorithms(options.memory, "");
  options.batch.sequence = options.batch.sequence.value_or(start.source.config.context);
  return start;
}

// A plan with weights alone: nothing is trained.
Plan evaluation_plan(const Options& options, const ModelConfig& config, const Budgets& budgets,
                     const Device& device) {
  PlanRequest request = plan_request(options, config, budgets, needs_of(device), true);
  request.model = [build = request.model](int64_t micro_batch, int64_t sequence) {
    Model model = build(micro_batch, sequence);
    for (Group& g : model.groups) g.trainable = false;
    return model;
  };
  request.lower.update_waits_for_norm = false;
  request.lower.share_layers_until = 0;  // a checkpoint has every layer's weights
  return plan_or_throw(request, budgets);
}

// Opens the weights. Throws unless every tensor of the model is there in its shape.
void check_start(EvalStart& start, const Model& model) {
  if (start.checkpoint) return start.checkpoint->check_weights(model);
  start.weights = HfWeights::open(start.source.weights_directory, start.source.config.family);
  check_weights(*start.weights, model);
}

void print_loss(double loss, int64_t tokens, bool json, std::FILE* out) {
  if (json) {
    const nlohmann::ordered_json facts{
        {"val_loss", loss}, {"perplexity", std::exp(loss)}, {"tokens", tokens}};
    std::fprintf(out, "%s\n", facts.dump(2).c_str());
  } else {
    std::fprintf(out, "loss %.6f, perplexity %.4g, over %lld tokens\n", loss, std::exp(loss),
                 static_cast<long long>(tokens));
  }
}

}  // namespace

ExitCode run_eval(Options options, std::FILE* out) {
  EvalStart start = open_start(options);
  const TokenData data =
      TokenData::open(options.data.train, start.source.config.vocabulary, options.data.type);
  const int64_t sequence = *options.batch.sequence;
  const DataOrder order =
      make_validation_order(data, sequence, static_cast<uint64_t>(options.data.val_batches),
                            static_cast<uint64_t>(options.batch.batch));
  const std::unique_ptr<Device> device = make_device(options.memory, resolve_threads(options.memory));
  Budgets budgets = resolve_budgets(options.memory, memory_limits(), true, accelerator_use(*device));
  budgets.reserve_table(start.source.table_bytes);
  const auto started = start_session(
      *device, budgets, session_options(options, budgets.threads),
      [&] { return evaluation_plan(options, start.source.config, budgets, *device); },
      [&](const Plan& plan) { check_start(start, plan.model); });
  Workers workers(budgets.threads);
  Session& session = started->session;
  const ParameterSource weights = start.checkpoint ? source_of(*start.checkpoint) : source_of(*start.weights);
  load(session, load_from(started->plan.model, weights, workers));
  const std::atomic<bool> never{false};
  std::exception_ptr failure;
  const std::optional<double> loss = evaluate(session, started->plan.lowering.bodies(), data, order,
                                              options.data.val_batches, never, failure);
  if (failure) std::rethrow_exception(failure);
  if (!options.print.json)
    for (const std::string& note : start.notes) show(out, note + "\n");
  print_loss(loss.value(), options.data.val_batches * options.batch.batch * sequence, options.print.json,
             out);
  if (!std::isfinite(*loss))
    throw Error(ExitCode::numerics, "The loss is not finite.",
                start.checkpoint ? "Evaluate an earlier checkpoint, and go on from there with a smaller --lr."
                : started->plan.model.precision == DType::f16
                    ? "Evaluate with --precision bf16 or fp32, in which large values do not overflow."
                    : "The weights may be damaged: compare them with those at their source.");
  return ExitCode::done;
}

}  // namespace sluice
