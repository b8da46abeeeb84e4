// The progress line: what it shows of metrics, in a terminal and in a file.
#include "tools/command/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace sluice {
namespace {

// What a progress line writes.
class Capture {
 public:
  Capture() : file_(open_memstream(&text_, &size_)) {}
  ~Capture() {
    std::fclose(file_);
    std::free(text_);
  }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
};

StepMetrics shown_step(int64_t step) {
  StepMetrics m;
  m.step = step;
  m.loss = 5.25;
  m.seconds = 2;
  m.tokens_per_second = m.trained_tokens_per_second = 1234;
  m.peak_bytes = {{"host", 1536}, {"nvme", 0}};
  return m;
}

TEST(ProgressLine, PlainLinesComeFirstLastAndAtIntervals) {
  Capture capture;
  Progress progress(capture.file(), Screen{}, 6, {{"host", 2048}, {"nvme", 0}});
  double now = 100;
  for (int64_t step = 1; step <= 6; ++step, now += 4) progress.step(shown_step(step), now);
  progress.validation({6, 4.5});
  progress.finish();
  EXPECT_EQ(capture.text(),
            // the nvme tier is allowed, but the plan does not use it
            "step 1/6  loss 5.2500  1234 tokens/s  ETA 10s  host 1.50 KiB of 2.00 KiB\n"
            "step 4/6  loss 5.2500  1234 tokens/s  ETA 8s  host 1.50 KiB of 2.00 KiB\n"
            "step 6/6  loss 5.2500  1234 tokens/s  ETA 0s  host 1.50 KiB of 2.00 KiB\n"
            "step 6/6  validation loss 4.5000\n");
}

TEST(ProgressLine, TrainedTokensAreSaidWhereTheyAreFewer) {
  Capture capture;
  Progress progress(capture.file(), Screen{}, 1, {});
  StepMetrics m = shown_step(1);
  m.trained_tokens_per_second = 400;
  progress.step(m, 100);
  EXPECT_EQ(capture.text(), "step 1/1  loss 5.2500  1234 tokens/s (400 trained)  ETA 0s\n");
}

TEST(ProgressLine, TerminalLineIsRewrittenAndCutToWidth) {
  Capture capture;
  Progress progress(capture.file(), Screen{.is_terminal = true, .columns = 24}, 100, {});
  progress.step(shown_step(1), 0);
  progress.step(shown_step(2), 0.05);  // too soon
  progress.note("saved");
  progress.step(shown_step(3), 0.2);
  progress.finish();
  EXPECT_EQ(capture.text(),
            "\rstep 1/100  loss 5.2500"
            "\rsaved                  \nstep 2/100  loss 5.2500"
            "\rstep 3/100  loss 5.2500\n");
}

TEST(ProgressLine, NoWordIsCut) {
  for (size_t columns = 1; columns < 90; ++columns) {
    Capture capture;
    Progress progress(capture.file(), Screen{.is_terminal = true, .columns = columns}, 100, {{"host", 2048}});
    progress.step(shown_step(1), 0);
    const std::string line = capture.text().substr(1),
                      all = "step 1/100  loss 5.2500  1234 tokens/s  ETA 3m18s  host 1.50 KiB of 2.00 KiB";
    EXPECT_LT(line.size(), columns);
    EXPECT_TRUE(all.starts_with(line) && (line.empty() || line == all || all.substr(line.size(), 2) == "  "))
        << line;
  }
  Capture capture;
  Progress progress(capture.file(), Screen{.is_terminal = true, .columns = 24}, 100, {});
  progress.note("checkpoint runs/first/checkpoints/step-000000001 was written");
  EXPECT_EQ(capture.text(), "checkpoint\n  runs/first/checkpoints/step-000000001\n  was written\n");
}

TEST(ProgressLine, SkippedStepsAreAlwaysToldOf) {
  Capture capture;
  Progress progress(capture.file(), Screen{}, 100, {});
  progress.step(shown_step(1), 0);
  StepMetrics skipped = shown_step(2);
  skipped.skipped = true;
  skipped.loss_scale = 32768;
  progress.step(skipped, 1);
  EXPECT_NE(capture.text().find("step 2: update skipped, gradients overflowed at loss scale 32768\n"),
            std::string::npos);
}

TEST(ProgressLine, AFileIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  EXPECT_FALSE(screen_of(file).is_terminal);
  std::fclose(file);
}

// Like a terminal that was closed, or that of an mpirun that was killed.
TEST(ProgressLine, ATerminalThatTakesNothingEndsNoRun) {
  for (const bool is_terminal : {true, false}) {
    std::FILE* file = std::fopen("/dev/full", "w");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(std::setvbuf(file, nullptr, _IONBF, 0), 0);
    Progress progress(file, Screen{.is_terminal = is_terminal}, 100, {});
    EXPECT_NO_THROW(progress.step(shown_step(1), 0));
    EXPECT_NO_THROW(progress.note("saved"));
    EXPECT_NO_THROW(progress.finish());
    EXPECT_NE(std::ferror(file), 0);
    std::fclose(file);
  }
}

TEST(ProgressLine, DurationsAreShort) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(130), "2m10s");
  EXPECT_EQ(format_duration(3 * 3600 + 5 * 60), "3h05m");
  EXPECT_EQ(format_duration(52 * 3600), "2d04h");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::nan("")), "?");
}

}  // namespace
}  // namespace sluice
