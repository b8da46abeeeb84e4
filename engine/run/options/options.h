// What a user can ask of a run: typed options, and the one table that says how each is spelled.
//
// Everything about an option lives in its row: name, group, range, help, the verbs that take it, and what a
// resumed run does with it. Command line, configuration file, --help and the checkpoint's manifest all read
// the same rows, so they cannot disagree. Callers: tools fill Options; engine/run reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cpu_optim/optimizer_kind.h"
#include "engine/graph/op.h"
#include "engine/plan/choices.h"
#include "models/data/packed_rows.h"
#include "models/data/token_data.h"
#include "models/text/records/record_form.h"
#include "models/text/samples/sample_choices.h"
#include "offload/io/queue.h"

namespace sluice {

// A memory budget as the user wrote it. A percentage is of the free memory that `automatic` measures, before
// `automatic` takes off its margin.
struct Size {
  enum class Kind : uint8_t { automatic, bytes, percent };
  Kind kind = Kind::automatic;
  uint64_t bytes = 0;  // Kind::bytes
  double percent = 0;  // Kind::percent, in (0, 100]
  bool of_run =
      false;  // the size is that of the run that goes on; where it does not fit, `automatic` applies
  bool operator==(const Size&) const = default;
};

enum class RowOrder : uint8_t { shuffled, sequential };
enum class Schedule : uint8_t { constant, cosine, linear };
enum class Shell : uint8_t { bash, zsh, fish };
enum class DeviceKind : uint8_t { automatic, cpu, reference, cuda };

// The ordinal never changes bits, so a manifest keeps only the kind, and a resume compares only the kind.
struct DeviceChoice {
  DeviceKind kind = DeviceKind::automatic;
  int ordinal = 0;  // which of several GPUs
};

// A number of steps, or a time, or (`is_auto`) whatever is right for the run. None of these: never.
struct Interval {
  int64_t steps = 0;
  double seconds = 0;
  bool is_auto = false;
  bool is_given() const { return steps > 0 || seconds > 0; }
};

struct ModelOptions {
  std::string model;                  // preset, inline description, config.json, or a Hugging Face directory
  bool from_scratch = false;          // ignore the directory's weights
  std::optional<double> router_loss;  // factor of the loss of routers; none: as config.json says
  double router_z_loss = 0;           // factor of their z-loss
  std::optional<double> imbalance;    // of experts, which predictions assume (imbalance.h); none: 1
};

// Adapters beside frozen weights. Documented in docs/lora.md.
struct LoraOptions {
  int64_t rank = 0;                  // 0: no adapters, all weights are trained
  std::vector<std::string> targets;  // linear ops of the layers; empty, or all-linear: all
  std::optional<double> alpha;       // none: the rank
  bool root_scale = false;           // alpha / sqrt(rank) in place of alpha / rank
  std::string from;                  // PEFT directory with adapters to go on with; empty: new ones
  std::string base;                  // where the base of the run is now; empty: where it was
};

// A part of a whole, such as 2%.
struct Share {
  double percent = 0;
};

// Steps, or a part of all steps.
struct StepsOrShare {
  int64_t steps = 0;
  double percent = 0;  // above 0: of all steps
};

enum class Packing : uint8_t { automatic, none };
enum class BadRecords : uint8_t { refused, skipped };

// How text and chats become samples. Documented in docs/fine-tuning.md.
struct TextOptions {
  std::string tokenizer;      // directory; empty: that of the model, or of the run that goes on
  std::string chat_template;  // file; empty: the model's
  std::string end_token;      // of answers and texts; empty: the ends that the model knows, and learned ones
  std::vector<std::string> template_values;  // NAME=JSON, variables of the template
  RecordForm form = RecordForm::automatic;
  std::vector<std::string> keys;  // NAME=KEY, other names of keys and roles
  std::string separator;          // between documents of a text; empty: a file is one
  TrainOn train_on = TrainOn::answers;
  ControlTokens control_tokens = ControlTokens::of_template;
  BadRecords bad_records = BadRecords::refused;
  std::string cache;       // directory of prepared sets; empty: the user's
  int64_t show = 0;        // samples that `prepare` prints
  int64_t vocabulary = 0;  // rows of the model's embedding; 0: as --model says, or not known
};

struct DataOptions {
  // Files. The --data of eval are `train`. Files of `train` may end in =WEIGHT (models/files/data_source.h).
  std::vector<std::string> train, validation;
  TokenType type = TokenType::automatic;  // of all files
  Share val_split;                        // of the tokens, held out
  Packing packing = Packing::automatic;
  std::optional<LongSamples> long_samples;  // none: texts are divided, conversations cut
  int64_t val_every = 0;                    // steps; 0: once, at the end
  int64_t val_batches = 20;                 // batches of one validation
  RowOrder order = RowOrder::shuffled;
};

struct BatchOptions {
  int64_t batch = 8;                   // sequences of one step, over all ranks
  std::optional<int64_t> sequence;     // tokens; none: the model's context
  std::optional<int64_t> micro_batch;  // sequences; none: the planner chooses
  int64_t steps = 1000;
  int64_t epochs = 0;            // above 0: it sets `steps` once the data are known
  std::optional<int64_t> waves;  // of a step; none: the planner chooses
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double learning_rate = 3e-4;
  std::optional<double> min_learning_rate;  // none: learning_rate / 10
  StepsOrShare warmup;
  Schedule schedule = Schedule::cosine;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double clip = 1;                     // 0: off
  std::vector<std::string> of_groups;  // WHAT:OPTION=X[,OPTION=X...], of some parameters
};

struct NumberOptions {
  DType precision = DType::bf16;  // bf16, f16 or f32
  uint64_t seed = 0;
};

struct MemoryOptions {
  DeviceChoice device;
  Size gpu, host, nvme;
  std::vector<std::string> nvme_directories;  // none: no nvme tier
  std::optional<int64_t> threads;             // none: all cores, divided among ranks
  std::optional<Recompute> recompute;
  Placement placement = Placement::automatic;
  Overlap overlap = Overlap::automatic;
  IoChoice io = nullptr;
  std::string machine;  // name or file of a machine description; empty: the built-in default
  // File whose algorithms of matrix products are used; "none": none; empty: the algorithms of the run that
  // goes on.
  std::string matmul_algorithms;
  std::string chosen_algorithms;  // the file's, or the run's, as text that only the device reads
};

// Which ranks share the weights at --zero 3: all, or the ranks of each node.
enum class WeightShards : uint8_t { all, node };

// How gradients are compressed between ranks: by PowerSGD, or not.
struct Compression {
  uint32_t rank = 0;  // of the factors; 0: not compressed
};

struct RankOptions {
  int64_t gpus = 1;                           // ranks of this process
  int64_t count = 1;                          // all ranks: the user gives it to `plan`, other verbs set it
  bool launched = false;                      // by a launcher, which then decides on `count`
  int64_t here = 0;                           // the number of this rank; verbs set it
  int64_t experts_over = 1;                   // ranks that experts are divided over
  int64_t per_node = 0;                       // ranks of one node; 0: as in the machine description, else all
  std::optional<int64_t> zero = 3;            // stage; none: the planner chooses
  std::optional<WeightShards> shard_weights;  // none: the planner chooses
  std::optional<double> timeout;  // seconds to wait for another rank; none: computed from the plan
  Compression compression;
  int64_t compress_after = 100;    // steps whose gradients travel whole
  int64_t share_layers_until = 0;  // steps in which layers that are alike share weights
};

struct RunOptions {
  std::string out;                             // run directory
  std::string metrics;                         // empty: metrics.jsonl in `out`
  bool tensorboard = false;                    // also write events for TensorBoard
  std::string resume;                          // empty: no; "auto"; or a checkpoint
  Interval checkpoint_every{.is_auto = true};  // never: only at the end; auto: as in saving.h
  int64_t keep = 2;                            // newest checkpoints that stay
  bool keep_best = false;                      // also keep the one with the lowest validation loss
  Interval stop_within;  // seconds that a stop may take at most; never: as long as it takes
  std::string config;    // file that options were read from
};

struct TransferOptions {  // eval, export and generate
  std::string from, to;
  bool best = false;           // of a run: the checkpoint with the lowest validation loss, not the newest
  std::optional<DType> dtype;  // none: the working precision
  int64_t shards = 1;
  bool merge = false;  // of a run with adapters: whole weights in place of adapters
};

// How text is generated. What is not given is as generation_config.json of the model says
// (apply_generation_settings()). Documented in docs/generate.md.
struct GenerateOptions {
  std::string prompt;   // a text to go on with, or the message of a conversation
  bool chat = false;    // a conversation, on standard input unless `prompt` is its message
  std::string prompts;  // file of prompts
  int64_t max_tokens = 512;
  double temperature = 0;  // 0: always the most likely token
  int64_t top_k = 0;       // 0: all tokens
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  std::vector<std::string> stops;       // texts that end an answer
  std::optional<int64_t> max_context;   // tokens of prompt and answer; none: of the model, at most 4096
  std::optional<int64_t> prompt_chunk;  // tokens of each prompt that are read at once; none: by the batch
  bool is_planned = false;              // `plan` plans to generate, not to train
};

// What the model writes between steps. Documented in docs/generate.md.
struct SampleOptions {
  int64_t every = 0;    // steps; 0: never
  std::string prompts;  // file
  int64_t tokens = 64;  // of an answer at most
  double temperature = 0;
};

struct ProfileOptions {
  int64_t steps = 8;                 // of the whole profile, warm-up included
  std::string out;                   // directory of the report
  std::vector<std::string> command;  // words of the training command, for the report
};

struct PlanOptions {
  std::string sweep;  // QUANTITY=FROM:TO; empty: one plan
  bool explain = false;
  std::string why;  // a buffer or layer; empty: none
  bool no_advice = false;
};

struct BenchOptions {
  std::string out = "machine.json";  // machine description to write
};

struct ReportOptions {
  std::vector<std::string> runs;    // run directories
  std::string out = "report.html";  // page to write
};

struct CompletionOptions {
  Shell shell = Shell::bash;
};

struct PrintOptions {
  bool json = false;  // facts as one JSON object
  bool text = false;  // plan: the program in its text form
};

struct Options {
  ModelOptions model;
  LoraOptions lora;
  DataOptions data;
  TextOptions text;
  BatchOptions batch;
  OptimizerOptions optimizer;
  NumberOptions numbers;
  MemoryOptions memory;
  RankOptions ranks;
  RunOptions run;
  TransferOptions transfer;
  GenerateOptions generate;
  SampleOptions sample;
  ProfileOptions profile;
  BenchOptions bench;
  ReportOptions report;
  PlanOptions plan;
  CompletionOptions completion;
  PrintOptions print;
  std::vector<std::string> given;  // names, as in the table, that the user wrote (command line or --config)
};

// `tools/command/verbs.h` says what each does.
enum class Verb : uint8_t {
  train,
  prepare,
  plan,
  eval,
  export_run,
  doctor,
  profile,
  bench,
  completion,
  report,
  generate
};
constexpr const char* verb_name(Verb verb) {
  switch (verb) {
    case Verb::train:
      return "train";
    case Verb::prepare:
      return "prepare";
    case Verb::plan:
      return "plan";
    case Verb::eval:
      return "eval";
    case Verb::export_run:
      return "export";
    case Verb::doctor:
      return "doctor";
    case Verb::profile:
      return "profile";
    case Verb::bench:
      return "bench";
    case Verb::completion:
      return "completion";
    case Verb::report:
      return "report";
    case Verb::generate:
      return "generate";
  }
  return nullptr;  // beyond the last
}
// Whether the verb takes the weights of --from and runs the model.
constexpr bool loads_weights(Verb verb) { return verb == Verb::eval || verb == Verb::generate; }
constexpr size_t kVerbCount = [] {
  size_t count = 0;
  while (verb_name(static_cast<Verb>(count))) ++count;
  return count;
}();
constexpr uint32_t verb_bit(Verb verb) { return 1u << static_cast<int>(verb); }

// Where an option's value is kept. Optionals also accept the word "auto".
using OptionField =
    std::variant<bool*, int64_t*, uint64_t*, double*, std::string*, std::vector<std::string>*,
                 std::optional<int64_t>*, std::optional<double>*, std::optional<DType>*, Size*, DType*,
                 Interval*, TokenType*, RowOrder*, OptimizerKind*, Schedule*, DeviceChoice*,
                 std::optional<Recompute>*, Overlap*, Placement*, IoChoice*, Compression*,
                 std::optional<WeightShards>*, Shell*, Share*, StepsOrShare*, Packing*,
                 std::optional<LongSamples>*, RecordForm*, TrainOn*, ControlTokens*, BadRecords*>;

struct Range {
  double least = 0, most = 0;
  bool above_least = false, below_most = false;  // excludes `least`; excludes `most`
};

enum class OnResume : uint8_t {
  own,       // of one command, such as what it prints: no manifest has it
  kept,      // never changes bits: a value in this command replaces the manifest's, and a line says so
  replaced,  // as `kept`, but changes bits from here on: steps, learning rate, where the data are
  fixed,     // changes bits: the manifest's value holds; another value in this command is an error
};

// What helps those who do not know an option's name or values yet: --help, completion and errors read it.
struct OptionHints {
  const char* elsewhere = "";   // names that other tools have for it, with blanks between them
  const char* unlike = "";      // other tools' options that take another form here
  const char* difference = "";  // a sentence about that form
  uint32_t first_in = 0;        // verb_bit()s of the verbs whose --help explains the option first
  // Returns words that the option takes as values, beyond the words of its type. `none` empties a list.
  std::vector<std::string> (*words)() = nullptr;
};

struct OptionRow {
  const char* name;          // without dashes
  const char* group;         // model, data, batch, optimizer, numbers, memory, run, ...
  const char* value;         // the value's placeholder in --help; "" for a switch
  const char* help;          // option_help() fills in a {}
  const char* default_text;  // for --help; "": the help names no default
  uint32_t verbs;            // verb_bit()s of the verbs that take it
  OnResume on_resume;
  OptionField (*field)(Options&);
  Range range = {};                  // where the value is a number
  std::string (*known)() = nullptr;  // returns the list that replaces {} in `help`
  OptionHints hints = {};
  bool is_newer = false;  // checkpoints of earlier versions lack the option, and mean its default
};

std::span<const OptionRow> option_table();
std::string option_help(const OptionRow& row);
// The row of that name that is for `verb`, else the first row of that name; nullptr if no row has the name.
const OptionRow* find_option(const std::string& name, Verb verb = Verb::train);

// Finds the option of `verb` that other tools call `name`. `row` is nullptr if there is none. - and _ count
// as equal.
struct NamedElsewhere {
  const OptionRow* row = nullptr;
  bool unlike = false;  // the name is one of hints.unlike
};
NamedElsewhere find_elsewhere(const std::string& name, Verb verb);
// Values of the option that have a name, such as presets or `auto`, in the order in which help and errors
// list them.
std::vector<std::string> option_words(const OptionRow& row);

bool is_given(const Options& options, const std::string& name);

// Sets the row's field from text and checks its range. `values` has one element unless the field is a list; a
// switch takes "true" or "false". Throws Error(usage) naming the option.
void set_option(Options& options, const OptionRow& row, const std::vector<std::string>& values);

// The row's value as text from which set_option restores the same bits. The result is empty for an empty text
// or list.
std::vector<std::string> option_values(const Options& options, const OptionRow& row);

// Throws Error(usage) where options of one verb are missing or contradict each other. Options that a manifest
// will set are neither demanded nor compared: call again once it has been applied, or when there is none.
enum class ManifestUse : uint8_t { none, awaited, applied };
void check_options(const Options& options, Verb verb, ManifestUse manifest);
// Whether a step of `ranks` ranks can have as many waves as --waves asks for.
bool waves_fit(const Options& options, int64_t ranks);
// The argument of check_options() before a manifest is applied.
inline ManifestUse manifest_use(const Options& options) {
  return options.run.resume.empty() ? ManifestUse::none : ManifestUse::awaited;
}

// An option as a checkpoint's manifest has it. A manifest leaves out options of OnResume::own. It also leaves
// out options without a value if they are newer or of OnResume::kept. It has all others. `sequence` and
// `micro_batch` must have been resolved.
struct ManifestOption {
  std::string name;
  std::vector<std::string> values;
};
std::vector<ManifestOption> manifest_options(const Options& options);

// Takes the manifest's values into `options` by the rules of OnResume; a given "auto" agrees with any value
// of a fixed option. Returns one printable sentence for each option whose given value replaces the
// manifest's, and one that lists the kept options whose values are not the defaults. Throws Error(usage) for
// a fixed option that was given another value, Error(malformed_file) for a manifest that holds unknown
// options or bad values, or lacks an option. It may lack newer and kept options: manifests of version 3 have
// no kept ones.
std::vector<std::string> apply_manifest(Options& options, const std::vector<ManifestOption>& manifest);

// For eval, generate and export: takes every value of the manifest that changes bits and was not given.
// Throws as apply_manifest does for a damaged manifest.
void adopt_manifest(Options& options, const std::vector<ManifestOption>& manifest);

// Read a finite number from the whole text. Throw Error(usage) naming `option`, also for blanks, overflow and
// other characters after the number.
int64_t parse_integer(const std::string& text, const std::string& option);
double parse_real(const std::string& text, const std::string& option);

}  // namespace sluice
