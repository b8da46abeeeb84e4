#include "engine/run/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "engine/error.h"

namespace sluice {
namespace {

constexpr Range kCount = {1, 1e9};  // of sequences, steps, files to keep: far above use, far below overflow
constexpr Range kCountOrZero = {0, 1e9};
constexpr Range kPositive = {0, 1e300, true, false};
constexpr Range kNotNegative = {0, 1e300};
constexpr Range kTimeout = {0.1, 1e6};  // seconds
constexpr Range kBeta = {0, 1, false, true};
constexpr Range kProfileSteps = {4, 1000};  // two to warm up and two to compare; records are kept in memory

constexpr uint8_t kTrain = verb_bit(Verb::train);
constexpr uint8_t kPlan = verb_bit(Verb::plan);
constexpr uint8_t kEval = verb_bit(Verb::eval);
constexpr uint8_t kExport = verb_bit(Verb::export_run);
constexpr uint8_t kProfile = verb_bit(Verb::profile);
constexpr uint8_t kBench = verb_bit(Verb::bench);
constexpr uint8_t kDoctor = verb_bit(Verb::doctor);
constexpr uint8_t kRuns = kTrain | kPlan;

#define FIELD(member) [](Options& o) -> OptionField { return &o.member; }
constexpr OptionRow kTable[] = {
    {"from", "input and output", "PATH", "run directory, checkpoint, or (eval) Hugging Face directory", "",
     kEval | kExport, OnResume::free, FIELD(transfer.from)},
    {"to", "input and output", "DIR", "Hugging Face directory to write; must not exist yet, or be empty", "",
     kExport, OnResume::free, FIELD(transfer.to)},
    {"dtype", "input and output", "NAME", "bf16, fp16 or fp32", "the working precision", kExport,
     OnResume::free, FIELD(transfer.dtype)},
    {"shards",
     "input and output",
     "N",
     "above 1: the rows of each tensor in N files, as PyTorch's distributed checkpoint reads them",
     "1",
     kExport,
     OnResume::free,
     FIELD(transfer.shards),
     {1, 10000}},

    {"steps", "profile", "N", "steps to run, 4 or more; the first two warm up and are not counted", "8",
     kProfile, OnResume::free, FIELD(profile.steps), kProfileSteps},
    {"out", "profile", "DIR", "directory for the report; must not exist yet, or be empty", "", kProfile,
     OnResume::free, FIELD(profile.out)},
    {"out", "output", "FILE", "machine description to write; must not exist yet", "machine.json", kBench,
     OnResume::free, FIELD(bench.out)},

    {"model", "model", "MODEL",
     "preset (gpt2, gpt2-medium, -large, -xl, llama-1b, -3b, -7b, -8b, -13b, -70b), one with other sizes "
     "(gpt2:layers=6,width=384,heads=6,vocab=256,context=256; llama: also kv_heads, ffn), config.json, or a "
     "Hugging Face directory, whose weights are the start if it has any",
     "", kRuns, OnResume::fixed, FIELD(model.model)},
    {"from-scratch", "model", "", "ignore the weights of a directory", "", kRuns, OnResume::fixed,
     FIELD(model.from_scratch)},

    {"data", "data", "FILE...",
     "tokens: .txt (bytes as tokens; the vocabulary must be 256) or .bin (nanoGPT uint16 "
     "or llm.c shard)",
     "", kRuns | kEval, OnResume::replaced, FIELD(data.train)},
    {"val-data", "data", "FILE...", "tokens to validate on", "none", kRuns, OnResume::free,
     FIELD(data.validation)},
    {"val-every", "data", "N", "validate after every N steps; 0: after the last only", "0", kRuns,
     OnResume::free, FIELD(data.val_every), kCountOrZero},
    {"val-batches", "data", "N", "batches of one validation, always the first N", "20", kRuns | kEval,
     OnResume::free, FIELD(data.val_batches), kCount},
    {"order", "data", "ORDER", "shuffled (by --seed, every epoch anew) or sequential", "shuffled", kRuns,
     OnResume::fixed, FIELD(data.order)},

    {"batch", "batch", "SEQUENCES", "sequences of one step, over all ranks", "8", kRuns | kEval,
     OnResume::fixed, FIELD(batch.batch), kCount},
    {"seq", "batch", "TOKENS", "tokens of one sequence", "the model's context", kRuns | kEval,
     OnResume::fixed, FIELD(batch.sequence), kCount},
    {"micro-batch", "batch", "N|auto", "sequences that run through a layer at once", "auto", kRuns | kEval,
     OnResume::fixed, FIELD(batch.micro_batch), kCount},
    {"steps", "batch", "N", "updates of the whole run", "1000", kRuns, OnResume::replaced, FIELD(batch.steps),
     kCountOrZero},

    {"optimizer", "optimizer", "NAME", "adamw", "adamw", kRuns, OnResume::fixed,
     FIELD(optimizer.kind)},
    {"lr", "optimizer", "X", "highest learning rate", "3e-4", kRuns, OnResume::replaced,
     FIELD(optimizer.learning_rate), kPositive},
    {"min-lr", "optimizer", "X", "learning rate at the end", "a tenth of --lr", kRuns, OnResume::replaced,
     FIELD(optimizer.min_learning_rate), kNotNegative},
    {"warmup", "optimizer", "N", "steps over which the learning rate rises", "0", kRuns, OnResume::replaced,
     FIELD(optimizer.warmup_steps), kCountOrZero},
    {"lr-schedule", "optimizer", "NAME", "constant, cosine or linear", "cosine", kRuns, OnResume::replaced,
     FIELD(optimizer.schedule)},
    {"weight-decay", "optimizer", "X", "of tensors with two or more dimensions", "0.1", kRuns,
     OnResume::fixed, FIELD(optimizer.weight_decay), kNotNegative},
    {"beta1", "optimizer", "X", "decay of the first moment", "0.9", kRuns, OnResume::fixed,
     FIELD(optimizer.beta1), kBeta},
    {"beta2", "optimizer", "X", "decay of the second moment", "0.95", kRuns, OnResume::fixed,
     FIELD(optimizer.beta2), kBeta},
    {"eps", "optimizer", "X", "added to the root of the second moment", "1e-8", kRuns, OnResume::fixed,
     FIELD(optimizer.epsilon), kPositive},
    {"clip", "optimizer", "X", "largest gradient norm; 0: off, the norm is still reported", "1", kRuns,
     OnResume::fixed, FIELD(optimizer.clip), kNotNegative},

    {"precision", "numbers", "NAME",
     "bf16, fp16 or fp32, of weights and activations; masters and moments are fp32", "bf16", kRuns | kEval,
     OnResume::fixed, FIELD(numbers.precision)},
    {"seed", "numbers", "N", "of initial weights and data order", "0", kRuns, OnResume::fixed,
     FIELD(numbers.seed)},

    {"device", "memory", "NAME", "auto, cuda[:N], cpu, or reference (slow plain loops, to compare with)",
     "cuda where there is a GPU, else cpu", kRuns | kEval | kDoctor | kBench, OnResume::fixed,
     FIELD(memory.device)},
    {"gpu-mem", "memory", "SIZE", "device memory; on the cpu device, a separate arena that stands for one",
     "auto", kRuns | kEval, OnResume::free, FIELD(memory.gpu)},
    {"host-mem", "memory", "SIZE", "memory of the process, hard limit", "auto", kRuns | kEval | kBench,
     OnResume::free, FIELD(memory.host)},
    {"nvme-mem", "memory", "SIZE",
     "scratch space in --nvme-dir, of all directories together; plan takes it without --nvme-dir too, for "
     "the drives of another machine",
     "auto", kRuns | kEval, OnResume::free, FIELD(memory.nvme)},
    {"nvme-dir", "memory", "DIR[,DIR...]",
     "directory on a fast disk for what does not fit in memory; several, one on each disk, are used at once, "
     "each for its part by the rates in the machine description",
     "none: no disk tier", kRuns | kEval | kDoctor | kBench, OnResume::free, FIELD(memory.nvme_directories)},
    {"threads",
     "memory",
     "N",
     "compute threads of a rank",
     "every core, divided among the ranks of a machine",
     kRuns | kEval | kBench,
     OnResume::free,
     FIELD(memory.threads),
     {1, 1024}},
    {"recompute", "memory", "WHICH", "layers whose forward runs again in backward: auto, all or none", "auto",
     kRuns, OnResume::free, FIELD(memory.recompute)},
    {"placement", "memory", "RULE",
     "where weights, gradients and optimizer state live: auto (where the step is shortest), as low as they "
     "can (lowest), or in upper tiers as far as they fit: highest (layer by layer), weights-first, "
     "state-first",
     "auto", kRuns, OnResume::free, FIELD(memory.placement)},
    {"io", "memory", "NAME", "how disks are read and written: uring, threads, or auto (uring where it works)",
     "auto", kRuns | kEval | kBench, OnResume::free, FIELD(memory.io)},
    {"machine", "memory", "NAME|FILE",
     "machine description that the simulator reads: a JSON file, or a100-40gb, a100-80gb, a100-cluster, "
     "cpu-2core, gpu-server, h100, h100-cluster, h200, rtx-4090, rtx-4090-4nvme or v100-dgx2. `plan` plans "
     "for that machine, if its description has sizes (docs/machine.md)",
     "gpu-server on --device cuda, else cpu-2core", kRuns | kEval, OnResume::free, FIELD(memory.machine)},

    {"gpus",
     "ranks",
     "N",
     "ranks in this process, which share the training state: one on each GPU, or on the cpu device with a "
     "part of the cores each; for several machines, mpirun starts the ranks",
     "1",
     kRuns,
     OnResume::free,
     FIELD(ranks.gpus),
     {1, 64}},
    {"ranks",
     "ranks",
     "N",
     "plan for so many ranks of a launcher, of which none is started; else for those of --gpus",
     "",
     kPlan,
     OnResume::free,
     FIELD(ranks.count),
     {1, 65536}},
    {"ranks-per-node",
     "ranks",
     "N",
     "of them share a machine, its memory and its network; else as many as the machine description says, or "
     "all where it says nothing",
     "",
     kPlan,
     OnResume::free,
     FIELD(ranks.per_node),
     {1, 1024}},
    {"zero",
     "ranks",
     "STAGE|auto",
     "what ranks share, each holding its part: 0 nothing, 1 or 2 optimizer state, 3 weights too; auto: 3, or "
     "less where that fits and is predicted to save 5 % of a step",
     "3",
     kRuns,
     OnResume::free,
     FIELD(ranks.zero),
     {0, 3}},
    {"shard-weights", "ranks", "AMONG",
     "at --zero 3, ranks that share the weights: all; node, those of a machine, or a power of two of them, "
     "which hold more and send less over the network; auto: all, or node where that fits and is predicted to "
     "save 5 % of a step",
     "auto", kRuns, OnResume::free, FIELD(ranks.shard_weights)},
    {"compress", "ranks", "METHOD",
     "how gradients travel between ranks at --zero 0 or 1: none (whole), or powersgd:RANK (as factors of low "
     "rank, for slow networks; RANK 1 to 64; not with fp16)",
     "none", kRuns, OnResume::fixed, FIELD(ranks.compression)},
    {"compress-after", "ranks", "STEPS", "steps whose gradients travel whole before --compress begins", "100",
     kRuns, OnResume::fixed, FIELD(ranks.compress_after), kCountOrZero},
    {"share-layers-until", "ranks", "STEPS",
     "steps in which all layers alike share the weights of the first, so that ranks send them once; then "
     "each goes on with a copy",
     "0", kRuns, OnResume::fixed, FIELD(ranks.share_layers_until), kCountOrZero},
    {"rank-timeout", "ranks", "SECONDS|auto",
     "a run of several ranks ends (exit code 7) when one has not answered the others for so long; shorter "
     "than a step or a checkpoint's writing, it ends runs that are only slow",
     "auto: ten predicted steps and a checkpoint's share at 100 MB/s, at least 60", kTrain, OnResume::free,
     FIELD(ranks.timeout), kTimeout},

    {"out", "run", "DIR", "run directory: checkpoints and metrics", "", kRuns, OnResume::free,
     FIELD(run.out)},
    {"metrics", "run", "FILE", "one JSON object a step; new, but for --resume", "metrics.jsonl in --out",
     kRuns, OnResume::free, FIELD(run.metrics)},
    {"resume", "run", "WHAT",
     "auto (newest complete checkpoint in --out, a fresh start if there is none) or a "
     "checkpoint",
     "", kRuns, OnResume::free, FIELD(run.resume)},
    {"checkpoint-every", "run", "N", "steps between checkpoints; 0: at the end only", "0", kRuns,
     OnResume::free, FIELD(run.checkpoint_every), kCountOrZero},
    {"keep", "run", "N", "newest checkpoints that stay", "2", kRuns, OnResume::free, FIELD(run.keep), kCount},
    {"config", "run", "FILE", "options as `name = value` lines (TOML); the command line wins", "", kRuns,
     OnResume::free, FIELD(run.config)},

    {"json", "print", "", "print the facts as one JSON object", "", kPlan | kEval | kDoctor,
     OnResume::free, FIELD(print.json)},
    {"text", "print", "", "print the program itself in its text form", "", kPlan, OnResume::free,
     FIELD(print.text)},
    {"sweep", "plan", "QUANTITY=FROM:TO",
     "plan for a range of host-mem, gpu-mem, nvme-mem, nvme-bandwidth, batch or ranks: a table and a curve "
     "of what a step would take, with the values beyond which more brings little",
     "", kPlan, OnResume::free, FIELD(plan.sweep)},
    {"explain", "plan", "",
     "say of every class of buffers why it lives where it lives, and what else was weighed", "",
     kPlan, OnResume::free, FIELD(plan.explain)},
};
#undef FIELD

template <class Enum>
struct Choice {
  const char* name;
  Enum value;
};

// The words of an enum, in the order in which messages list them.
constexpr Choice<DType> kPrecisions[] = {{"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}};
constexpr Choice<RowOrder> kOrders[] = {{"shuffled", RowOrder::shuffled},
                                         {"sequential", RowOrder::sequential}};
constexpr Choice<OptimizerKind> kOptimizers[] = {{"adamw", OptimizerKind::adamw}};
constexpr Choice<Schedule> kSchedules[] = {
    {"constant", Schedule::constant}, {"cosine", Schedule::cosine}, {"linear", Schedule::linear}};
constexpr Choice<DeviceKind> kDevices[] = {{"auto", DeviceKind::automatic},
                                           {"cuda", DeviceKind::cuda},
                                           {"cpu", DeviceKind::cpu},
                                           {"reference", DeviceKind::reference}};
constexpr int kOrdinalMax = 63;  // of a GPU
constexpr Choice<Recompute> kRecomputes[] = {
    {"auto", Recompute::automatic}, {"all", Recompute::all}, {"none", Recompute::none}};
constexpr Choice<Placement> kPlacements[] = {{"auto", Placement::automatic},
                                             {"lowest", Placement::lowest},
                                             {"highest", Placement::highest},
                                             {"weights-first", Placement::weights_first},
                                             {"state-first", Placement::state_first}};
constexpr Choice<IoChoice> kIoChoices[] = {
    {"auto", IoChoice::automatic}, {"uring", IoChoice::uring}, {"threads", IoChoice::threads}};

constexpr Choice<WeightShards> kWeightShards[] = {{"all", WeightShards::all}, {"node", WeightShards::node}};

constexpr std::span<const Choice<DType>> choices(DType) { return kPrecisions; }
constexpr std::span<const Choice<RowOrder>> choices(RowOrder) { return kOrders; }
constexpr std::span<const Choice<OptimizerKind>> choices(OptimizerKind) { return kOptimizers; }
constexpr std::span<const Choice<Schedule>> choices(Schedule) { return kSchedules; }
constexpr std::span<const Choice<DeviceKind>> choices(DeviceKind) { return kDevices; }
constexpr std::span<const Choice<Recompute>> choices(Recompute) { return kRecomputes; }
constexpr std::span<const Choice<Placement>> choices(Placement) { return kPlacements; }
constexpr std::span<const Choice<IoChoice>> choices(IoChoice) { return kIoChoices; }
constexpr std::span<const Choice<WeightShards>> choices(WeightShards) { return kWeightShards; }

Error usage(const std::string& what, const std::string& remedy) {
  return Error(ExitCode::usage, what, remedy);
}

template <class Enum>
Enum parse_choice(const std::string& text, const std::string& option) {
  std::string words;
  for (const auto& choice : choices(Enum{})) {
    if (text == choice.name) return choice.value;
    words += fmt::format("{}{}", words.empty() ? "" : ", ", choice.name);
  }
  throw usage(fmt::format("`{}` is not a value of --{}.", printable(text), option),
              fmt::format("Choose one of: {}.", words));
}

template <class Enum>
std::string choice_name(Enum value) {
  for (const auto& choice : choices(Enum{}))
    if (choice.value == value) return choice.name;
  check_failed("choice", __FILE__, __LINE__, "enum without a name");
}

// from_chars over the whole text: no blanks, sign "+", hexadecimal or rest.
template <class Number>
Number parse_whole(const std::string& text, const std::string& option, const char* kind) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range)
    throw usage(
        fmt::format("`{}` for --{} is too large or too small to represent.", printable(text), option),
        fmt::format("Give --{} a number of usual size.", option));
  if (error != std::errc{} || rest != end)
    throw usage(fmt::format("`{}` for --{} is not {}.", printable(text), option, kind),
                fmt::format("Write --{} as in 12{}.", option,
                            std::is_floating_point_v<Number> ? ", 0.5 or 3e-4" : ""));
  return value;
}

// "a whole number from 1 to 1024", "a value at least 0 and below 1"
template <class Number>
std::string range_words(const Range& range) {
  if constexpr (std::is_integral_v<Number>)
    return fmt::format("a whole number from {:.0f} to {:.0f}", range.least, range.most);
  const std::string least =
      fmt::format("a value {} {:g}", range.above_least ? "above" : "at least", range.least);
  if (range.most >= 1e300) return least;
  return fmt::format("{} and {} {:g}", least, range.below_most ? "below" : "at most", range.most);
}

template <class Number>
Number checked(Number value, const OptionRow& row) {
  const Range& range = row.range;
  const auto v = static_cast<double>(value);
  if (v < range.least || v > range.most || (range.above_least && v == range.least) ||
      (range.below_most && v == range.most))
    throw usage(fmt::format("--{} is {}.", row.name, value),
                fmt::format("Give --{} {}{}.", row.name, range_words<Number>(range),
                            std::string_view(row.value).ends_with("|auto") ? ", or auto" : ""));
  return value;
}

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

constexpr const char* kPowerSgd = "powersgd:";
constexpr uint32_t kCompressionRankMax = 64;

Compression parse_compression(const std::string& text, const std::string& option) {
  if (text == "none") return {};
  Compression c;
  const char* const end = text.data() + text.size();
  if (text.starts_with(kPowerSgd)) {
    const auto [rest, error] = std::from_chars(text.data() + std::strlen(kPowerSgd), end, c.rank);
    if (error == std::errc{} && rest == end && c.rank >= 1 && c.rank <= kCompressionRankMax) return c;
  }
  throw usage(fmt::format("`{}` is not a value of --{}.", printable(text), option),
              fmt::format("Write none, or powersgd:RANK with a rank from 1 to {}.", kCompressionRankMax));
}

// One value from one text.
template <class T>
T parse_value(const std::string& text, const OptionRow& row) {
  if constexpr (is_optional<T>) {
    if (text == "auto") return std::nullopt;
    return parse_value<typename T::value_type>(text, row);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (text != "true" && text != "false")
      throw usage(fmt::format("--{} is a switch and takes no value.", row.name),
                  fmt::format("Write --{} alone; in a file, true or false.", row.name));
    return text == "true";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return checked(parse_integer(text, row.name), row);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return parse_whole<uint64_t>(text, row.name, "a whole number from 0 on");
  } else if constexpr (std::is_same_v<T, double>) {
    return checked(parse_real(text, row.name), row);
  } else if constexpr (std::is_same_v<T, DeviceChoice>) {
    const size_t colon = text.find(':');
    const DeviceChoice device{parse_choice<DeviceKind>(text.substr(0, colon), row.name), 0};
    if (colon == std::string::npos) return device;
    int ordinal = -1;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, ordinal);
    if (device.kind != DeviceKind::cuda || error != std::errc{} || rest != end || ordinal < 0 ||
        ordinal > kOrdinalMax)
      throw usage(fmt::format("`{}` for --{} names no device.", printable(text), row.name),
                  fmt::format("Write cuda:0 to cuda:{} for one of several GPUs.", kOrdinalMax));
    return {device.kind, ordinal};
  } else if constexpr (std::is_same_v<T, Compression>) {
    return parse_compression(text, row.name);
  } else if constexpr (std::is_enum_v<T>) {
    return parse_choice<T>(text, row.name);
  } else {
    static_assert(std::is_same_v<T, std::string>);
    if (text.empty())
      throw usage(fmt::format("--{} is empty.", row.name), fmt::format("Give --{} a value.", row.name));
    return text;
  }
}

template <class T>
std::string value_text(const T& value) {
  if constexpr (is_optional<T>) {
    return value ? value_text(*value) : "auto";
  } else if constexpr (std::is_same_v<T, DeviceChoice>) {
    return choice_name(value.kind);
  } else if constexpr (std::is_same_v<T, Compression>) {
    return value.rank == 0 ? "none" : fmt::format("{}{}", kPowerSgd, value.rank);
  } else if constexpr (std::is_enum_v<T>) {
    return choice_name(value);
  } else {
    return fmt::format("{}", value);  // doubles: shortest text that reads back to the same bits
  }
}

}  // namespace

int64_t parse_integer(const std::string& text, const std::string& option) {
  return parse_whole<int64_t>(text, option, "a whole number");
}

double parse_real(const std::string& text, const std::string& option) {
  const double value = parse_whole<double>(text, option, "a number");
  if (!std::isfinite(value))
    throw usage(fmt::format("`{}` for --{} is not a finite number.", printable(text), option),
                fmt::format("Give --{} a finite number.", option));
  return value;
}

const char* verb_name(Verb verb) {
  constexpr const char* kNames[] = {"train", "plan", "eval", "export", "profile", "bench", "doctor"};
  return kNames[static_cast<int>(verb)];
}

std::span<const OptionRow> option_table() { return kTable; }

const OptionRow* find_option(const std::string& name, Verb verb) {
  const OptionRow* first = nullptr;
  for (const OptionRow& row : kTable) {
    if (name != row.name) continue;
    if (row.verbs & verb_bit(verb)) return &row;
    if (!first) first = &row;
  }
  return first;
}

bool is_given(const Options& options, const std::string& name) {
  CHECK(find_option(name) != nullptr, name);
  return std::find(options.given.begin(), options.given.end(), name) != options.given.end();
}

void set_option(Options& options, const OptionRow& row, const std::vector<std::string>& values) {
  const auto set = [&](auto* field) {
    using T = std::remove_pointer_t<decltype(field)>;
    if constexpr (std::is_same_v<T, Size>) {
      CHECK(false, row.name);
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      T list;
      for (const std::string& value : values) list.push_back(parse_value<std::string>(value, row));
      *field = std::move(list);
    } else {
      if (values.size() != 1)
        throw usage(fmt::format("--{} has {} values.", row.name, values.size()),
                    fmt::format("Give --{} once.", row.name));
      *field = parse_value<T>(values.front(), row);
    }
  };
  std::visit(set, row.field(options));
}

std::vector<std::string> option_values(const Options& options, const OptionRow& row) {
  Options copy = options;  // rows give access for writing, too
  const auto get = [&](const auto* field) -> std::vector<std::string> {
    using T = std::remove_cvref_t<decltype(*field)>;
    if constexpr (std::is_same_v<T, Size>) {
      check_failed("not a size", __FILE__, __LINE__, row.name);
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      return *field;
    } else {
      return {value_text(*field)};
    }
  };
  return std::visit(get, row.field(copy));
}

}  // namespace sluice
