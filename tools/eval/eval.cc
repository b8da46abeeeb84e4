#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>

#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/loader.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/run_data.h"
#include "engine/run/start/session_start.h"
#include "engine/run/start/weights_start.h"
#include "engine/run/train/batches.h"
#include "models/families/family.h"
#include "models/files/data_source.h"
#include "tools/command/run_verb.h"
#include "tools/command/screen.h"
#include "tools/prepare/child.h"

namespace sluice {

namespace {

// Lets the loss count the labels whose logit is the largest.
void count_right_labels(Model& model) {
  for (Segment& segment : model.segments)
    for (Op& op : segment.ops) {
      if (op.kind != OpKind::linear_cross_entropy) continue;
      op.attributes.counts_right = true;
      segment.tensors[op.outputs[0]].shape = {2};
    }
}

// A plan with weights alone: nothing is trained.
Plan evaluation_plan(const Options& options, const ModelConfig& config, const Budgets& budgets,
                     const Device& device, bool documents) {
  PlanRequest request = plan_request(options, config, budgets, needs_of(device), {documents, true});
  request.model = [build = request.model](int64_t micro_batch, int64_t sequence) {
    Model model = build(micro_batch, sequence);
    for (Group& g : model.groups) g.trainable = false;
    count_right_labels(model);
    return model;
  };
  request.lower.update_waits_for_norm = false;
  request.lower.share_layers_until = 0;  // a checkpoint has every layer's weights
  return plan_or_throw(request, budgets);
}

struct Extent {  // of the data, in sequences
  int64_t read = 0, all = 0;
};

void print(const Evaluation& found, const Extent& extent, bool json, std::FILE* out) {
  const double perplexity = std::exp(found.loss - found.router_loss.value_or(0));
  const double accuracy =
      static_cast<double>(found.right) / static_cast<double>(std::max<int64_t>(found.labels, 1));
  if (json) {
    nlohmann::ordered_json facts{{"val_loss", found.loss}};
    if (found.router_loss) facts["router_loss"] = *found.router_loss;
    facts.update({{"perplexity", perplexity},
                  {"accuracy", accuracy},
                  {"tokens", found.labels},
                  {"sequences", extent.read},
                  {"sequences_of_data", extent.all}});
    std::fprintf(out, "%s\n", facts.dump(2).c_str());
  } else {
    const std::string of_routers =
        found.router_loss ? fmt::format(" ({:.6f} of it the routers')", *found.router_loss) : "";
    const std::string part =
        extent.read < extent.all
            ? fmt::format(", the first {} of the data's {} sequences", extent.read, extent.all)
            : "";
    std::fprintf(out, "loss %.6f%s, perplexity %.4g, accuracy %.2f %%, over %lld tokens%s\n", found.loss,
                 of_routers.c_str(), perplexity, 100 * accuracy, static_cast<long long>(found.labels),
                 part.c_str());
  }
}

}  // namespace

ExitCode run_eval(Options options, std::FILE* out) {
  WeightsStart start = open_weights_start(options, Verb::eval);
  options.batch.sequence = options.batch.sequence.value_or(start.source.config.context);
  if (const auto note = length_note(start.source.config, *options.batch.sequence, "--seq"))
    start.notes.push_back(*note);
  for (const std::string& path : options.data.train)
    if (has_weight(path)) refuse_weight(path, "data");
  const std::vector<std::string> left_out = open_folders(options);
  start.notes.insert(start.notes.end(), left_out.begin(), left_out.end());
  const std::string directory = text_directory(start);
  const PreparedData prepared =
      prepare_data(options, Verb::eval, directory, start.source.config.vocabulary, start.notes);
  const RunData data = open_evaluation_data(options, prepared, start.source.config);
  const bool documents = rows_have_documents(options, directory);
  const std::unique_ptr<Device> device = make_device(options.memory, resolve_threads(options.memory));
  Budgets budgets = resolve_budgets(options.memory, memory_limits(), true, accelerator_use(*device));
  budgets.reserve_table(start.source.table_bytes);
  const auto started = start_session(
      *device, budgets, session_options(options, budgets.threads),
      [&] { return evaluation_plan(options, start.source.config, budgets, *device, documents); },
      [&](const Plan& plan) { check_weights_start(start, plan.model); });
  Workers workers(budgets.threads);
  Session& session = started->session;
  load(session, load_from(started->plan.model, source_of(start), workers));
  const std::atomic<bool> never{false};
  std::exception_ptr failure;
  const std::optional<Evaluation> found =
      evaluate(session, started->plan.lowering.bodies(), *data.validation->rows(), data.validation_batches,
               never, failure);
  if (failure) std::rethrow_exception(failure);
  std::vector<std::string> notes = start.notes;
  notes.push_back("data: " + data.validation->extent());
  for (const std::string& remark : data.validation->remarks()) notes.push_back(remark);
  for (const std::string& note : notes) show(options.print.json ? stderr : out, note + "\n");
  const double loss = found.value().loss;
  const auto all = static_cast<int64_t>(data.validation->rows_of_epochs(1));
  print(*found, {std::min(all, data.validation_batches * options.batch.batch), all}, options.print.json, out);
  if (!std::isfinite(loss))
    throw Error(ExitCode::numerics, "The loss is not finite.",
                start.checkpoint ? "Evaluate an earlier checkpoint, and go on from there with a smaller --lr."
                : started->plan.model.precision == DType::f16
                    ? "Evaluate with --precision bf16 or fp32, in which large values do not overflow."
                    : "The weights may be damaged: compare them with those at their source.");
  return ExitCode::done;
}

}  // namespace sluice
