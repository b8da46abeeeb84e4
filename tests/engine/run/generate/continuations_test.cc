// Greedy answers of every family's fixture and their logits are those of transformers, with any chunk of
// prompts and any batch.
#include "tests/support/continuations.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/families/family.h"

namespace sluice {
namespace {

class Continuation : public ::testing::TestWithParam<std::string> {};

TEST_P(Continuation, IsThatOfTransformers) {
  const Continuations wanted(nlohmann::json::parse(continuations_text(GetParam())));
  const int64_t context = context_of(GetParam());
  struct Way {
    DeviceKind device;
    int64_t sequences, chunk;
  };
  for (const Way& way : {Way{DeviceKind::cpu, 1, 50}, Way{DeviceKind::cpu, 3, 4}, Way{DeviceKind::cpu, 4, 1},
                         Way{DeviceKind::reference, 2, 5}}) {
    SCOPED_TRACE(::testing::Message() << way.sequences << " at once, chunks of " << way.chunk);
    Speaking speaking({.model = kContinuationFolder + GetParam(),
                       .sizes = {way.sequences, context, std::min(context, way.chunk)},
                       .device = way.device});
    wanted.expect(speaking.answers(wanted.prompts()), context);
  }
}

// Where a tiny model says one token over and over, its logits still tell positions and windows apart.
TEST_P(Continuation, LogitsAreThoseOfTransformers) {
  const Continuations wanted(nlohmann::json::parse(continuations_text(GetParam())));
  const int64_t context = context_of(GetParam());
  const double cap = resolve_model({.model = kContinuationFolder + GetParam()}).config.logits_cap;
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::reference}) {
    Speech speech{.model = kContinuationFolder + GetParam(), .sizes = {1, context, 6}, .device = device};
    for (const Continuations::One& one : wanted.all) {
      speech.tokens_max = 1;
      Speaking first(speech);
      first.answers({one.tokens});
      expect_logits(first.logits("prefill", 0), one.first_logits, cap);
      speech.tokens_max = std::ssize(one.answer);
      if (std::ssize(one.tokens) + speech.tokens_max > context) continue;
      Speaking last(speech);
      last.answers({one.tokens});
      expect_logits(last.logits("decode", 0), one.last_logits, cap);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Continuation, ::testing::ValuesIn(continuation_fixtures()),
                         [](const auto& test) { return test.param; });

TEST(ContinuationFixtures, AreOfEveryFamily) {
  for (const Family* family : families()) {
    const std::string type = family->name;
    EXPECT_TRUE(std::ranges::any_of(continuation_fixtures(), [&](const std::string& name) {
      return resolve_model({.model = kContinuationFolder + name}).config.family == type;
    })) << type;
  }
}

}  // namespace
}  // namespace sluice
