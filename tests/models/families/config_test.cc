// Reading and writing config.json, presets and inline descriptions, and the errors about bad ones.
#include "models/families/config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/support/family_support.h"

namespace sluice {
namespace {

TEST(ConfigJson, EveryPresetSurvivesTheRoundTrip) {
  std::vector<ModelConfig> configs;
  for (const std::string& name : preset_names()) configs.push_back(config_from_name(name));
  configs.push_back(config_from_json(kLlamaJson, "config.json"));
  configs.push_back(
      config_from_name("gpt2:layers=3,width=160,heads=5,vocab=300,context=37,ffn=344,tied=false"));
  configs.push_back(
      config_from_name("llama:layers=3,width=160,heads=4,kv_heads=2,head_size=32,vocab=300,context=37"));
  configs.back().attention_bias = true;
  configs.back().epsilon = 1.0 / 3;  // digits are not lost
  for (const ModelConfig& config : configs)
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      expect_equal(config_from_json(config_to_json(config, dtype), "config.json"), config);
}

TEST(ConfigJson, KeysThatAreNotUsedSurvive) {
  std::string given = replaced(kLlamaJson, "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1");
  given = replaced(given, "\"initializer_range\": 0.02", "\"initializer_range\": 0.006");
  given = with(given, R"("use_cache": false, "task_specific_params": {"a": [1, null]}, "dtype": "float32",
      "transformers_version": "4.40.0", "_name_or_path": "somewhere", "auto_map": {"AutoModel": "own.py"})");
  const ModelConfig config = config_from_json(given, "f");
  const auto written = nlohmann::json::parse(config_to_json(config, DType::bf16));
  EXPECT_EQ(written["attention_dropout"], 0.1);
  EXPECT_EQ(written["initializer_range"], 0.006);
  EXPECT_EQ(written["use_cache"], false);
  EXPECT_EQ(written["pretraining_tp"], 1);
  EXPECT_EQ(written["task_specific_params"], nlohmann::json::parse(R"({"a": [1, null]})"));
  EXPECT_EQ(written["torch_dtype"], "bfloat16");
  for (const char* key : {"transformers_version", "dtype", "_name_or_path", "auto_map", "rope_parameters"})
    EXPECT_FALSE(written.contains(key)) << key;
  expect_equal(config_from_json(written.dump(), "written"), config);
  EXPECT_EQ(config_from_json(written.dump(), "written").unused, config.unused);
  EXPECT_TRUE(config_from_json(config_to_json(config_from_name("gpt2"), DType::bf16), "f").unused.empty());
}

TEST(ConfigJson, NullAndAbsentMeanTheDefault) {
  const ModelConfig gpt2 =
      config_from_json(with(kGpt2Json, "\"n_inner\": null, \"sliding_window\": null"), "f");
  EXPECT_EQ(gpt2.ffn, 3072);
  const std::string no_kv =
      replaced(kLlamaJson, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": null");
  EXPECT_EQ(config_from_json(no_kv, "f").kv_heads, 32);
  EXPECT_EQ(config_from_json(replaced(kLlamaJson, "\"head_dim\": 64", "\"head_dim\": null"), "f").head_size,
            64);
  EXPECT_EQ(config_from_json(replaced(kLlamaJson, "\"head_dim\": 64", "\"head_dim\": 128"), "f").head_size,
            128);
}

TEST(ConfigJson, BothFormsOfRope) {
  const std::string scaling = R"({"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"})";
  const std::string base = "\"rope_theta\": 500000.0";
  const std::string newer = replaced(scaling, "{", "{\"rope_theta\": 500000.0, ");
  std::string text = replaced(kLlamaJson, "\"rope_scaling\": " + scaling, "\"rope_parameters\": " + newer);
  expect_equal(config_from_json(text, "f"), config_from_json(kLlamaJson, "f"));
  expect_equal(config_from_json(replaced(text, ",\n  " + base, ""), "f"), config_from_json(kLlamaJson, "f"));
  expect_bad_file(replaced(text, ",\n  " + base, ",\n  \"rope_theta\": 10000.0"),
                  "rope_theta is given as 10000");
  EXPECT_EQ(config_from_json(replaced(kLlamaJson, base + ",", ""), "f").rope_theta, 10000);
  expect_bad_file(with(kLlamaJson, "\"rope_parameters\": " + replaced(newer, "32.0", "8.0")),
                  "rope_scaling and rope_parameters disagree.");
  expect_bad_file(with(kLlamaJson, "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}"),
                  "rope_scaling and rope_parameters disagree.");
  const ModelConfig same = config_from_json(with(kLlamaJson, "\"rope_parameters\": " + newer), "f");
  EXPECT_EQ(same.rope_scaling.factor, 32);
  for (const char* theta : {"0", "-1", "0.0"})
    expect_bad_file(replaced(kLlamaJson, base, "\"rope_theta\": " + std::string(theta)), "is not positive.");
  expect_bad_file(replaced(kLlamaJson, "\"rope_type\": \"llama3\"", "\"rope_type\": \"axial\""),
                  "rope type \"axial\" is not supported.");
  expect_bad_file(replaced(kLlamaJson, "\"low_freq_factor\": 1.0", "\"low_freq_factor\": 4.0"),
                  "make no sense.");
  expect_bad_file(replaced(kLlamaJson, "\"factor\": 32.0, ", ""), "rope_scaling: factor is missing.");
}

TEST(ConfigJson, AbsurdValuesAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"\"n_head\": 5", "5 heads do not divide the width 768."},
      {"\"n_head\": 0", "n_head is 0, outside 1 to 65536."},
      {"\"n_head\": true", "n_head is true, not an integer."},
      {"\"n_head\": \"12\"", "n_head is \"12\", not an integer."},
      {"\"n_head\": 12.0", "n_head is 12.0, not an integer."},
      {"\"n_head\": -12", "n_head is -12, outside 1 to 65536."},
      {"\"n_head\": [[[[]]]]", "n_head is a list, not an integer."},
      {"\"n_head\": null", "n_head is missing."},
      {"\"n_head\": 1099511627776", "n_head is 1099511627776, outside"},
      {"\"n_head\": 18446744073709551615", "n_head is 18446744073709551615, outside"},
      {"\"n_head\": 99999999999999999999999", "not an integer."},
  };
  for (const auto& [value, sentence] : cases)
    expect_bad_file(replaced(kGpt2Json, "\"n_head\": 12", value), sentence);
  expect_bad_file(replaced(kGpt2Json, "\"n_layer\": 12", "\"n_layer\": 0"),
                  "n_layer is 0, outside 1 to 2048.");
  expect_bad_file(replaced(kGpt2Json, "\"n_embd\": 768", "\"n_embd\": 1099511627776"),
                  "n_embd is 1099511627776");
  expect_bad_file(replaced(kGpt2Json, "\"n_positions\": 1024", "\"n_positions\": 512"),
                  "n_ctx and n_positions disagree.");
  expect_bad_file(replaced(kGpt2Json, "1e-05", "0"), "epsilon 0 is not between 0 and 1.");
  expect_bad_file(replaced(kGpt2Json, "1e-05", "true"), "layer_norm_epsilon is true, not a number.");
  expect_bad_file(with(kGpt2Json, "\"tie_word_embeddings\": 1"),
                  "tie_word_embeddings is 1, not true or false.");
  expect_bad_file(replaced(kLlamaJson, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 5"),
                  "5 key/value heads do not divide 32 heads.");
  expect_bad_file(replaced(kLlamaJson, "\"head_dim\": 64", "\"head_dim\": 63"), "head size 63 is odd");
  std::string huge = replaced(kLlamaJson, "\"num_hidden_layers\": 16", "\"num_hidden_layers\": 2048");
  huge = replaced(huge, "\"hidden_size\": 2048", "\"hidden_size\": 1048576");
  expect_bad_file(huge, "the model has more than 2^45 parameters.");
  for (const char* key : {"vocab_size", "n_positions", "n_embd", "n_layer"})
    expect_bad_file(replaced(kGpt2Json, std::string("\"") + key + "\"", "\"other\""),
                    std::string(key) + " is missing.");
}

TEST(ConfigJson, ExpertsThatMakeNoSenseAreRefused) {
  const std::string mixtral = config_to_json(config_from_name("mixtral-8x7b"), DType::bf16);
  const std::string qwen = config_to_json(config_from_name("qwen1.5-moe-a2.7b"), DType::bf16);
  const std::string gpt_oss = config_to_json(config_from_name("gpt-oss-20b"), DType::bf16);
  EXPECT_EQ(config_from_json(mixtral, "f").experts, 8);
  expect_bad_file(replaced(mixtral, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9"),
                  "the number of experts of a token is 9, outside 1 to 8.");
  expect_bad_file(replaced(mixtral, "\"num_local_experts\": 8", "\"num_local_experts\": 0"),
                  "num_local_experts is 0, outside 1 to 4096.");
  expect_bad_file(replaced(mixtral, "\"num_local_experts\"", "\"other\""), "num_local_experts is missing.");
  expect_bad_file(replaced(mixtral, "\"router_aux_loss_coef\": 0.02", "\"router_aux_loss_coef\": -1"),
                  "the factor -1 of the routers' loss is not from 0 to 1000000.");
  expect_bad_file(with(mixtral, "\"router_jitter_noise\": 0.1"), "router_jitter_noise");
  expect_bad_file(replaced(qwen, "\"qkv_bias\": true", "\"qkv_bias\": false"), "qkv_bias is false");
  expect_bad_file(replaced(qwen, "\"use_sliding_window\": false", "\"use_sliding_window\": true"),
                  "use_sliding_window");
  expect_bad_file(replaced(gpt_oss, "\"swiglu_limit\": 7.0", "\"swiglu_limit\": 0"),
                  "swiglu_limit is not positive.");
  for (const char* alpha : {"-1", "0"})
    expect_bad_file(replaced(gpt_oss, "\"swiglu_alpha\": 1.702", std::string("\"swiglu_alpha\": ") + alpha),
                    "swiglu_alpha is not positive.");
  expect_bad_file(with(kLlamaJson, "\"num_local_experts\": 8"), "num_local_experts");
}

TEST(ConfigJson, WhatIsNotJson) {
  expect_bad_file("", "config.json: it is empty.");
  expect_bad_file("[1]", "config.json is not a JSON object.");
  expect_bad_file("{\"model_type\": \"gpt2\"", "config.json: it ends in the middle of its JSON.");
  expect_bad_file("{\n\"model_type\": \"gpt2\xff\"}", "config.json: line 2 is not UTF-8, which JSON is in.");
  expect_bad_file("{\"n_head\": 1e999}", "config.json: it holds a number that is too large.");
  expect_bad_file(std::string("{}\n\0", 4), "config.json: line 2 is not valid JSON.");
  expect_bad_file(std::string(200000, '['), "config.json: it is nested too deeply.");
  expect_bad_file("{}", "model_type is missing.");
  expect_bad_file(with(kGpt2Json, "\"n_layer\": 24"), "\"n_layer\" is given twice.");
  expect_bad_file(with(kLlamaJson, "\"x\": {\"a\": {\"factor\": 1}, \"b\": 1, \"b\": 2}"),
                  "\"b\" is given twice.");
  EXPECT_NO_THROW(config_from_json(with(kLlamaJson, "\"x\": {\"factor\": 1}"), "f"));
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  expect_bad_file(replaced(kGpt2Json, "\"n_head\": 12", "\"n_head\": " + deep), "nested too deeply");
  expect_bad_file(replaced(kGpt2Json, "\"n_head\": 12", "\"n_head\": [[]]"),
                  "n_head is a list, not an integer.");
  expect_error([] { config_from_json("{}", "a\nb.json"); }, ExitCode::malformed_file,
               "a\\x0ab.json: model_type");
}

TEST(ConfigJson, OtherFamilies) {
  const auto of_type = [](std::string_view type) {
    return replaced(kGpt2Json, "\"gpt2\"", fmt::format("\"{}\"", type));
  };
  for (const std::string_view type : planned_families())
    expect_error([&] { config_from_json(of_type(type), "f"); }, ExitCode::usage,
                 fmt::format("f: model type {} is planned, not built yet.", type), "gpt2, llama");
  expect_error([&] { config_from_json(of_type("opt"), "f"); }, ExitCode::malformed_file,
               "f: model type \"opt\" is not supported.", "Use a model of a supported type: gpt2, llama");
}

TEST(ConfigName, MistakesGetASuggestion) {
  const auto bad = [](const std::string& text, const std::string& sentence, const std::string& remedy) {
    expect_error([&] { config_from_name(text); }, ExitCode::usage, sentence, remedy);
  };
  bad("gpt2-xxl", "There is no model preset \"gpt2-xxl\".", "Did you mean gpt2-xl?");
  bad("lama-7b", "There is no model preset", "Did you mean llama-7b?");
  bad("llama-405", "There is no model preset", "Did you mean llama-405b?");
  bad("qwen3-235b", "There is no model preset", "Did you mean qwen3-235b-a22b?");
  bad("llama-3.1-80b", "There is no model preset", "Did you mean llama-3.1-8b?");
  bad("", "There is no model preset \"\".", "Known are gpt2, gpt2-medium");
  bad("bloom", "There is no model preset", "Known are gpt2");
  bad("gpt2:", "\"\" is not of the form key=value.", "");
  bad("gpt2:layer=6", "\"layer\" is no size of a gpt2 model.", "Did you mean layers?");
  bad("gpt2:kv_heads=2", "\"kv_heads\" is no size of a gpt2 model.", "");
  bad("gpt2:layers=6,,", "is not of the form", "");
  bad("gpt2:layers=6,layers=7", "layers is given twice.", "");
  bad("gpt2:heads=5", "5 heads do not divide the width 768.", "");
  for (const char* value : {"0", "-1", "1e3", "", "1099511627776", "99999999999999999999", "6.0", " 6", "+6"})
    bad("gpt2:layers=" + std::string(value), "is not an integer from 1 to 2048.", "");
  bad("gpt2:tied=maybe", "tied=maybe is neither true nor false.", "");
  bad("llama:kv_heads=3", "3 key/value heads do not divide 32 heads.", "");
  bad("llama:width=1048576,layers=2048,heads=1024", "more than 2^45 parameters.", "");
}

}  // namespace
}  // namespace sluice
