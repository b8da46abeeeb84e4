// Training with the nvme tier in three directories: the bits of one directory, bytes by drive share, the name
// of the one that fails, and nothing left in any.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/run/start/nvme_directories.h"
#include "tests/support/cli_support.h"
#include "tests/support/fault_queue.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr const char* kModel = "gpt2:layers=2,width=128,heads=2,vocab=256,context=32";
constexpr const char* kNames[] = {"a", "b", "c"};
constexpr double kWeights[] = {1, 2, 5};  // GB/s both ways

// The default machine description, but with three drives.
void write_machine(const std::string& path) {
  std::ifstream documentation("docs/machine.md");
  std::string text{std::istreambuf_iterator<char>(documentation), {}};
  const size_t begin = text.find("```json\n") + 8;
  text = text.substr(begin, text.find("```", begin) - begin);
  const size_t drives = text.find("\"drives\": ["), end = text.find("]", drives);
  std::string rows;
  for (const double weight : kWeights)
    rows += fmt::format("{}{{\"tier\": \"nvme\", \"read\": 9e9, \"write\": 9e9, \"mixed\": {}e9}}",
                        rows.empty() ? "" : ", ", weight);
  text.replace(drives, end - drives, "\"drives\": [" + rows);
  write_bytes(path, text);
}

struct Directories {
  explicit Directories(const DriveDirectory& place) {
    for (const char* name : kNames) {
      paths.push_back(place / name);
      fs::create_directory(paths.back());
    }
  }
  bool are_empty() const {
    return std::all_of(paths.begin(), paths.end(), [](const auto& p) { return fs::is_empty(p); });
  }
  std::vector<std::string> paths;
};

// As much as possible lives on drives; with `striped`, in three directories.
TestRun run_of(const DriveDirectory& directory, bool striped, const char* model = kModel) {
  write_bytes(directory / "train.txt", sample_text(4000));
  TestRun run;
  run.options = short_run(directory, model, directory / "train.txt");
  run.options.run.checkpoint_every = 2;
  if (striped) {
    write_machine(directory / "machine.json");
    run.options.memory.machine = directory / "machine.json";
    run.options.memory.nvme_directories = Directories(directory).paths;
  }
  run.arenas = least_arenas(run, true);
  return run;
}

struct Bits {
  std::vector<std::string> steps;
  Tensors tensors;
};
Bits bits_of(const TestRun& run) {
  return {fixed_bits(train(run).steps), newest_tensors(run.options.run.out)};
}

const Bits& bits_of_one_directory() {
  static const Bits bits = [] {
    const DriveDirectory directory;
    return bits_of(run_of(directory, false));
  }();
  return bits;
}

TEST(TrainingDirectories, BitsAreThoseOfOneDirectory) {
  for (const ExecutorKind executor : {ExecutorKind::serial, ExecutorKind::shuffled, ExecutorKind::threaded})
    for (const IoBackend* io : working_io_backends()) {
      SCOPED_TRACE(testing::Message() << "executor " << int(executor) << " io " << io->name);
      const DriveDirectory directory;
      TestRun run = run_of(directory, true);
      run.executor = executor;
      run.options.memory.io = io;
      const Bits bits = bits_of(run);
      EXPECT_EQ(bits.steps, bits_of_one_directory().steps);
      EXPECT_EQ(differences(bits.tensors, bits_of_one_directory().tensors), "");
      for (const std::string& path : run.options.memory.nvme_directories) EXPECT_TRUE(fs::is_empty(path));
    }
}

// Counts the bytes that go to files in each directory, from all lanes.
class CountingQueue : public IoQueue {
 public:
  using Bytes = std::map<std::string, uint64_t>;
  CountingQueue(std::unique_ptr<IoQueue> inner, Bytes& bytes, std::mutex& mutex)
      : inner_(std::move(inner)), bytes_(bytes), mutex_(mutex) {}
  uint32_t depth() const override { return inner_->depth(); }
  uint32_t in_flight() const override { return inner_->in_flight(); }
  void submit(const IoRequest& request) override {
    const auto file = fs::read_symlink("/proc/self/fd/" + std::to_string(request.fd));
    {
      const std::lock_guard lock(mutex_);
      bytes_[file.parent_path().filename().string()] += request.bytes;
    }
    inner_->submit(request);
  }
  uint32_t poll(std::span<IoCompletion> done, int64_t timeout) override {
    return inner_->poll(done, timeout);
  }

 private:
  std::unique_ptr<IoQueue> inner_;
  Bytes& bytes_;
  std::mutex& mutex_;
};

TEST(TrainingDirectories, EachMovesItsPart) {
  const DriveDirectory directory;
  // A layer's state is 18 stripes long.
  TestRun run = run_of(directory, true, "gpt2:layers=2,width=352,heads=2,vocab=256,context=32");
  CountingQueue::Bytes bytes;
  std::mutex mutex;
  uint32_t depth = 0;
  run.wrap_queue = [&](std::unique_ptr<IoQueue> inner) -> std::unique_ptr<IoQueue> {
    depth = inner->depth();
    return std::make_unique<CountingQueue>(std::move(inner), bytes, mutex);
  };
  train(run);
  EXPECT_EQ(depth, 48u);
  const double all = static_cast<double>(bytes["a"] + bytes["b"] + bytes["c"]);
  ASSERT_GT(all, 300e6);
  // A range of a few stripes may have one stripe too many in a directory, and its last stripe is not full.
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(static_cast<double>(bytes[kNames[i]]) / all, kWeights[i] / 8, 0.05) << kNames[i];
}

TEST(TrainingDirectories, TheOneThatFailsIsNamed) {
  for (const size_t bad : {0, 1, 2}) {
    const DriveDirectory directory;
    TestRun run = run_of(directory, true);
    Fault fault{FaultKind::eio, 3};
    fault.directory = run.options.memory.nvme_directories[bad];
    run.wrap_queue = [&](std::unique_ptr<IoQueue> inner) {
      return std::make_unique<FaultQueue>(std::move(inner), fault);
    };
    try {
      train(run);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::io);
      const std::string text = error.what();
      EXPECT_NE(text.find(" of the NVMe scratch file in " + fault.directory + " failed: Input/output error"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find(" at offset "), std::string::npos) << text;
    }
    for (const std::string& path : run.options.memory.nvme_directories) EXPECT_TRUE(fs::is_empty(path));
    run.wrap_queue = nullptr;
    run.options.run.resume = "auto";
    EXPECT_EQ(train(run).end.step, run.options.batch.steps);
    EXPECT_EQ(differences(newest_tensors(run.options.run.out), bits_of_one_directory().tensors), "");
  }
}

// The process dies with 64 MiB and more of scratch files in three directories.
TEST(TrainingDirectories, KilledItLeavesNothingInAny) {
  const DriveDirectory directory;
  const Directories scratch(directory);
  write_machine(directory / "machine.json");
  write_bytes(directory / "train.txt", sample_text(4000));
  const std::string listed = fmt::format("{}", fmt::join(scratch.paths, ","));
  Command command(directory, {"train",
                              "--model",
                              kModel,
                              "--data",
                              directory / "train.txt",
                              "--batch",
                              "2",
                              "--steps",
                              "100000",
                              "--threads",
                              "2",
                              "--gpu-mem",
                              "4MiB",
                              "--host-mem",
                              "70MiB",
                              "--nvme-dir",
                              listed,
                              "--nvme-mem",
                              "64MiB",
                              "--machine",
                              directory / "machine.json",
                              "--out",
                              directory / "run"});
  const auto has_scratch = [&](const std::string& path) {
    for (const auto& fd : fs::directory_iterator(fmt::format("/proc/{}/fd", command.process()))) {
      std::error_code gone;
      const std::string file = fs::read_symlink(fd.path(), gone).string();
      if (file.starts_with(path + "/")) return true;
    }
    return false;
  };
  const auto trains = [&] { return fs::exists(directory / "run/metrics.jsonl"); };
  ASSERT_TRUE(command.until(trains)) << command.wait().err;
  for (const std::string& path : scratch.paths) EXPECT_TRUE(has_scratch(path)) << path;
  command.send(SIGKILL);
  const CommandResult killed = command.wait();
  EXPECT_EQ(killed.code, -SIGKILL);
  EXPECT_TRUE(scratch.are_empty());
  for (const std::string& note :
       {"By the drives of machine description cpu-2core, the nvme tier lies 12.5 % in " + scratch.paths[0] +
            " (9 GB/s read, 9 written, 1 both at once), 25 % in " + scratch.paths[1],
        scratch.paths[0] + ", " + scratch.paths[1] + " and " + scratch.paths[2] +
            " are on one file system, whose space they share, and its speed."})
    EXPECT_NE(killed.out.find(note), std::string::npos) << killed.out;
}

// If one of several directories is unusable, it is refused by its name, as it would be alone.
TEST(TrainingDirectories, BadOnesAreRefusedByName) {
  const DriveDirectory directory;
  const Directories scratch(directory);
  write_bytes(directory / "train.txt", sample_text(4000));
  const auto refused = [&](const std::string& list, const std::string& size) {
    const CommandResult result =
        sluice_command(directory, {"train", "--model", kModel, "--data", directory / "train.txt", "--threads",
                                   "2", "--host-mem", "80MiB", "--nvme-dir", list, "--nvme-mem", size,
                                   "--out", directory / "run"});
    EXPECT_EQ(result.code, 4) << result.err;
    EXPECT_FALSE(fs::exists(directory / "run/checkpoints"));
    return result.err;
  };
  const std::string good = scratch.paths[0], missing = directory / "missing", file = directory / "train.txt";
  const auto names = [](const std::string& text, const std::string& words) {
    return text.find(words) != std::string::npos;
  };
  EXPECT_TRUE(names(refused(good + "," + missing, "64MiB"), missing + " does not exist."));
  EXPECT_TRUE(names(refused(missing + "," + good, "auto"), missing + " does not exist."));
  EXPECT_TRUE(names(refused(good + "," + file, "64MiB"), file + " is not a directory."));
  if (is_memory("/dev/shm")) {
    EXPECT_TRUE(names(refused(good + ",/dev/shm", "64MiB"), "/dev/shm is on tmpfs"));
  }
  const std::string large = refused(good + "," + scratch.paths[1], "1000TiB");
  EXPECT_TRUE(names(large, "are free until it is full in " + good + " and " + scratch.paths[1])) << large;
  EXPECT_TRUE(scratch.are_empty());
}

// `plan` needs no directory for the drives of another machine: all described drives count.
TEST(TrainingDirectories, PlanWithoutDirectoriesTakesAllDrives) {
  const DriveDirectory directory;
  write_machine(directory / "machine.json");
  const auto seconds = [&](const std::vector<std::string>& disk) {
    std::vector<std::string> words{"plan",
                                   "--model",
                                   "gpt2",
                                   "--gpu-mem",
                                   "400MiB",
                                   "--host-mem",
                                   "400MiB",
                                   "--threads",
                                   "2",
                                   "--machine",
                                   directory / "machine.json",
                                   "--json"};
    words.insert(words.end(), disk.begin(), disk.end());
    const CommandResult result = sluice_command(directory, words);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out)["seconds_predicted"].get<double>();
  };
  const double all = seconds({"--nvme-mem", "4GiB"});
  const double slowest = seconds({"--nvme-mem", "4GiB", "--nvme-dir", "/nowhere/x"});
  const double three = seconds({"--nvme-mem", "4GiB", "--nvme-dir", "/nowhere/x,/nowhere/y,/nowhere/z"});
  EXPECT_EQ(all, three);
  EXPECT_LT(all, slowest);
}

}  // namespace
}  // namespace sluice
