// Answers depend on no budget, batch or chunk; they end as they should; prompts that cannot be answered are
// refused.
#include "engine/run/generate/generator.h"

#include <gtest/gtest.h>

#include "engine/verify/verify.h"
#include "models/families/family.h"
#include "tests/support/generation_support.h"

namespace sluice {
namespace {

using Tokens = std::vector<uint32_t>;

const std::string kModel = "tests/fixtures/mistral";  // its answers change from token to token
const std::vector<Tokens> kPrompts = {
    {5}, {7, 200, 31, 4, 9, 11, 250}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};

Speech speech() { return {.model = kModel, .sizes = {2, 40, 5}}; }
const Sampling kDrawn{.temperature = 0.9, .top_k = 50, .top_p = 0.95, .seed = 3};

TEST(Generator, AnyBudgetGivesTheSameTokens) {
  const DriveDirectory directory;
  Speech roomy = speech();
  roomy.sampling = kDrawn;
  Speaking spoken(roomy);
  const auto wanted = tokens_of(spoken.answers(kPrompts));
  for (const bool upper : {false, true})
    for (const Placement placement : {Placement::automatic, Placement::lowest, Placement::highest})
      for (const bool least : {false, true}) {
        Speech tight = roomy;
        tight.placement = placement;
        tight.nvme_directory = directory.path();
        tight.arenas = {upper ? std::optional(kRoomy) : std::nullopt, kRoomy, kRoomy};
        if (least) {
          tight.arenas = {upper ? std::optional<uint64_t>(0) : std::nullopt, 0, kRoomy};
          const std::vector<uint64_t> bytes = refusal_of(tight).least_together;
          tight.arenas = {upper ? std::optional(bytes[0]) : std::nullopt, bytes[upper ? 1 : 0], kRoomy};
        }
        SCOPED_TRACE(::testing::Message() << upper << least << static_cast<int>(placement));
        Speaking speaking(tight);
        const std::vector<Violation> violations = verify(speaking.plan().program, 5);
        for (const Violation& v : violations) ADD_FAILURE() << describe(speaking.plan().program, v);
        EXPECT_EQ(tokens_of(speaking.answers(kPrompts)), wanted);
      }
}

// The caches' homes, as the planner chose them.
std::vector<TierId> homes_of_caches(const Plan& plan) {
  std::vector<TierId> homes;
  for (const Buffer& b : plan.program.buffers)
    if (b.name.starts_with("cache.")) homes.push_back(b.home);
  return homes;
}

TEST(Generator, CachesLiveWhereTheBudgetsAllow) {
  const DriveDirectory directory;
  Speech upper = speech();
  upper.arenas = {kRoomy, kRoomy, kRoomy};
  upper.nvme_directory = directory.path();
  upper.placement = Placement::highest;
  const std::vector<TierId> high = homes_of_caches(Speaking(upper).plan());
  EXPECT_FALSE(high.empty());
  EXPECT_EQ(high, std::vector<TierId>(high.size(), 0));
  upper.placement = Placement::lowest;
  EXPECT_EQ(homes_of_caches(Speaking(upper).plan()), std::vector<TierId>(high.size(), 2));
}

TEST(Generator, EveryExecutorGivesTheSameTokens) {
  Speaking threaded(speech());
  const auto wanted = tokens_of(threaded.answers(kPrompts));
  for (const ExecutorKind kind : {ExecutorKind::serial, ExecutorKind::shuffled}) {
    Speech other = speech();
    other.executor = kind;
    Speaking speaking(other);
    EXPECT_EQ(tokens_of(speaking.answers(kPrompts)), wanted);
  }
}

TEST(Generator, BatchesGiveWhatSinglePromptsGive) {
  for (const Sampling& sampling : {Sampling{}, kDrawn}) {
    Speech alone = speech();
    alone.sizes = {1, 40, 40};
    alone.sampling = sampling;
    Speaking single(alone);
    const auto wanted = tokens_of(single.answers(kPrompts));
    for (const int64_t sequences : {2, 3, 4})
      for (const int64_t chunk : {1, 3, 40}) {
        Speech many = alone;
        many.sizes = {sequences, 40, chunk};
        Speaking speaking(many);
        EXPECT_EQ(tokens_of(speaking.answers(kPrompts)), wanted) << sequences << " " << chunk;
      }
  }
}

TEST(Generator, SeedsDiffer) {
  std::vector<std::vector<Tokens>> spoken;
  for (const uint64_t seed : {1, 2}) {
    Speech s = speech();
    s.sampling = {.temperature = 2, .seed = seed};
    Speaking speaking(s);
    spoken.push_back(tokens_of(speaking.answers(kPrompts)));
  }
  EXPECT_NE(spoken[0], spoken[1]);
}

TEST(Generator, EndsAtEndTokensLengthsAndTheContext) {
  Speech s = speech();
  Speaking speaking(s);
  const std::vector<Answer> whole = speaking.answers(kPrompts);
  for (const Answer& answer : whole) {
    EXPECT_EQ(answer.tokens.size(), 24u);
    EXPECT_EQ(answer.ending, Ending::length);
  }
  s.ends = {9999, whole[1].tokens[6]};
  Speaking ended(s);
  const std::vector<Answer> cut = ended.answers(kPrompts);
  for (size_t i = 0; i < cut.size(); ++i) {
    Tokens wanted = whole[i].tokens;
    const auto end = std::ranges::find(wanted, s.ends[1]);
    EXPECT_EQ(cut[i].ending, end == wanted.end() ? Ending::length : Ending::token);
    wanted.erase(end, wanted.end());
    EXPECT_EQ(cut[i].tokens, wanted);
  }
  s = speech();
  s.sizes.context = 15;
  Speaking full(s);
  const std::vector<Answer> short_ones = full.answers(kPrompts);
  for (size_t i = 0; i < short_ones.size(); ++i) {
    EXPECT_EQ(short_ones[i].ending, Ending::context);
    EXPECT_EQ(short_ones[i].tokens.size(), 15 - kPrompts[i].size());
    EXPECT_TRUE(std::ranges::equal(short_ones[i].tokens,
                                   std::span(whole[i].tokens).first(short_ones[i].tokens.size())));
  }
}

// A conversation goes on with what is cached, and reads only what is new.
TEST(Generator, GoesOnWithWhatIsCached) {
  Speech s = speech();
  s.sizes = {1, 60, 8};
  Speaking speaking(s);
  const std::atomic<bool> never{false};
  const auto quiet = [](size_t, uint32_t) { return true; };
  const auto answer = [&](Speaking& to, const Tokens& tokens, bool continues) {
    const Prompt prompt{tokens, 0};
    return to.generator().answer({&prompt, 1}, 10, continues, quiet, never).front().tokens;
  };
  Tokens talk = kPrompts[2];
  const Tokens first = answer(speaking, talk, true);
  talk.insert(talk.end(), first.begin(), first.end());
  talk.insert(talk.end(), {21, 22, 23});
  const int64_t before = speaking.generator().tokens_read();
  const Tokens second = answer(speaking, talk, true);
  EXPECT_EQ(speaking.generator().tokens_read() - before,
            4);  // the last token of the answer, and the new ones
  EXPECT_EQ(second, answer(speaking, talk, false));
  talk.resize(5);  // another beginning
  EXPECT_EQ(answer(speaking, talk, true), answer(speaking, talk, false));
}

TEST(Generator, StopsBetweenTokens) {
  Speaking speaking(speech());
  std::atomic<bool> stop{false};
  int said = 0;
  const Prompt prompt{kPrompts[1], 0};
  const auto answers = speaking.generator().answer(
      {&prompt, 1}, 24, false,
      [&](size_t, uint32_t) {
        stop = ++said == 3;
        return true;
      },
      stop);
  EXPECT_EQ(answers.front().ending, Ending::stopped);
  EXPECT_EQ(answers.front().tokens.size(), 3u);
  stop = false;
  const auto ended = speaking.generator().answer(
      {&prompt, 1}, 24, false, [&](size_t, uint32_t) { return ++said < 7; }, stop);
  EXPECT_EQ(ended.front().ending, Ending::text);
  EXPECT_EQ(ended.front().tokens.size(), 4u);
}

TEST(Generator, RefusesPromptsThatCannotBeAnswered) {
  const auto told = [](const Tokens& tokens) -> std::string {
    try {
      check_prompt(tokens, 4, 300);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(told({1, 2, 299}), "");
  EXPECT_NE(told({}).find("The prompt is empty"), std::string::npos);
  EXPECT_NE(told({1, 2, 3, 4}).find("The prompt has 4 tokens, and prompt and answer have room for 4."),
            std::string::npos);
  EXPECT_NE(told({1, 300}).find("The prompt has token 300, and the model has 300 tokens."),
            std::string::npos);
}

TEST(Generator, SizesFitTheModel) {
  const ModelConfig config = resolve_model({.model = kModel}).config;  // a context of 64
  EXPECT_EQ(generation_sizes({}, config, 2).context, 64);
  EXPECT_EQ(generation_sizes({}, config, 2).chunk, 64);
  EXPECT_EQ(generation_sizes({}, config, 64).chunk, 8);
  Options options;
  options.generate.max_context = 20;
  options.generate.prompt_chunk = 30;
  EXPECT_EQ(generation_sizes(options, config, 1).chunk, 20);
  options.generate.max_context = 65;  // beyond the model's, where building it says whether it may
  EXPECT_EQ(generation_sizes(options, config, 1).context, 65);
}

// Weights, cached keys and cached values have 16 bits.
TEST(Generator, SpeaksInEveryPrecision) {
  for (const DType precision : {DType::bf16, DType::f16}) {
    Speech s = speech();
    s.precision = precision;
    Speaking cpu(s);
    for (const Answer& answer : cpu.answers(kPrompts)) EXPECT_EQ(answer.tokens.size(), 24u);
  }
}

}  // namespace
}  // namespace sluice
