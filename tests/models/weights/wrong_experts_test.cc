// Experts that a directory lacks, or has beyond those of its config.json: named by layer and number.
#include <set>

#include "models/families/family.h"
#include "models/weights/hf_weights.h"
#include "models/weights/stacked.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

const std::string kSizes =
    ":layers=2,width=32,heads=2,kv_heads=1,vocab=64,context=16,top=2,ffn=32,expert_ffn=8,experts=";

class WrongExpertsTest : public FormatTest {
 protected:
  static Model model(const std::string& family, const char* experts = "4", const Mesh& mesh = {},
                     uint32_t rank = 0) {
    ModelConfig config = config_from_name(family + kSizes + experts);
    config.mesh = mesh;
    config.rank = rank;
    return build_model(config, DType::f32, 1, 4);
  }
  // Writes the tensors of the model, but none with a part of `left_out` in its name, and those of `more`.
  void write(const Model& model, const std::set<std::string>& left_out,
             const std::vector<TensorSpec>& more = {}) const {
    std::vector<TensorSpec> specs = more;
    for (const StoredTensor& tensor : stored_tensors(*find_family(model.family), model)) {
      bool stays = true;
      for (const std::string& part : left_out) stays &= tensor.name.find(part) == std::string::npos;
      if (stays) specs.push_back({tensor.name, DType::bf16, tensor.shape});
    }
    SafetensorsWriter writer(path("model.safetensors"), specs, {}, kExportAlignment);
    for (const TensorSpec& spec : specs) {
      const std::vector<uint16_t> zeros(static_cast<size_t>(element_count(spec.shape)));
      writer.write(zeros.data(), zeros.size() * sizeof(uint16_t));
    }
    writer.finish();
  }
  void refuses(const Model& model, std::initializer_list<std::string> parts,
               const std::string& remedy) const {
    const HfWeights weights = HfWeights::open(directory.string(), model.family);
    expect_error(ExitCode::malformed_file, parts, [&] { check_weights(weights, model); });
    try {
      check_weights(weights, model);
    } catch (const Error& error) {
      EXPECT_NE(error.remedy().find(remedy), std::string::npos) << error.remedy();
    }
  }
};

TEST_F(WrongExpertsTest, NoneAreMissing) {
  for (const char* family : {"qwen3_moe", "mixtral", "gpt_oss"}) {
    const Model whole = model(family);
    write(whole, {});
    EXPECT_NO_THROW(check_weights(HfWeights::open(directory.string(), family), whole)) << family;
  }
}

TEST_F(WrongExpertsTest, MissingOnesAreNamedByLayer) {
  const Model whole = model("mixtral");
  write(whole, {"layers.0.block_sparse_moe.experts.1.", "layers.1.block_sparse_moe.experts.0.",
                "layers.1.block_sparse_moe.experts.2.", "layers.1.block_sparse_moe.experts.3.",
                "layers.0.block_sparse_moe.experts.3.w2", "norm.weight"});
  refuses(whole,
          {"do not fit the model: layer 0 lacks expert 1; layer 1 lacks experts 0, 2, 3; 6 missing (",
           "model.layers.0.block_sparse_moe.experts.3.w2.weight"},
          "Download the directory again");
}

TEST_F(WrongExpertsTest, ThoseBeyondTheConfigAreNamed) {
  const Model whole = model("qwen3_moe");
  std::vector<TensorSpec> more;
  for (const char* expert : {"4", "5", "6", "9"})
    for (const char* matrix : {"gate_proj", "up_proj"})
      more.push_back({std::string("model.layers.1.mlp.experts.") + expert + "." + matrix + ".weight",
                      DType::bf16,
                      {8, 32}});
  write(whole, {}, more);
  refuses(whole, {"do not fit the model: layer 1 has experts 4 to 6, 9 beyond the 4 of config.json."},
          "config.json that belongs to these weights");
}

// A tensor of all experts has too few of them, or too many.
TEST_F(WrongExpertsTest, StackedTensorsOfAnotherNumber) {
  const Model four = model("gpt_oss"), three = model("gpt_oss", "3"), five = model("gpt_oss", "5");
  write(four, {"mlp.router"});
  refuses(five,
          {"layer 0 lacks expert 4; layer 1 lacks expert 4; 4 missing (model.layers.0.mlp.router.weight"},
          "Download");
  refuses(three, {"layer 0 has expert 3 beyond the 3 of config.json; layer 1 has expert 3 beyond the 3"},
          "config.json");
}

// A rank has some of the experts, and the directory has those of all.
TEST_F(WrongExpertsTest, ExpertsThatAreDividedOverRanks) {
  for (const int64_t here : {0, 1}) {
    SCOPED_TRACE(here);
    const Model whole = model("mixtral", "8"), half = model("mixtral", "8", Mesh({1, 2}, 2), here);
    write(whole, {});
    EXPECT_NO_THROW(check_weights(HfWeights::open(directory.string(), "mixtral"), half));
    write(whole, {"layers.0.block_sparse_moe.experts.1.", "layers.1.block_sparse_moe.experts.6."},
          {{"model.layers.1.block_sparse_moe.experts.9.w1.weight", DType::bf16, {8, 32}}});
    refuses(half,
            {"do not fit the model: layer 0 lacks expert 1; layer 1 lacks expert 6; "
             "layer 1 has expert 9 beyond the 8 of config.json."},
            "Download the directory again");
  }
}

TEST_F(WrongExpertsTest, ManyLayersAreNotAllListed) {
  const Model whole = build_model(
      config_from_name("qwen3_moe:layers=14,width=32,heads=2,kv_heads=1,vocab=64,context=16,experts=4,top=2,"
                       "ffn=32,expert_ffn=8"),
      DType::f32, 1, 4);
  write(whole, {"experts.2."});
  refuses(whole, {"layer 9 lacks expert 2; and so on in 4 more layers."}, "Download");
}

TEST(ExpertNames, AreTakenApart) {
  const Family& family = *find_family("mixtral");
  const auto place = expert_of(family, "model.layers.12.block_sparse_moe.experts.7.w1.weight");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->layer, 12);
  EXPECT_EQ(place->expert, 7);
  EXPECT_EQ(place->name, "w1.weight");
  for (const char* none :
       {"model.layers.1.mlp.experts.7.w1.weight", "model.layers.x.block_sparse_moe.experts.7.w1.weight",
        "model.layers.1.block_sparse_moe.experts.w1", "model.layers.1.block_sparse_moe.experts.7",
        "model.layers.1.block_sparse_moe.experts.-1.w1.weight", "model.norm.weight"})
    EXPECT_FALSE(expert_of(family, none)) << none;
  EXPECT_FALSE(expert_of(*find_family("llama"), "model.layers.1.mlp.experts.0.w1.weight"));
}

}  // namespace
}  // namespace sluice
