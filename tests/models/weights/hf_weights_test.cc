// Hugging Face directories: names and prefixes, shards and their index, the check against a model, and
// exports.
#include "models/weights/hf_weights.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/file.h"
#include "models/families/family.h"
#include "models/files/tokenizer_files.h"
#include "models/weights/hf_export.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class HfWeightsTest : public FormatTest {
 protected:
  void write_weights(const std::string& file, const std::vector<TensorSpec>& specs) const {
    SafetensorsWriter writer(path(file), specs, {}, kExportAlignment);
    float value = 0;
    for (const TensorSpec& spec : specs)
      for (int64_t i = 0; i < element_count(spec.shape); ++i, ++value)
        writer.write(&value, dtype_bytes(spec.dtype));
    writer.finish();
  }
  void write_index(const std::string& weight_map) const {
    write_file("model.safetensors.index.json",
               R"({"metadata":{"total_size":8},"weight_map":)" + weight_map + "}");
  }
  void rejects_index(const std::string& weight_map, const std::string& part) const {
    SCOPED_TRACE(weight_map);
    write_index(weight_map);
    expect_error(ExitCode::malformed_file, {part}, [&] { HfWeights::open(directory.string(), "llama"); });
  }
};

Model model_of(const std::vector<std::pair<std::string, Shape>>& parameters) {
  Model model;
  for (const auto& [name, shape] : parameters)
    model.groups.push_back({.name = name, .parameters = {{name, shape}}});
  return model;
}

TEST_F(HfWeightsTest, Gpt2PrefixAndBuffersAreResolved) {
  write_weights("model.safetensors", {{"transformer.wte.weight", DType::f32, {2, 2}},
                                      {"transformer.h.0.ln_1.bias", DType::f32, {3}},
                                      {"transformer.h.0.attn.bias", DType::f32, {1, 1, 2, 2}},
                                      {"transformer.h.11.attn.masked_bias", DType::f32, {}},
                                      {"lm_head.weight", DType::f32, {2, 2}}});
  const HfWeights weights = HfWeights::open(directory.string(), "gpt2");
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"h.0.ln_1.bias", "lm_head.weight", "wte.weight"}));
  float values[2];
  weights.read("h.0.ln_1.bias", 1, 2, values);
  EXPECT_EQ(values[0], 5.0f);
  EXPECT_EQ(values[1], 6.0f);
  check_weights(weights,
                model_of({{"wte.weight", {2, 2}}, {"h.0.ln_1.bias", {3}}}));  // the stored head is ignored
}

TEST_F(HfWeightsTest, AParameterWithAndWithoutPrefixIsRejected) {
  write_weights("model.safetensors",
                {{"transformer.wte.weight", DType::f32, {1}}, {"wte.weight", DType::f32, {1}}});
  expect_error(ExitCode::malformed_file, {"'wte.weight' twice, under two names"},
               [&] { HfWeights::open(directory.string(), "gpt2"); });
}

TEST_F(HfWeightsTest, LlamaFrequenciesAreIgnored) {
  write_weights("model.safetensors", {{"model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {4}},
                                      {"model.norm.weight", DType::f32, {2}}});
  EXPECT_EQ(HfWeights::open(directory.string(), "llama").names(),
            (std::vector<std::string>{"model.norm.weight"}));
}

TEST_F(HfWeightsTest, CheckListsAllThatDoesNotFit) {
  std::vector<TensorSpec> specs = {
      {"good", DType::f32, {1}}, {"shape", DType::f32, {2, 3}}, {"type", DType::i32, {1}}};
  for (int i = 0; i < 12; ++i) specs.push_back({fmt::format("extra\n{:02}", i), DType::f32, {1}});
  write_weights("model.safetensors", specs);
  const HfWeights weights = HfWeights::open(directory.string(), "llama");
  expect_error(
      ExitCode::malformed_file,
      {"2 missing (gone, lm_head.weight)", "12 unknown (extra\\x0a00, ", "extra\\x0a09 and 2 more)",
       "1 of another shape (shape [2, 3] instead of [3, 2])", "1 not floating-point (type I32)"},
      [&] {
        check_weights(
            weights,
            model_of(
                {{"good", {1}}, {"shape", {3, 2}}, {"type", {1}}, {"gone", {1}}, {"lm_head.weight", {1}}}));
      });
}

TEST_F(HfWeightsTest, ShardsAreFoundThroughTheIndex) {
  write_weights("model-00001-of-00002.safetensors", {{"a", DType::f32, {2}}});
  write_weights("model-00002-of-00002.safetensors", {{"b", DType::f32, {3}}, {"c", DType::f32, {1}}});
  write_index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors",
                  "c":"model-00002-of-00002.safetensors"})");
  const HfWeights weights = HfWeights::open(directory.string(), "llama");
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "c"}));
  float value = 0;
  weights.read("c", 0, 1, &value);
  EXPECT_EQ(value, 3.0f);
  check_weights(weights, model_of({{"a", {2}}, {"b", {3}}, {"c", {1}}}));
}

TEST_F(HfWeightsTest, IndexesThatLieOrLeaveTheDirectoryAreRejected) {
  write_weights("one.safetensors", {{"a", DType::f32, {1}}});
  write_weights("two.safetensors", {{"a", DType::f32, {1}}, {"b", DType::f32, {1}}});
  rejects_index(R"({"a":"../one.safetensors"})", "no bare file name");
  rejects_index(R"({"a":"/etc/passwd"})", "no bare file name");
  rejects_index(R"({"a":"sub/one.safetensors"})", "no bare file name");
  rejects_index(R"({"a":".."})", "no bare file name");
  rejects_index(R"({"a":"."})", "no bare file name");
  rejects_index(R"({"a":""})", "no bare file name");
  rejects_index(R"({"a":"one.safetensors\u0000"})", "'one.safetensors\\x00', which is no bare file name");
  rejects_index(R"({"a":7})", "weight_map of 'a' is not a file name");
  rejects_index(R"({"a":"one.safetensors","a":"two.safetensors"})", "\"a\" is given twice");
  rejects_index(R"({"a":"three.safetensors"})", "three.safetensors, which is not there");
  rejects_index(R"({"b":"one.safetensors"})", "'b' is in one.safetensors, where it is not");
  rejects_index(R"({"a":"two.safetensors"})", "two.safetensors holds 'b'");
  rejects_index(R"({"a":"one.safetensors","b":"two.safetensors"})", "two.safetensors holds 'a'");
  rejects_index("{}", "weight_map is empty");
  rejects_index("[]", "no weight_map");
  rejects_index("{", "ends in the middle");
  rejects_index(std::string(1000, '[') + std::string(1000, ']'), "nested too deeply");
}

// As in Hugging Face's cache, where snapshots link to files in another folder.
TEST_F(HfWeightsTest, LinksAreFollowed) {
  fs::create_directories(directory / "snapshots/1");
  fs::create_directory(directory / "blobs");
  write_weights("blobs/0123abcd", {{"a", DType::f32, {1}}});
  fs::create_symlink("../../blobs/0123abcd", directory / "snapshots/1/one.safetensors");
  fs::create_symlink("../../blobs/absent", directory / "snapshots/1/two.safetensors");
  const auto open = [&](const std::string& file) {
    write_file("snapshots/1/model.safetensors.index.json", R"({"weight_map":{"a":")" + file + "\"}}");
    return HfWeights::open(path("snapshots/1"), "llama");
  };
  EXPECT_EQ(open("one.safetensors").names().size(), 1u);
  expect_error(ExitCode::malformed_file, {"two.safetensors, which is not there"},
               [&] { open("two.safetensors"); });
}

// A tied model reads the embedding in place of the head: a stored head must be the same.
TEST_F(HfWeightsTest, AStoredHeadThatDiffersFromTheEmbeddingIsRefused) {
  const ModelConfig config = config_from_name("gpt2:layers=1,width=8,heads=1,vocab=256,context=8");
  const Model model = build_model(config, DType::f32, 1, 8);
  std::vector<ExportTensor> tensors;
  for (const Group& group : model.groups)
    for (const Parameter& p : group.parameters) tensors.push_back({p.name, p.shape});
  tensors.push_back({"lm_head.weight", {256, 8}});
  for (const float difference : {0.0f, 1.0f}) {
    const std::string name = difference == 0 ? "same" : "other";
    write_hf_directory(path(name), tensors, {.dtype = DType::f32, .config_json = "{}"},
                       [&](size_t tensor, uint64_t first, uint64_t count, float* out) {
                         for (uint64_t i = 0; i < count; ++i)
                           out[i] = static_cast<float>(first + i) +
                                    (tensor + 1 == tensors.size() && first + i == 2047 ? difference : 0);
                       });
    const HfWeights weights = HfWeights::open(path(name), "gpt2");
    for (const Model& checked : {model, build_generation_model(config, DType::f32, 1, 8, 4)})
      if (difference == 0)
        EXPECT_NO_THROW(check_weights(weights, checked));
      else
        expect_error(ExitCode::malformed_file, {"ties the head to the embedding, but lm_head.weight differs"},
                     [&] { check_weights(weights, checked); });
  }
}

TEST_F(HfWeightsTest, DirectoriesWithoutReadableWeights) {
  EXPECT_FALSE(has_weights(directory.string()));
  EXPECT_FALSE(has_weights(path("absent")));
  expect_error(ExitCode::usage, {"holds neither"}, [&] { HfWeights::open(directory.string(), "gpt2"); });
  write_file("pytorch_model.bin", "pickle");
  expect_error(ExitCode::malformed_file, {"pytorch_model.bin only"},
               [&] { has_weights(directory.string()); });
  fs::create_symlink("gone", path("model.safetensors"));  // a pruned cache leaves such links
  EXPECT_TRUE(has_weights(directory.string()));
  expect_error(ExitCode::usage, {"model.safetensors"}, [&] { HfWeights::open(directory.string(), "gpt2"); });
  fs::remove(path("model.safetensors"));
  write_weights("model.safetensors", {});
  EXPECT_TRUE(has_weights(directory.string()));
}

// The value of element i of tensor t.
float exported(size_t t, uint64_t i) {
  return static_cast<float>(t + 1) + static_cast<float>(i % 1021) / 1024;
}

const ReadTensor kExported = [](size_t t, uint64_t first, uint64_t count, float* out) {
  for (uint64_t i = 0; i < count; ++i) out[i] = exported(t, first + i);
};

TEST_F(HfWeightsTest, ExportRoundTripsInEveryType) {
  // wte.weight is longer than one piece of 2^20 elements.
  const std::vector<ExportTensor> tensors = {{"wte.weight", {1025, 1024}}, {"ln_f.bias", {7}}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::string to = path(dtype_name(dtype));
    write_hf_directory(to, tensors, {.dtype = dtype, .config_json = "{}"}, kExported);
    EXPECT_TRUE(fs::exists(to + "/model.safetensors"));
    EXPECT_FALSE(fs::exists(to + "/model.safetensors.index.json"));
    const HfWeights weights = HfWeights::open(to, "gpt2");
    check_weights(weights, model_of({{"wte.weight", {1025, 1024}}, {"ln_f.bias", {7}}}));
    std::vector<float> values(1025 * 1024);
    weights.read("wte.weight", 0, values.size(), values.data());
    // Values in [1, 2) with ten fraction bits are exact in fp32 and fp16. bf16 has seven fraction bits and
    // rounds to nearest even.
    for (uint64_t i = 0; i < values.size(); ++i) {
      const float exact = exported(0, i);
      const float expected = dtype == DType::bf16 ? std::nearbyint(exact * 128) / 128 : exact;
      ASSERT_EQ(values[i], expected) << i;
    }
  }
}

TEST_F(HfWeightsTest, ExportShardsAndCopiesTheTokenizer) {
  fs::create_directory(directory / "source");
  write_file("source/tokenizer.json", "tokens");
  write_file("source/merges.txt", "");
  write_file("source/secret.txt", "no");
  const std::vector<ExportTensor> tensors = {{"a", {6}}, {"b", {100}}, {"c", {5}}, {"d", {5}}, {"e", {1}}};
  const ExportOptions options{.dtype = DType::f32,
                              .file_bytes_max = 40,
                              .config_json = "{\"model_type\": \"gpt2\"}",
                              .tokenizer_directory = path("source")};
  write_hf_directory(path("to"), tensors, options, kExported);
  const auto index = nlohmann::json::parse(read_file("to/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * 117);
  EXPECT_EQ(index["weight_map"], nlohmann::json({{"a", "model-00001-of-00004.safetensors"},
                                                 {"b", "model-00002-of-00004.safetensors"},
                                                 {"c", "model-00003-of-00004.safetensors"},
                                                 {"d", "model-00003-of-00004.safetensors"},
                                                 {"e", "model-00004-of-00004.safetensors"}}));
  EXPECT_EQ(read_file("to/config.json"), options.config_json);
  EXPECT_EQ(read_file("to/tokenizer.json"), "tokens");
  EXPECT_TRUE(fs::exists(path("to/merges.txt")));
  EXPECT_FALSE(fs::exists(path("to/secret.txt")));
  const HfWeights weights = HfWeights::open(path("to"), "llama");
  for (size_t t = 0; t < tensors.size(); ++t) {
    float value = 0;
    weights.read(tensors[t].name, 0, 1, &value);
    EXPECT_EQ(value, exported(t, 0));
  }
}

TEST_F(HfWeightsTest, TheWholeTokenizerIsCopied) {
  fs::create_directories(directory / "source/additional_chat_templates");
  const std::vector<const char*> tokenizer = {"tokenizer.json",
                                              "tokenizer.model.v3",
                                              "vocab.txt",
                                              "tokenization_own.py",
                                              "spiece.model",
                                              "own.tiktoken",
                                              "tekken.json",
                                              "vocab.json",
                                              "merges.txt",
                                              "chat_template.json",
                                              "chat_template.jinja",
                                              "added_tokens.json",
                                              "tokenizer.model",
                                              "special_tokens_map.json",
                                              "additional_chat_templates/rag.jinja"};
  for (const char* name : tokenizer) write_file(std::string("source/") + name, name);
  for (const char* name : {"model.safetensors", "config.json", "README.md", "modeling_own.py", "vocab.bin",
                           "additional_chat_templates/notes.md"})
    write_file(std::string("source/") + name, name);
  EXPECT_EQ(copy_tokenizer(path("source"), path("to")), tokenizer.size());
  for (const char* name : tokenizer) EXPECT_EQ(read_file(std::string("to/") + name), name);
  EXPECT_EQ(std::distance(fs::directory_iterator(path("to")), {}), std::ssize(tokenizer));
  EXPECT_EQ(std::distance(fs::directory_iterator(path("to/additional_chat_templates")), {}), 1);
}

TEST_F(HfWeightsTest, AChatTemplateIsReplacedWhereverItStands) {
  using Json = nlohmann::json;
  const auto json = [&](const char* name) { return Json::parse(read_file(name)); };
  fs::create_directories(directory / "additional_chat_templates");
  write_file("additional_chat_templates/tool_use.jinja", "tools");
  write_file("additional_chat_templates/rag.jinja", "rag");
  write_file("tokenizer_config.json", R"({"chat_template": "old", "eos_token": "e"})");
  write_file("chat_template.json", R"({"chat_template": "old"})");
  replace_chat_template(path(""), "new");
  EXPECT_EQ(read_file("chat_template.jinja"), "new");
  EXPECT_EQ(json("tokenizer_config.json"), Json({{"chat_template", "new"}, {"eos_token", "e"}}));
  EXPECT_EQ(json("chat_template.json"), Json({{"chat_template", "new"}}));
  EXPECT_FALSE(fs::exists(path("additional_chat_templates/tool_use.jinja")));
  EXPECT_EQ(read_file("additional_chat_templates/rag.jinja"), "rag");
  // Without a file of its own, the template is in the list of tokenizer_config.json.
  fs::remove(path("chat_template.jinja"));
  write_file("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "tools"},
      {"name": "rag", "template": "rag"}, {"name": "default", "template": "old"}]})");
  replace_chat_template(path(""), "new");
  EXPECT_EQ(json("tokenizer_config.json")["chat_template"],
            Json::parse(R"([{"name": "default", "template": "new"}, {"name": "rag", "template": "rag"}])"));
  EXPECT_FALSE(fs::exists(path("chat_template.jinja")));
  // The tokenizer has no template yet.
  write_file("tokenizer_config.json", R"({"eos_token": "e"})");
  replace_chat_template(path(""), "newer");
  EXPECT_EQ(read_file("chat_template.jinja"), "newer");
  EXPECT_EQ(read_file("tokenizer_config.json"), R"({"eos_token": "e"})");
}

TEST_F(HfWeightsTest, EndsAreThoseOfTheSettings) {
  const auto settings = [&] { return nlohmann::json::parse(read_file("generation_config.json")); };
  replace_ends(path(""), {2, 151645}, {{"bos_token_id", "1"}, {"eos_token_id", "2"}});
  EXPECT_EQ(settings(), nlohmann::json::parse(R"({"bos_token_id": 1, "eos_token_id": [2, 151645]})"));
  write_file("generation_config.json", R"({"eos_token_id": 2, "top_k": 20})");
  replace_ends(path(""), {7}, {{"bos_token_id", "1"}});
  EXPECT_EQ(settings(), nlohmann::json::parse(R"({"eos_token_id": 7, "top_k": 20})"));
}

// An export writes over what a killed export has left, but not while another process exports there.
TEST_F(HfWeightsTest, AKilledExportIsRepeated) {
  const std::vector<ExportTensor> tensors = {{"a", {2}}};
  fs::create_directory(path("to"));
  for (const char* name : {"to/.unfinished-export", "to/model.safetensors.tmp",
                           "to/model-00001-of-00002.safetensors", "to/tokenizer.json"})
    write_file(name, "half");
  {
    const FileDescriptor other(open(path("to/.unfinished-export").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
    expect_error(ExitCode::environment, {"Another process exports to"},
                 [&] { write_hf_directory(path("to"), tensors, {}, kExported); });
    EXPECT_TRUE(fs::exists(path("to/model.safetensors.tmp")));
  }
  write_hf_directory(path("to"), tensors, {}, kExported);
  EXPECT_TRUE(fs::exists(path("to/model.safetensors")) && fs::exists(path("to/config.json")));
  for (const char* name :
       {"to/.unfinished-export", "to/model.safetensors.tmp", "to/model-00001-of-00002.safetensors"})
    EXPECT_FALSE(fs::exists(path(name))) << name;
  expect_error(ExitCode::usage, {"is not empty"},
               [&] { write_hf_directory(path("to"), tensors, {}, kExported); });
}

TEST_F(HfWeightsTest, ExportRefusesWhatItWouldSpoil) {
  const std::vector<ExportTensor> tensors = {{"a", {2}}};
  write_file("config.json", "a user's own");
  expect_error(ExitCode::usage, {"is not empty"},
               [&] { write_hf_directory(directory.string(), tensors, {}, kExported); });
  write_file("file", "");
  expect_error(ExitCode::environment, {"Cannot create"},
               [&] { write_hf_directory(path("file/below"), tensors, {}, kExported); });
  const auto value = [](float v) {
    return [v](size_t, uint64_t, uint64_t count, float* out) { std::fill_n(out, count, v); };
  };
  const ExportOptions half{.dtype = DType::f16};
  expect_error(ExitCode::numerics, {"tensor a holds 65520"},
               [&] { write_hf_directory(path("big"), tensors, half, value(65520)); });
  EXPECT_FALSE(fs::exists(path("big/model.safetensors")));
  write_hf_directory(path("fits"), tensors, half, value(std::nextafter(65520.0f, 0.0f)));
  float read = 0;
  HfWeights::open(path("fits"), "gpt2").read("a", 1, 1, &read);
  EXPECT_EQ(read, 65504.0f);
}

}  // namespace
}  // namespace sluice
