#include "engine/run/start/run_data.h"

#include <string>
#include <utility>

#include "engine/base/error.h"

namespace sluice {

std::vector<const TokenData*> RunData::all() const {
  std::vector<const TokenData*> all{&train};
  if (validation) all.push_back(&*validation);
  return all;
}

namespace {

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

}  // namespace

RunData open_run_data(const Options& options, const ModelConfig& config) {
  const int64_t sequence = options.batch.sequence.value();
  TokenData train = open_tokens(options, options.data.train, "data", config.vocabulary);
  const DataOrder order =
      make_data_order(train, sequence, options.data.order == RowOrder::shuffled, options.numbers.seed);
  RunData d{std::move(train), order, std::nullopt, {}};
  if (options.data.validation.empty()) return d;
  d.validation = open_tokens(options, options.data.validation, "val-data", config.vocabulary);
  d.validation_order =
      make_validation_order(*d.validation, sequence, static_cast<uint64_t>(options.data.val_batches),
                            static_cast<uint64_t>(options.batch.batch));
  return d;
}

void check_same_data(const CheckpointState& run, const TokenData& data) {
  if (data.tokens() == run.tokens && data.sample_checksum() == run.data_checksum) return;
  const std::string holds =
      data.tokens() == run.tokens
          ? "other tokens than those the run trained on."
          : std::to_string(data.tokens()) + " tokens; the run trained on " + std::to_string(run.tokens) + ".";
  throw Error(ExitCode::usage, data.description() + " holds " + holds,
              "Give the run's own --data, or start a new run with another --out.");
}

}  // namespace sluice
