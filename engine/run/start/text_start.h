// Text that a run reads and writes: its tokenizer, and the prompts of its samples. Callers: generate, train,
// plan, profile.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/generate/samples.h"
#include "engine/run/options/options.h"
#include "engine/run/start/model_source.h"
#include "models/families/config.h"
#include "models/text/samples/sample_maker.h"
#include "models/text/samples/text_model.h"

namespace sluice {

// Opens the tokenizer of --tokenizer, else of `directory`, with --chat-template. Without a tokenizer, a run
// whose data are text has bytes as tokens. Throws Error(usage) where there is no tokenizer, and as
// open_text_model() does.
TextModel open_text(const Options& options, const std::string& directory, const ModelConfig& config);

// The samples, with `ends` in place of SamplePrompts::ends; unchanged if `ends` is empty.
std::shared_ptr<const SamplePrompts> with_ends(const std::shared_ptr<const SamplePrompts>& samples,
                                               const std::vector<uint32_t>& ends);

// Host memory that the tokenizer of a run holds at most, for Budgets::reserve_table().
uint64_t tokenizer_table_bytes(const Options& options, const std::string& directory,
                               const ModelConfig& config);

// `text` must outlive the result. Throws Error(usage) for --template-values.
SampleMaker sample_maker(const Options& options, const TextModel& text);

// The prompts of --sample-prompts; nullptr: the run writes no samples. `directory`: as in open_text(). Throws
// Error(usage) where there are more than kSamplePromptsMax, or one leaves no room for an answer, and as
// open_text(), sample_maker() and read_prompts() do.
constexpr size_t kSamplePromptsMax = 64;
std::shared_ptr<const SamplePrompts> open_samples(const Options& options, const std::string& directory,
                                                  const ModelConfig& config);
// The bytes that a run passes to Budgets::reserve_table().
inline uint64_t table_bytes_with(const ModelSource& source,
                                 const std::shared_ptr<const SamplePrompts>& samples) {
  return source.table_bytes + (samples ? samples->table_bytes : 0);
}

// The sizes of samples, as plan_request() takes them.
inline std::optional<GenerationSizes> sizes_of(const std::shared_ptr<const SamplePrompts>& samples) {
  return samples ? std::optional(samples->sizes) : std::nullopt;
}

}  // namespace sluice
