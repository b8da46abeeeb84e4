// Gradients that travel as factors (PowerSGD), and layers that share weights at first, on ranks of one
// process.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/ranks_support.h"

namespace sluice {
namespace {

class CompressionTest : public RanksTest {
 protected:
  // A run with all phases: two steps of shared layers, two with whole gradients, then factors.
  TestRun compressed_run(int64_t ranks, const std::string& out) const {
    TestRun run = run_on(ranks, out);
    run.options.ranks.zero = 0;
    run.options.ranks.compression.rank = 4;
    run.options.ranks.compress_after = 4;
    run.options.ranks.share_layers_until = 2;
    return run;
  }

  static uint64_t sent(const StepMetrics& step) {
    for (const auto& [lane, bytes] : step.moved_bytes)
      if (lane == "collective") return bytes;
    return 0;
  }

  // Compression errors summed over all ranks, of every tensor that has one.
  static std::map<std::string, std::vector<double>> summed_errors(const std::string& out) {
    std::map<std::string, std::vector<double>> sums;
    for (const auto& [name, bytes] : newest_tensors(out)) {
      if (!name.starts_with("error") || name.find("padding.") != std::string::npos) continue;
      std::vector<double>& sum = sums[name.substr(name.find(':'))];
      sum.resize(bytes.size() / 4);
      for (size_t i = 0; i < sum.size(); ++i) {
        float value;
        std::memcpy(&value, bytes.data() + 4 * i, 4);
        sum[i] += value;
      }
    }
    return sums;
  }
};

TEST_F(CompressionTest, BitsDoNotDependOnBudgetsStagesAndStops) {
  for (const DType precision : {DType::f32, DType::bf16})
    for (const double clip : {1.0, 0.0}) {
      TestRun run = compressed_run(3, "wanted");
      run.options.numbers.precision = precision;
      run.options.memory.overlap = Overlap::never;
      run.options.optimizer.clip = clip;
      run.options.optimizer.schedule = Schedule::constant;
      run.options.batch.steps = 7;
      run.options.data.validation = {directory_ / "text.txt"};
      run.options.data.val_every = 1;
      run.options.data.val_batches = 2;
      const TestResult wanted = train_on(run);
      const Tensors state = newest_tensors(run.options.run.out);
      const std::vector<float> masters = newest_masters(run.options.run.out);
      const auto expect_same = [&](TestRun other, const std::string& name) {
        other.options.run.out = directory_ / "other";
        const TestResult found = train_on(other);
        EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << name;
        EXPECT_EQ(fixed_bits(found.validations), fixed_bits(wanted.validations)) << name;
        EXPECT_EQ(newest_masters(other.options.run.out), masters) << name;
        if (other.options.ranks.zero == 0) {
          EXPECT_EQ(differences(newest_tensors(other.options.run.out), state), "") << name;
        }
        std::filesystem::remove_all(other.options.run.out);
      };
      for (const int64_t stage : {0, 1}) {
        TestRun other = run;
        other.options.ranks.zero = stage;
        other.options.memory.overlap = Overlap::always;
        expect_same(other, "stage " + std::to_string(stage));
        for (const bool device : {false, true}) {
          other.arenas = least_arenas(other, device);
          other.executor = device ? ExecutorKind::shuffled : ExecutorKind::threaded;
          expect_same(other, "least, stage " + std::to_string(stage));
        }
      }
      for (const int64_t stop : {1, 2, 3, 4, 5}) {  // within every phase and between them
        TestRun part = run;
        part.options.run.out = directory_ / "parts";
        part.options.memory.overlap = stop % 2 ? Overlap::always : Overlap::never;
        part.stop_after = stop;
        part.options.data.val_every = 7;  // otherwise reading a loss at once would change where it stops
        const int64_t done = train_on(part).end.step;
        part.stop_after = 0;
        part.options.run.resume = "auto";
        const TestResult rest = train_on(part);
        EXPECT_EQ(static_cast<int64_t>(rest.steps.size()), 7 - done);
        EXPECT_EQ(differences(newest_tensors(part.options.run.out), state), "") << "stopped after " << done;
        std::filesystem::remove_all(part.options.run.out);
      }
      std::filesystem::remove_all(run.options.run.out);
    }
}

TEST_F(CompressionTest, BitsDoNotDependOnWaves) {
  TestRun run = compressed_run(3, "one wave");
  run.options.numbers.precision = DType::bf16;
  run.options.ranks.share_layers_until = 0;  // shared layers run in one wave
  run.options.ranks.compress_after = 2;
  run.options.batch.steps = 6;
  run.options.batch.waves = 1;
  const TestResult wanted = train_on(run);
  const Tensors state = newest_tensors(run.options.run.out);
  for (const int64_t waves : {2, 4}) {
    TestRun other = run;
    other.options.batch.waves = waves;
    other.options.memory.overlap = waves == 2 ? Overlap::always : Overlap::never;
    other.options.run.out = directory_ / "waves";
    other.arenas = least_arenas(other, true);
    EXPECT_EQ(fixed_bits(train_on(other).steps), fixed_bits(wanted.steps)) << waves;
    EXPECT_EQ(differences(newest_tensors(other.options.run.out), state), "") << waves;
    std::filesystem::remove_all(other.options.run.out);
  }
}

// Both factors go to their owners and back. Groups without matrices go whole; block sums are gathered.
TEST_F(CompressionTest, RanksSendFactors) {
  for (const int64_t ranks : {2, 3})
    for (const int64_t stage : {0, 1}) {
      TestRun run = compressed_run(ranks, "sent");
      run.options.ranks.zero = stage;
      run.options.batch.steps = 7;
      const TestResult result = train_on(run);
      const Lowering& lowering = result.plan.lowering;
      uint64_t twice = 0, once = 0, sums = 0;
      for (const GroupBuffers& g : lowering.groups) {
        const uint64_t whole = g.shards.back() * sizeof(float);
        sums += result.plan.program.buffers[g.block_sums].bytes() * static_cast<uint64_t>(ranks - 1);
        if (stage == 1) once += whole;  // weights
        if (g.compression)
          twice += 4 * (g.sharing.factor_elements(g.compression->layout.left) +
                        g.sharing.factor_elements(g.compression->layout.right));
        else
          (stage == 0 ? twice : once) += whole;
      }
      const auto n = static_cast<uint64_t>(ranks);
      EXPECT_EQ(sent(result.steps.at(6)), (2 * twice + once) / n * (n - 1) + sums)
          << ranks << " ranks, stage " << stage;
      std::filesystem::remove_all(run.options.run.out);
    }
}

TEST_F(CompressionTest, ACompressedRunLearnsAsWell) {
  TestRun run = run_on(2, "whole");
  run.options.ranks.zero = 0;
  run.options.batch.steps = 200;
  run.options.model.model = "gpt2:layers=4,width=128,heads=4,vocab=256,context=32";
  run.options.batch.batch = 8;
  run.options.optimizer.learning_rate = 1e-3;
  write_bytes(directory_ / "english.txt", read_text_file("LICENSE", 1 << 20));  // a text that nobody edits
  run.options.data.train = {directory_ / "english.txt"};
  const TestResult whole = train_on(run);
  run.options.ranks.compression.rank = 4;
  run.options.ranks.compress_after = 20;
  run.options.run.out = directory_ / "compressed";
  const TestResult compressed = train_on(run);
  const auto mean_loss = [](const TestResult& r) {  // over the last 20 steps
    double sum = 0;
    for (size_t i = 180; i < 200; ++i) sum += r.steps.at(i).loss / 20;
    return sum;
  };
  std::printf(
      "loss %.4f of whole gradients, %.4f of factors (bar 2 %%); %.1f times fewer bytes (bar 8)\n",
      mean_loss(whole), mean_loss(compressed),
      static_cast<double>(sent(whole.steps.at(199))) / static_cast<double>(sent(compressed.steps.at(199))));
  EXPECT_LT(mean_loss(whole), 3);  // it has learned: 5.5 at first
  EXPECT_NEAR(mean_loss(compressed), mean_loss(whole), 0.02 * mean_loss(whole));
  EXPECT_GE(sent(whole.steps.at(199)), 8 * sent(compressed.steps.at(199)));
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(compressed.steps.at(i).loss, whole.steps.at(i).loss);
}

// The ranks of a resumed run take over the compression errors of all ranks before.
TEST_F(CompressionTest, ErrorsOutliveTheRanks) {
  TestRun run = compressed_run(4, "out");
  run.options.optimizer.schedule = Schedule::constant;
  run.options.ranks.compress_after = 0;
  run.options.batch.steps = 3;
  train_on(run);
  const auto before = summed_errors(run.options.run.out);
  ASSERT_FALSE(before.empty());
  for (const int64_t ranks : {2, 3}) {
    TestRun other = run;
    other.options.ranks.gpus = other.options.ranks.count = ranks;
    other.options.run.resume = "auto";
    other.options.batch.steps = 3;  // no step left: it only saves again
    other.options.run.out = directory_ / "out";
    train_on(other);
    const auto after = summed_errors(other.options.run.out);
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [name, sum] : before)
      for (size_t i = 0; i < sum.size(); ++i)
        // Sums of at most four values in fp32, in another order.
        ASSERT_NEAR(after.at(name)[i], sum[i], 1e-6 * std::abs(sum[i]) + 1e-9) << name;
  }
  run.options.run.resume = "auto";
  run.options.batch.steps = 6;
  run.options.given = {"steps"};
  EXPECT_EQ(train_on(run).end.step, 6);
}

// The files that single ranks wrote are read as strictly as the rest.
TEST_F(CompressionTest, DamagedErrorsAreNotTakenOver) {
  TestRun run = compressed_run(2, "out");
  run.options.ranks.compress_after = 0;
  run.options.batch.steps = 3;
  train_on(run);
  const std::string checkpoint = newest_checkpoint(run.options.run.out).value();
  const CheckpointReader reader = CheckpointReader::open(checkpoint);
  float value = 0;
  EXPECT_FALSE(reader.read_of_writer(2, kCompressionError, "h.0.mlp.c_fc.weight", 1, 0, 1, &value));
  EXPECT_TRUE(reader.read_of_writer(1, kCompressionError, "h.0.mlp.c_fc.weight", 1, 0, 1, &value));
  EXPECT_THROW(reader.read_of_writer(1, kCompressionError, "h.9.mlp.c_fc.weight", 1, 0, 1, &value), Error);
  EXPECT_THROW(reader.read_of_writer(1, kRightFactors, "h.0", uint64_t{1} << 30, 0, 1, &value), Error);
  const std::string file = checkpoint + "/error-00002-of-00002.safetensors";
  std::string bytes = read_text_file(file, 1 << 24);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_bytes(file, bytes);
  run.options.run.resume = "auto";
  run.options.batch.steps = 6;
  run.options.given = {"steps"};
  try {
    train_on(run);
    ADD_FAILURE() << "trained on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::malformed_file) << error.what();
  }
}

// While layers share weights, these are one parameter group that all layers use. A model that is built with
// one group for its layers gives the same bits.
TEST_F(CompressionTest, SharedLayersAreOneGroup) {
  for (const int64_t ranks : {1, 2}) {
    TestRun shared = run_on(ranks, "shared");
    shared.options.ranks.share_layers_until = 5;
    shared.options.batch.steps = 5;
    shared.options.data.validation = {directory_ / "text.txt"};
    shared.options.data.val_batches = 2;
    TestRun tied = shared;
    tied.options.run.out = directory_ / "tied";
    tied.options.ranks.share_layers_until = 0;
    tied.alter_model = [](Model model) {
      uint32_t first = 0;
      while (model.groups[first].name != "h.0") ++first;
      for (Layer& layer : model.layers)
        for (SegmentUse& use : layer.segments)
          for (uint32_t& g : use.groups) g -= g > first ? 1 : 0;  // h.1 becomes h.0; what follows moves up
      model.groups.erase(model.groups.begin() + first + 1);
      return model;
    };
    const TestResult wanted = train_on(tied), found = train_on(shared);
    EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << ranks;
    EXPECT_EQ(fixed_bits(found.validations), fixed_bits(wanted.validations)) << ranks;
    const Tensors tensors = newest_tensors(shared.options.run.out);
    for (const auto& [name, bytes] : tensors) {
      if (ranks > 1) break;  // tensors are cut
      const size_t layer = name.find(":h.1.");
      if (layer == std::string::npos) continue;
      std::string first = name;
      first[layer + 3] = '0';
      EXPECT_EQ(bytes, tensors.at(first)) << name;
    }
    shared.options.batch.steps = 10;
    shared.options.run.resume = "auto";
    shared.options.given = {"steps"};
    const TestResult apart = train_on(shared);
    EXPECT_LT(apart.steps.back().loss, found.steps.back().loss);
    if (ranks == 1) {
      const Tensors after = newest_tensors(shared.options.run.out);
      EXPECT_NE(after.at("master.safetensors:h.1.mlp.c_fc.weight"),
                after.at("master.safetensors:h.0.mlp.c_fc.weight"));
    }
    for (const char* out : {"shared", "tied"}) std::filesystem::remove_all(directory_ / out);
  }
}

}  // namespace
}  // namespace sluice
