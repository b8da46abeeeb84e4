#include <filesystem>

#include "engine/run/start/run_directory.h"
#include "models/families/family.h"
#include "models/weights/hf_export.h"
#include "tools/command/screen.h"
#include "tools/command/verbs.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

// The run keeps its tokenizer's files. Runs of earlier versions do not: then they are in the model's
// directory, if that is still there.
std::string tokenizer_of(const std::string& checkpoint, const std::string& model, std::FILE* out) {
  std::error_code ignored;
  const std::string kept = tokenizer_directory(run_of(checkpoint));
  if (fs::is_directory(kept, ignored)) return kept;
  if (!fs::path(model).is_absolute()) return "";  // a name: manifests have absolute paths
  if (!fs::exists(model, ignored))
    show(out, printable(model) + " is gone: if it had a tokenizer, the export lacks it.\n");
  return model;
}

}  // namespace

ExitCode run_export(Options options, std::FILE* out) {
  const std::optional<std::string> path = find_checkpoint(options.transfer.from);
  if (!path) check_not_before_first(options.transfer.from);
  if (!path)
    throw Error(ExitCode::usage,
                "--from " + printable(options.transfer.from) + " is neither a checkpoint nor a run with one.",
                "Name a run directory or one of its checkpoints.");
  const CheckpointReader checkpoint = CheckpointReader::open(*path);
  Options run;
  adopt_manifest(run, checkpoint.state().options);
  const ModelConfig config = config_from_json(checkpoint.state().model_config, *path + "/manifest.json");
  const Model model = build_model(config, checkpoint.state().precision, 1, 1);
  checkpoint.check_weights(model);
  std::vector<ExportTensor> tensors;
  for (const Group& g : model.groups)
    for (const Parameter& p : g.parameters) tensors.push_back({p.name, p.shape});
  ExportOptions to;
  to.dtype = options.transfer.dtype.value_or(checkpoint.state().precision);
  to.shards = static_cast<uint64_t>(options.transfer.shards);
  to.config_json = config_to_json(config, to.dtype);
  to.tokenizer_directory = tokenizer_of(*path, run.model.model, out);
  write_hf_directory(options.transfer.to, tensors, to,
                     [&](size_t tensor, uint64_t first, uint64_t count, float* values) {
                       checkpoint.read_weights(tensors[tensor].name, first, count, values);
                     });
  show(out, "Exported step " + std::to_string(checkpoint.state().step) + " of " + printable(*path) + " to " +
                printable(options.transfer.to) + " (" + dtype_name(to.dtype) + ").\n");
  return ExitCode::done;
}

}  // namespace sluice
