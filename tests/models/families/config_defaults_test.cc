// What is taken for keys that a config.json lacks, and which layers have windows. Both are as in
// transformers' classes (tools/fixtures/config_defaults.py).
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/family_support.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

Json read_of(const ModelConfig& c) {
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < c.layers; ++i)
    windows.push_back(layer_type(c, i) == LayerType::sliding ? c.window : 0);
  Json read = {{"kv_heads", c.kv_heads},
               {"head_size", c.head_size},
               {"epsilon", c.epsilon},
               {"tied", c.tied},
               {"rope_theta", c.rope_theta},
               {"rope_type", rope_type_name(c.rope_scaling.type)},
               {"rope_factor", c.rope_scaling.factor},
               {"original_context", c.rope_scaling.original_context},
               {"truncate", c.rope_scaling.truncate},
               {"windows", windows}};
  if (c.experts > 0) {
    read["experts_per_token"] = c.experts_per_token;
    read["expert_ffn"] = c.expert_ffn;
    read["router_loss"] = c.router_loss;
    read["has_router_loss"] = c.has_router_loss != 0;
  }
  return read;
}

TEST(ConfigDefaults, AreThoseOfTransformers) {
  std::ifstream stream("tests/fixtures/config_defaults.json");
  const Json file = Json::parse(stream);
  ASSERT_EQ(file["cases"].size(), 30u);
  for (const Json& one : file["cases"]) {
    SCOPED_TRACE(one["keys"].dump());
    Json keys = file["sizes"];
    keys.update(one["keys"]);
    const ModelConfig config = config_from_json(keys.dump(), "config.json");
    EXPECT_EQ(read_of(config), one["read"]);
    expect_equal(config_from_json(config_to_json(config, DType::bf16), "config.json"), config);
  }
}

}  // namespace
}  // namespace sluice
