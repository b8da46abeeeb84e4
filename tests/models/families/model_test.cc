// Models as data: lists of ops as text, layouts of parameter groups, initial values, and check_model's rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "tests/support/family_support.h"

namespace sluice {
namespace {

TEST(Model, FrozenGroupsCountOnlyWhenAsked) {
  Model model = build("gpt2");
  for (Group& group : model.groups) group.trainable = group.name != "wte";
  EXPECT_EQ(parameter_count(model), 124439808u);
  EXPECT_EQ(parameter_count(model, true), 124439808u - 50257u * 768u);
}

TEST(Model, TiedEmbeddingIsOneGroupOfTwoLayers) {
  for (const Family* family : families()) {
    const std::string name = with_heads(*family, "layers=2,width=64,vocab=96,context=16,ffn=72,tied=");
    const Model tied = build(name + "true"), untied = build(name + "false");
    const uint32_t table = tied.layers.front().segments[0].groups[0];
    EXPECT_EQ(tied.groups[table].parameters.size(), 1u);
    EXPECT_EQ(tied.layers.back().segments[0].groups[1], table) << name;
    EXPECT_EQ(untied.groups.size(), tied.groups.size() + 1);
    EXPECT_EQ(untied.groups.back().name, "lm_head");
    EXPECT_EQ(parameter_count(untied), parameter_count(tied) + 96u * 64u) << name;
  }
}

TEST(Model, GroupLayoutIsAlignedAndPadded) {
  const Model model = build("gpt2:layers=1,width=60,heads=4,vocab=97,context=16");
  for (const Group& group : model.groups) {
    uint64_t end = 0;
    for (const Parameter& parameter : group.parameters) {
      EXPECT_EQ(parameter.offset, (end + 63) / 64 * 64) << parameter.name;
      end = parameter.offset + static_cast<uint64_t>(element_count(parameter.shape));
    }
    EXPECT_EQ(group.elements, (end + 2047) / 2048 * 2048) << group.name;
  }
  EXPECT_EQ(model.groups[0].elements, 6144u);  // 97 x 60 = 5820
}

// Whether the model's norms add their weights to one.
bool adds_weights_to_one(const Model& model) {
  const std::vector<Op>& ops = model.segments.back().ops;  // the head's
  return ops.front().attributes.weight_from_one;
}

// Matrices are normal, norms one, or zero where one is added, biases zero. The two matrices that write to the
// residual stream, the last of the attention and the last of the feed-forward part, have smaller values. The
// latter may be an expert's, in a group of its own.
TEST(Model, InitialValuesFollowTheContract) {
  for (const Family* family : families()) {
    const Model model = build(with_heads(*family, "layers=8,width=64,ffn=72,vocab=96,context=16"));
    const bool from_one = adds_weights_to_one(model);
    for (const Group& group : model.groups) {
      size_t residual = 0;
      const bool apart = std::ranges::any_of(
          model.layers, [&](const Layer& layer) { return layer.name.starts_with(group.name + "."); });
      const bool of_expert = group.name.find("expert") != std::string::npos;
      for (const Parameter& p : group.parameters) {
        const bool matrix = p.shape.size() == 2,
                   bias = p.name.ends_with(".bias") || p.name.ends_with(".sinks");
        EXPECT_EQ(p.decay, matrix) << p.name;
        const bool zeros = bias || from_one;
        EXPECT_EQ(p.initializer, matrix  ? Initializer::normal
                                 : zeros ? Initializer::zeros
                                         : Initializer::ones)
            << p.name;
        if (!matrix) continue;
        const bool smaller = p.standard_deviation < 0.02;
        EXPECT_DOUBLE_EQ(p.standard_deviation, smaller ? 0.02 / 4 : 0.02) << p.name;  // sqrt(2 x 8) = 4
        residual += smaller;
      }
      const size_t wanted = group.parameters.size() <= 2 ? 0 : apart || of_expert ? 1 : 2;
      EXPECT_EQ(residual, wanted) << family->name << " " << group.name;
    }
  }
}

TEST(Model, LearnedPositionsEndWithTheContext) {
  try {
    build("gpt2:layers=1,width=64,heads=4,vocab=96,context=16", DType::bf16, 1, 17);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(),
                 "--seq 17 is longer than the model's context of 16 tokens, whose positions are learned.");
  }
  EXPECT_THROW(build_generation_model(config_from_name("gpt2:layers=1,width=64,heads=4,vocab=96,context=16"),
                                      DType::bf16, 1, 17, 4),
               Error);
}

// Positions beyond the context go on as the rotation is defined, and a sentence says what is known of them.
TEST(Model, RotaryPositionsGoOnBeyondTheContext) {
  ModelConfig config = config_from_name("llama:layers=1,width=64,heads=4,vocab=96,context=16");
  EXPECT_EQ(build_model(config, DType::bf16, 1, 64).sequence, 64);
  EXPECT_EQ(build_generation_model(config, DType::bf16, 1, 64, 4).sequence, 64);
  EXPECT_EQ(length_note(config, 16, "--seq"), std::nullopt);
  const std::string longer = "--seq 64 is longer than the model's context of 16 tokens: ";
  const std::string plain =
      longer + "the model has not learned positions beyond it, and no rope_scaling stretches them.";
  EXPECT_EQ(length_note(config, 64, "--seq"), plain);
  // These are the values of Qwen's README.
  config.rope_scaling = {.type = RopeType::yarn, .factor = 4, .original_context = 16};
  EXPECT_EQ(length_note(config, 64, "--seq"),
            longer + "the model's rope_scaling (yarn) stretches its positions to 64 tokens.");
  config.rope_scaling.factor = 2;
  EXPECT_EQ(length_note(config, 64, "--seq"), plain);
  config.rope_scaling = {.type = RopeType::dynamic, .factor = 4};
  EXPECT_EQ(
      length_note(config, 64, "--max-context"),
      "--max-context 64 is longer than the model's context of 16 tokens: the model's rope_scaling (dynamic) "
      "stretches its positions to 64 tokens, in shorter sequences as well.");
  config.rope_theta = 0;  // learned: refused
  EXPECT_EQ(length_note(config, 64, "--seq"), std::nullopt);
}

TEST(Model, SliceOfTooManyTokensIsRefused) {
  EXPECT_THROW(
      build("gpt2:layers=1,width=64,heads=4,vocab=96,context=1024", DType::bf16, int64_t{1} << 21, 1024),
      Error);
}

// In models with experts, choices are numbered in 32 bits.
TEST(Model, TooManyChoicesOfExpertsAreRefused) {
  const std::string name =
      "gpt_oss:layers=1,width=64,heads=4,kv_heads=2,vocab=96,context=1048576,experts=64,top=8,ffn=8";
  const int64_t most = INT32_MAX / 64;  // tokens
  EXPECT_NO_THROW(build(name, DType::bf16, most / 1000000, 1000000));
  EXPECT_NO_THROW(build(name, DType::bf16, most, 1));
  const auto refused = [&](const std::string& sentence, const std::string& remedy, const auto& action) {
    try {
      action();
      ADD_FAILURE() << sentence;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_EQ(error.what(), sentence);
      EXPECT_EQ(error.remedy(), remedy);
    }
  };
  refused(
      "33554432 x 1 tokens at once, each with 8 of 64 experts, are too many: at most 33554431 tokens are "
      "possible.",
      "Use a smaller --micro-batch or --seq.", [&] { build(name, DType::bf16, most + 1, 1); });
  refused(
      "1024 x 1048576 tokens at once, each with 8 of 64 experts, are too many: at most 33554431 tokens are "
      "possible.",
      "Use a smaller --micro-batch or --seq.", [&] { build(name, DType::bf16, 1024, 1 << 20); });
  refused(
      "2047 x 1000000 tokens at once, each with 8 of 64 experts, are too many: at most 33554431 tokens are "
      "possible.",
      "Use a smaller --batch or --prompt-chunk.",
      [&] { build_generation_model(config_from_name(name), DType::bf16, 2047, 1 << 20, 1000000); });
}

TEST(LayOutGroup, OverflowIsRefused) {
  Group group{.name = "g", .parameters = {{.name = "a", .shape = {int64_t{1} << 40, int64_t{1} << 40}}}};
  EXPECT_THROW(lay_out_group(group), std::invalid_argument);
  group.parameters = {{.name = "a", .shape = {-1}}};
  EXPECT_THROW(lay_out_group(group), std::invalid_argument);
  group.parameters.assign(3, {.name = "a", .shape = {int64_t{1} << 55}});
  EXPECT_THROW(lay_out_group(group), std::invalid_argument);
  group.parameters.clear();
  lay_out_group(group);
  EXPECT_EQ(group.elements, 0u);
}

TEST(CheckModel, NamesWhatIsWrong) {
  const Model good = build("gpt2:layers=2,width=64,heads=4,vocab=96,context=16");
  ASSERT_NO_THROW(check_model(good));
  const std::pair<const char*, std::function<void(Model&)>> cases[] = {
      {"there is no segment 9.", [](Model& m) { m.layers[1].segments[0].segment = 9; }},
      {"there is no group 99.", [](Model& m) { m.layers[1].segments[0].groups[0] = 99; }},
      {"is bound to two slots.",
       [](Model& m) {
         auto& groups = m.layers[1].segments[0].groups;
         groups.push_back(groups[0]);
       }},
      {"group slot 0 is not bound.", [](Model& m) { m.layers[1].segments[0].groups.clear(); }},
      {"wpe.weight is [16, 64], the segment wants [64].",
       [](Model& m) { m.layers[1].segments[0].groups[0] = 1; }},
      {"group h.0 has no parameter 99.", [](Model& m) { m.segments[1].parameters[0].parameter = 99; }},
      {"there is no activation 99.", [](Model& m) { m.layers[1].segments[0].inputs[0] = 99; }},
      {"0 activations for 1 tensors.", [](Model& m) { m.layers[1].segments[0].inputs.clear(); }},
      {"nothing produces activation h.1.", [](Model& m) { m.layers[1].segments[0].inputs[0] = 4; }},
      {"activation embedding has two producers.", [](Model& m) { m.layers[1].segments[0].outputs[0] = 2; }},
      {"Nothing produces activation spare.",
       [](Model& m) {
         m.activations.push_back({.name = "spare", .shape = {16, 64}});
       }},
      {"Two groups are named wpe.", [](Model& m) { m.groups[0].name = "wpe"; }},
      {"Two tensors are named wpe.weight.", [](Model& m) { m.groups[0].parameters[0].name = "wpe.weight"; }},
      {"Group wte is not laid out: 7 elements.", [](Model& m) { m.groups[0].elements = 7; }},
      {"does not start aligned", [](Model& m) { m.groups[2].parameters[1].offset = 32; }},
      {"there is no tensor 77.", [](Model& m) { m.segments[1].ops[0].inputs[0] = 77; }},
      {"there is no parameter 77.", [](Model& m) { m.segments[1].ops[0].parameters[0] = 77; }},
      {"ln_1 is read before it is written.",
       [](Model& m) { m.segments[1].ops.erase(m.segments[1].ops.begin()); }},
      {"`loss` and the last op disagree.", [](Model& m) { m.segments[2].loss = false; }},
      {"x is input and output.", [](Model& m) { m.segments[1].outputs[0] = m.segments[1].inputs[0]; }},
      {"the rule says bf16 [16, 64].",
       [](Model& m) {
         m.segments[0].tensors[1].shape = {16, 65};
       }},
      {"Segment embedding, embedding: tokens is fp32, the rule says int32.",
       [](Model& m) { m.segments[0].tensors[0].dtype = DType::f32; }},
      {"The micro-batch is 0 sequences", [](Model& m) { m.micro_batch = 0; }},
  };
  for (const auto& [sentence, damage] : cases) {
    Model model = good;
    damage(model);
    try {
      check_model(model);
      ADD_FAILURE() << "accepted: " << sentence;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  }
}

TEST(CheckModel, GraphsNeedNotBeChains) {
  // Two branches, one with the weights of the embedding and one with frozen weights, joined in a layer of two
  // segments.
  Model m{.family = "test", .precision = DType::f32, .micro_batch = 1, .sequence = 4, .vocabulary = 8};
  m.groups = {{.name = "shared", .parameters = {{.name = "w", .shape = {8, 8}}}},
              {.name = "frozen", .trainable = false, .parameters = {{.name = "f", .shape = {8, 8}}}}};
  for (Group& group : m.groups) lay_out_group(group);
  m.segments = {{.name = "embed",
                 .tensors = {{"tokens", {4}, DType::i32}, {"x", {4, 8}, DType::f32}},
                 .ops = {{OpKind::embedding, {}, {0}, {1}, {0}}},
                 .parameters = {{0, 0, {8, 8}}},
                 .inputs = {0},
                 .outputs = {1}},
                {.name = "map",
                 .tensors = {{"x", {4, 8}, DType::f32}, {"y", {4, 8}, DType::f32}},
                 .ops = {{OpKind::linear, {}, {0}, {1}, {0}}},
                 .parameters = {{0, 0, {8, 8}}},
                 .inputs = {0},
                 .outputs = {1}},
                {.name = "join",
                 .tensors = {{"a", {4, 8}, DType::f32}, {"b", {4, 8}, DType::f32}, {"y", {4, 8}, DType::f32}},
                 .ops = {{OpKind::add, {}, {0, 1}, {2}, {}}},
                 .inputs = {0, 1},
                 .outputs = {2}}};
  m.activations = {{"tokens", {4}, DType::i32, true}};
  for (const char* name : {"x", "left", "right", "joined"})
    m.activations.push_back({name, {4, 8}, DType::f32});
  m.layers = {{"embed", {{0, {0}, {0}, {1}}}},
              {"left", {{1, {0}, {1}, {2}}}},
              {"both", {{1, {1}, {1}, {3}}, {2, {}, {2, 3}, {4}}}}};
  EXPECT_NO_THROW(check_model(m));
  EXPECT_EQ(parameter_count(m, true), 64u);
}

}  // namespace
}  // namespace sluice
