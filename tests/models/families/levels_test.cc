// How much of their activations models keep at each level of recomputation.
#include <gtest/gtest.h>

#include "engine/graph/segment.h"
#include "models/families/family.h"
#include "tests/support/figures.h"

namespace sluice {
namespace {

// Bytes that a layer keeps of a micro-batch from forward to backward, with the output that it hands on.
uint64_t kept_bytes(const Model& model, Recompute level) {
  const SegmentUse& use = model.layers[1].segments[0];
  const WantedGradients wanted{std::vector<bool>(use.inputs.size(), true),
                               std::vector<bool>(use.inputs.size(), false),
                               std::vector<bool>(use.groups.size(), true)};
  const SegmentPlan plan =
      plan_segment(model, use.segment, wanted, [](const OpShapes&, Pass) { return uint64_t{0}; });
  uint64_t bytes = plan.at(level).saved_bytes;
  for (const uint32_t a : use.outputs)
    bytes += static_cast<uint64_t>(element_count(model.activations[a].shape)) *
             dtype_bytes(model.activations[a].dtype);
  return bytes;
}

double part_kept(const char* name, Recompute level) {
  const Model model = build_model(config_from_name(name), DType::bf16, 1, 1024);
  return static_cast<double>(kept_bytes(model, level)) /
         static_cast<double>(kept_bytes(model, Recompute::none));
}

// Of a token and a column of width, GPT-2's layer keeps 16 numbers: the outputs of two norms, q, k, v,
// attention's output, the sum after it, the wide tensor before GELU and after it (four each), and its own
// output. The norms and GELU make 6 of these.
TEST(Levels, Gpt2KeepsTenOfSixteenNumbers) {
  EXPECT_NEAR(part_kept("gpt2", Recompute::cheap), 10.0 / 16, 0.005);
  figures.at_most("activations at `cheap` / with everything kept, GPT-2", part_kept("gpt2", Recompute::cheap),
                  0.65);
  EXPECT_NEAR(part_kept("gpt2", Recompute::products), 2.0 / 16, 0.01);
  EXPECT_NEAR(part_kept("gpt2", Recompute::all), 1.0 / 16, 0.001);
}

// Llama's layer keeps 8 tensors of the model's width and three of the feed-forward's. The norms and SwiGLU
// compute 2 and one of these.
TEST(Levels, LlamaKeepsSevenTenths) {
  const double wide = 11008.0 / 4096;
  EXPECT_NEAR(part_kept("llama-7b", Recompute::cheap), (6 + 2 * wide) / (8 + 3 * wide), 0.005);
  figures.at_most("the same, Llama 7B", part_kept("llama-7b", Recompute::cheap), 0.72);
  EXPECT_NEAR(part_kept("llama-7b", Recompute::products), 2 / (8 + 3 * wide), 0.01);
}

}  // namespace
}  // namespace sluice
