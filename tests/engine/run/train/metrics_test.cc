// Metrics lines read back exactly, reach the file at once, and are cut cleanly for a resume.
#include "engine/run/train/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/support/test_directory.h"

namespace sluice {
namespace {

using nlohmann::json;

StepMetrics example_step() {
  StepMetrics m;
  m.step = 3;
  m.loss = 0.1 + 0.2;  // no short decimal
  m.grad_norm = 1.0 / 3;
  m.learning_rate = 2.9999999999999997e-4;
  m.seconds = 5e-324;  // the smallest
  m.tokens_per_second = 1.7976931348623157e308;
  m.trained_tokens_per_second = 0.1;
  m.order = StepOrder::repaired;
  m.skipped = true;
  m.micro_batch = 4;
  m.loss_scale = 65536;
  m.peak_bytes = {{"device", 1}, {"host", UINT64_MAX}, {"nvme", 0}};
  m.process_peak_bytes = 123456789012345678;
  m.moved_bytes = {{"h2d", 10}, {"d2h", 20}};
  m.lane_busy = {{"compute", 0.30000000000000004}};
  return m;
}

constexpr double kTime = 1764024863.4565;  // an unix_seconds()

std::string line_of(const auto& metrics) {
  std::string line;
  append_line(line, metrics, kTime);
  return line;
}

class MetricsFileTest : public ::testing::Test {
 protected:
  void put(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory_), {}));
  }
  const TestDirectory temporary_;
  const std::filesystem::path directory_ = temporary_.path(), path_ = directory_ / "metrics.jsonl";
};

TEST(MetricsLine, HoldsEveryFieldExactly) {
  const StepMetrics m = example_step();
  const std::string line = line_of(m);
  ASSERT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_EQ(line.back(), '\n');
  const json value = json::parse(line);
  EXPECT_EQ(value.size(), 16u);
  EXPECT_EQ(value["step"], 3);
  EXPECT_EQ(value["time"].get<double>(), 1764024863.457);
  EXPECT_EQ(value["loss"].get<double>(), m.loss);
  EXPECT_EQ(value["grad_norm"].get<double>(), m.grad_norm);
  EXPECT_EQ(value["learning_rate"].get<double>(), m.learning_rate);
  EXPECT_EQ(value["seconds"].get<double>(), m.seconds);
  EXPECT_EQ(value["tokens_per_second"].get<double>(), m.tokens_per_second);
  EXPECT_EQ(value["trained_tokens_per_second"].get<double>(), m.trained_tokens_per_second);
  EXPECT_EQ(value["order"], "repaired");
  EXPECT_EQ(value["skipped"], true);
  EXPECT_EQ(value["micro_batch"], 4);
  EXPECT_EQ(value["loss_scale"].get<double>(), 65536);
  EXPECT_EQ(value["peak_bytes"].dump(), R"({"device":1,"host":18446744073709551615,"nvme":0})");
  EXPECT_EQ(value["process_peak_bytes"].get<uint64_t>(), 123456789012345678u);
  EXPECT_EQ(value["moved_bytes"].dump(), R"({"d2h":20,"h2d":10})");
  EXPECT_EQ(value["lane_busy"]["compute"].get<double>(), 0.30000000000000004);
}

TEST(MetricsLine, HasTokensOfAllExpertsByLayer) {
  StepMetrics m = example_step();
  EXPECT_EQ(line_of(m).find("expert_tokens"), std::string::npos);
  m.expert_tokens = {{2, {5, 0, 7}}, {10, {1, 2, 9}}};
  EXPECT_EQ(json::parse(line_of(m))["expert_tokens"].dump(), R"({"10":[1,2,9],"2":[5,0,7]})");
  EXPECT_EQ(line_of(m).find("dropped_choices"), std::string::npos);
  m.expert_tokens[0].dropped = 4, m.expert_tokens[1].dropped = 0;
  EXPECT_EQ(json::parse(line_of(m))["dropped_choices"].dump(), R"({"10":0,"2":4})");
}

TEST(MetricsLine, HasThePartOfRoutersWhereTheyHaveOne) {
  StepMetrics m = example_step();
  m.router_loss = 0.1 + 0.2;
  EXPECT_EQ(json::parse(line_of(m))["router_loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(line_of(ValidationMetrics{7, 2.5, 0.25}),
            "{\"step\":7,\"time\":1764024863.457,\"val_loss\":2.5,\"router_loss\":0.25}\n");
}

TEST(MetricsLine, DoublesOfAllSizesReadBackToTheSameBits) {
  uint64_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    const double value = std::bit_cast<double>(state);
    if (!std::isfinite(value)) continue;
    const json back = json::parse(line_of(ValidationMetrics{1, value}));
    EXPECT_EQ(std::bit_cast<uint64_t>(back["val_loss"].get<double>()), state);
  }
}

TEST(MetricsLine, NumbersThatAreNotFiniteAreNull) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {infinity, -infinity, std::nan("")})
    EXPECT_EQ(line_of(ValidationMetrics{7, value}),
              "{\"step\":7,\"time\":1764024863.457,\"val_loss\":null}\n");
}

TEST_F(MetricsFileTest, LinesAreInTheFileAsSoonAsTheyAreWritten) {
  put("{\"step\":1}\n");
  MetricsFile file(path_);
  file.write(ValidationMetrics{2, 0.5}, 1.25);
  const std::string two = "{\"step\":1}\n{\"step\":2,\"time\":1.250,\"val_loss\":0.5}\n";
  EXPECT_EQ(content(), two);
  file.write(example_step(), kTime);
  EXPECT_EQ(content(), two + line_of(example_step()));
}

// A full drive ends no run. The failure is told once, and refused lines follow when there is room again.
TEST(MetricsFile, AFullDriveIsToldOnce) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  MetricsFile file("/dev/full");
  EXPECT_EQ(file.trouble(), std::nullopt);
  file.write(ValidationMetrics{1, 1}, kTime);
  EXPECT_EQ(file.trouble().value_or(""),
            "Writing `/dev/full` failed: No space left on device. The run goes on; its lines are kept and "
            "tried again.");
  file.write(ValidationMetrics{2, 1}, kTime);
  EXPECT_EQ(file.trouble(), std::nullopt);
  EXPECT_EQ(file.unwritten(), 2 * line_of(ValidationMetrics{1, 1}).size());
}

// The limit on the size of files stands for a full drive; the first line is cut in its middle.
TEST_F(MetricsFileTest, LinesThatWereRefusedAreWrittenLater) {
  MetricsFile file(path_);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit ten{10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &ten), 0);
  file.write(ValidationMetrics{1, 0.5}, kTime);
  file.write(ValidationMetrics{2, 0.5}, kTime);
  EXPECT_TRUE(file.trouble());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, signal_before);
  EXPECT_EQ(content(), line_of(ValidationMetrics{1, 0.5}).substr(0, 10));
  file.write(ValidationMetrics{3, 0.5}, kTime);
  EXPECT_FALSE(file.trouble());
  EXPECT_EQ(file.unwritten(), 0u);
  EXPECT_EQ(content(), line_of(ValidationMetrics{1, 0.5}) + line_of(ValidationMetrics{2, 0.5}) +
                           line_of(ValidationMetrics{3, 0.5}));
}

TEST_F(MetricsFileTest, AFileThatIsMovedOrRemovedIsMadeAnew) {
  const std::filesystem::path away = directory_ / "metrics.old";
  MetricsFile file(path_);
  file.write(ValidationMetrics{1, 1}, kTime);
  EXPECT_EQ(file.trouble(), std::nullopt);
  std::filesystem::rename(path_, away);
  file.write(ValidationMetrics{2, 1}, kTime);
  EXPECT_EQ(file.trouble(), "`" + path_.string() +
                                "` was moved or removed: it is made anew, and its earlier lines are where it "
                                "went.");
  EXPECT_EQ(file.trouble(), std::nullopt);
  EXPECT_EQ(content(), line_of(ValidationMetrics{2, 1}));
  EXPECT_EQ(std::filesystem::file_size(away), line_of(ValidationMetrics{1, 1}).size());
  std::filesystem::remove(path_);
  file.write(ValidationMetrics{3, 1}, kTime);
  EXPECT_TRUE(file.trouble().has_value());
  EXPECT_EQ(content(), line_of(ValidationMetrics{3, 1}));
}

// A pipe whose reader stands still delays nothing. What the reader gets at the end is whole.
TEST_F(MetricsFileTest, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const FileDescriptor reader(::open(path_.c_str(), O_RDONLY | O_NONBLOCK));
  MetricsFile file(path_);
  std::string written;
  for (int64_t step = 1; !file.trouble(); ++step) {
    ASSERT_LT(step, 100'000) << "the pipe is never full";
    file.write(ValidationMetrics{step, 0.5}, kTime);
    written += line_of(ValidationMetrics{step, 0.5});
  }
  file.write(ValidationMetrics{7, 0.5}, kTime);
  written += line_of(ValidationMetrics{7, 0.5});
  EXPECT_GT(file.unwritten(), 0u);
  std::string got;
  const auto read_all = [&] {
    std::array<char, 4096> piece;
    for (ssize_t n; (n = ::read(reader.get(), piece.data(), piece.size())) > 0;)
      got.append(piece.data(), static_cast<size_t>(n));
  };
  read_all();
  file.finish();
  EXPECT_EQ(file.unwritten(), 0u);
  read_all();
  EXPECT_EQ(got, written);
}

TEST_F(MetricsFileTest, AMissingDirectoryIsAnEnvironmentError) {
  try {
    MetricsFile file(directory_ / "no" / "file");
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
  }
}

TEST_F(MetricsFileTest, TruncationDropsLaterStepsWhereverTheyStand) {
  put("{\"step\":1}\n{\"step\":2}\n{\"step\":4}\n{\"step\":2,\"val_loss\":1}\n{\"step\":3}\n");
  EXPECT_EQ(truncate_after_step(path_, 2), 2);
  EXPECT_EQ(content(), "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"val_loss\":1}\n");
  EXPECT_EQ(truncate_after_step(path_, 2), 0);
  EXPECT_EQ(truncate_after_step(path_, 0), 3);
  EXPECT_EQ(content(), "");
  std::ifstream later(set_aside_of(path_));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(later), {}),
            "{\"step\":4}\n{\"step\":3}\n{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"val_loss\":1}\n");
  EXPECT_EQ(files(), 2u);  // no temporary stays
}

// A last line without its newline is torn only if it begins like a metrics line. Other files are left alone.
TEST_F(MetricsFileTest, AFileOfSomebodyElseIsLeftAlone) {
  for (const std::string text : {"my notes, one line", "x\n{\"step\":1", "{\"other\":1}"}) {
    put(text);
    EXPECT_THROW(truncate_after_step(path_, 5), Error) << text;
    EXPECT_EQ(content(), text);
  }
}

TEST_F(MetricsFileTest, TruncationToleratesATornLastLine) {
  // "{\"step\":2}" lacks its newline only. Zeros come from a file system after a power failure.
  for (const std::string& torn :
       {std::string("{"), std::string("{\"step\":2,\"lo"), std::string("{\"step\":2}"),
        std::string("{\"ste") + std::string(3000, '\0'), std::string(3000, '\0')}) {
    put("{\"step\":1}\n" + torn);
    EXPECT_EQ(truncate_after_step(path_, 5), 1);
    EXPECT_EQ(content(), "{\"step\":1}\n");
  }
}

// However long a line is, little of it is held in memory.
TEST_F(MetricsFileTest, TruncationRefusesALineThatNeverEnds) {
  for (const std::string end : {"", "\n", "}\n"}) {
    put("{\"step\":1}\n{\"step\":2,\"x\":\"" + std::string(16 << 20, 'x') + end);
    EXPECT_THROW(truncate_after_step(path_, 5), Error);
  }
}

TEST_F(MetricsFileTest, TruncationRefusesAFileThatIsNotOurs) {
  const std::string text = "{\"step\":1}\nhello\n{\"step\":2}\n";
  put(text);
  try {
    truncate_after_step(path_, 1);
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::malformed_file);
    EXPECT_NE(std::string(error.what()).find("Line 2"), std::string::npos);
  }
  EXPECT_EQ(content(), text);
  EXPECT_EQ(files(), 1u);
}

TEST_F(MetricsFileTest, TruncationLeavesMissingFilesAndLinksAlone) {
  EXPECT_EQ(truncate_after_step(path_, 1), 0);
  EXPECT_EQ(files(), 0u);
  EXPECT_EQ(truncate_after_step("/dev/null", 1), 0);
  const auto real = directory_ / "real.jsonl";
  std::ofstream(real) << "{\"step\":1}\n{\"step\":2}\n";
  std::filesystem::create_symlink(real, path_);
  EXPECT_EQ(truncate_after_step(path_, 1), 1);
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  EXPECT_EQ(content(), "{\"step\":1}\n");
}

}  // namespace
}  // namespace sluice
