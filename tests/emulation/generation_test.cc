// Generation on the cuda device, emulated: greedy answers and logits are those of transformers in fp32;
// caches and weights may live in either memory. Only the experts that are needed are read. The host knows
// which they are before it enqueues work on them, wherever the experts live.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

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

struct Spoken {
  std::vector<std::vector<uint32_t>> tokens;
  std::vector<float> logits;

  bool operator==(const Spoken&) const = default;
};

Spoken spoken(const Speech& speech, bool picks) {
  Speech one = speech;
  one.picks_experts = picks;
  Speaking speaking(one);
  const bool found = std::ranges::any_of(speaking.plan().program.buffers,
                                         [](const Buffer& b) { return b.pick.has_value(); });
  EXPECT_EQ(found, picks);
  Spoken all{tokens_of(speaking.answers({{7, 200, 31}, {5}})), {}};
  for (int64_t place = 0; place < speech.sizes.sequences; ++place)
    for (const float logit : speaking.logits("decode", place)) all.logits.push_back(logit);
  return all;
}

TEST(EmulatedGeneration, OnlyExpertsThatAreNeededAreRead) {
  // Experts of about a MiB, which is where homes on a drive begin.
  const std::string large =
      "qwen3_moe:layers=2,width=128,heads=2,kv_heads=2,head_size=64,experts=6,top=2,expert_ffn=680,vocab=300,"
      "context=64";
  const DriveDirectory directory;
  const std::string small = kContinuationFolder + "olmoe";
  struct Case {
    std::string model;
    Placement placement;
    ExecutorKind executor;
  };
  for (const Case& c : {Case{small, Placement::highest, ExecutorKind::threaded},
                        Case{small, Placement::lowest, ExecutorKind::threaded},
                        Case{small, Placement::lowest, ExecutorKind::shuffled},
                        Case{large, Placement::lowest, ExecutorKind::threaded}}) {
    SCOPED_TRACE(::testing::Message()
                 << c.model << static_cast<int>(c.placement) << static_cast<int>(c.executor));
    const bool nvme = c.model == large;
    Speech speech{
        .model = c.model, .sizes = {nvme ? 1 : 2, 40, 5}, .tokens_max = 3, .device = DeviceKind::cuda};
    speech.placement = c.placement;
    speech.executor = c.executor;
    speech.arenas = {uint64_t{64} << 20, kRoomy, nvme ? std::optional(kRoomy) : std::nullopt};
    if (nvme) speech.nvme_directory = directory.path();
    EXPECT_EQ(spoken(speech, true), spoken(speech, false));
  }
}

}  // namespace
}  // namespace sluice
