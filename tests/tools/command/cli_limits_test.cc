// The `sluice` command where the system grants little: address space, open files, file sizes, threads, and
// directories that cannot hold the nvme tier. Each is refused by name before it does harm.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include "engine/base/parallel.h"
#include "engine/run/checkpoint/directory.h"
#include "tests/support/cli_support.h"

namespace sluice {
namespace {

// A limit of this process and, while the object lives, of the commands that it starts.
class SoftLimit {
 public:
  SoftLimit(int resource, rlim_t value) : resource_(resource) {
    getrlimit(resource_, &before_);
    const rlimit lowered{value, before_.rlim_max};
    EXPECT_EQ(setrlimit(resource_, &lowered), 0);
  }
  ~SoftLimit() { setrlimit(resource_, &before_); }
  SoftLimit(const SoftLimit&) = delete;
  SoftLimit& operator=(const SoftLimit&) = delete;

 private:
  int resource_;
  rlimit before_{};
};

// Starts a command under a limit. `limit` holds arguments of the shell's ulimit. The limit must not apply to
// this process: if a thread of OpenBLAS started late, it would wait for ever for address space.
Command limited_command(const DriveDirectory& directory, const std::string& limit, const Words& arguments) {
  const Words limited{"sh", "-c", "ulimit " + limit + R"( && exec "$@")", "sh"};
  return {directory / "", limited + sluice_words(arguments, "sluice")};
}

// With too little address space OpenBLAS waits for ever and TBB aborts, so the command must refuse before
// that. With less than the command and its libraries need to start, the system's loader or OpenBLAS refuses
// before main(). Then even --version fails; such sizes are left out.
TEST_F(Cli, LittleAddressSpaceIsRefusedAtOnce) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers map far more";
#endif
  const auto limit = [](int mib) { return "-S -v " + std::to_string(mib << 10); };
  int least = 100;
  while (least < 200 && limited_command(directory, limit(least), {"--version"}).wait().code != 0) ++least;
  ASSERT_LT(least, 200);
  for (int mib = least; mib <= 400; mib += mib < 250 ? 4 : 50) {  // sizes at which different checks refuse
    Command command = limited_command(directory, limit(mib), train("run", 3));
    command.until([] { return false; });
    command.send(SIGKILL);  // if it hangs
    const CommandResult result = command.wait();
    EXPECT_EQ(result.code, 4) << mib << " MiB: " << result.out << result.err;
    EXPECT_NE(result.err.find("ulimit -v"), std::string::npos) << mib << " MiB: " << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 2u) << mib << " MiB: " << result.err;
  }
}

// A drive fills up during a run. A checkpoint waits until there is room again, whether it is due at an
// interval or at the end of the run. The drive is a small tmpfs in a mount namespace of the command's own. It
// runs out of bytes or of files.
class Room : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    if (Command(directory / "", {"unshare", "--mount", "true"}).wait().code != 0)
      GTEST_SKIP() << "mount namespaces are not permitted here";
    std::filesystem::create_directories(small);
  }
  std::unique_ptr<Command> start(int64_t steps, const Words& options) {
    const Words there{
        "unshare", "--mount", "sh", "-c", R"(mount -t tmpfs -o size=4m,nr_inodes=64 none "$0" && exec "$@")",
        small};
    auto command = std::make_unique<Command>(
        directory / "",
        there + sluice_words(train("small/run", steps, Words{"--metrics", directory / "metrics"} + options),
                             "sluice"));
    seen = "/proc/" + std::to_string(command->process()) + "/root" + small;
    return command;
  }
  std::vector<CheckpointEntry> checkpoints() const {
    return list_checkpoints(checkpoints_directory(seen + "/run"));
  }
  bool is_told(const std::string& words) const {
    return read_text_file(directory / "stdout", 1 << 24).find(words) != std::string::npos;
  }
  // Fills the drive until the command says that it has no room.
  bool fill_until_told(Command& command, bool with_files, const std::string& words) const {
    return command.until([&] {
      if (with_files)
        for (int i = 0; i < 64; ++i) std::ofstream(seen + "/filler-" + std::to_string(i));
      else
        std::ofstream(seen + "/filler", std::ios::app) << std::string(4 << 20, 'x');
      return is_told(words);
    });
  }
  void empty() const {
    std::filesystem::remove(seen + "/filler");
    for (int i = 0; i < 64; ++i) std::filesystem::remove(seen + "/filler-" + std::to_string(i));
  }
  bool has_begun() const { return std::filesystem::exists(directory / "metrics") && is_told("step 1/"); }

  const std::string small = directory / "small";
  std::string seen;  // path of `small` as seen from outside of the namespace
};

TEST_F(Room, ACheckpointAtAnIntervalWaitsForIt) {
  struct Case {
    const char* ranks;
    bool with_files;
  };
  for (const Case c : {Case{"1", false}, Case{"2", false}, Case{"1", true}}) {
    SCOPED_TRACE(std::string(c.ranks) + (c.with_files ? ", files" : ", bytes"));
    std::filesystem::remove(directory / "metrics");
    const auto command = start(100000, {"--gpus", c.ranks, "--checkpoint-every", "1.5s", "--keep", "1"});
    const auto newest = [&] {
      const std::vector<CheckpointEntry> all = checkpoints();
      return all.size() == 1 ? all.front().step : 0;  // with two, one is about to be deleted
    };
    ASSERT_TRUE(command->until([&] { return newest() > 0; }));
    ASSERT_TRUE(fill_until_told(*command, c.with_files, "No room for the checkpoint after step "))
        << read_text_file(directory / "stderr", 1 << 20);
    const int64_t before = newest();
    empty();
    ASSERT_TRUE(command->until([&] { return newest() > before; }));
    command->send(SIGTERM);
    const CommandResult result = command->wait();
    EXPECT_EQ(result.code, 75) << result.err;
    const size_t told = result.out.find("No room for the checkpoint");
    EXPECT_EQ(result.out.find("No room for the checkpoint", told + 1), std::string::npos) << "told once";
    EXPECT_NE(result.out.find(c.with_files ? " files, and the file system has room for " : " are free in "),
              std::string::npos)
        << result.out;
    EXPECT_NE(
        result.out.find("in " + small + "/run. The run goes on, and writes it after the first step that can"),
        std::string::npos)
        << result.out;
  }
}

TEST_F(Room, TheLastCheckpointWaitsForIt) {
  for (const bool stops : {false, true}) {
    SCOPED_TRACE(stops ? "after a signal" : "after the last step");
    std::filesystem::remove(directory / "metrics");
    const auto command = start(stops ? 100000 : 300, {});
    ASSERT_TRUE(command->until([&] { return has_begun(); }));
    std::ofstream(seen + "/filler") << std::string(4 << 20, 'x');
    if (stops) command->send(SIGTERM);
    ASSERT_TRUE(fill_until_told(*command, false, "The run waits for it; a signal ends it without."))
        << read_text_file(directory / "stderr", 1 << 20);
    EXPECT_TRUE(checkpoints().empty());
    empty();
    const CommandResult result = command->wait();
    EXPECT_EQ(result.code, stops ? 75 : 0) << result.err;
    EXPECT_NE(result.out.find("checkpoint " + small + "/run/checkpoints/step-"), std::string::npos)
        << result.out;
  }
}

TEST_F(Room, ASignalEndsTheWait) {
  const auto command = start(300, {});
  ASSERT_TRUE(command->until([&] { return has_begun(); }));
  ASSERT_TRUE(fill_until_told(*command, false, "The run waits for it; a signal ends it without."));
  command->send(SIGTERM);
  const CommandResult result = command->wait();
  EXPECT_EQ(result.code, 6) << result.err;
  EXPECT_NE(result.err.find("Free some space"), std::string::npos) << result.err;
}

TEST_F(Cli, ADirectoryThatCannotServeIsRefusedEvenIfThePlanDoesNotNeedIt) {
  expect_refused_training({"--nvme-dir", directory / "nowhere"}, 4, {"nowhere", "does not exist"});
  expect_refused_training({"--nvme-dir", text}, 4, {"train.txt", "not a directory"});
  expect_refused_training({"--nvme-dir", directory.path(), "--nvme-mem", "1000000GiB"}, 4, {"nvme-mem"});
  for (const char* special : {"/proc", "/sys"}) {
    expect_refused_training({"--nvme-dir", special}, 4, {special});
    expect_refusal({"plan", "--model", "gpt2", "--nvme-dir", special}, 4, {special});
  }
  if (is_memory("/dev/shm")) expect_refused_training({"--nvme-dir", "/dev/shm"}, 4, {"in memory"});
  if (is_memory("/dev/shm"))
    expect_refusal({"eval", "--from", kFixtures + "llama", "--data", kFixtures + "tokens.bin", "--seq", "37",
                    "--batch", "2", "--val-batches", "1", "--nvme-dir", "/dev/shm"},
                   4, {"in memory"});
}

TEST_F(Cli, ALimitOnFileSizesIsKnownBeforeTheFirstStep) {
  const SoftLimit limit(RLIMIT_FSIZE, 16 << 10);
  expect_refusal(train("run", 2), 4, {"A checkpoint has a file of", "ulimit -f unlimited"});
  EXPECT_FALSE(std::filesystem::exists(directory / "run"));
}

// The exit code says what ended the run, even if its report could not be written. Files that could be written
// are there.
TEST_F(Cli, AProfileThatFailedSaysSoWhereItsReportCannotBeWritten) {
  Words words = Words{"profile", "--steps", "40", "--out", directory / "report", "--", "--device", "cpu"};
  for (const std::string& word : train("unused", 1)) words.push_back(word);
  words.erase(std::find(words.begin(), words.end(), "train"));
  *(std::find(words.begin(), words.end(), "--lr") + 1) = "1e30";
  const SoftLimit limit(RLIMIT_FSIZE, 16 << 10);
  const CommandResult result = run(words);
  EXPECT_EQ(result.code, 8) << result.out << result.err;
  EXPECT_NE(result.err.find("not finite"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("The report is not whole: "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("File too large"), std::string::npos) << result.out;
  EXPECT_TRUE(std::filesystem::exists(directory / "report/profile.md"));
  EXPECT_FALSE(std::filesystem::exists(directory / "report/report.html"));
}

TEST_F(Cli, FewOpenFilesAreRefusedAtOnce) {
  const auto ended = [&](const std::string& limit) {
    return limited_command(directory, limit, train("run", 2)).wait();
  };
  for (const char* limit : {"-n 8", "-n 31"}) {
    const CommandResult result = ended(limit);
    EXPECT_EQ(result.code, 4) << result.err;
    EXPECT_NE(result.err.find("ulimit -n"), std::string::npos) << result.err;
  }
  EXPECT_EQ(ended("-S -n 8").code, 0) << "up to the hard limit it may help itself";
}

TEST_F(Cli, SmallStacksAreRefusedAtOnce) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more stack to begin";
#endif
  for (const char* limit : {"-S -s 64", "-S -s 256"}) {
    const CommandResult result = limited_command(directory, limit, train("run", 2)).wait();
    EXPECT_EQ(result.code, 4) << result.err;
    EXPECT_NE(result.err.find("ulimit -s"), std::string::npos) << result.err;
  }
}

// A limit on processes binds only users other than root.
TEST(Threads, ThatTheSystemRefusesAreAnError) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become a user without processes";
  const auto refused = [] {
    constexpr uid_t kNobody = 65534;
    const rlimit limit{4, 4};
    if (setrlimit(RLIMIT_NPROC, &limit) != 0 || setuid(kNobody) != 0) std::_Exit(1);
    try {
      check_threads(64);
    } catch (const Error& error) {
      std::_Exit(std::string(error.remedy()).find("ulimit -u") != std::string::npos &&
                         error.code() == ExitCode::environment
                     ? 4
                     : 1);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(refused(), testing::ExitedWithCode(4), "");
}

}  // namespace
}  // namespace sluice
