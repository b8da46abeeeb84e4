#include <fmt/format.h>

#include <filesystem>

#include "engine/base/file.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/run_directory.h"
#include "engine/run/start/text_start.h"
#include "models/families/family.h"
#include "models/files/tokenizer_files.h"
#include "models/weights/hf_export.h"
#include "models/weights/merge.h"
#include "models/weights/peft.h"
#include "models/weights/peft_experts.h"
#include "models/weights/stacked.h"
#include "tools/command/run_verb.h"
#include "tools/command/screen.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

// The run keeps its tokenizer's files. Runs of earlier versions do not: their tokenizer's files are in the
// model's directory, if that is still there.
std::string tokenizer_of(const std::string& checkpoint, const std::string& model, std::FILE* out) {
  std::error_code ignored;
  const std::string kept = tokenizer_directory(run_of(checkpoint));
  if (fs::is_directory(kept, ignored)) return kept;
  if (!fs::path(model).is_absolute()) return "";  // a name: manifests have absolute paths
  if (!fs::exists(model, ignored))
    show(out, printable(model) + " is gone: if it had a tokenizer, the export lacks it.\n");
  return model;
}

// The chat template of a run with --chat-template: the content of that file, or the template of this name in
// the run's tokenizer.
std::optional<std::string> chat_template_of(const Options& run, const std::string& tokenizer,
                                            std::FILE* out) {
  const std::string& chosen = run.text.chat_template;
  std::error_code ignored;
  if (chosen.empty()) return std::nullopt;
  if (fs::is_regular_file(chosen, ignored)) return read_text_file(chosen, kTemplateBytesMax);
  if (has_tokenizer(tokenizer) && !fs::path(chosen).is_absolute())
    return open_text_model(tokenizer, chosen).chat_source;
  show(out, fmt::format("--chat-template {} of the run is gone, and this run is an older version's, which "
                        "kept no copy: the chat template of the export is not the one that it was trained "
                        "with.\n",
                        printable(chosen)));
  return std::nullopt;
}

// What the run knows of text: tokenizer, chat template and ends of answers. --eos-token of this command
// replaces the run's.
ExportOptions text_of(const Options& options, const std::string& checkpoint, Options& run,
                      const ModelConfig& config, std::FILE* out) {
  ExportOptions to;
  to.tokenizer_directory = tokenizer_of(checkpoint, run.model.model, out);
  to.chat_template = chat_template_of(run, to.tokenizer_directory, out);
  if (is_given(options, "eos-token")) run.text.end_token = options.text.end_token;
  if (run.text.end_token.empty()) return to;
  to.ends = open_text(run, to.tokenizer_directory, config).ends;
  to.special_tokens = config.special_tokens;
  return to;
}

// Throws Error(usage) if options do not suit the run: some are only for runs with adapters, some only for
// others.
void check_kind(const Options& options, bool adapts) {
  if (!adapts && (options.transfer.merge || !options.lora.base.empty()))
    throw Error(ExitCode::usage, "The run has no adapters: its checkpoints hold whole weights.",
                "Leave out --merge and --base.");
  if (adapts && !options.transfer.merge && options.transfer.shards > 1)
    throw Error(ExitCode::usage, "Adapters are one file, and --shards asks for several.",
                "Leave out --shards, or add --merge to export whole weights.");
}

// Whether the base is the text part of a larger model. A base that is gone counts as a model of text alone.
bool is_nested(const std::string& base) {
  std::error_code ignored;
  return fs::exists(fs::path(base) / "config.json", ignored) &&
         resolve_model({.model = base, .from_scratch = true}).config.nested;
}

struct Exporter {
  const Options& options;
  const CheckpointReader& checkpoint;
  const ModelSource& source;
  const Model& model;

  // `to`: what text_of() knows. Returns the type of the weights that were written.
  DType write(ExportOptions to) const {
    check_kind(options, has_adapters(model));
    to.dtype = options.transfer.dtype.value_or(checkpoint.state().precision);
    to.shards = static_cast<uint64_t>(options.transfer.shards);
    if (has_adapters(model) && !options.transfer.merge)
      write_adapters(to);
    else
      write_whole(to);
    return to.dtype;
  }

 private:
  // Writes fp32 unless --dtype is given: adapters were trained in fp32, and are small.
  void write_adapters(ExportOptions& to) const {
    to.adapters = true;
    to.dtype = options.transfer.dtype.value_or(DType::f32);
    const std::string& base =
        options.lora.base.empty() ? checkpoint.state().base->directory : options.lora.base;
    check_peft_reads(source.config.adapters, model);
    to.config_json = adapter_config_json(source.config.adapters, model, base);
    const bool nested = is_nested(base);
    std::vector<ExportTensor> tensors;
    std::vector<std::string> names;
    for (const Group& g : model.groups)
      for (const Parameter& p : g.parameters) {
        if (!g.adapter) continue;
        names.push_back(p.name);
        tensors.push_back({peft_name(*find_family(model.family), p.name, nested), p.shape});
      }
    write_hf_directory(options.transfer.to, tensors, to,
                       [&](size_t tensor, uint64_t first, uint64_t count, float* values) {
                         checkpoint.read_weights(names[tensor], first, count, values);
                       });
  }

  void write_whole(const ExportOptions& given) const {
    ExportOptions to = given;
    to.config_json = config_to_json(source.config, to.dtype);
    const std::vector<StoredTensor> stored = stored_tensors(*find_family(model.family), model);
    std::vector<ExportTensor> tensors;
    for (const StoredTensor& tensor : stored) tensors.push_back({tensor.name, tensor.shape});
    const auto of_checkpoint = [&](const std::string& name, uint64_t first, uint64_t count, float* values) {
      checkpoint.read_weights(name, first, count, values);
    };
    std::optional<HfWeights> base;
    std::optional<MergedWeights> merged;
    if (has_adapters(model)) {
      base = HfWeights::open(source.weights_directory, source.config.family,
                             {source.config.layers, source.config.experts});
      check_base(*base, model, *checkpoint.state().base);
      const auto of_base = [&](const std::string& name, uint64_t first, uint64_t count, float* values) {
        base->read(name, first, count, values);
      };
      merged.emplace(model, source.config.adapters, of_base, of_checkpoint);
    }
    const ReadPart read = [&](const TensorPart& part, uint64_t first, uint64_t count, float* values) {
      merged ? merged->read(part.parameter, part.shape, first, count, values)
             : of_checkpoint(part.parameter, first, count, values);
    };
    write_hf_directory(options.transfer.to, tensors, to,
                       [&](size_t tensor, uint64_t first, uint64_t count, float* values) {
                         read_stored(stored[tensor], first, count, read, values);
                       });
  }
};

}  // namespace

ExitCode run_export(Options options, std::FILE* out) {
  std::vector<std::string> notes;
  const std::optional<std::string> path = find_source(options.transfer, notes);
  if (!path) check_not_before_first(options.transfer.from);
  if (!path)
    throw Error(ExitCode::usage,
                "--from " + printable(options.transfer.from) + " is neither a checkpoint nor a run with one.",
                "Name a run directory or one of its checkpoints.");
  const CheckpointReader checkpoint = CheckpointReader::open(*path);
  Options run;
  adopt_manifest(run, checkpoint.state().options);
  adopt_kept_text(run, *path);
  run.lora.base = options.lora.base;
  const ModelSource source = source_of_run(checkpoint, run, options.transfer.merge);
  const Model model = build_model(source.config, checkpoint.state().precision, 1, 1);
  checkpoint.check_weights(model);
  const Exporter exporter{options, checkpoint, source, model};
  const DType dtype = exporter.write(text_of(options, *path, run, source.config, out));
  for (const std::string& note : notes) show(out, note + "\n");
  const char* what = !has_adapters(model)     ? ""
                     : options.transfer.merge ? "base and adapters of "
                                              : "adapters of ";
  show(out, fmt::format("Exported {}step {} of {} to {} ({}).\n", what, checkpoint.state().step,
                        printable(*path), printable(options.transfer.to), dtype_name(dtype)));
  return ExitCode::done;
}

}  // namespace sluice
