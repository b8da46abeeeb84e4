#include "engine/run/start/run_data.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/error.h"
#include "models/data/mixed_rows.h"
#include "models/data/window_rows.h"
#include "models/files/data_path.h"
#include "models/files/data_source.h"
#include "models/prepare/prepare.h"
#include "models/text/samples/text_model.h"

namespace sluice {

namespace {

class WindowData : public RowData {
 public:
  WindowData(TokenData data, const DataOrder& order) : data_(std::move(data)), order_(order) {}
  std::unique_ptr<RowSource> rows() const override { return std::make_unique<WindowRows>(data_, order_); }
  uint64_t tokens() const override { return data_.tokens(); }
  uint64_t checksum() const override { return data_.sample_checksum(); }
  std::string description() const override { return data_.description(); }
  std::string extent() const override {
    std::string text = fmt::format("{} {} of {}", order_.windows,
                                   order_.windows == 1 ? "sequence" : "sequences", order_.sequence);
    if (data_.has_masks()) text += fmt::format(", {} tokens trained", data_.trained());
    return text;
  }
  uint64_t rows_of_epochs(uint64_t epochs) const override { return epochs * order_.windows; }
  std::vector<const TokenData*> unchecked() const override { return {&data_}; }

 private:
  TokenData data_;
  DataOrder order_;
};

// Samples of a prepared set. Several SampleData may share a set, and each then takes other samples of the
// set.
class SampleData : public RowData {
 public:
  SampleData(std::shared_ptr<const PreparedSet> set, SampleChoice samples, const PackingChoice& choice)
      : set_(std::move(set)), samples_(samples), choice_(choice) {
    facts_ = PackedRows(*set_, samples_, choice_).facts();
  }
  std::unique_ptr<RowSource> rows() const override {
    return std::make_unique<PackedRows>(*set_, samples_, choice_);
  }
  uint64_t tokens() const override { return set_->counts().tokens; }
  uint64_t checksum() const override { return set_->checksum(); }
  std::string description() const override { return "The prepared set " + printable(set_->directory()); }
  std::string extent() const override {
    const double fill = 100 * static_cast<double>(facts_.tokens) /
                        static_cast<double>(facts_.rows * static_cast<uint64_t>(choice_.sequence));
    std::string text = fmt::format("{} samples in {} sequences of {}, {:.1f} % full, {} tokens trained",
                                   samples_.size(), facts_.rows, choice_.sequence, fill, facts_.trained);
    if (facts_.cut > 0)
      text += fmt::format("; {} samples longer than that were {}", facts_.cut,
                          choice_.long_samples == LongSamples::cut ? "cut" : "divided");
    if (facts_.lost > 0)
      text += fmt::format(
          ", which leaves out {} trained tokens and the end of {} (a larger --seq or "
          "--long-samples divide keeps them)",
          facts_.lost, facts_.lost_ends == facts_.cut ? "each" : std::to_string(facts_.lost_ends));
    if (facts_.left_out > 0)
      text += fmt::format(", {} parts without trained tokens left out", facts_.left_out);
    return text;
  }
  std::vector<std::string> remarks() const override { return remarks_on(set_->counts(), notes_of(*set_)); }
  uint64_t rows_of_epochs(uint64_t epochs) const override {
    return PackedRows(*set_, samples_, choice_).rows_of_epochs(epochs);
  }

 private:
  std::shared_ptr<const PreparedSet> set_;
  SampleChoice samples_;
  PackingChoice choice_;
  EpochFacts facts_;
};

std::string shortened(double value) {
  return value < 100 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

// Several data in the order of mixed_rows.h. An epoch has as many rows as all of them together.
class MixedData : public RowData {
 public:
  struct Part {
    std::string name;
    std::unique_ptr<RowData> data;
    uint64_t weight = 0;
  };
  MixedData(std::vector<Part> parts, int64_t sequence) : parts_(std::move(parts)), sequence_(sequence) {
    for (const Part& part : parts_) weights_ += part.weight;
  }
  std::unique_ptr<RowSource> rows() const override {
    std::vector<std::unique_ptr<RowSource>> sources;
    std::vector<uint64_t> weights;
    for (const Part& part : parts_) {
      sources.push_back(part.data->rows());
      weights.push_back(part.weight);
    }
    return std::make_unique<MixedRows>(std::move(sources), std::move(weights), sequence_);
  }
  uint64_t tokens() const override {
    return sum([](const RowData& data) { return data.tokens(); });
  }
  uint64_t checksum() const override {
    uint64_t checksum = 0;
    for (const Part& part : parts_) {
      const std::array<uint64_t, 3> facts = {part.data->tokens(), part.data->checksum(), part.weight};
      checksum = XXH3_64bits_withSeed(facts.data(), sizeof facts, checksum);
    }
    return checksum;
  }
  std::string description() const override { return fmt::format("The mix of {} sources", parts_.size()); }
  std::string extent() const override {
    return fmt::format("{} sequences of {} from {} {}", rows_of_epochs(1), sequence_, parts_.size(),
                       parts_.size() == 1 ? "source" : "sources");
  }
  std::vector<std::string> remarks() const override {
    std::vector<std::string> all;
    const auto rows = static_cast<double>(rows_of_epochs(1));
    for (const Part& part : parts_) {
      const double share = static_cast<double>(part.weight) / static_cast<double>(weights_);
      const std::string name = printable(part.name);
      all.push_back(fmt::format("{:.4g} % of all sequences are of {}, each {} times an epoch: {} tokens, {}",
                                100 * share, name,
                                shortened(share * rows / static_cast<double>(part.data->rows_of_epochs(1))),
                                part.data->tokens(), part.data->extent()));
      for (const std::string& remark : part.data->remarks()) all.push_back(name + ": " + remark);
    }
    return all;
  }
  uint64_t rows_of_epochs(uint64_t epochs) const override {
    return sum([&](const RowData& data) { return data.rows_of_epochs(epochs); });
  }
  std::vector<const TokenData*> unchecked() const override {
    std::vector<const TokenData*> all;
    for (const Part& part : parts_)
      for (const TokenData* data : part.data->unchecked()) all.push_back(data);
    return all;
  }
  bool is_mixed() const override { return true; }

 private:
  template <class Count>
  uint64_t sum(const Count& count) const {
    uint64_t all = 0;
    for (const Part& part : parts_) all += count(*part.data);
    return all;
  }

  std::vector<Part> parts_;
  int64_t sequence_;
  uint64_t weights_ = 0;
};

// Makes the orders of sources differ. Digits of the square root of 2.
constexpr uint64_t kSourceStream = 0x6A09E667F3BCC908;

uint64_t seed_of(const Options& options, size_t source) {
  return options.numbers.seed ^ kSourceStream * source;
}

// A resume looks for the data where the run had them.
TokenData open_tokens(const Options& options, const std::vector<std::string>& paths, const char* option,
                      int64_t vocabulary) {
  try {
    return TokenData::open(paths, vocabulary, options.data.type);
  } catch (const Error& error) {
    const bool is_kept = !options.run.resume.empty() && !is_given(options, option);
    if (!is_kept || error.code() != ExitCode::usage) throw;
    throw Error(error.code(), error.what(),
                error.remedy() + " If the data have moved, say where they are now: --" + option + " PATH.");
  }
}

std::unique_ptr<RowData> open_validation_windows(const Options& options,
                                                 const std::vector<std::string>& paths, const char* option,
                                                 int64_t vocabulary) {
  TokenData data = open_tokens(options, paths, option, vocabulary);
  const DataOrder order = make_validation_order(data, options.batch.sequence.value(),
                                                static_cast<uint64_t>(options.data.val_batches),
                                                static_cast<uint64_t>(options.batch.batch));
  return std::make_unique<WindowData>(std::move(data), order);
}

enum class RowUse : uint8_t { training, validation };

// Texts that are longer than a row go on in the next, conversations are cut, unless the user says otherwise.
PackingChoice packing_of(const Options& options, const PreparedSet& set, RowUse use, uint64_t seed = 0) {
  const LongSamples by_default =
      set.counts().texts == set.samples() ? LongSamples::divided : LongSamples::cut;
  const bool trains = use == RowUse::training;
  return {.sequence = options.batch.sequence.value(),
          .packed = options.data.packing == Packing::automatic,
          .long_samples = options.data.long_samples.value_or(by_default),
          .shuffled = trains && options.data.order == RowOrder::shuffled,
          .seed = seed,
          .once = !trains};
}

// The number of batches that hold all rows, or `most` if that is less.
int64_t batches_of(const RowData& data, const Options& options, uint64_t most) {
  const auto batch = static_cast<uint64_t>(options.batch.batch);
  const uint64_t all = (data.rows_of_epochs(1) + batch - 1) / batch;
  return static_cast<int64_t>(std::min(all, most));
}

std::shared_ptr<const PreparedSet> open_set(const std::string& directory, const ModelConfig& config) {
  return std::make_shared<const PreparedSet>(PreparedSet::open(directory, config.vocabulary));
}

// Which samples of the set are held out; nullptr: none.
std::shared_ptr<const HeldOut> held_out_of(const PreparedSet& set, const Options& options,
                                           const DataSource& source) {
  const double percent = options.data.val_split.percent;
  if (percent <= 0) return nullptr;
  try {
    return std::make_shared<const HeldOut>(set, percent);
  } catch (const Error& error) {
    if (source.weight == 0) throw;
    throw Error(error.code(), printable(source.path) + ": " + error.what(), error.remedy());
  }
}

}  // namespace

const std::string& tokenizer_of(const Options& options, const std::string& model_directory) {
  return options.text.tokenizer.empty() ? model_directory : options.text.tokenizer;
}

std::vector<std::string> open_folders(Options& options) {
  std::vector<std::string> notes;
  const auto open = [&](std::vector<std::string>& paths) {
    DataFiles found = files_of(paths);
    paths = std::move(found.files);
    if (!found.left_out.empty()) notes.push_back(left_out_of_folders(found));
  };
  std::vector<std::string> of_sources;
  for (const DataSource& source : sources_of(options.data.train))
    if (source.weight > 0) of_sources.push_back(source.path);
  open(of_sources.empty() ? options.data.train : of_sources);
  for (const std::string& path : options.data.validation)
    if (has_weight(path)) refuse_weight(path, "val-data");
  open(options.data.validation);
  return notes;
}

void refuse_weight(const std::string& value, const char* option) {
  throw Error(
      ExitCode::usage,
      fmt::format("--{} {} has a weight, and a validation reads all data alike.", option, printable(value)),
      "Leave the weight out; to weigh losses, validate on each of the files by itself.");
}

bool are_texts(const Options& options, const std::vector<std::string>& files, const std::string& tokenizer,
               const char* option) {
  const bool reads_text = options.data.type == TokenType::automatic && has_tokenizer(tokenizer);
  const auto is_text = [&](const std::string& file) {
    return is_record_file(file) || (is_text_file(file) && reads_text);
  };
  const auto text = std::ranges::find_if(files, is_text);
  if (text == files.end()) return false;
  // A file of neither kind is refused where texts are prepared.
  const auto tokens = std::ranges::find_if(files, [&](const std::string& file) {
    return !is_text(file) && (is_text_file(file) || file.ends_with(".bin"));
  });
  if (tokens != files.end())
    throw Error(
        ExitCode::usage,
        fmt::format("--{} names text, {}, and tokens, {}.", option, printable(*text), printable(*tokens)),
        "Give files of one kind.");
  return true;
}

bool rows_have_documents(const Options& options, const std::string& model_directory) {
  const std::string& tokenizer = tokenizer_of(options, model_directory);
  return options.data.packing == Packing::automatic &&
         (are_texts(options, files_of(sources_of(options.data.train)), tokenizer, "data") ||
          are_texts(options, options.data.validation, tokenizer, "val-data"));
}

std::vector<const TokenData*> RunData::unchecked() const {
  std::vector<const TokenData*> all;
  for (const RowData* of : {train.get(), validation.get()})
    for (const TokenData* data : of ? of->unchecked() : std::vector<const TokenData*>()) all.push_back(data);
  return all;
}

TrainData RunData::view() const {
  return {train->rows(), validation ? validation->rows() : nullptr, validation_batches,
          [data = validation.get()] { return data ? data->checksum() : 0; }};
}

RunData open_run_data(const Options& options, const PreparedData& prepared, const ModelConfig& config) {
  RunData d;
  const std::vector<DataSource> sources = sources_of(options.data.train);
  const int64_t sequence = options.batch.sequence.value();
  std::vector<MixedData::Part> train, validation;
  uint64_t tokens = 0, held_tokens = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const DataSource& source = sources[i];
    const uint64_t seed = seed_of(options, i);
    if (prepared.train.empty()) {
      TokenData data = open_tokens(options, source.files, "data", config.vocabulary);
      const DataOrder order = make_data_order(data, sequence, options.data.order == RowOrder::shuffled, seed);
      train.push_back({source.path, std::make_unique<WindowData>(std::move(data), order), source.weight});
      continue;
    }
    const auto set = open_set(prepared.train[i], config);
    const auto held = held_out_of(*set, options, source);
    train.push_back({source.path,
                     std::make_unique<SampleData>(
                         set, held ? SampleChoice::others(held) : SampleChoice::all(set->samples()),
                         packing_of(options, *set, RowUse::training, seed)),
                     source.weight});
    if (!held) continue;
    tokens += set->counts().tokens, held_tokens += held->tokens();
    auto data = std::make_unique<SampleData>(set, SampleChoice::held_out(held),
                                             packing_of(options, *set, RowUse::validation));
    const uint64_t rows = data->rows_of_epochs(1);  // so that each row is read once, evenly spread
    validation.push_back({source.path, std::move(data), rows});
  }
  const auto joined = [&](std::vector<MixedData::Part> parts) -> std::unique_ptr<RowData> {
    if (!are_weighted(sources)) return std::move(parts.front().data);
    return std::make_unique<MixedData>(std::move(parts), sequence);
  };
  d.train = joined(std::move(train));
  if (!validation.empty()) {
    d.validation = joined(std::move(validation));
    d.held_out = fmt::format("{} of {} tokens ({:.3g} %)", held_tokens, tokens,
                             100 * static_cast<double>(held_tokens) / static_cast<double>(tokens));
  }
  if (!prepared.validation.empty()) {
    const auto set = open_set(prepared.validation, config);
    d.validation = std::make_unique<SampleData>(set, SampleChoice::all(set->samples()),
                                                packing_of(options, *set, RowUse::validation));
  } else if (!options.data.validation.empty()) {
    d.validation = open_validation_windows(options, options.data.validation, "val-data", config.vocabulary);
  }
  if (d.validation)
    d.validation_batches =
        batches_of(*d.validation, options, static_cast<uint64_t>(options.data.val_batches));
  return d;
}

RunData open_evaluation_data(const Options& options, const PreparedData& prepared,
                             const ModelConfig& config) {
  RunData d;
  if (!prepared.train.empty()) {
    const auto set = open_set(prepared.train.front(), config);
    d.validation = std::make_unique<SampleData>(set, SampleChoice::all(set->samples()),
                                                packing_of(options, *set, RowUse::validation));
  } else {
    TokenData data = open_tokens(options, options.data.train, "data", config.vocabulary);
    const DataOrder order = make_evaluation_order(data, options.batch.sequence.value());
    d.validation = std::make_unique<WindowData>(std::move(data), order);
  }
  const uint64_t most = is_given(options, "val-batches") ? static_cast<uint64_t>(options.data.val_batches)
                                                         : static_cast<uint64_t>(INT64_MAX);
  d.validation_batches = batches_of(*d.validation, options, most);
  return d;
}

int64_t steps_of_epochs(const Options& options, const RowData& data) {
  const auto batch = static_cast<uint64_t>(options.batch.batch);
  const uint64_t rows = data.rows_of_epochs(static_cast<uint64_t>(options.batch.epochs));
  return static_cast<int64_t>((rows + batch - 1) / batch);
}

void check_same_data(const CheckpointState& run, const RowData& data) {
  if (data.tokens() == run.tokens && data.checksum() == run.data_checksum) return;
  const std::string holds =
      data.tokens() == run.tokens
          ? data.is_mixed() ? "other tokens than those the run trained on, or the same in other shares."
                            : "other tokens than those the run trained on."
          : std::to_string(data.tokens()) + " tokens; the run trained on " + std::to_string(run.tokens) + ".";
  throw Error(ExitCode::usage, data.description() + " holds " + holds,
              "Give the run's own --data, or start a new run with another --out.");
}

}  // namespace sluice
