#include "engine/run/start/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "models/data/window_rows.h"
#include "models/files/data_path.h"
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
  const TokenData* unchecked() const override { return &data_; }

 private:
  TokenData data_;
  DataOrder order_;
};

// Several of these may share a set, of which each takes other samples.
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
PackingChoice packing_of(const Options& options, const PreparedSet& set, RowUse use) {
  const LongSamples by_default =
      set.counts().texts == set.samples() ? LongSamples::divided : LongSamples::cut;
  const bool trains = use == RowUse::training;
  return {.sequence = options.batch.sequence.value(),
          .packed = options.data.packing == Packing::automatic,
          .long_samples = options.data.long_samples.value_or(by_default),
          .shuffled = trains && options.data.order == RowOrder::shuffled,
          .seed = options.numbers.seed,
          .once = !trains};
}

// Batches that hold all rows, but no more than `most`.
int64_t batches_of(const RowData& data, const Options& options, uint64_t most) {
  const auto batch = static_cast<uint64_t>(options.batch.batch);
  const uint64_t all = (data.rows_of_epochs(1) + batch - 1) / batch;
  return static_cast<int64_t>(std::min(all, most));
}

std::shared_ptr<const PreparedSet> open_set(const std::string& directory, const ModelConfig& config) {
  return std::make_shared<const PreparedSet>(PreparedSet::open(directory, config.vocabulary));
}

}  // namespace

const std::string& tokenizer_of(const Options& options, const std::string& model_directory) {
  return options.text.tokenizer.empty() ? model_directory : options.text.tokenizer;
}

std::vector<std::string> open_folders(Options& options) {
  std::vector<std::string> notes;
  for (std::vector<std::string>* paths : {&options.data.train, &options.data.validation}) {
    DataFiles found = files_of(*paths);
    *paths = std::move(found.files);
    if (!found.left_out.empty()) notes.push_back(left_out_of_folders(found));
  }
  return notes;
}

bool are_texts(const Options& options, const std::vector<std::string>& files, const std::string& tokenizer,
               const char* option) {
  const bool reads_text = options.data.type == TokenType::automatic && has_tokenizer(tokenizer);
  const auto count = std::count_if(files.begin(), files.end(), [&](const std::string& file) {
    return is_record_file(file) || (is_text_file(file) && reads_text);
  });
  if (count != 0 && count != static_cast<std::ptrdiff_t>(files.size()))
    throw Error(ExitCode::usage, fmt::format("--{} names text and token files together.", option),
                "Give files of one kind.");
  return count > 0;
}

bool rows_have_documents(const Options& options, const std::string& model_directory) {
  const std::string& tokenizer = tokenizer_of(options, model_directory);
  return options.data.packing == Packing::automatic &&
         (are_texts(options, options.data.train, tokenizer, "data") ||
          are_texts(options, options.data.validation, tokenizer, "val-data"));
}

std::vector<const TokenData*> RunData::unchecked() const {
  std::vector<const TokenData*> all;
  for (const RowData* data : {train.get(), validation.get()})
    if (data && data->unchecked()) all.push_back(data->unchecked());
  return all;
}

TrainData RunData::view() const {
  return {train->rows(), validation ? validation->rows() : nullptr, validation_batches,
          [data = validation.get()] { return data ? data->checksum() : 0; }};
}

RunData open_run_data(const Options& options, const ModelConfig& config) {
  RunData d;
  if (!options.data.prepared.empty()) {
    const auto set = open_set(options.data.prepared, config);
    const auto held = options.data.val_split.percent > 0
                          ? std::make_shared<const HeldOut>(*set, options.data.val_split.percent)
                          : nullptr;
    d.train = std::make_unique<SampleData>(
        set, held ? SampleChoice::others(held) : SampleChoice::all(set->samples()),
        packing_of(options, *set, RowUse::training));
    if (held) {
      d.validation = std::make_unique<SampleData>(set, SampleChoice::held_out(held),
                                                  packing_of(options, *set, RowUse::validation));
      d.held_out =
          fmt::format("{} of {} tokens ({:.3g} %)", held->tokens(), set->counts().tokens,
                      100 * static_cast<double>(held->tokens()) / static_cast<double>(set->counts().tokens));
    }
  } else {
    TokenData train = open_tokens(options, options.data.train, "data", config.vocabulary);
    const DataOrder order = make_data_order(train, options.batch.sequence.value(),
                                            options.data.order == RowOrder::shuffled, options.numbers.seed);
    d.train = std::make_unique<WindowData>(std::move(train), order);
  }
  if (!options.data.prepared_validation.empty()) {
    const auto set = open_set(options.data.prepared_validation, config);
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

RunData open_evaluation_data(const Options& options, const ModelConfig& config) {
  RunData d;
  const bool takes_all = !is_given(options, "val-batches");
  if (!options.data.prepared.empty()) {
    const auto set = open_set(options.data.prepared, config);
    d.validation = std::make_unique<SampleData>(set, SampleChoice::all(set->samples()),
                                                packing_of(options, *set, RowUse::validation));
  } else if (takes_all) {
    TokenData data = open_tokens(options, options.data.train, "data", config.vocabulary);
    const DataOrder order = make_evaluation_order(data, options.batch.sequence.value());
    d.validation = std::make_unique<WindowData>(std::move(data), order);
  } else {
    d.validation = open_validation_windows(options, options.data.train, "data", config.vocabulary);
  }
  d.validation_batches = batches_of(*d.validation, options,
                                    takes_all ? INT64_MAX : static_cast<uint64_t>(options.data.val_batches));
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
          ? "other tokens than those the run trained on."
          : std::to_string(data.tokens()) + " tokens; the run trained on " + std::to_string(run.tokens) + ".";
  throw Error(ExitCode::usage, data.description() + " holds " + holds,
              "Give the run's own --data, or start a new run with another --out.");
}

}  // namespace sluice
