// What options mean together: contradictions within a verb, and what a resumed run takes from its manifest.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/run/options/options.h"
#include "offload/stripes.h"

namespace sluice {
namespace {

// Every one of `names` must be given; the error lists all that are not.
void demand(const Options& options, const std::vector<const char*>& names, Verb verb) {
  std::vector<std::string> missing, arguments;
  for (const char* name : names) {
    if (is_given(options, name)) continue;
    missing.push_back(fmt::format("--{}", name));
    arguments.push_back(fmt::format("--{} {}", name, find_option(name)->value));
  }
  if (missing.empty()) return;
  throw Error(ExitCode::usage, fmt::format("`sluice {}` needs {}.", verb_name(verb), enumerated(missing)),
              fmt::format("Add {}{}, or see `sluice {} --help`.", fmt::join(arguments, " "),
                          verb == Verb::profile ? " after --" : "", verb_name(verb)));
}

// Refuses option `name` without option `needed`. `is_there`: `needed` has a value, perhaps from the run that
// goes on.
void check_needs(const Options& options, const char* name, const char* needed, bool is_there) {
  if (is_given(options, name) && !is_there)
    throw Error(ExitCode::usage, fmt::format("--{} needs --{}.", name, needed),
                fmt::format("Add --{}{}{}, or leave out --{}.", needed,
                            *find_option(needed)->value ? " " : "", find_option(needed)->value, name));
}

// Refuses option `name`, which only a run that validates has, unless this run `validates`.
void check_validates(const Options& options, const char* name, bool validates) {
  if (is_given(options, name) && !validates)
    throw Error(ExitCode::usage, fmt::format("--{} needs --val-data or --val-split.", name),
                fmt::format("Add --val-split 2%, or --val-data FILE..., or leave out --{}.", name));
}

void check_one_validation(const DataOptions& data) {
  if (!data.validation.empty() && data.val_split.percent > 0)
    throw Error(ExitCode::usage, "--val-data and --val-split exclude each other: a run validates on one set.",
                "Leave out one of them.");
}

void check_min_learning_rate(const Options& options) {
  const OptimizerOptions& o = options.optimizer;
  if (is_given(options, "min-lr") && o.schedule == Schedule::constant)
    throw Error(ExitCode::usage, "--min-lr has no effect with --lr-schedule constant.",
                "Leave out one of them, or give --lr-schedule cosine or linear.");
  if (!o.min_learning_rate || *o.min_learning_rate <= o.learning_rate) return;
  const bool is_of_run = is_given(options, "lr") && !is_given(options, "min-lr");
  throw Error(
      ExitCode::usage,
      fmt::format("--min-lr {}{} is above --lr {}.", *o.min_learning_rate,
                  is_of_run ? ", as the run had it," : "", o.learning_rate),
      is_of_run ? "Give a lower --min-lr, too." : "Lower --min-lr, or leave it out for a tenth of --lr.");
}

void check_batch(const BatchOptions& batch, int64_t ranks, bool is_of_run) {
  const int64_t micro_batch = batch.micro_batch.value_or(1), least = micro_batch * ranks;
  if (batch.batch % least == 0) return;
  const std::string of = ranks == 1         ? fmt::format("--micro-batch {}", micro_batch)
                         : micro_batch == 1 ? fmt::format("the {} ranks", ranks)
                                            : fmt::format("--micro-batch {} on {} ranks", micro_batch, ranks);
  const int64_t slices = std::max<int64_t>(1, (batch.batch + least / 2) / least);
  throw Error(ExitCode::usage, fmt::format("--batch {} is not a multiple of {}.", batch.batch, of),
              is_of_run ? fmt::format("A run that goes on keeps its batch: give a {} it.",
                                      micro_batch == 1 ? "number of ranks that divides"
                                      : ranks == 1     ? "--micro-batch that divides"
                                                       : "--micro-batch and ranks whose product divides")
                        : fmt::format("The nearest multiple is --batch {}.", slices * least));
}

// Refuses --epochs with --steps: each says how long the run is.
void check_length(const Options& options) {
  if (options.batch.epochs > 0 && is_given(options, "epochs") && is_given(options, "steps"))
    throw Error(ExitCode::usage, "--epochs and --steps exclude each other.",
                "Give --epochs for so many times all data, or --steps for so many batches.");
}

// The micro-batches of one rank in a step. Where --micro-batch is open, the sequences of one rank instead.
int64_t micro_batches_of(const Options& options, int64_t ranks) {
  return options.batch.batch / (options.batch.micro_batch.value_or(1) * ranks);
}

void check_waves(const Options& options, int64_t ranks) {
  const int64_t waves = options.batch.waves.value_or(1);
  const int64_t micro_batches = micro_batches_of(options, ranks);
  if (micro_batches % waves != 0)
    throw Error(ExitCode::usage,
                fmt::format("--waves {} does not divide the {} {} of a step.", waves, micro_batches,
                            options.batch.micro_batch ? "micro-batches" : "sequences"),
                "Give a number that does, or leave out --waves: then the planner chooses.");
  if (!waves_fit(options, ranks))
    throw Error(ExitCode::usage, "--waves above 1 does not work with --share-layers-until.",
                "Leave out one of them.");
}

void check_planned_ranks(const Options& options) {
  const RankOptions& ranks = options.ranks;
  if (!options.plan.sweep.starts_with("ranks="))
    check_needs(options, "ranks-per-node", "ranks", is_given(options, "ranks"));
  if (!is_given(options, "ranks")) return;
  if (is_given(options, "gpus"))
    throw Error(ExitCode::usage, "--gpus and --ranks exclude each other.",
                "Give --gpus for the ranks of one process, or --ranks for those of a launcher.");
  if (ranks.per_node > 0 && ranks.count % ranks.per_node != 0)
    throw Error(
        ExitCode::usage,
        fmt::format("--ranks {} is not a multiple of --ranks-per-node {}.", ranks.count, ranks.per_node),
        "Give every machine as many ranks.");
}

// Refuses --compress with fp16, since an overflow is found only after the gradient has been added to its
// rank's compression error; and with sharing that leaves no rank a whole gradient.
void check_compression(const Options& options) {
  check_needs(options, "compress-after", "compress", options.ranks.compression.rank > 0);
  if (options.ranks.compression.rank == 0) return;
  if (options.numbers.precision == DType::f16)
    throw Error(ExitCode::usage, "--compress does not work with --precision fp16.",
                "Use --precision bf16 or fp32.");
  if (std::max(options.ranks.count, options.ranks.gpus) > 1 && options.ranks.zero.value_or(0) > 1)
    throw Error(ExitCode::usage,
                fmt::format("--compress does not work with --zero {}, where no rank has a whole gradient.",
                            *options.ranks.zero),
                "Add --zero 0, or --zero 1, which shares the optimizer state.");
}

// `is_of_run`: the options are those of the run that goes on.
void check_lora(const Options& options, bool is_of_run) {
  const LoraOptions& lora = options.lora;
  const bool adapts = lora.rank > 0 || !lora.from.empty();
  for (const char* name : {"lora-targets", "lora-alpha", "rslora"})
    check_needs(options, name, "lora", adapts);
  if (!is_of_run && is_given(options, "base"))
    throw Error(ExitCode::usage, "--base is for runs with adapters that go on.",
                "Name the model with --model.");
  if (!adapts) return;
  const auto exclude = [](const char* other, const char* remedy) {
    throw Error(ExitCode::usage, fmt::format("--lora and --{} exclude each other.", other), remedy);
  };
  if (options.model.from_scratch)
    exclude("from-scratch", "Adapters change a model that has weights: leave out one of them.");
  if (options.ranks.share_layers_until > 0)
    exclude("share-layers-until", "Frozen layers cannot share weights: leave out one of them.");
}

// `plan` reads only the free space of directories: with --nvme-mem in bytes it needs no directory.
void check_nvme(const Options& options, Verb verb, bool resuming) {
  const bool elsewhere = verb == Verb::plan && options.memory.nvme.kind == Size::Kind::bytes;
  const std::vector<std::string>& directories = options.memory.nvme_directories;
  if (!elsewhere && !resuming) check_needs(options, "nvme-mem", "nvme-dir", !directories.empty());
  std::set<std::filesystem::path> seen;
  for (const std::string& directory : directories)
    if (!seen.insert((std::filesystem::path(directory) / "").lexically_normal()).second)
      throw Error(ExitCode::usage, fmt::format("--nvme-dir names {} twice.", printable(directory)),
                  "Name every directory once.");
  if (directories.size() > kStripeFilesMax)
    throw Error(ExitCode::usage, fmt::format("--nvme-dir names {} directories.", directories.size()),
                fmt::format("Name {} at most.", kStripeFilesMax));
}

void check_prompts(const Options& options) {
  const GenerateOptions& g = options.generate;
  const bool speaks = is_given(options, "prompt") || g.chat;
  if (speaks == !g.prompts.empty())
    throw Error(ExitCode::usage,
                "`sluice generate` takes one of --prompt, --chat and --prompts, or --chat with --prompt.",
                "Give one of them: --prompt TEXT, --chat, or --prompts FILE.");
  if (g.chat && is_given(options, "batch"))
    throw Error(ExitCode::usage, "--chat is one conversation: --batch has no effect on it.",
                "Leave out --batch.");
}

// Refuses combinations of --json, --text, --sweep, --explain and --why in which one would have no effect.
void check_printing(const Options& options) {
  const bool sweeps = !options.plan.sweep.empty();
  const auto exclude = [](const char* one, const char* other) {
    throw Error(ExitCode::usage, fmt::format("--{} and --{} exclude each other.", one, other),
                "Leave one of them out.");
  };
  if (options.print.json && options.print.text) exclude("json", "text");
  for (const char* other : {"sweep", "explain", "why", "gpus", "ranks"})
    if (options.generate.is_planned && is_given(options, other)) exclude("generate", other);
  if (sweeps && options.print.text) exclude("sweep", "text");
  if (sweeps && options.plan.explain) exclude("sweep", "explain");
  if (options.plan.explain && options.print.text) exclude("explain", "text");
  if (options.plan.why.empty()) return;
  if (sweeps) exclude("why", "sweep");
  if (options.plan.explain) exclude("why", "explain");
  if (options.print.text) exclude("why", "text");
  if (options.print.json) exclude("why", "json");
}

// Values as a user would write them.
std::string joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : " ") + printable(value);
  return text.empty() ? "none" : text;
}

// The row of a manifest's option; throws unless manifests hold that option.
const OptionRow& find_stored(const ManifestOption& stored) {
  const OptionRow* row = find_option(stored.name);
  if (row == nullptr || row->on_resume == OnResume::own)
    throw Error(ExitCode::malformed_file,
                fmt::format("The manifest holds an unknown option `{}`.", printable(stored.name)),
                "Resume with the version of Sluice that wrote the checkpoint.");
  return *row;
}

// The stored values, parsed and written again, so that they can be compared as text.
std::vector<std::string> stored_values(const OptionRow& row, const ManifestOption& stored) {
  Options scratch;
  try {
    set_option(scratch, row, stored.values);
  } catch (const Error& error) {
    throw Error(ExitCode::malformed_file, fmt::format("The manifest holds a bad value: {}", error.what()),
                "Resume from another checkpoint.");
  }
  return option_values(scratch, row);
}

// Throws unless every option that a manifest must hold is there once: an option that changes bits must not
// get its default instead.
void check_whole(const std::vector<ManifestOption>& manifest) {
  for (const ManifestOption& stored : manifest) find_stored(stored);
  for (const OptionRow& row : option_table()) {
    if (row.on_resume == OnResume::own) continue;
    const auto count = std::count_if(manifest.begin(), manifest.end(),
                                     [&](const ManifestOption& stored) { return stored.name == row.name; });
    if (count != 1 && !(count == 0 && (row.is_newer || row.on_resume == OnResume::kept)))
      throw Error(ExitCode::malformed_file,
                  fmt::format("The manifest holds option `{}` {} times.", row.name, count),
                  "Resume from another checkpoint.");
  }
}

void take_over(Options& options, const OptionRow& row, const std::vector<std::string>& values) {
  set_option(options, row, values);
  const OptionField field = row.field(options);
  if (Size* const* size = std::get_if<Size*>(&field)) (*size)->of_run = true;
}

bool is_auto(const std::vector<std::string>& values) {
  return values.size() == 1 && values.front() == "auto";
}

// --group-options for a layer cannot hold while the layer uses the weights of another one.
void check_group_options(const Options& options) {
  if (options.optimizer.of_groups.empty() || options.ranks.share_layers_until == 0) return;
  throw Error(ExitCode::usage, "--group-options and --share-layers-until exclude each other.",
              "Leave out one of them.");
}

}  // namespace

bool waves_fit(const Options& options, int64_t ranks) {
  const int64_t waves = options.batch.waves.value_or(1);
  return micro_batches_of(options, ranks) % waves == 0 &&
         (waves == 1 || options.ranks.share_layers_until == 0);
}

void check_options(const Options& options, Verb verb, ManifestUse manifest) {
  const bool resuming = manifest == ManifestUse::awaited;
  const bool trains = verb == Verb::train || verb == Verb::plan || verb == Verb::profile;
  std::vector<const char*> needed;
  if (trains && !resuming && options.model.model.empty()) needed.push_back("model");
  if (trains && verb != Verb::plan && !resuming && options.data.train.empty()) needed.push_back("data");
  if (verb == Verb::train || options.run.resume == "auto") needed.push_back("out");
  if (verb == Verb::prepare) needed.push_back("data");
  if (verb == Verb::eval) needed = {"from", "data"};
  if (verb == Verb::export_run) needed = {"from", "to"};
  if (verb == Verb::completion) needed = {"shell"};
  if (verb == Verb::generate) needed = {"from"};
  if (verb == Verb::report) needed = {"run"};
  demand(options, needed, verb);
  if (verb == Verb::train) check_length(options);
  if (trains && !resuming) {
    const bool validates = !options.data.validation.empty() || options.data.val_split.percent > 0;
    check_one_validation(options.data);
    check_validates(options, "val-every", validates);
    check_validates(options, "val-batches", validates);
    check_validates(options, "keep-best", validates || !options.run.keep_best);
    const bool samples = options.sample.every > 0;
    check_needs(options, "sample-every", "sample-prompts", !samples || !options.sample.prompts.empty());
    for (const char* name : {"sample-prompts", "sample-tokens", "sample-temperature"})
      check_needs(options, name, "sample-every", samples);
  }
  if (verb == Verb::bench)
    for (const char* name : {"batch", "seq", "micro-batch", "precision"})
      check_needs(options, name, "model", !options.model.model.empty());
  check_nvme(options, verb, resuming && !loads_weights(verb));
  if (verb == Verb::generate) return check_prompts(options);
  if (verb == Verb::plan) check_planned_ranks(options);
  if (!resuming) {  // a manifest may yet set one of two options that are compared
    check_batch(options.batch, std::max(options.ranks.count, options.ranks.gpus),
                trains && manifest == ManifestUse::applied);
    check_waves(options, std::max(options.ranks.count, options.ranks.gpus));
    check_min_learning_rate(options);
    if (trains) check_compression(options);
    if (trains) check_lora(options, manifest == ManifestUse::applied);
    if (trains) check_group_options(options);
  }
  check_printing(options);
}

std::vector<ManifestOption> manifest_options(const Options& options) {
  CHECK(options.batch.sequence && options.batch.micro_batch, "a manifest holds resolved values");
  std::vector<ManifestOption> out;
  for (const OptionRow& row : option_table()) {
    if (row.on_resume == OnResume::own) continue;
    ManifestOption option{row.name, option_values(options, row)};
    const bool may_lack = row.is_newer || row.on_resume == OnResume::kept;
    if (!may_lack || !option.values.empty()) out.push_back(std::move(option));
  }
  return out;
}

std::vector<std::string> apply_manifest(Options& options, const std::vector<ManifestOption>& manifest) {
  const Options defaults;
  std::vector<std::string> notes;
  std::string of_run;
  check_whole(manifest);
  for (const OptionRow& row : option_table()) {
    if (row.on_resume == OnResume::own) continue;
    const auto stored = std::find_if(manifest.begin(), manifest.end(),
                                     [&](const ManifestOption& option) { return option.name == row.name; });
    const bool is_stored = stored != manifest.end();
    const std::vector<std::string> now = option_values(options, row),
                                   by_default = option_values(defaults, row),
                                   then = is_stored ? stored_values(row, *stored) : by_default;
    const bool fixed = row.on_resume == OnResume::fixed;
    if (!is_given(options, row.name) || (fixed && is_auto(now))) {
      if (!is_stored) continue;
      take_over(options, row, stored->values);
      if (row.on_resume == OnResume::kept && then != by_default)
        of_run += fmt::format(" --{}{}{}", row.name, *row.value ? " " : "", *row.value ? joined(then) : "");
    } else if (now != then && !fixed) {
      if (is_stored || then.empty())  // a manifest of version 3 does not tell what the run had
        notes.push_back(fmt::format("--{} is now {}; it was {}.", row.name, joined(now), joined(then)));
    } else if (now != then) {
      throw Error(ExitCode::usage,
                  fmt::format("--{} {} differs from the run's own, which is {}.", row.name, joined(now),
                              joined(then)),
                  fmt::format("Leave out --{} to resume, or start a new run with another --out.", row.name));
    }
  }
  if (options.batch.epochs > 0 && is_given(options, "steps") && !is_given(options, "epochs")) {
    notes.push_back(fmt::format("--steps counts; the run had --epochs {}.", options.batch.epochs));
    options.batch.epochs = 0;
  }
  if (!of_run.empty()) notes.push_back("As the run had it:" + of_run);
  return notes;
}

void adopt_manifest(Options& options, const std::vector<ManifestOption>& manifest) {
  check_whole(manifest);
  for (const ManifestOption& stored : manifest) {
    const OptionRow& row = find_stored(stored);
    stored_values(row, stored);
    // --data-type goes with the run's --data.
    const bool of_own_data = stored.name == "data-type" && !is_given(options, "data");
    if ((row.on_resume != OnResume::kept || of_own_data) && !is_given(options, stored.name))
      set_option(options, row, stored.values);
  }
}

}  // namespace sluice
