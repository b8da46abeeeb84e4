#include "engine/run/start/plan_request.h"

#include <gtest/gtest.h>

#include "gpu/cuda/device.h"

namespace sluice {
namespace {

BatchOptions batch_of(int64_t batch) {
  BatchOptions options;
  options.batch = batch;
  return options;
}

TEST(MicroBatches, AreDivisorsThatFillTheDevice) {
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(micro_batch_candidates(batch_of(16), 1024, DeviceSizes{}.micro_batch_tokens), (Sizes{2, 1}));
  EXPECT_EQ(micro_batch_candidates(batch_of(16), 1024, kCudaSizes.micro_batch_tokens),
            (Sizes{16, 8, 4, 2, 1}));
  EXPECT_EQ(micro_batch_candidates(batch_of(12), 4096, kCudaSizes.micro_batch_tokens), (Sizes{4, 3, 2, 1}));
  EXPECT_EQ(micro_batch_candidates(batch_of(8), 131072, kCudaSizes.micro_batch_tokens), (Sizes{1}));
  BatchOptions given = batch_of(16);
  given.micro_batch = 8;
  EXPECT_EQ(micro_batch_candidates(given, 1024, 2048), (Sizes{8}));
  BatchOptions in_waves = batch_of(12);
  in_waves.waves = 4;
  EXPECT_EQ(micro_batch_candidates(in_waves, 1024, kCudaSizes.micro_batch_tokens), (Sizes{3, 1}));
  in_waves.waves = 5;
  EXPECT_THROW(micro_batch_candidates(in_waves, 1024, kCudaSizes.micro_batch_tokens), Error);
}

TEST(ExpertsOver, TheNumberOfARunGivesWayToOneThatDivides) {
  Options options;
  options.ranks.experts_over = 4;
  options.ranks.count = 8;
  EXPECT_EQ(experts_over_note(options), "");
  options.ranks.count = 6;
  EXPECT_EQ(experts_over_note(options),
            "Experts were divided over 4 ranks, which does not suit 6: now over 2.");
}

// A token uses 2 of 8 experts, so an expert has a quarter of the rows. With experts divided over 2 ranks, it
// has a quarter of the rows of both ranks.
TEST(MicroBatches, OfMixturesFillTheDeviceWithAnExpert) {
  const ModelConfig config = config_from_name("mixtral:layers=1,width=64,heads=2,kv_heads=2,context=1024");
  Options options;
  options.batch.batch = 64;
  Budgets budgets;
  budgets.host = {"host", "host-mem"};
  budgets.host.limit = uint64_t{8} << 30;
  budgets.host.set_aside(0);
  const auto candidates = [&](int64_t over) {
    options.ranks.count = options.ranks.experts_over = over;
    options.batch.batch = 64 * over;
    options.given = {"experts-over"};
    return plan_request(options, config, budgets, {cuda_workspace_bytes, DeviceSizes{}}, {}).micro_batches;
  };
  EXPECT_EQ(candidates(1), (std::vector<int64_t>{8, 4, 2, 1}));
  EXPECT_EQ(candidates(2), (std::vector<int64_t>{4, 2, 1}));
}

// The rows depend on the vocabulary and the kind of device, but not on budgets.
TEST(LossRows, AreThoseOfTheDevice) {
  const ModelConfig config = config_from_name("gpt2:layers=1,width=64,heads=2,context=64");
  Options options;
  options.batch.batch = 4;
  options.numbers.precision = DType::bf16;
  Budgets budgets;
  budgets.host = {"host", "host-mem"};
  budgets.host.limit = uint64_t{8} << 30;
  budgets.host.set_aside(0);
  for (const auto& [sizes, rows] : {std::pair{DeviceSizes{}, 512}, std::pair{kCudaSizes, 4096}}) {
    const PlanRequest request = plan_request(options, config, budgets, {cuda_workspace_bytes, sizes}, {});
    const Model model = request.model(1, 64);
    int64_t found = 0;
    for (const Segment& segment : model.segments)
      for (const Op& op : segment.ops) found += op.attributes.loss_rows;
    EXPECT_EQ(found, rows);
  }
}

}  // namespace
}  // namespace sluice
