// Models that generate text: two readings share groups and caches; what check_model refuses of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "models/families/family.h"

namespace sluice {
namespace {

Model generating(const char* name, int64_t sequences = 3, int64_t context = 20, int64_t chunk = 8) {
  return build_generation_model(config_from_name(name), DType::bf16, sequences, context, chunk);
}

constexpr const char* kLlama = "llama:layers=2,width=32,heads=4,kv_heads=2,ffn=40,vocab=50,context=32";
constexpr const char* kGpt2 = "gpt2:layers=2,width=32,heads=4,vocab=50,context=32";

TEST(GenerationModel, HasTwoReadingsOfTheSameGroupsAndCaches) {
  for (const char* name : {kLlama, kGpt2}) {
    const Model model = generating(name);
    ASSERT_EQ(model.readings.size(), 2u);
    EXPECT_EQ(model.readings[0].name, "decode");
    EXPECT_EQ(model.readings[0].tokens, 1);
    EXPECT_EQ(model.readings[1].name, "prefill");
    EXPECT_EQ(model.readings[1].tokens, 8);
    ASSERT_EQ(model.layers.size(), 8u);
    EXPECT_EQ(model.readings[0].last, 4u);
    for (uint32_t i = 0; i < 4; ++i) {
      const SegmentUse &decode = model.layers[i].segments[0], &prefill = model.layers[i + 4].segments[0];
      EXPECT_EQ(decode.groups, prefill.groups);
      std::vector<uint32_t> kept, also;
      for (const uint32_t a : decode.inputs)
        if (model.activations[a].kept) kept.push_back(a);
      for (const uint32_t a : prefill.inputs)
        if (model.activations[a].kept) also.push_back(a);
      EXPECT_EQ(kept, also);
      EXPECT_EQ(kept.size(), i == 1 || i == 2 ? 1u : 0u);
    }
    for (const Group& group : model.groups) EXPECT_FALSE(group.trainable);
    EXPECT_EQ(model.activations[model_input(model, "decode.tokens")].shape, (Shape{3}));
    EXPECT_EQ(model.activations[model_input(model, "prefill.tokens")].shape, (Shape{24}));
    EXPECT_EQ(model.activations[model_input(model, "prefill.picked")].shape, (Shape{3}));
    EXPECT_THROW(model_input(model, "decode.picked"), std::invalid_argument);
    for (const char* output : {"decode.logits", "prefill.logits"})
      EXPECT_EQ(model.activations[model_output(model, output)].shape, (Shape{3, 50}));
    EXPECT_THROW(model_output(model, "decode.tokens"), std::invalid_argument);
  }
}

TEST(GenerationModel, CachesHaveKeysAndValuesOfTheContext) {
  const Model model = generating(kLlama);
  const auto cache = std::ranges::find(model.activations, "cache.model.layers.1", &Activation::name);
  ASSERT_NE(cache, model.activations.end());
  EXPECT_EQ(cache->shape, (Shape{3, 20, 2 * 2 * 8}));
  EXPECT_EQ(cache->dtype, DType::bf16);
}

TEST(GenerationModel, HasTheParametersOfTheTrainedModel) {
  const ModelConfig config = config_from_name(kLlama);
  const Model trained = build_model(config, DType::bf16, 1, 8), model = generating(kLlama);
  ASSERT_EQ(model.groups.size(), trained.groups.size());
  for (size_t g = 0; g < model.groups.size(); ++g) {
    EXPECT_EQ(model.groups[g].name, trained.groups[g].name);
    EXPECT_EQ(model.groups[g].elements, trained.groups[g].elements);
  }
}

TEST(GenerationModel, AModelThatIsTrainedMaySpeakInBetween) {
  const ModelConfig config = config_from_name(kLlama);
  const Model plain = build_model(config, DType::bf16, 2, 8),
              speaks = build_model(config, DType::bf16, 2, 8, false, GenerationSizes{3, 20, 5}),
              only_speaks = generating(kLlama);
  EXPECT_TRUE(speaks.samples());
  EXPECT_FALSE(speaks.generates());
  EXPECT_FALSE(plain.samples());
  EXPECT_FALSE(only_speaks.samples());
  EXPECT_EQ(only_speaks.trained_layers(), 0u);
  EXPECT_EQ(speaks.trained_layers(), plain.layers.size());
  ASSERT_EQ(speaks.layers.size(), plain.layers.size() + only_speaks.layers.size());
  EXPECT_EQ(speaks.micro_batch, 2);
  EXPECT_EQ(speaks.sequence, 8);
  for (const Reading& reading : speaks.readings) {
    EXPECT_EQ(reading.sequences, 3);
    EXPECT_EQ(reading.context, 20);
  }
  EXPECT_EQ(speaks.readings.back().tokens, 5);
  for (size_t g = 0; g < plain.groups.size(); ++g) {
    EXPECT_EQ(speaks.groups[g].name, plain.groups[g].name);
    EXPECT_EQ(speaks.groups[g].trainable, plain.groups[g].trainable);
  }
  const GroupUses uses = uses_of_groups(speaks);
  EXPECT_EQ(uses.kind_counts, uses_of_groups(plain).kind_counts);
  EXPECT_EQ(uses.kinds.size(), plain.layers.size());
  EXPECT_TRUE(is_of_reading(speaks, speaks.activations[model_input(speaks, "decode.tokens")]));
  EXPECT_FALSE(is_of_reading(speaks, speaks.activations[model_input(speaks, "tokens")]));
}

TEST(GenerationModel, ChunksEndAtTheContext) {
  EXPECT_EQ(generating(kLlama, 1, 5, 99).readings[1].tokens, 5);
}

TEST(GenerationModel, RotaryPositionsGoOnBeyondTheContext) {
  EXPECT_EQ(generating(kLlama, 1, 33).readings[0].context, 33);
}

std::string refusal(const Model& model) {
  try {
    check_model(model);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(GenerationModel, ChecksReadingsAndWhatIsKept) {
  const Model model = generating(kLlama);
  EXPECT_EQ(refusal(model), "accepted");
  Model gap = model;
  gap.readings[1].first = 5;
  EXPECT_EQ(refusal(gap), "Reading prefill has layers 5 to 8.");
  Model rest = model;
  rest.readings.pop_back();
  EXPECT_EQ(refusal(rest), "No reading has layer prefill.embedding.");
  Model many = model;
  many.readings[1].tokens = 21;
  EXPECT_EQ(refusal(many), "Reading prefill has 21 tokens of 20.");
  Model wide = model;
  wide.readings[1].sequences = 4;
  EXPECT_EQ(refusal(wide), "Reading prefill has other sequences than the first.");
  Model made = model;
  const auto cache = std::ranges::find(made.activations, "cache.model.layers.0", &Activation::name);
  cache->kept = false, cache->input = true;
  EXPECT_NE(refusal(made).find("is updated and not kept"), std::string::npos) << refusal(made);
  Model kept = model;
  kept.activations[model_input(kept, "decode.documents")].kept = true;
  EXPECT_NE(refusal(kept).find("is kept and not updated"), std::string::npos) << refusal(kept);
}

}  // namespace
}  // namespace sluice
