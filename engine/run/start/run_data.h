// The data that a run trains and validates on: token files, or a prepared set of samples. Callers: train,
// eval, profile.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/options/options.h"
#include "engine/run/train/trainer.h"
#include "models/data/data_order.h"
#include "models/data/packed_rows.h"
#include "models/data/prepared_set.h"
#include "models/data/token_data.h"
#include "models/families/config.h"

namespace sluice {

// Data in the order in which a run reads them. Rows are read through row sources, and each rank makes a
// source of its own.
class RowData {
 public:
  virtual ~RowData() = default;
  virtual std::unique_ptr<RowSource> rows() const = 0;
  virtual uint64_t tokens() const = 0;
  virtual uint64_t checksum() const = 0;  // tells data of equal length apart
  virtual std::string description() const = 0;
  // "3 sequences of 128", for people.
  virtual std::string extent() const = 0;
  // What a user should know about the data beyond their size: sentences without a full stop, often none.
  virtual std::vector<std::string> remarks() const { return {}; }
  // The number of rows in `epochs` passes over the data.
  virtual uint64_t rows_of_epochs(uint64_t epochs) const = 0;
  // The token files whose ids have not been checked yet.
  virtual std::vector<const TokenData*> unchecked() const { return {}; }
  // Whether the data are a mix of several sources, by weights.
  virtual bool is_mixed() const { return false; }
};

// --tokenizer, else the model's directory.
const std::string& tokenizer_of(const Options& options, const std::string& model_directory);

// Replaces folders in --data and --val-data by the files in them, except where --data has weights. Returns a
// sentence for each option whose folders have files that are left out. Throws as files_of() and sources_of()
// do, and Error(usage) for weights in --val-data.
std::vector<std::string> open_folders(Options& options);
// Throws Error(usage): `value` of an option for validation data has a weight.
[[noreturn]] void refuse_weight(const std::string& value, const char* option);

// Whether the files are texts or chats, which are prepared with a tokenizer: records (is_record_file()), and
// .txt and .md where the directory `tokenizer` has a tokenizer. Throws Error(usage), which names `option`,
// where token files are among them.
bool are_texts(const Options& options, const std::vector<std::string>& files, const std::string& tokenizer,
               const char* option);
// Whether rows of --data or of --val-data hold several documents. One model serves training and validation.
bool rows_have_documents(const Options& options, const std::string& model_directory);

// What text and chats became before a run opens them.
struct PreparedData {
  std::vector<std::string> train;  // prepared sets, one a source of --data; empty: token files
  std::string validation;          // the set of --val-data; empty: token files, or none
  // All ends of answers, where --data teach ends that the model does not know (LearnedEnds). `ends_note` is a
  // sentence that lists these ends.
  std::vector<uint32_t> ends;
  std::string ends_note;
};

struct RunData {
  std::unique_ptr<RowData> train;
  std::unique_ptr<RowData> validation;  // nullptr: no validation
  int64_t validation_batches = 0;
  std::string held_out;  // by --val-split: "90 of 1800 tokens (5 %)"; "": nothing

  std::vector<const TokenData*> unchecked() const;
  TrainData view() const;
};

// The options' sequence is resolved. Throws as TokenData::open, make_data_order, make_validation_order,
// PreparedSet::open and PackedRows do.
RunData open_run_data(const Options& options, const PreparedData& prepared, const ModelConfig& config);

// Opens --data as the result's `validation`, and leaves `train` empty. It takes all of --data or, if
// --val-batches is given, at most that many batches.
RunData open_evaluation_data(const Options& options, const PreparedData& prepared, const ModelConfig& config);

// The steps of a run with --epochs: the fewest batches that hold all rows of its epochs.
int64_t steps_of_epochs(const Options& options, const RowData& data);

// Throws Error(usage) for data other than the run's. Data determine the order of rows, and so every bit.
void check_same_data(const CheckpointState& run, const RowData& data);

}  // namespace sluice
