// Event files say what TensorBoard expects, byte for byte; tools/fixtures/check_tensorboard.py compares them
// with TensorBoard itself.
#include "engine/run/train/event_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "engine/base/error.h"
#include "tests/support/event_records.h"
#include "tests/support/test_directory.h"

namespace sluice {
namespace {

constexpr double kTime = 1764024863.4565;

StepMetrics example_step(int64_t step) {
  StepMetrics m;
  m.step = step;
  m.loss = 0.1 + static_cast<double>(step);
  m.grad_norm = INFINITY;
  m.learning_rate = 3e-4;
  m.tokens_per_second = 12345.5;
  m.trained_tokens_per_second = 678.5;
  m.peak_bytes = {{"host", uint64_t{1} << 40}, {"nvme", 0}};
  m.process_peak_bytes = 4096;
  m.lane_busy = {{"compute", 0.25}};
  return m;
}

class EventFileTest : public ::testing::Test {
 protected:
  std::vector<std::string> paths() const {  // by name, as TensorBoard reads them
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
      all.push_back(entry.path().string());
    std::sort(all.begin(), all.end());
    return all;
  }
  std::string bytes(size_t file = 0) const { return read_text_file(paths().at(file), 1 << 26); }

  const TestDirectory directory_;
};

TEST_F(EventFileTest, HoldsEveryFigure) {
  EventFile file(directory_.path(), 41, kTime);
  file.write(example_step(42), kTime + 1);
  file.write(ValidationMetrics{42, 2.5}, kTime + 2);
  StepMetrics with_routers = example_step(43);
  with_routers.router_loss = 0.5;
  file.write(with_routers, kTime + 3);
  const std::vector<DecodedEvent> events = decoded_events(bytes());
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[4].scalars.at("loss/routers"), 0.5f);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[0].wall_time, kTime);
  EXPECT_EQ(events[1].session_status, 1) << "START";
  EXPECT_EQ(events[1].step, 42) << "of older files, TensorBoard leaves out this step and those after it";
  EXPECT_EQ(events[2].step, 42);
  EXPECT_EQ(events[2].wall_time, kTime + 1);
  const std::map<std::string, float> expected{{"loss/train", 42.1f},
                                              {"step/learning_rate", 3e-4f},
                                              {"step/grad_norm", INFINITY},
                                              {"step/tokens_per_second", 12345.5f},
                                              {"step/trained_tokens_per_second", 678.5f},
                                              {"peak_bytes/host", 1099511627776.f},
                                              {"peak_bytes/nvme", 0.f},
                                              {"peak_bytes/process", 4096.f},
                                              {"lane_busy/compute", 0.25f}};
  EXPECT_EQ(events[2].scalars, expected);
  EXPECT_EQ(events[3].step, 42);
  EXPECT_EQ(events[3].scalars, (std::map<std::string, float>{{"loss/validation", 2.5f}}));
  EXPECT_EQ(file.trouble(), std::nullopt);
}

// The bytes of a small file, worked out by hand from record_writer.h and event.proto.
TEST_F(EventFileTest, IsWrittenByteForByte) {
  const EventFile file(directory_.path(), 299, 1.0);
  const std::string one("\0\0\0\0\0\0\xf0\x3f", 8);  // 1.0
  const auto record = [](const std::string& data) {
    const auto number = [](uint64_t value, int bytes) {
      std::string out;
      for (; bytes > 0; --bytes, value /= 256) out += static_cast<char>(value % 256);
      return out;
    };
    const std::string length = number(data.size(), 8);
    return length + number(masked_checksum(length), 4) + data + number(masked_checksum(data), 4);
  };
  EXPECT_EQ(bytes(), record("\x09" + one + std::string("\x10\0", 2) + "\x1a\x0d" + "brain.Event:2") +
                         record("\x09" + one + "\x10\xac\x02" + "\x3a\x02" + "\x08\x01"));
}

TEST_F(EventFileTest, NamesAreInOrderEvenIfTheClockGoesBack) {
  std::array<char, HOST_NAME_MAX + 1> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size()), 0);
  for (const double time : {kTime, kTime, kTime - 1000, kTime + 10})
    EventFile(directory_.path(), 0, time).write(ValidationMetrics{1, time}, time);
  const std::vector<std::string> all = paths();
  ASSERT_EQ(all.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const char* const seconds[] = {"1764024863", "1764024864", "1764024865", "1764024873"};
    EXPECT_EQ(std::filesystem::path(all[i]).filename(),
              std::string("events.out.tfevents.") + seconds[i] + "." + host.data());
  }
  EXPECT_EQ(decoded_events(bytes(2)).at(2).wall_time, kTime - 1000);
}

// Wherever a kill or a power failure cuts the file, what stands before is read.
TEST_F(EventFileTest, ACutFileIsReadUpToItsLastWholeRecord) {
  {
    EventFile file(directory_.path(), 0, kTime);
    for (int64_t step = 1; step <= 3; ++step) file.write(example_step(step), kTime);
  }
  const std::string whole = bytes();
  std::vector<size_t> ends;  // of records
  for (size_t at = 0; at < whole.size(); ends.push_back(at)) at += 16 + little(whole.substr(at), 8);
  ASSERT_EQ(ends.size(), 5u);
  for (size_t size = 0; size <= whole.size(); ++size)
    EXPECT_EQ(decoded_events(whole.substr(0, size)).size(),
              static_cast<size_t>(std::ranges::count_if(ends, [&](size_t end) { return end <= size; })))
        << size;
}

// The limit on the size of files stands for a full drive.
TEST_F(EventFileTest, EventsThatWereRefusedAreWrittenLater) {
  EventFile file(directory_.path(), 0, kTime);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little_more{bytes().size() + 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little_more), 0);
  file.write(example_step(1), kTime);
  file.write(example_step(2), kTime);
  const std::optional<std::string> trouble = file.trouble();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, signal_before);
  EXPECT_EQ(trouble, "Writing `" + paths().at(0) +
                         "` failed: File too large. The run goes on; its events are kept and tried again.");
  EXPECT_EQ(decoded_events(bytes()).size(), 2u);
  file.finish();
  EXPECT_EQ(file.unwritten(), 0u);
  EXPECT_EQ(decoded_events(bytes()).size(), 4u);
}

// Of events that wait for room, the older ones are dropped, whole, once they take 16 MiB.
TEST_F(EventFileTest, ALongWaitDropsWholeEvents) {
  EventFile file(directory_.path(), 0, kTime);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little_more{bytes().size() + 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little_more), 0);
  constexpr int64_t kSteps = 100'000;  // about 300 bytes each
  for (int64_t step = 1; step <= kSteps; ++step) file.write(example_step(step), kTime);
  EXPECT_LE(file.unwritten(), size_t{16} << 20);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, signal_before);
  file.finish();
  EXPECT_EQ(file.unwritten(), 0u);
  const std::vector<DecodedEvent> events = decoded_events(bytes());
  EXPECT_EQ(events.at(2).step, 1) << "a part of it was in the file";
  EXPECT_GT(events.at(3).step, 2);
  EXPECT_EQ(events.back().step, kSteps);
  for (size_t i = 4; i < events.size(); ++i) ASSERT_EQ(events[i].step, events[i - 1].step + 1);
}

TEST_F(EventFileTest, AMissingDirectoryIsAnEnvironmentError) {
  try {
    EventFile file(directory_ / "no", 0, kTime);
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    EXPECT_NE(error.remedy().find("--tensorboard"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice
