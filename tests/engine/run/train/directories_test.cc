// Training with the nvme tier in three directories gives the bits of one directory. Bytes are divided by
// drive share, and an error names the directory that fails.
#include <gtest/gtest.h>

#include <mutex>

#include "offload/io/backends.h"
#include "tests/support/fault_queue.h"
#include "tests/support/three_drives.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr const char* kModel = "gpt2:layers=2,width=128,heads=2,vocab=256,context=32";

// A run with as much as possible on drives: in three directories if `striped`, otherwise in one.
TestRun run_of(const DriveDirectory& directory, bool striped, const char* model = kModel) {
  write_bytes(directory / "train.txt", sample_text(4000));
  TestRun run;
  run.options = short_run(directory, model, directory / "train.txt");
  run.options.run.checkpoint_every = {2};
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
      SCOPED_TRACE(::testing::Message() << "executor " << int(executor) << " io " << io->name);
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
    EXPECT_NEAR(static_cast<double>(bytes[kDriveNames[i]]) / all, kDriveWeights[i] / 8, 0.05)
        << kDriveNames[i];
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

}  // namespace
}  // namespace sluice
