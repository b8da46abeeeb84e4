// Models as data: op lists as text, group layouts, initial values, and check_model's rules.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <stdexcept>

#include "models/families/family.h"
#include "tests/support/families.h"

namespace sluice {
namespace {

Model build(const std::string& name, DType precision = DType::bf16, int64_t micro_batch = 2,
            int64_t sequence = 8) {
  return build_model(config_from_name(name), precision, micro_batch, sequence);
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

// "y = linear(x; w[K,N], b[N])" a line.
std::string ops_text(const Model& model, const SegmentUse& use) {
  const Segment& segment = model.segments[use.segment];
  std::string text;
  for (const Op& op : segment.ops) {
    std::vector<std::string> outputs, inputs, parameters;
    for (const uint32_t t : op.outputs) outputs.push_back(segment.tensors[t].name);
    for (const uint32_t t : op.inputs) inputs.push_back(segment.tensors[t].name);
    for (const uint32_t p : op.parameters) {
      const SegmentParameter& parameter = segment.parameters[p];
      const Group& group = model.groups[use.groups[parameter.slot]];
      parameters.push_back(group.parameters[parameter.parameter].name + shape_text(parameter.shape));
    }
    text += fmt::format("{} = {}({}{}{})\n", fmt::join(outputs, ", "), op_rule(op.kind).name,
                        fmt::join(inputs, ", "), parameters.empty() ? "" : "; ", fmt::join(parameters, ", "));
  }
  return text;
}

TEST(Model, FrozenGroupsCountOnlyWhenAsked) {
  Model model = build("gpt2");
  for (Group& group : model.groups) group.trainable = group.name != "wte";
  EXPECT_EQ(parameter_count(model), 124439808u);
  EXPECT_EQ(parameter_count(model, true), 124439808u - 50257u * 768u);
}

TEST(Model, Gpt2OpList) {
  const Model model = build("gpt2:layers=2,width=64,heads=4,vocab=96,context=16");
  ASSERT_EQ(model.layers.size(), 4u);
  EXPECT_EQ(model.segments.size(), 3u);  // one template for all blocks
  EXPECT_EQ(ops_text(model, model.layers[0].segments[0]),
            "x = embedding(tokens; wte.weight[96,64], wpe.weight[16,64])\n");
  EXPECT_EQ(ops_text(model, model.layers[2].segments[0]),
            "ln_1, ln_1.1, ln_1.2 = layer_norm(x; h.1.ln_1.weight[64], h.1.ln_1.bias[64])\n"
            "attn.c_attn = linear(ln_1; h.1.attn.c_attn.weight[64,192], h.1.attn.c_attn.bias[192])\n"
            "attn, attn.1 = attention(attn.c_attn)\n"
            "attn.c_proj = linear(attn; h.1.attn.c_proj.weight[64,64], h.1.attn.c_proj.bias[64])\n"
            "middle = add(x, attn.c_proj)\n"
            "ln_2, ln_2.1, ln_2.2 = layer_norm(middle; h.1.ln_2.weight[64], h.1.ln_2.bias[64])\n"
            "mlp.c_fc, mlp.c_fc.1 = linear_gelu(ln_2; h.1.mlp.c_fc.weight[64,256], h.1.mlp.c_fc.bias[256])\n"
            "mlp.c_proj = linear(mlp.c_fc; h.1.mlp.c_proj.weight[256,64], h.1.mlp.c_proj.bias[64])\n"
            "y = add(middle, mlp.c_proj)\n");
  EXPECT_EQ(ops_text(model, model.layers[3].segments[0]),
            "ln_f, ln_f.1, ln_f.2 = layer_norm(x; ln_f.weight[64], ln_f.bias[64])\n"
            "loss = linear_cross_entropy(ln_f, labels; wte.weight[96,64])\n");
  EXPECT_TRUE(model.segments[2].loss);
}

TEST(Model, LlamaOpList) {
  const Model model =
      build("llama:layers=1,width=48,heads=6,kv_heads=2,ffn=72,vocab=96,context=16,tied=false");
  EXPECT_EQ(ops_text(model, model.layers[0].segments[0]),
            "x = embedding(tokens; model.embed_tokens.weight[96,48])\n");
  EXPECT_EQ(ops_text(model, model.layers[1].segments[0]),
            "input_layernorm, input_layernorm.1 = rms_norm(x; model.layers.0.input_layernorm.weight[48])\n"
            "self_attn.q_proj = linear(input_layernorm; model.layers.0.self_attn.q_proj.weight[48,48])\n"
            "q = rope(self_attn.q_proj)\n"
            "self_attn.k_proj = linear(input_layernorm; model.layers.0.self_attn.k_proj.weight[16,48])\n"
            "k = rope(self_attn.k_proj)\n"
            "self_attn.v_proj = linear(input_layernorm; model.layers.0.self_attn.v_proj.weight[16,48])\n"
            "attn, attn.1 = attention(q, k, self_attn.v_proj)\n"
            "self_attn.o_proj = linear(attn; model.layers.0.self_attn.o_proj.weight[48,48])\n"
            "middle = add(x, self_attn.o_proj)\n"
            "post_attention_layernorm, post_attention_layernorm.1 = "
            "rms_norm(middle; model.layers.0.post_attention_layernorm.weight[48])\n"
            "mlp.gate_proj = linear(post_attention_layernorm; model.layers.0.mlp.gate_proj.weight[72,48])\n"
            "mlp.up_proj = linear(post_attention_layernorm; model.layers.0.mlp.up_proj.weight[72,48])\n"
            "swiglu = swiglu(mlp.gate_proj, mlp.up_proj)\n"
            "mlp.down_proj = linear(swiglu; model.layers.0.mlp.down_proj.weight[48,72])\n"
            "y = add(middle, mlp.down_proj)\n");
  EXPECT_EQ(ops_text(model, model.layers[2].segments[0]),
            "norm, norm.1 = rms_norm(x; model.norm.weight[48])\n"
            "loss = linear_cross_entropy(norm, labels; lm_head.weight[96,48])\n");
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

TEST(Model, BiasesWhereTheConfigSaysSo) {
  ModelConfig config =
      config_from_name("llama:layers=1,width=48,heads=6,kv_heads=2,ffn=72,vocab=96,context=16");
  const uint64_t plain = parameter_count(build_model(config, DType::f32, 1, 16));
  config.attention_bias = true;
  const uint64_t attention = parameter_count(build_model(config, DType::f32, 1, 16));
  EXPECT_EQ(attention - plain, 48u + 16u + 16u + 48u);
  config.mlp_bias = true;
  EXPECT_EQ(parameter_count(build_model(config, DType::f32, 1, 16)) - attention, 72u + 72u + 48u);
}

TEST(Model, HeadSizeNeedNotFollowFromTheWidth) {
  const Model model =
      build("llama:layers=1,width=48,heads=3,kv_heads=1,head_size=32,ffn=72,vocab=96,context=16");
  const Group& block = model.groups[1];
  EXPECT_EQ(block.parameters[1].shape, (Shape{96, 48}));  // q_proj
  EXPECT_EQ(block.parameters[2].shape, (Shape{32, 48}));  // k_proj
  EXPECT_EQ(block.parameters[4].shape, (Shape{48, 96}));  // o_proj
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

// Matrices are normal, norms one, biases zero. The two that write into the residual stream are smaller: the
// last matrix of the attention and of the feed-forward part.
TEST(Model, InitialValuesFollowTheContract) {
  for (const Family* family : families()) {
    const Model model = build(with_heads(*family, "layers=8,width=64,ffn=72,vocab=96,context=16"));
    for (const Group& group : model.groups) {
      size_t residual = 0;
      for (const Parameter& p : group.parameters) {
        const bool matrix = p.shape.size() == 2, bias = p.name.ends_with(".bias");
        EXPECT_EQ(p.decay, matrix) << p.name;
        EXPECT_EQ(p.initializer, matrix ? Initializer::normal
                                 : bias ? Initializer::zeros
                                        : Initializer::ones)
            << p.name;
        if (!matrix) continue;
        const bool smaller = p.standard_deviation < 0.02;
        EXPECT_DOUBLE_EQ(p.standard_deviation, smaller ? 0.02 / 4 : 0.02) << p.name;  // sqrt(2 x 8) = 4
        residual += smaller;
      }
      EXPECT_EQ(residual, group.parameters.size() > 2 ? 2u : 0u) << family->name << " " << group.name;
    }
  }
  const std::pair<const char*, std::vector<std::string>> names[] = {
      {"gpt2", {"attn.c_proj.weight", "mlp.c_proj.weight"}},
      {"llama", {"self_attn.o_proj.weight", "mlp.down_proj.weight"}}};
  for (const auto& [preset, residual] : names) {
    const Model model = build(std::string(preset) + ":layers=8,width=64,heads=4,vocab=96,context=16");
    std::vector<std::string> found;
    for (const Parameter& p : model.groups[model.layers[1].segments[0].groups[0]].parameters)
      if (p.standard_deviation < 0.02) found.push_back(p.name.substr(p.name.find(".0.") + 3));
    EXPECT_EQ(found, residual);
  }
}

TEST(Model, SliceLongerThanTheContextIsRefused) {
  try {
    build("gpt2:layers=1,width=64,heads=4,vocab=96,context=16", DType::bf16, 1, 17);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(), "--seq 17 is longer than the model's context of 16 tokens.");
  }
}

TEST(Model, SliceOfTooManyTokensIsRefused) {
  EXPECT_THROW(
      build("gpt2:layers=1,width=64,heads=4,vocab=96,context=1024", DType::bf16, int64_t{1} << 21, 1024),
      Error);
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
  // Two branches over one shared group, one of them frozen weights, joined in a layer of two segments.
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

  m.segments[1].tensors.push_back({"p", {4, 8}, DType::f32});
  m.segments[1].ops = {{OpKind::linear_gelu, {}, {0}, {1, 2}, {0}}};
  try {
    check_model(m);
    FAIL() << "a gradient that backward overwrites is another segment's to read";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "Segment map: y is an output, but linear_gelu's backward overwrites its gradient.");
  }
}

}  // namespace
}  // namespace sluice
