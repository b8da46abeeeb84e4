#include "engine/run/options/options.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/rates/machine_rates.h"
#include "models/families/adapters.h"
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
constexpr Range kShardCount = {1, 10000}, kGpuCount = {1, 64}, kRankCount = {1, 65536}, kStages = {0, 3};
constexpr Range kUpTo1024 = {1, 1024};      // of threads, and of ranks of a machine
constexpr Range kProfileSteps = {4, 1000};  // two to warm up and two to compare; records are kept in memory

constexpr uint32_t kTrain = verb_bit(Verb::train);
constexpr uint32_t kPlan = verb_bit(Verb::plan);
constexpr uint32_t kEval = verb_bit(Verb::eval);
constexpr uint32_t kExport = verb_bit(Verb::export_run);
constexpr uint32_t kProfile = verb_bit(Verb::profile);
constexpr uint32_t kBench = verb_bit(Verb::bench);
constexpr uint32_t kCompletion = verb_bit(Verb::completion);
constexpr uint32_t kDoctor = verb_bit(Verb::doctor);
constexpr uint32_t kPrepare = verb_bit(Verb::prepare);
constexpr uint32_t kReport = verb_bit(Verb::report);
constexpr uint32_t kGenerate = verb_bit(Verb::generate);
constexpr uint32_t kRuns = kTrain | kPlan;
constexpr uint32_t kReadsText = kTrain | kEval | kPrepare;
constexpr uint32_t kHasTokenizer = kReadsText | kGenerate;
constexpr uint32_t kLoads = kEval | kGenerate;
constexpr uint32_t kGenerates = kGenerate | kPlan;

// "uring (io_uring, ...), threads (...)"
std::string known_io_backends() {
  std::string words;
  for (const IoBackend* backend : kIoBackends)
    words += fmt::format("{}{} ({})", words.empty() ? "" : ", ", backend->name, backend->help);
  return words;
}

std::vector<std::string> auto_word() { return {"auto"}; }
std::vector<std::string> none_word() { return {"none"}; }
std::vector<std::string> all_linear_word() { return {"all-linear"}; }

constexpr OptionHints called(const char* elsewhere, uint32_t first_in = 0) {
  return {.elsewhere = elsewhere, .first_in = first_in};
}
constexpr OptionHints kModelHints = {
    .elsewhere = "model-name model-name-or-path arch pretrained-model hf-model",
    .first_in = kRuns,
    .words = preset_names};
constexpr Range kAdapterRank = {0, static_cast<double>(kAdapterRankMax)};
constexpr OptionHints kTargetHints = {.elsewhere = "lora-target target-modules lora-target-modules",
                                      .words = all_linear_word};
constexpr OptionHints kMicroBatchHints = {
    .elsewhere = "micro-batch-size per-device-train-batch-size train-micro-batch-size-per-gpu",
    .unlike = "gradient-accumulation-steps grad-accum-steps accumulate-grad-batches accumulation-steps",
    .difference = "Give --micro-batch: a step has as many micro-batches as make up its --batch."};
constexpr OptionHints kStepsHints = {
    .elsewhere = "max-steps num-steps total-steps iters max-iters train-iters num-iterations",
    .first_in = kTrain};
constexpr OptionHints kWarmupHints = {
    .elsewhere = "warmup-steps warmup-iters num-warmup-steps lr-warmup-steps lr-warmup-iters",
    .unlike = "warmup-ratio lr-warmup-fraction",
    .difference = "Give --warmup, in steps or as a part of all, as in 3%."};
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
    {"from", "input and output", "PATH",
     "run directory, checkpoint, or (eval, generate) Hugging Face directory", "", kLoads | kExport,
     OnResume::own, FIELD(transfer.from)},
    {"to", "input and output", "DIR", "Hugging Face directory to write; must not exist yet, or be empty", "",
     kExport, OnResume::own, FIELD(transfer.to)},
    {"dtype", "input and output", "NAME", "bf16, fp16 or fp32", "the working precision", kExport,
     OnResume::own, FIELD(transfer.dtype)},
    {"shards", "input and output", "N",
     "number of files; if more than 1, each holds a part of the rows of every tensor, as PyTorch's "
     "distributed checkpoint reads them",
     "1", kExport, OnResume::own, FIELD(transfer.shards), kShardCount},
    {"merge", "input and output", "", "of a run with adapters: add them to the base, and write whole weights",
     "", kExport, OnResume::own, FIELD(transfer.merge)},

    {"prompt", "generate", "TEXT", "a text to go on with", "", kGenerate, OnResume::own,
     FIELD(generate.prompt), kNoNumber, nullptr, called("text input", kGenerate)},
    {"chat", "generate", "", "a conversation: each line of standard input is a message, each answer streams",
     "", kGenerate, OnResume::own, FIELD(generate.chat), kNoNumber, nullptr,
     called("interactive", kGenerate)},
    {"prompts", "generate", "FILE",
     "prompts, a line each: {\"prompt\": TEXT} or {\"messages\": [...]}; each answer is a line of JSON", "",
     kGenerate, OnResume::own, FIELD(generate.prompts), kNoNumber, nullptr,
     called("prompt-file input-file", kGenerate)},
    {"batch",
     "generate",
     "N",
     "prompts of --prompts that are answered at once",
     "8",
     kGenerate,
     OnResume::own,
     FIELD(batch.batch),
     {1, 4096},
     nullptr,
     called("batch-size bs")},
    {"max-tokens", "generate", "N", "tokens of an answer at most", "512", kGenerate, OnResume::own,
     FIELD(generate.max_tokens), kCount, nullptr, called("max-new-tokens n-predict max-length", kGenerate)},
    {"temperature",
     "generate",
     "X",
     "logits are divided by it before a token is drawn; 0: the most likely",
     "0",
     kGenerate,
     OnResume::own,
     FIELD(generate.temperature),
     {0, 1e6},
     nullptr,
     called("temp", kGenerate)},
    {"top-k", "generate", "N", "draw among the N most likely tokens; 0: all", "0", kGenerate, OnResume::own,
     FIELD(generate.top_k), kCountOrZero},
    {"top-p",
     "generate",
     "P",
     "draw among the fewest most likely tokens that have this probability together",
     "1",
     kGenerate,
     OnResume::own,
     FIELD(generate.top_p),
     {0, 1, true, false}},
    {"seed", "generate", "N", "seed of the draws", "0", kGenerate, OnResume::own, FIELD(numbers.seed),
     kNoNumber, nullptr, called("random-seed manual-seed")},
    {"max-context", "generate", "TOKENS",
     "tokens of a prompt and its answer at most: so many are cached for each", "the model's context, or 4096",
     kGenerates, OnResume::own, FIELD(generate.max_context), kCount, nullptr,
     called("max-model-len ctx-size n-ctx context-size")},
    {"prompt-chunk", "generate", "TOKENS|auto", "tokens of each prompt that are read at once",
     "auto: 512, divided by --batch", kGenerates, OnResume::own, FIELD(generate.prompt_chunk), kCount,
     nullptr, called("prefill-chunk ubatch-size")},
    {"generate", "plan", "", "plan to generate text, --batch prompts at once: how fast would it be?", "",
     kPlan, OnResume::own, FIELD(generate.is_planned)},

    {"steps", "profile", "N", "steps to run, 4 or more; the first two warm up and are not counted", "8",
     kProfile, OnResume::own, FIELD(profile.steps), kProfileSteps},
    {"out", "profile", "DIR", "directory for the report; must not exist yet, or be empty", "", kProfile,
     OnResume::own, FIELD(profile.out)},
    {"out", "output", "FILE", "machine description to write; must not exist yet", "machine.json", kBench,
     OnResume::own, FIELD(bench.out)},

    {"run", "report", "DIR...", "run directory; the name --run may be left out", "", kReport, OnResume::own,
     FIELD(report.runs)},
    {"out", "report", "FILE", "page to write; a report that is there is replaced", "report.html", kReport,
     OnResume::own, FIELD(report.out)},

    {"model", "model", "MODEL",
     "preset, preset with other sizes (gpt2:layers=6,width=384,heads=6,vocab=256,context=256; presets and "
     "sizes are listed by --help-all), config.json, or a Hugging Face directory, whose weights are the start "
     "if it "
     "has any",
     "", kRuns | kPrepare, OnResume::fixed, FIELD(model.model), kNoNumber, nullptr, kModelHints},
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

    {"lora", "lora", "RANK",
     "train adapters of this rank beside the linear ops of the layers, and nothing else; 0: all weights", "0",
     kRuns, OnResume::fixed, FIELD(lora.rank), kAdapterRank, nullptr,
     called("lora-r lora-rank lora-dim"), true},
    {"lora-targets", "lora", "NAME[,NAME...]",
     "linear ops that get adapters, by the end of their names, as q_proj,v_proj", "all-linear", kRuns,
     OnResume::fixed, FIELD(lora.targets), kNoNumber, nullptr, kTargetHints, true},
    {"lora-alpha",
     "lora",
     "X|auto",
     "adapters count alpha / rank times",
     "auto: the rank",
     kRuns,
     OnResume::fixed,
     FIELD(lora.alpha),
     kPositive,
     nullptr,
     {},
     true},
    {"rslora", "lora", "", "adapters count alpha / sqrt(rank) times", "", kRuns, OnResume::fixed,
     FIELD(lora.root_scale), kNoNumber, nullptr, called("use-rslora"), true},
    {"lora-from", "lora", "DIR", "start from the adapters of a PEFT directory, with its rank and targets", "",
     kRuns, OnResume::fixed, FIELD(lora.from), kNoNumber, nullptr,
     called("adapter adapter-name-or-path peft-model-id resume-from-adapter"), true},
    {"base", "lora", "DIR", "where the --model of a run with adapters is, if it has moved", "",
     kRuns | kLoads | kExport, OnResume::own, FIELD(lora.base), kNoNumber, nullptr, called("base-model")},

    {"data", "data", "FILE...",
     "chats or texts: .jsonl (messages, ShareGPT, Alpaca, prompt and completion, or text) or .txt, which the "
     "model's tokenizer reads; or tokens: .bin (nanoGPT uint16, llm.c shard). Without a tokenizer, bytes of "
     ".txt are tokens, and the vocabulary must be 256",
     "", kRuns | kEval | kPrepare, OnResume::replaced, FIELD(data.train), kNoNumber, nullptr,
     called("train-data train-file train-files dataset data-path data-dir input-bin", kTrain | kPrepare)},
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

    {"val-split", "data", "PART", "part of the samples that is held out to validate on, as in 2%", "0%",
     kTrain, OnResume::fixed, FIELD(data.val_split), kNoNumber, nullptr,
     called("val-set-size test-size val-size eval-split validation-split"), true},
    {"packing", "data", "HOW",
     "auto: several samples share a sequence, and attention stays within each; none: a sequence has one",
     "auto", kTrain | kEval, OnResume::fixed, FIELD(data.packing), kNoNumber, nullptr,
     called("sample-packing pack packed neat-packing"), true},
    {"long-samples", "data", "HOW",
     "samples longer than a sequence: cut at its end, divide into several, or refuse; auto divides texts and "
     "cuts conversations",
     "auto", kTrain | kEval, OnResume::fixed, FIELD(data.long_samples), kNoNumber, nullptr,
     called("truncation truncate"), true},

    {"tokenizer", "text", "DIR", "directory with a tokenizer.json or tokenizer.model", "the one of --model",
     kHasTokenizer, OnResume::replaced, FIELD(text.tokenizer), kNoNumber, nullptr,
     called("tokenizer-path tokenizer-name tokenizer-dir"), true},
    {"format", "text", "FORM",
     "what a line of .jsonl is: messages, sharegpt, alpaca, completion or text; auto: as its keys say",
     "auto", kReadsText, OnResume::fixed, FIELD(text.form), kNoNumber, nullptr,
     called("data-format dataset-format"), true},
    {"data-keys", "text", "NAME=KEY[,...]",
     "other names that the file has for keys (messages, role, content, prompt, ...) or roles (user, "
     "assistant, "
     "system, tool): messages=dialog,role=speaker,assistant=bot",
     "", kReadsText, OnResume::fixed, FIELD(text.keys), kNoNumber, nullptr, called("column-mapping"), true},
    {"separator",
     "text",
     "TEXT",
     "what stands between documents of a .txt file, as in '<|endoftext|>'; \\n is a line end",
     "none: a file is one document",
     kReadsText,
     OnResume::fixed,
     FIELD(text.separator),
     kNoNumber,
     nullptr,
     {},
     true},
    {"chat-template", "text", "FILE", "Jinja template for conversations", "the tokenizer's", kHasTokenizer,
     OnResume::replaced, FIELD(text.chat_template), kNoNumber, nullptr, called("chat-template-path"), true},
    {"template-values", "text", "NAME=JSON...", "variables of the chat template: enable_thinking=false", "",
     kHasTokenizer, OnResume::fixed, FIELD(text.template_values), kNoNumber, nullptr,
     called("chat-template-kwargs"), true},
    {"train-on", "text", "WHAT",
     "tokens to train in conversations: answers (those of the assistant, each with its end), last (the last "
     "answer alone), or all",
     "answers", kReadsText, OnResume::fixed, FIELD(text.train_on), kNoNumber, nullptr,
     called("train-on-inputs roles-to-train assistant-only-loss mask-prompt"), true},
    {"control-tokens",
     "text",
     "WHERE",
     "where control tokens such as <|im_end|> are recognised: template (only what the template writes; in "
     "users' "
     "text they are text), or anywhere, as transformers does",
     "template",
     kHasTokenizer,
     OnResume::fixed,
     FIELD(text.control_tokens),
     kNoNumber,
     nullptr,
     {},
     true},
    {"bad-records",
     "text",
     "HOW",
     "lines that are malformed: refuse the data, or skip (and count) them",
     "refuse",
     kReadsText,
     OnResume::fixed,
     FIELD(text.bad_records),
     kNoNumber,
     nullptr,
     {},
     true},
    {"cache", "text", "DIR", "where prepared data are kept, by their content", "~/.cache/sluice", kReadsText,
     OnResume::kept, FIELD(text.cache), kNoNumber, nullptr, called("cache-dir"), true},
    {"vocabulary", "text", "N",
     "rows of the model's embedding: a token beyond them is refused; 0: those of --model, if it is given",
     "0", kPrepare, OnResume::own, FIELD(text.vocabulary), kCountOrZero},
    {"show", "text", "N", "samples to print, with their trained parts marked", "0", kPrepare, OnResume::own,
     FIELD(text.show), kCountOrZero},

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
    {"epochs", "batch", "N", "train on all data N times, which sets --steps; 0: by --steps", "0", kTrain,
     OnResume::replaced, FIELD(batch.epochs), kCountOrZero, nullptr,
     called("num-epochs max-epochs num-train-epochs", kTrain), true},

    {"optimizer", "optimizer", "NAME", "adamw", "adamw", kRuns, OnResume::fixed, FIELD(optimizer.kind),
     kNoNumber, nullptr, called("optim")},
    {"lr", "optimizer", "X", "highest learning rate", "3e-4", kRuns, OnResume::replaced,
     FIELD(optimizer.learning_rate), kPositive, nullptr,
     called("learning-rate max-lr max-learning-rate peak-lr")},
    {"min-lr", "optimizer", "X",
     "learning rate to which --lr falls by the end of the run (reached one step after the last)",
     "a tenth of --lr", kRuns, OnResume::replaced, FIELD(optimizer.min_learning_rate), kNotNegative, nullptr,
     called("min-learning-rate final-lr")},
    {"warmup", "optimizer", "N|PART", "steps over which the learning rate rises, or their part of all, as 3%",
     "0", kRuns, OnResume::replaced, FIELD(optimizer.warmup), kCountOrZero, nullptr, kWarmupHints},
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
     kRuns | kLoads | kBench, OnResume::fixed, FIELD(numbers.precision), kNoNumber, nullptr, kPrecisionHints},
    {"seed", "numbers", "N", "seed of initial weights and data order", "0", kRuns, OnResume::fixed,
     FIELD(numbers.seed), kNoNumber, nullptr, called("random-seed manual-seed")},

    {"device", "memory", "NAME", "auto, cuda[:N], cpu, or reference (slow plain loops, to compare with)",
     "cuda where there is a GPU, else cpu", kRuns | kLoads | kDoctor | kBench, OnResume::fixed,
     FIELD(memory.device), kNoNumber, nullptr, called("accelerator gpu")},
    {"gpu-mem", "memory", "SIZE",
     "device memory, hard limit; on the cpu device, an arena in host memory that stands for it", "auto",
     kRuns | kLoads, OnResume::kept, FIELD(memory.gpu), kNoNumber, nullptr,
     called("gpu-memory gpu-mem-limit device-mem device-memory vram max-gpu-memory", kPlan)},
    {"host-mem", "memory", "SIZE", "memory of the process, hard limit", "auto", kRuns | kLoads | kBench,
     OnResume::kept, FIELD(memory.host), kNoNumber, nullptr,
     called("host-memory cpu-mem cpu-memory max-cpu-memory memory mem ram", kRuns)},
    {"nvme-mem", "memory", "SIZE",
     "space in --nvme-dir, hard limit, all directories together; plan also takes it without --nvme-dir, for "
     "the drives of another machine",
     "auto", kRuns | kLoads, OnResume::kept, FIELD(memory.nvme), kNoNumber, nullptr,
     called("nvme-memory disk-space disk-mem")},
    {"nvme-dir", "memory", "DIR[,DIR...]",
     "directory on a fast drive for what does not fit in memory; several, one on each drive, are used at "
     "once, with drive shares by the rates in the machine description",
     "none: no nvme tier", kRuns | kLoads | kDoctor | kBench, OnResume::kept, FIELD(memory.nvme_directories),
     kNoNumber, nullptr, kNvmeHints},
    {"threads", "memory", "N", "compute threads of a rank",
     "every core, divided among the ranks of a machine", kRuns | kLoads | kBench | kPrepare, OnResume::kept,
     FIELD(memory.threads), kUpTo1024, nullptr, called("num-threads cpus cores")},
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
    {"io", "memory", "NAME",
     "how drives are read and written: {}, or auto (the first of these that works here)", "auto",
     kRuns | kLoads | kBench, OnResume::kept, FIELD(memory.io), kNoNumber, known_io_backends},
    {"machine", "memory", "NAME|FILE",
     "machine description for predictions: a JSON file, or one of {}. If it has sizes, `plan` plans for "
     "that machine instead of this one (docs/machine.md)",
     "gpu-server on --device cuda, else cpu-2core", kRuns | kLoads, OnResume::kept, FIELD(memory.machine),
     kNoNumber, built_in_machine_names, kMachineHints},
    {"matmul-algorithms", "memory", "FILE",
     "machine description from `sluice bench --model`: matrix products are computed by the algorithms of "
     "cuBLASLt that it has timed. They change bits, so a run keeps them in its checkpoints, and goes on with "
     "others only where this option is given; none: what cuBLASLt proposes first",
     "what the run that goes on has, else none", kRuns | kLoads, OnResume::own,
     FIELD(memory.matmul_algorithms), kNoNumber, nullptr, kAlgorithmsHints},

    {"gpus", "ranks", "N",
     "ranks in this process, which share the training state: each has a GPU of its own, or on the cpu "
     "device a part of the cores; for several machines, mpirun starts the ranks",
     "1", kRuns, OnResume::kept, FIELD(ranks.gpus), kGpuCount, nullptr,
     called("num-gpus n-gpus ngpus nproc nproc-per-node")},
    {"ranks", "ranks", "N", "ranks of a launcher to plan for, instead of those of --gpus; none is started",
     "", kPlan, OnResume::own, FIELD(ranks.count), kRankCount, nullptr, called("world-size nprocs np")},
    {"ranks-per-node", "ranks", "N",
     "ranks that share a machine, its memory and its network; not given: as many as the machine description "
     "says, or all where it says nothing",
     "", kPlan, OnResume::own, FIELD(ranks.per_node), kUpTo1024},
    {"zero", "ranks", "STAGE|auto",
     "ZeRO stage: what ranks share, so that each holds a part: 0 nothing, 1 or 2 optimizer state, 3 weights "
     "too; auto: 3, or less where that fits and is predicted to save 5 % of a step",
     "3", kRuns, OnResume::kept, FIELD(ranks.zero), kStages, nullptr, called("zero-stage")},
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
    {"tensorboard", "run", "",
     "also write the metrics for TensorBoard: an event file in --out, and another at each --resume", "",
     kTrain, OnResume::kept, FIELD(run.tensorboard)},
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
    {"json", "print", "", "print the facts as one JSON object", "", kPlan | kEval | kDoctor | kPrepare,
     OnResume::own, FIELD(print.json)},
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

}  // namespace sluice
