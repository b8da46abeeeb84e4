#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/run/setup.h"
#include "engine/run/trainer.h"
#include "models/family.h"
#include "tools/run_source.h"
#include "tools/verbs.h"

namespace sluice {

ExitCode run_eval(Options options, std::FILE* out) {
  const std::optional<std::string> path = find_checkpoint(options.transfer.from);
  std::optional<CheckpointReader> checkpoint;
  ModelSource source;
  if (path) {
    checkpoint = CheckpointReader::open(*path);
    adopt_manifest(options, checkpoint->state().options);
    source.config = config_from_json(checkpoint->state().model_config, *path + "/manifest.json");
  } else {
    options.model.model = options.transfer.from;
    std::error_code ignored;
    const std::filesystem::path config = std::filesystem::path(options.transfer.from) / "config.json";
    if (std::filesystem::exists(config, ignored)) source = resolve_model(options.model);
    if (source.weights_directory.empty())
      throw Error(ExitCode::usage,
                  "--from " + printable(options.transfer.from) + " holds no run, checkpoint or weights.",
                  "Name a run directory, one of its checkpoints, or a Hugging Face directory.");
  }
  check_options(options, Verb::eval, false);
  const int64_t sequence = options.batch.sequence.value_or(source.config.context);
  const TokenData data = TokenData::open(options.data.train, source.config.vocabulary);
  const DataOrder order =
      make_validation_order(data, sequence, static_cast<uint64_t>(options.data.val_batches),
                            static_cast<uint64_t>(options.batch.batch));
  const Budgets budgets = resolve_budgets(options.memory, memory_limits(), true);
  const std::unique_ptr<Device> device = make_device(options.memory, budgets.threads);
  PlanRequest request = plan_request(options, source.config, budgets, *device, true);
  request.model = [build = request.model](int64_t micro_batch) {  // weights only: nothing is trained
    Model model = build(micro_batch);
    for (Group& g : model.groups) g.trainable = false;
    return model;
  };
  request.lower.update_waits_for_norm = false;
  const Plan plan = plan_or_throw(request, budgets);
  Workers workers(budgets.threads);
  Session session(plan, *device,
                  {budgets.threads, {}, options.memory.nvme_directories, io_choice(options.memory.io)});
  std::optional<HfWeights> weights;
  if (!checkpoint) {
    weights = HfWeights::open(source.weights_directory, source.config.family);
    check_weights(*weights, plan.model);
  } else {
    checkpoint->check_weights(plan.model);
  }
  load(session, load_from(plan.model, checkpoint ? source_of(*checkpoint) : source_of(*weights), workers));
  const double loss = evaluate(session, data, order, options.data.val_batches);
  const int64_t tokens = options.data.val_batches * options.batch.batch * sequence;
  if (options.print.json) {
    const nlohmann::ordered_json facts{
        {"val_loss", loss}, {"perplexity", std::exp(loss)}, {"tokens", tokens}};
    std::fprintf(out, "%s\n", facts.dump(2).c_str());
  } else {
    std::fprintf(out, "loss %.6f, perplexity %.4g, over %lld tokens\n", loss, std::exp(loss),
                 static_cast<long long>(tokens));
  }
  return ExitCode::done;
}

}  // namespace sluice
