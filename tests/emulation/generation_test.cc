// Generation on the cuda device, emulated: greedy answers and logits are those of transformers in fp32;
// caches and weights may live in either memory.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/continuations.h"

namespace sluice {
namespace {

TEST(EmulatedGeneration, AnswersAreThoseOfTransformers) {
  for (const char* fixture : {"gpt2", "qwen3", "gemma2", "mistral", "phi3"}) {
    SCOPED_TRACE(fixture);
    const Continuations wanted(nlohmann::json::parse(continuations_text(fixture)));
    const int64_t context = context_of(fixture);
    const double cap = resolve_model({.model = kContinuationFolder + fixture}).config.logits_cap;
    for (const Placement placement : {Placement::highest, Placement::lowest}) {
      Speech speech{.model = kContinuationFolder + fixture,
                    .sizes = {2, context, 5},
                    .device = DeviceKind::cuda,
                    .placement = placement};
      speech.arenas = {uint64_t{64} << 20, kRoomy, std::nullopt};
      Speaking speaking(speech);
      const std::vector<Answer> answers = speaking.answers(wanted.prompts());
      EXPECT_EQ(answers.size(), wanted.all.size());
      wanted.expect(answers, context);
      speech.tokens_max = 1;
      speech.sizes.sequences = 1;
      Speaking first(speech);
      first.answers({wanted.all[2].tokens});
      expect_logits(first.logits("prefill", 0), wanted.all[2].first_logits, cap);
    }
  }
}

}  // namespace
}  // namespace sluice
