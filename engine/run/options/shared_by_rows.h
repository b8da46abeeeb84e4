// What rows of the option table share: ranges, verbs that take an option, and names that other tools have for
// it. Caller: options.cc.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "engine/rates/machine_rates.h"
#include "engine/run/options/options.h"
#include "models/families/adapters.h"
#include "models/families/config.h"
#include "offload/io/backends.h"

namespace sluice {

inline constexpr Range kCount = {
    1, 1e9};  // of sequences, steps, files to keep; more than anyone needs, and far below overflow
inline constexpr Range kCountOrZero = {0, 1e9};
inline constexpr Range kPositive = {0, 1e300, true, false};
inline constexpr Range kEpsilon = {1e-40, 1e30};  // values that fp32 can hold
inline constexpr Range kNotNegative = {0, 1e300};
inline constexpr Range kLossFactor = {0, 1e6};
inline constexpr Range kImbalance = {1, 1e6};
inline constexpr Range kTimeout = {0.1, 1e6};  // seconds
inline constexpr Range kNoNumber = {};
inline constexpr Range kTimes = {0, 0};  // only a time is allowed, no number of steps
inline constexpr Range kBeta = {0, 1, false, true};
inline constexpr Range kShardCount = {1, 10000}, kGpuCount = {1, 64}, kRankCount = {1, 65536},
                       kStages = {0, 3};
inline constexpr Range kUpTo1024 = {1, 1024};  // of threads, and of ranks of a machine
inline constexpr Range kProfileSteps = {
    4, 1000};  // two to warm up and two to compare, at least; memory holds the records of all

inline constexpr uint32_t kTrain = verb_bit(Verb::train);
inline constexpr uint32_t kPlan = verb_bit(Verb::plan);
inline constexpr uint32_t kEval = verb_bit(Verb::eval);
inline constexpr uint32_t kExport = verb_bit(Verb::export_run);
inline constexpr uint32_t kProfile = verb_bit(Verb::profile);
inline constexpr uint32_t kBench = verb_bit(Verb::bench);
inline constexpr uint32_t kCompletion = verb_bit(Verb::completion);
inline constexpr uint32_t kDoctor = verb_bit(Verb::doctor);
inline constexpr uint32_t kPrepare = verb_bit(Verb::prepare);
inline constexpr uint32_t kReport = verb_bit(Verb::report);
inline constexpr uint32_t kGenerate = verb_bit(Verb::generate);
inline constexpr uint32_t kRuns = kTrain | kPlan;
inline constexpr uint32_t kReadsText = kTrain | kEval | kPrepare;
inline constexpr uint32_t kHasTokenizer = kReadsText | kGenerate | kPlan;
inline constexpr uint32_t kLoads = kEval | kGenerate;
inline constexpr uint32_t kGenerates = kGenerate | kPlan;

// "uring (io_uring, ...), threads (...)"
inline std::string known_io_backends() {
  std::string words;
  for (const IoBackend* backend : kIoBackends)
    words += fmt::format("{}{} ({})", words.empty() ? "" : ", ", backend->name, backend->help);
  return words;
}

inline std::vector<std::string> auto_word() { return {"auto"}; }
inline std::vector<std::string> none_word() { return {"none"}; }
inline std::vector<std::string> all_linear_word() { return {"all-linear"}; }

constexpr OptionHints called(const char* elsewhere, uint32_t first_in = 0) {
  return {.elsewhere = elsewhere, .first_in = first_in};
}
inline constexpr OptionHints kModelHints = {
    .elsewhere = "model-name model-name-or-path base-model arch pretrained-model hf-model",
    .first_in = kRuns | kPrepare,
    .words = preset_names};
inline constexpr Range kAdapterRank = {0, static_cast<double>(kAdapterRankMax)};
inline constexpr OptionHints kLoraHints = {.elsewhere = "lora-r lora-rank lora-dim",
                                           .unlike = "lora-dropout",
                                           .difference = "Dropout is not applied: leave it out.",
                                           .first_in = kTrain};
inline constexpr OptionHints kMetricsHints = {
    .elsewhere = "log log-file metrics-file",
    .unlike = "logging-steps log-every log-interval log-freq",
    .difference = "Leave it out: every step is logged, in metrics.jsonl of --out."};
inline constexpr OptionHints kTensorboardHints = {
    .unlike = "report-to log-with logger wandb wandb-project",
    .difference = "Give --tensorboard; the same figures are in metrics.jsonl of --out."};
inline constexpr OptionHints kGroupHints = {.elsewhere = "param-groups parameter-groups lr-multipliers",
                                            .words = none_word};
inline constexpr OptionHints kTargetHints = {.elsewhere = "lora-target target-modules lora-target-modules",
                                             .words = all_linear_word};
inline constexpr OptionHints kMicroBatchHints = {
    .elsewhere = "micro-batch-size per-device-train-batch-size train-micro-batch-size-per-gpu",
    .unlike = "gradient-accumulation-steps grad-accum-steps accumulate-grad-batches accumulation-steps",
    .difference = "Give --micro-batch: a step has as many micro-batches as make up its --batch."};
inline constexpr OptionHints kSequenceHints = {
    .elsewhere =
        "seq-length seq-len sequence-length sequence-len max-seq-length max-seq-len cutoff-len max-length "
        "model-max-length block-size context-length",
    .first_in = kRuns};
inline constexpr OptionHints kStepsHints = {
    .elsewhere = "max-steps num-steps total-steps iters max-iters train-iters num-iterations",
    .first_in = kTrain};
inline constexpr OptionHints kWarmupHints = {
    .elsewhere = "warmup-steps warmup-iters num-warmup-steps lr-warmup-steps lr-warmup-iters",
    .unlike = "warmup-ratio lr-warmup-fraction",
    .difference = "Give --warmup, in steps or as a part of all, as in 3%."};
inline constexpr OptionHints kPrecisionHints = {
    .elsewhere = "dtype mixed-precision amp",
    .unlike = "fp16 bf16 fp32 half float16 bfloat16",
    .difference = "Give the data type as a value, as in --precision bf16."};
inline constexpr OptionHints kDataHints = {
    .elsewhere = "train-data train-file train-files dataset datasets data-path data-dir input-bin",
    .unlike = "interleave-probs mix-strategy data-weights dataset-weights train-data-path",
    .difference = "Give each file of --data its weight, as in --data a.jsonl=0.7 b.jsonl=0.3.",
    .first_in = kTrain | kPrepare};
inline constexpr OptionHints kValidationHints = {
    .elsewhere = "valid-data validation-data validation-file eval-data eval-file input-val-bin",
    .words = none_word};
inline constexpr OptionHints kNvmeHints = {
    .elsewhere = "nvme-path nvme-dirs offload-dir offload-folder swap-dir",
    .first_in = kRuns,
    .words = none_word};
inline constexpr OptionHints kMachineHints = {.first_in = kPlan, .words = built_in_machine_list};
inline constexpr OptionHints kAlgorithmsHints = {.words = none_word};
inline constexpr OptionHints kResumeHints = {.elsewhere = "resume-from resume-from-checkpoint load restore",
                                             .words = auto_word};

}  // namespace sluice
