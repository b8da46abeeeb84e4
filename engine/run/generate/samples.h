// Samples: what a model writes between the steps of its training, to be read by people.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/run/execute/session.h"
#include "engine/run/generate/sampling.h"
#include "models/families/family.h"

namespace sluice {

// What a run is asked to write. All ranks have the same.
struct SamplePrompts {
  std::vector<std::vector<uint32_t>> tokens;  // by prompt
  GenerationSizes sizes;                      // of the plan
  int64_t tokens_max = 0;                     // of an answer
  Sampling sampling;
  std::vector<uint32_t> ends;  // ids that end an answer
  std::function<std::string(const std::vector<uint32_t>&)> text_of;
  uint64_t table_bytes = 0;             // the most host memory that text_of holds
  std::vector<std::string> notes = {};  // sentences about parts of the prompts that nothing reads
};

struct SampledText {
  std::string prompt, text;
};

// Return the start or the end of a text in UTF-8: whole characters, `most` bytes or less.
std::string first_characters(const std::string& text, size_t most);
std::string last_characters(const std::string& text, size_t most);

// Writes a text for each prompt with current weights, by the `bodies` of the current phase
// (Lowering::phases). It writes as many texts at once as the plan has sequences. Requires that no update is
// pending (BodyState::clean). Returns nullopt if `stop` was set. Collective; only the first rank gets texts.
// Throws as Generator::answer() does.
std::optional<std::vector<SampledText>> write_samples(Session& session, const BodyIds& bodies,
                                                      const SamplePrompts& prompts,
                                                      const std::atomic<bool>& stop);

}  // namespace sluice
