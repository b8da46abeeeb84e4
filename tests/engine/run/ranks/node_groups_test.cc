// Ranks on several nodes: gradients are summed within node groups first. The bits are those of one node, and
// a rank sends as many bytes as the formulas say.
#include <gtest/gtest.h>

#include "tests/support/ranks_support.h"

namespace sluice {
namespace {

class RankNodeGroupsTest : public RanksTest {
 protected:
  TestRun machines_of(int64_t per_node, int64_t ranks, const std::string& out) const {
    TestRun run = run_on(ranks, out);
    run.options.ranks.per_node = per_node;
    run.options.batch.batch = 8;
    run.options.batch.steps = 4;
    return run;
  }

  static uint64_t sent(const TestResult& result) {  // in a step that also updates
    for (const auto& [lane, bytes] : result.steps.at(1).moved_bytes)
      if (lane == "collective") return bytes;
    return 0;
  }
};

TEST_F(RankNodeGroupsTest, BitsDoNotDependOnMachines) {
  for (const DType precision : {DType::f32, DType::bf16}) {
    TestRun run = machines_of(4, 4, "one");
    run.options.numbers.precision = precision;
    run.options.data.validation = {directory_ / "text.txt"};
    run.options.data.val_every = 2;
    run.options.data.val_batches = 2;
    const TestResult wanted = train_on(run);
    EXPECT_FALSE(wanted.plan.lowering.sharing.has_node_groups());
    const std::vector<float> masters = newest_masters(run.options.run.out);
    run.options.ranks.per_node = 2;
    run.options.run.out = directory_ / "two";
    for (const int64_t stage : {3, 1, 0})
      for (const WeightShards weights : {WeightShards::all, WeightShards::node})
        for (const bool least : {false, true}) {
          if (stage < 3 && weights == WeightShards::node) continue;
          TestRun two = run;
          two.options.ranks.zero = stage;
          two.options.ranks.shard_weights = weights;
          if (least) two.arenas = least_arenas(two, true);
          const TestResult found = train_on(two);
          EXPECT_TRUE(found.plan.lowering.sharing.has_node_groups());
          EXPECT_EQ(found.plan.lowering.sharing.weights_in_node_group, weights == WeightShards::node);
          EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << stage;
          EXPECT_EQ(fixed_bits(found.validations), fixed_bits(wanted.validations)) << stage;
          EXPECT_EQ(newest_masters(two.options.run.out), masters) << stage;
          std::filesystem::remove_all(two.options.run.out);
        }
    std::filesystem::remove_all(directory_ / "one");
  }
}

// Node groups have two or four ranks, and sum factors, too. With clip 0, updates follow backward at once.
TEST_F(RankNodeGroupsTest, EightRanksOnOneTwoAndFourMachines) {
  for (const uint32_t compress : {0, 2})
    for (const double clip : {1.0, 0.0}) {
      TestRun run = machines_of(8, 8, "one");
      run.options.batch.batch = 16;
      run.options.optimizer.clip = clip;
      run.options.ranks.zero = 1;
      run.options.ranks.compression.rank = compress;
      run.options.ranks.compress_after = 2;
      run.options.ranks.share_layers_until = compress ? 1 : 0;
      const TestResult wanted = train_on(run);
      const std::vector<float> masters = newest_masters(run.options.run.out);
      for (const int64_t per_node : {4, 2, 1}) {
        TestRun several = run;
        several.options.ranks.per_node = per_node;
        if (!compress) several.options.batch.waves = per_node == 2 ? 2 : 1;
        several.options.memory.overlap = per_node == 4 ? Overlap::never : Overlap::always;
        several.options.run.out = directory_ / "several";
        const TestResult found = train_on(several);
        EXPECT_EQ(found.plan.lowering.sharing.in_node_group.count, per_node == 1 ? 8 : per_node);
        EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << per_node;
        EXPECT_EQ(newest_masters(several.options.run.out), masters) << per_node;
        std::filesystem::remove_all(several.options.run.out);
      }
      std::filesystem::remove_all(run.options.run.out);
    }
}

// Of a parameter group of b bytes, with n ranks and node groups of k, a rank sends (k-1)/k b within its node
// group and (n/k-1)/n b across. Sums of node groups are fp32. With weights shared within nodes, forwards and
// backwards gather within the node group only, and updated weights go across once.
TEST_F(RankNodeGroupsTest, RanksSendWhatTheFormulasSay) {
  constexpr uint64_t kRanks = 8, kNodeGroup = 4;
  for (const DType precision : {DType::f32, DType::bf16})
    for (const int64_t stage : {0, 1, 3})
      for (const WeightShards weights : {WeightShards::all, WeightShards::node}) {
        if (stage < 3 && weights == WeightShards::node) continue;
        TestRun run = machines_of(kNodeGroup, kRanks, "sent");
        run.options.numbers.precision = precision;
        run.options.ranks.zero = stage;
        run.options.ranks.shard_weights = weights;
        const TestResult result = train_on(run);
        const Plan& plan = result.plan;
        uint64_t inside = 0, across = 0;
        for (size_t g = 0; g < plan.lowering.groups.size(); ++g) {
          const uint64_t elements = plan.lowering.groups[g].shards.back();
          const uint64_t bytes = elements * dtype_bytes(precision);
          const uint64_t sums = kRanks * plan.program.buffers[plan.lowering.groups[g].block_sums].bytes();
          const uint64_t gathers = stage < 3 || plan.model.groups[g].name == "ln_f" ? 1 : 2;
          inside += bytes + gathers * bytes + sums;
          across += elements * 4 + (weights == WeightShards::node ? 1 : gathers) * bytes + sums;
        }
        const uint64_t wanted =
            inside / kNodeGroup * (kNodeGroup - 1) + across / kRanks * (kRanks / kNodeGroup - 1);
        EXPECT_EQ(sent(result), wanted) << stage;
        std::filesystem::remove_all(run.options.run.out);
      }
}

}  // namespace
}  // namespace sluice
