// A metrics file reads back to what was written, even while it grows. Damaged lines are read or refused.
#include "engine/run/train/metrics_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/test_directory.h"

namespace sluice {
namespace {

StepMetrics example_step() {
  StepMetrics m;
  m.step = 3;
  m.loss = 0.1 + 0.2;
  m.grad_norm = INFINITY;
  m.learning_rate = 3e-4;
  m.seconds = 0.5;
  m.tokens_per_second = 256;
  m.trained_tokens_per_second = 64;
  m.order = StepOrder::repaired;
  m.skipped = true;
  m.micro_batch = 4;
  m.loss_scale = 65536;
  m.peak_bytes = {{"device", 1}, {"host", UINT64_MAX}};
  m.process_peak_bytes = 123456789012345678;
  m.moved_bytes = {{"h2d", 10}};
  m.lane_busy = {{"compute", 0.30000000000000004}};
  m.router_loss = 0.1;
  m.expert_tokens = {{2, {5, 0, 7}, 3}, {10, {1, 2, 9}, 0}};
  return m;
}

class MetricsReader : public ::testing::Test {
 protected:
  void read(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    steps_.clear(), validations_.clear(), samples_.clear();
    read_metrics(path_, {[&](const StepMetrics& m) { steps_.push_back(m); },
                         [&](const ValidationMetrics& m) { validations_.push_back(m); },
                         [&](const SampleMetrics& m) { samples_.push_back(m); }});
  }
  std::string refusal(const std::string& text) {
    try {
      read(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::malformed_file);
      EXPECT_FALSE(error.remedy().empty());
      return error.what();
    }
    return "";
  }

  const TestDirectory directory_;
  const std::string path_ = directory_ / "metrics.jsonl";
  std::vector<StepMetrics> steps_;
  std::vector<ValidationMetrics> validations_;
  std::vector<SampleMetrics> samples_;
};

TEST_F(MetricsReader, ReadsBackWhatWasWritten) {
  std::string text;
  append_line(text, example_step(), 1);
  append_line(text, ValidationMetrics{3, 2.5}, 2);
  append_line(text, ValidationMetrics{4, 2.5, 0.5}, 2);
  read(text);
  ASSERT_EQ(steps_.size(), 1u);
  ASSERT_EQ(validations_.size(), 2u);
  EXPECT_EQ(validations_[0].router_loss, std::nullopt);
  EXPECT_EQ(validations_[1].router_loss, 0.5);
  EXPECT_EQ(validations_[0].step, 3);
  EXPECT_EQ(validations_[0].val_loss, 2.5);
  EXPECT_TRUE(std::isnan(steps_[0].grad_norm));  // null does not tell which number it was
  steps_[0].grad_norm = INFINITY;
  std::string again;
  append_line(again, steps_[0], 1);
  EXPECT_EQ(again, text.substr(0, again.size()));
}

TEST_F(MetricsReader, ALayerMayLackWhatItDropped) {
  read("{\"step\":1,\"loss\":2,\"expert_tokens\":{\"1\":[2],\"3\":[2]},\"dropped_choices\":{\"3\":1}}\n");
  ASSERT_EQ(steps_.size(), 1u);
  EXPECT_EQ(steps_[0].router_loss, std::nullopt);
  EXPECT_EQ(steps_[0].expert_tokens.at(0).dropped, std::nullopt);
  EXPECT_EQ(steps_[0].expert_tokens.at(1).dropped, 1u);
}

TEST_F(MetricsReader, ATornLastLineIsPassedOver) {
  const std::string one = "{\"step\":1,\"loss\":2}\n";
  for (const std::string& torn : {std::string("{"), std::string("{\"step\":2,\"lo"),
                                  "{\"ste" + std::string(3000, '\0'), std::string(3000, '\0')}) {
    read(one + torn);
    EXPECT_EQ(steps_.size(), 1u);
  }
  read(one + "{\"step\":2,\"loss\":1}");  // only its newline is missing
  EXPECT_EQ(steps_.size(), 2u);
  read("");
  EXPECT_EQ(steps_.size(), 0u);
}

TEST_F(MetricsReader, LinesOfOtherKindsArePassedOver) {
  read("{\"step\":1,\"time\":1,\"unheard_of\":[{\"a\":\"b\"}]}\n{\"step\":1,\"loss\":2}\n");
  EXPECT_EQ(steps_.size(), 1u);
}

TEST_F(MetricsReader, SamplesComeBackAsTheyWere) {
  const SampleMetrics wanted{.step = 3, .texts = {{"a\n\"", "\xC3\xA9\\"}, {"", "<b>"}}};
  std::string line;
  append_line(line, wanted, 1764024863);
  EXPECT_TRUE(line.starts_with("{\"step\":3,\"time\":")) << line;
  read(line);
  ASSERT_EQ(samples_.size(), 1u);
  EXPECT_EQ(samples_[0].step, 3);
  ASSERT_EQ(samples_[0].texts.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(samples_[0].texts[i].prompt, wanted.texts[i].prompt);
    EXPECT_EQ(samples_[0].texts[i].text, wanted.texts[i].text);
  }
}

// Samples are cut at whole characters, and bytes that are not UTF-8 are replaced.
TEST_F(MetricsReader, LongSamplesAreCut) {
  std::string long_text(kSampleTextBytes - 1, 'a'), bad = "a\xFF";
  std::string line;
  append_line(line, SampleMetrics{1, {{long_text + "\xC3\xA9", long_text + "\xC3\xA9"}, {bad, bad}}}, 1);
  read(line);
  ASSERT_EQ(samples_.size(), 1u);
  EXPECT_EQ(samples_[0].texts[0].text, long_text);
  EXPECT_EQ(samples_[0].texts[0].prompt, std::string(kSamplePromptBytes - 2, 'a') + "\xC3\xA9");
  EXPECT_EQ(samples_[0].texts[1].text, "a\xEF\xBF\xBD");
  EXPECT_EQ(first_characters("\xC3\xA9", 1), "");
  EXPECT_EQ(last_characters("\xC3\xA9", 1), "");
  EXPECT_EQ(first_characters("ab", 2), "ab");
}

TEST_F(MetricsReader, OtherLinesAreRefusedByTheirNumber) {
  const std::string one = "{\"step\":1,\"loss\":2}\n";
  for (const char* wrong :
       {"hello",
        "{}",
        "[1]",
        "",
        "{\"step\":2,\"lo",
        "{\"step\":\"2\",\"loss\":1}",
        "{\"step\":-2,\"loss\":1}",
        "{\"step\":1e300,\"loss\":1}",
        "{\"step\":2,\"loss\":\"1\"}",
        "{\"step\":2,\"loss\":[]}",
        "{\"step\":2,\"val_loss\":{}}",
        "{\"step\":2,\"samples\":{}}",
        "{\"step\":2,\"samples\":[1]}",
        "{\"step\":2,\"samples\":[{\"text\":1}]}",
        "{\"step\":2,\"loss\":1,\"peak_bytes\":7}",
        "{\"step\":2,\"loss\":1,\"peak_bytes\":{\"host\":\"x\"}}",
        "{\"step\":2,\"loss\":1,\"micro_batch\":0.5}",
        "{\"step\":2,\"loss\":1,\"router_loss\":\"x\"}",
        "{\"step\":2,\"loss\":1,\"expert_tokens\":{\"1\":[2]},\"dropped_choices\":[1]}",
        "{\"step\":2,\"loss\":1,\"expert_tokens\":{\"1\":[2]},\"dropped_choices\":{\"1\":0.5}}"})
    EXPECT_EQ(refusal(one + wrong + "\n" + one), "Line 2 of `" + path_ + "` is not a metrics line.") << wrong;
  EXPECT_NE(refusal(one + "{\"step\":2,\"x\":\"" + std::string(16 << 20, 'x') + "\"}\n"), "");
  EXPECT_NE(refusal(one + "my notes"), "");
}

// Damaged lines are taken or refused with a typed error.
TEST_F(MetricsReader, DamageIsTakenOrRefused) {
  std::string whole;
  for (int i = 0; i < 3; ++i)
    append_line(whole, example_step(), 1), append_line(whole, ValidationMetrics{4, 1.5}, 1);
  std::mt19937_64 random(7);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = whole;
    for (uint64_t faults = 1 + random() % 3; faults > 0; --faults)
      text[random() % text.size()] =
          static_cast<char>(random() % 3 == 0 ? random() : "{}[]\",:-0e\n"[random() % 11]);
    refused += !refusal(text).empty();
  }
  EXPECT_GT(refused, 200);
  EXPECT_LT(refused, 2000);
}

TEST_F(MetricsReader, AMissingFileIsAnErrorOfUsage) {
  EXPECT_THROW(read_metrics(directory_ / "no", {}), Error);
  EXPECT_THROW(read_metrics(directory_.path(), {}), Error);
}

}  // namespace
}  // namespace sluice
