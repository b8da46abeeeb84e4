#include "engine/run/options/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "engine/base/error.h"
#include "engine/rates/machine_rates.h"
#include "models/families/config.h"
#include "offload/io/backends.h"

namespace sluice {
namespace {

constexpr Range kCount = {1, 1e9};  // of sequences, steps, files to keep: far above use, far below overflow
constexpr Range kCountOrZero = {0, 1e9};
constexpr Range kPositive = {0, 1e300, true, false};
constexpr Range kEpsilon = {1e-40, 1e30};  // what fp32 holds
constexpr Range kNotNegative = {0, 1e300};
constexpr Range kTimeout = {0.1, 1e6};  // seconds
constexpr Range kNoNumber = {};
constexpr Range kTimes = {0, 0};  // no numbers of steps
constexpr Range kBeta = {0, 1, false, true};
constexpr Range kProfileSteps = {4, 1000};  // two to warm up and two to compare; records are kept in memory

constexpr uint32_t kTrain = verb_bit(Verb::train);
constexpr uint32_t kPlan = verb_bit(Verb::plan);
constexpr uint32_t kEval = verb_bit(Verb::eval);
constexpr uint32_t kExport = verb_bit(Verb::export_run);
constexpr uint32_t kProfile = verb_bit(Verb::profile);
constexpr uint32_t kBench = verb_bit(Verb::bench);
constexpr uint32_t kCompletion = verb_bit(Verb::completion);
constexpr uint32_t kDoctor = verb_bit(Verb::doctor);
constexpr uint32_t kRuns = kTrain | kPlan;

// "uring (io_uring, ...), threads (...)"
std::string known_io_backends() {
  std::string words;
  for (const IoBackend* backend : kIoBackends)
    words += fmt::format("{}{} ({})", words.empty() ? "" : ", ", backend->name, backend->help);
  return words;
}

std::vector<std::string> auto_word() { return {"auto"}; }
std::vector<std::string> none_word() { return {"none"}; }

constexpr OptionHints called(const char* elsewhere, uint32_t first_in = 0) {
  return {.elsewhere = elsewhere, .first_in = first_in};
}
constexpr OptionHints kModelHints = {
    .elsewhere = "model-name model-name-or-path arch pretrained-model hf-model",
    .first_in = kRuns,
    .words = preset_names};
constexpr OptionHints kMicroBatchHints = {
    .elsewhere = "micro-batch-size per-device-train-batch-size train-micro-batch-size-per-gpu",
    .unlike = "gradient-accumulation-steps grad-accum-steps accumulate-grad-batches accumulation-steps",
    .difference = "Give --micro-batch: a step has as many micro-batches as make up its --batch."};
constexpr OptionHints kStepsHints = {
    .elsewhere = "max-steps num-steps total-steps iters max-iters train-iters num-iterations",
    .unlike = "epochs num-epochs max-epochs num-train-epochs",
    .difference = "How many steps that would be is not known before the data are read: give --steps.",
    .first_in = kTrain};
constexpr OptionHints kWarmupHints = {
    .elsewhere = "warmup-steps warmup-iters num-warmup-steps lr-warmup-steps lr-warmup-iters",
    .unlike = "warmup-ratio lr-warmup-fraction",
    .difference = "Give --warmup, which counts steps."};
constexpr OptionHints kPrecisionHints = {
    .elsewhere = "dtype mixed-precision amp",
    .unlike = "fp16 bf16 fp32 half float16 bfloat16",
    .difference = "Give the data type as a value, as in --precision bf16."};
constexpr OptionHints kValidationHints = {
    .elsewhere = "valid-data validation-data validation-file eval-data eval-file input-val-bin",
    .words = none_word};
constexpr OptionHints kNvmeHints = {.elsewhere = "nvme-path nvme-dirs offload-dir offload-folder swap-dir",
                                    .first_in = kPlan,
                                    .words = none_word};
constexpr OptionHints kMachineHints = {.first_in = kPlan, .words = built_in_machine_list};
constexpr OptionHints kAlgorithmsHints = {.words = none_word};
constexpr OptionHints kResumeHints = {.elsewhere = "resume-from resume-from-checkpoint load restore",
                                      .words = auto_word};

#define FIELD(member) [](Options& o) -> OptionField { return &o.member; }
constexpr OptionRow kTable[] = {
    {"from", "input and output", "PATH", "run directory, checkpoint, or (eval) Hugging Face directory", "",
     kEval | kExport, OnResume::own, FIELD(transfer.from)},
    {"to", "input and output", "DIR", "Hugging Face directory to write; must not exist yet, or be empty", "",
     kExport, OnResume::own, FIELD(transfer.to)},
    {"dtype", "input and output", "NAME", "bf16, fp16 or fp32", "the working precision", kExport,
     OnResume::own, FIELD(transfer.dtype)},
    {"shards",
     "input and output",
     "N",
     "number of files; if more than 1, each holds a part of the rows of every tensor, as PyTorch's "
     "distributed checkpoint reads them",
     "1",
     kExport,
     OnResume::own,
     FIELD(transfer.shards),
     {1, 10000}},

    {"steps", "profile", "N", "steps to run, 4 or more; the first two warm up and are not counted", "8",
     kProfile, OnResume::own, FIELD(profile.steps), kProfileSteps},
    {"out", "profile", "DIR", "directory for the report; must not exist yet, or be empty", "", kProfile,
     OnResume::own, FIELD(profile.out)},
    {"out", "output", "FILE", "machine description to write; must not exist yet", "machine.json", kBench,
     OnResume::own, FIELD(bench.out)},

    {"model", "model", "MODEL",
     "preset, preset with other sizes (gpt2:layers=6,width=384,heads=6,vocab=256,context=256; presets and "
     "sizes are listed by --help-all), config.json, or a Hugging Face directory, whose weights are the start "
     "if it "
     "has any",
     "", kRuns, OnResume::fixed, FIELD(model.model), kNoNumber, nullptr, kModelHints},
    {"model",
     "model",
     "MODEL",
     "on a GPU, also time by which algorithms of cuBLASLt the matrix products of this model are fastest, for "
     "--matmul-algorithms of train; in one --micro-batch, or in all that auto weighs. A preset, with or "
     "without other sizes, config.json, or a Hugging Face directory",
     "",
     kBench,
     OnResume::own,
     FIELD(model.model),
     kNoNumber,
     nullptr,
     {.words = preset_names}},
    {"from-scratch", "model", "", "ignore the weights of a Hugging Face directory", "", kRuns,
     OnResume::fixed, FIELD(model.from_scratch)},

    {"data", "data", "FILE...",
     "tokens: .txt (bytes as tokens; the vocabulary must be 256) or .bin (nanoGPT uint16 "
     "or llm.c shard)",
     "", kRuns | kEval, OnResume::replaced, FIELD(data.train), kNoNumber, nullptr,
     called("train-data train-file train-files dataset data-path data-dir input-bin", kTrain)},
    {"data-type", "data", "TYPE",
     "what the files of --data and --val-data are: text, uint16 or uint32 (raw tokens), or auto (by name and "
     "header; what looks like something else is refused)",
     "auto", kRuns | kEval, OnResume::kept, FIELD(data.type)},
    {"val-data", "data", "FILE...", "tokens to validate on; none: not even where the run that goes on did",
     "none", kRuns, OnResume::kept, FIELD(data.validation), kNoNumber, nullptr, kValidationHints},
    {"val-every", "data", "N", "validate after every N steps; 0: after the last only", "0", kRuns,
     OnResume::kept, FIELD(data.val_every), kCountOrZero, nullptr,
     called("eval-every eval-interval eval-steps val-interval val-check-interval val-loss-every")},
    {"val-batches", "data", "N", "batches of one validation, always the first N", "20", kRuns | kEval,
     OnResume::kept, FIELD(data.val_batches), kCount, nullptr,
     called("eval-iters val-iters limit-val-batches val-max-steps")},
    {"order", "data", "ORDER",
     "order of sequences: shuffled (by --seed, in each epoch differently) or sequential", "shuffled", kRuns,
     OnResume::fixed, FIELD(data.order)},

    {"batch", "batch", "SEQUENCES", "sequences of one step, over all ranks", "8", kRuns | kEval | kBench,
     OnResume::fixed, FIELD(batch.batch), kCount, nullptr,
     called("batch-size bs global-batch-size train-batch-size total-batch-size", kRuns)},
    {"seq", "batch", "TOKENS", "tokens of one sequence", "the model's context", kRuns | kEval | kBench,
     OnResume::fixed, FIELD(batch.sequence), kCount, nullptr,
     called("seq-length seq-len sequence-length max-seq-length max-seq-len block-size context-length")},
    {"micro-batch", "batch", "N|auto", "sequences that run through a layer at once", "auto",
     kRuns | kEval | kBench, OnResume::fixed, FIELD(batch.micro_batch), kCount, nullptr, kMicroBatchHints},
    {"waves", "batch", "N|auto",
     "waves in which a step runs its micro-batches, one after the other: with one, each layer's weights are "
     "needed twice a step; with more, fewer activations are kept at a time; results are the same if "
     "--micro-batch is",
     "auto", kRuns, OnResume::kept, FIELD(batch.waves), kCount},
    {"steps", "batch", "N", "steps of the whole run", "1000", kRuns, OnResume::replaced, FIELD(batch.steps),
     kCountOrZero, nullptr, kStepsHints},

    {"optimizer", "optimizer", "NAME", "adamw", "adamw", kRuns, OnResume::fixed, FIELD(optimizer.kind),
     kNoNumber, nullptr, called("optim")},
    {"lr", "optimizer", "X", "highest learning rate", "3e-4", kRuns, OnResume::replaced,
     FIELD(optimizer.learning_rate), kPositive, nullptr,
     called("learning-rate max-lr max-learning-rate peak-lr")},
    {"min-lr", "optimizer", "X",
     "learning rate to which --lr falls by the end of the run (reached one step after the last)",
     "a tenth of --lr", kRuns, OnResume::replaced, FIELD(optimizer.min_learning_rate), kNotNegative, nullptr,
     called("min-learning-rate final-lr")},
    {"warmup", "optimizer", "N", "steps over which the learning rate rises", "0", kRuns, OnResume::replaced,
     FIELD(optimizer.warmup_steps), kCountOrZero, nullptr, kWarmupHints},
    {"lr-schedule", "optimizer", "NAME", "constant, cosine or linear", "cosine", kRuns, OnResume::replaced,
     FIELD(optimizer.schedule), kNoNumber, nullptr,
     called("lr-scheduler lr-scheduler-type scheduler schedule lr-decay-style")},
    {"weight-decay", "optimizer", "X", "weight decay of tensors with two or more dimensions", "0.1", kRuns,
     OnResume::fixed, FIELD(optimizer.weight_decay), kNotNegative, nullptr, called("wd decay")},
    {"beta1", "optimizer", "X", "decay of the first moment", "0.9", kRuns, OnResume::fixed,
     FIELD(optimizer.beta1), kBeta, nullptr, called("adam-beta1")},
    {"beta2", "optimizer", "X", "decay of the second moment", "0.95", kRuns, OnResume::fixed,
     FIELD(optimizer.beta2), kBeta, nullptr, called("adam-beta2")},
    {"eps", "optimizer", "X", "added to the square root of the second moment", "1e-8", kRuns, OnResume::fixed,
     FIELD(optimizer.epsilon), kEpsilon, nullptr, called("epsilon adam-eps adam-epsilon")},
    {"clip", "optimizer", "X",
     "gradients of a larger norm are scaled down to this norm; 0: off, the norm is still reported", "1",
     kRuns, OnResume::fixed, FIELD(optimizer.clip), kNotNegative, nullptr,
     called("grad-clip clip-grad clip-grad-norm max-grad-norm gradient-clipping gradient-clip-val")},

    {"precision", "numbers", "NAME",
     "data type of weights and activations: bf16, fp16 or fp32; master weights and moments are fp32", "bf16",
     kRuns | kEval | kBench, OnResume::fixed, FIELD(numbers.precision), kNoNumber, nullptr, kPrecisionHints},
    {"seed", "numbers", "N", "seed of initial weights and data order", "0", kRuns, OnResume::fixed,
     FIELD(numbers.seed), kNoNumber, nullptr, called("random-seed manual-seed")},

    {"device", "memory", "NAME", "auto, cuda[:N], cpu, or reference (slow plain loops, to compare with)",
     "cuda where there is a GPU, else cpu", kRuns | kEval | kDoctor | kBench, OnResume::fixed,
     FIELD(memory.device), kNoNumber, nullptr, called("accelerator gpu")},
    {"gpu-mem", "memory", "SIZE",
     "device memory, hard limit; on the cpu device, an arena in host memory that stands for it", "auto",
     kRuns | kEval, OnResume::kept, FIELD(memory.gpu), kNoNumber, nullptr,
     called("gpu-memory gpu-mem-limit device-mem device-memory vram max-gpu-memory", kPlan)},
    {"host-mem", "memory", "SIZE", "memory of the process, hard limit", "auto", kRuns | kEval | kBench,
     OnResume::kept, FIELD(memory.host), kNoNumber, nullptr,
     called("host-memory cpu-mem cpu-memory max-cpu-memory memory mem ram", kRuns)},
    {"nvme-mem", "memory", "SIZE",
     "space in --nvme-dir, hard limit, all directories together; plan also takes it without --nvme-dir, for "
     "the drives of another machine",
     "auto", kRuns | kEval, OnResume::kept, FIELD(memory.nvme), kNoNumber, nullptr,
     called("nvme-memory disk-space disk-mem")},
    {"nvme-dir", "memory", "DIR[,DIR...]",
     "directory on a fast drive for what does not fit in memory; several, one on each drive, are used at "
     "once, with drive shares by the rates in the machine description",
     "none: no nvme tier", kRuns | kEval | kDoctor | kBench, OnResume::kept, FIELD(memory.nvme_directories),
     kNoNumber, nullptr, kNvmeHints},
    {"threads",
     "memory",
     "N",
     "compute threads of a rank",
     "every core, divided among the ranks of a machine",
     kRuns | kEval | kBench,
     OnResume::kept,
     FIELD(memory.threads),
     {1, 1024},
     nullptr,
     called("num-threads cpus cores")},
    {"recompute", "memory", "LEVEL",
     "what is made again in backward instead of kept: none; cheap (what norms and activation functions "
     "write); products (also what matrix products write); all; or auto: the best for each layer; results are "
     "the same if --micro-batch is",
     "auto", kRuns, OnResume::kept, FIELD(memory.recompute), kNoNumber, nullptr,
     called("gradient-checkpointing activation-checkpointing recompute-granularity")},
    {"overlap", "memory", "WHEN",
     "whether updates run in backward, where 16-bit weights are made by a guess that the update will not be "
     "clipped, and repaired where it is: auto (if steps are shorter for it), always or never; results are "
     "the same",
     "auto", kRuns, OnResume::kept, FIELD(memory.overlap), kNoNumber, nullptr,
     called("overlap-optimizer optimizer-in-backward")},
    {"placement", "memory", "RULE",
     "where weights, gradients and optimizer state live: auto (where the step is shortest), lowest (in the "
     "lowest tier that can hold them), or in upper tiers as far as they fit, in one of three orders: highest "
     "(layer by layer), weights-first, state-first",
     "auto", kRuns, OnResume::kept, FIELD(memory.placement), kNoNumber, nullptr,
     called("offload device-map")},
    {"io",
     "memory",
     "NAME",
     "how drives are read and written: {}, or auto (the first of these that works here)",
     "auto",
     kRuns | kEval | kBench,
     OnResume::kept,
     FIELD(memory.io),
     {},
     known_io_backends},
    {"machine", "memory", "NAME|FILE",
     "machine description for predictions: a JSON file, or one of {}. If it has sizes, `plan` plans for "
     "that machine instead of this one (docs/machine.md)",
     "gpu-server on --device cuda, else cpu-2core", kRuns | kEval, OnResume::kept, FIELD(memory.machine),
     kNoNumber, built_in_machine_names, kMachineHints},
    {"matmul-algorithms", "memory", "FILE",
     "machine description from `sluice bench --model`: matrix products are computed by the algorithms of "
     "cuBLASLt that it has timed. They change bits, so a run keeps them in its checkpoints, and goes on with "
     "others only where this option is given; none: what cuBLASLt proposes first",
     "what the run that goes on has, else none", kRuns | kEval, OnResume::own,
     FIELD(memory.matmul_algorithms), kNoNumber, nullptr, kAlgorithmsHints},

    {"gpus",
     "ranks",
     "N",
     "ranks in this process, which share the training state: each has a GPU of its own, or on the cpu "
     "device a part of the cores; for several machines, mpirun starts the ranks",
     "1",
     kRuns,
     OnResume::kept,
     FIELD(ranks.gpus),
     {1, 64},
     nullptr,
     called("num-gpus n-gpus ngpus nproc nproc-per-node")},
    {"ranks",
     "ranks",
     "N",
     "ranks of a launcher to plan for, instead of those of --gpus; none is started",
     "",
     kPlan,
     OnResume::own,
     FIELD(ranks.count),
     {1, 65536},
     nullptr,
     called("world-size nprocs np")},
    {"ranks-per-node",
     "ranks",
     "N",
     "ranks that share a machine, its memory and its network; not given: as many as the machine description "
     "says, or all where it says nothing",
     "",
     kPlan,
     OnResume::own,
     FIELD(ranks.per_node),
     {1, 1024}},
    {"zero",
     "ranks",
     "STAGE|auto",
     "ZeRO stage: what ranks share, so that each holds a part: 0 nothing, 1 or 2 optimizer state, 3 weights "
     "too; auto: 3, or less where that fits and is predicted to save 5 % of a step",
     "3",
     kRuns,
     OnResume::kept,
     FIELD(ranks.zero),
     {0, 3},
     nullptr,
     called("zero-stage")},
    {"shard-weights", "ranks", "AMONG",
     "at --zero 3, the ranks that share weights: all, or node (those of one machine, or a power of two of "
     "them; each holds more and sends less over the network); auto: all, or node where that fits and is "
     "predicted to save 5 % of a step",
     "auto", kRuns, OnResume::kept, FIELD(ranks.shard_weights)},
    {"compress", "ranks", "METHOD",
     "how ranks send gradients at --zero 0 or 1: none (whole), or powersgd:RANK (as factors of low rank, for "
     "slow networks; RANK is 1 to 64; not with fp16)",
     "none", kRuns, OnResume::fixed, FIELD(ranks.compression)},
    {"compress-after", "ranks", "STEPS", "steps whose gradients are sent whole before --compress begins",
     "100", kRuns, OnResume::fixed, FIELD(ranks.compress_after), kCountOrZero},
    {"share-layers-until", "ranks", "STEPS",
     "steps in which all layers of the same shape share the weights of the first, so that ranks send them "
     "once; then each layer goes on with a copy",
     "0", kRuns, OnResume::fixed, FIELD(ranks.share_layers_until), kCountOrZero},
    {"rank-timeout", "ranks", "SECONDS|auto",
     "a run of several ranks ends (exit code 7) when one has not answered the others for so long; a value "
     "below the time of a step or of writing a checkpoint ends runs that are only slow",
     "auto: ten predicted steps and the time to write a rank's share of a checkpoint at 100 MB/s, at least "
     "60",
     kTrain, OnResume::kept, FIELD(ranks.timeout), kTimeout, nullptr, called("timeout ddp-timeout")},

    {"out", "run", "DIR", "run directory: checkpoints and metrics", "", kRuns, OnResume::own, FIELD(run.out),
     kNoNumber, nullptr, called("output output-dir out-dir save save-dir checkpoint-dir", kTrain)},
    {"metrics", "run", "FILE", "file for one line of JSON a step; new or empty, except with --resume",
     "metrics.jsonl in --out", kRuns, OnResume::kept, FIELD(run.metrics), kNoNumber, nullptr,
     called("log log-file metrics-file")},
    {"resume", "run", "DIR|auto",
     "checkpoint to go on from: its path, or auto (the newest complete one in --out; a fresh start if there "
     "is none)",
     "", kRuns, OnResume::own, FIELD(run.resume), kNoNumber, nullptr, kResumeHints},
    {"checkpoint-every", "run", "N|TIME",
     "steps between checkpoints, or the time between them, as 90s, 10m or 1h30m; 0: at the end only", "0",
     kRuns, OnResume::kept, FIELD(run.checkpoint_every), kCountOrZero, nullptr,
     called("save-every save-steps save-interval checkpoint-interval ckpt-interval")},
    {"keep", "run", "N", "how many of the newest checkpoints stay", "2", kRuns, OnResume::kept,
     FIELD(run.keep), kCount, nullptr, called("save-total-limit keep-last max-checkpoints")},
    {"stop-within", "run", "TIME",
     "the longest time that a stop may be predicted to take, as 100s or 5m: from a signal to the end of its "
     "checkpoint; a plan that needs longer is refused",
     "as long as it takes", kRuns, OnResume::kept, FIELD(run.stop_within), kTimes},
    {"config", "run", "FILE", "options as `name = value` lines (TOML); the command line wins", "", kRuns,
     OnResume::own, FIELD(run.config), kNoNumber, nullptr, called("config-file")},

    {"shell", "shell", "bash|zsh|fish", "shell to print for: bash, zsh or fish; the name alone will do", "",
     kCompletion, OnResume::own, FIELD(completion.shell)},
    {"json", "print", "", "print the facts as one JSON object", "", kPlan | kEval | kDoctor, OnResume::own,
     FIELD(print.json)},
    {"text", "print", "", "print the program itself in its text form", "", kPlan, OnResume::own,
     FIELD(print.text)},
    {"sweep", "plan", "QUANTITY=FROM:TO",
     "plan for a range of host-mem, gpu-mem, nvme-mem, nvme-bandwidth, batch or ranks: a table and a curve "
     "of predicted seconds, with the values beyond which more brings little",
     "", kPlan, OnResume::own, FIELD(plan.sweep)},
    {"explain", "plan", "", "explain where each class of buffers lives and why, and what else was weighed",
     "", kPlan, OnResume::own, FIELD(plan.explain)},
    {"no-advice", "plan", "", "do not try which other budgets and batches would be faster", "", kPlan,
     OnResume::own, FIELD(plan.no_advice)},
    {"why", "plan", "NAME",
     "explain where a buffer (w.h.0) or a layer (h.0) lives and why, and for each of its transfers in a "
     "step when it runs, which task needs it, and what keeps it from running earlier",
     "", kPlan, OnResume::own, FIELD(plan.why)},
};
#undef FIELD

}  // namespace

std::span<const OptionRow> option_table() { return kTable; }

std::string option_help(const OptionRow& row) {
  std::string help = row.help;
  if (row.known) help.replace(help.find("{}"), 2, row.known());
  return help;
}

const OptionRow* find_option(const std::string& name, Verb verb) {
  const OptionRow* first = nullptr;
  for (const OptionRow& row : kTable) {
    if (name != row.name) continue;
    if (row.verbs & verb_bit(verb)) return &row;
    if (!first) first = &row;
  }
  return first;
}

NamedElsewhere find_elsewhere(const std::string& name, Verb verb) {
  std::string wanted = name;
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  const auto has = [&](const char* names) {
    std::istringstream words(names);
    const std::istream_iterator<std::string> begin(words), end;
    return std::find(begin, end, wanted) != end;
  };
  for (const OptionRow& row : kTable) {
    if (!(row.verbs & verb_bit(verb))) continue;
    if (has(row.hints.elsewhere)) return {&row, false};
    if (has(row.hints.unlike)) return {&row, true};
  }
  return {};
}

bool is_given(const Options& options, const std::string& name) {
  CHECK(find_option(name) != nullptr, name);
  return std::find(options.given.begin(), options.given.end(), name) != options.given.end();
}

}  // namespace sluice
