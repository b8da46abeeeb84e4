// Faults of the drive, injected into the I/O queue at the N-th request. Either the result has the bits of a
// run without faults, or the run ends with an error that names the fault, and a resume from the last
// checkpoint gives those bits. tests/tools/train/fault_test.cc kills the process.
#include <gtest/gtest.h>

#include "offload/io/backends.h"
#include "tests/support/fault_queue.h"
#include "tests/support/figures.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

constexpr int64_t kSteps = 5;
constexpr uint64_t kPlaces[] = {1, 2, 3, 4, 5, 6, 8, 13, 21, 34, 55, 89, 144, 233};  // counted in each lane

// Everything lives on the drive. A checkpoint follows every third step.
TestRun run_of(const DriveDirectory& directory, Overlap overlap) {
  write_bytes(directory / "train.txt", sample_text(4000));
  TestRun run;
  run.options =
      short_run(directory, "gpt2:layers=2,width=32,heads=2,vocab=256,context=32", directory / "train.txt");
  run.options.batch.steps = kSteps;
  run.options.run.checkpoint_every = {3};
  run.options.memory.overlap = overlap;
  run.arenas = least_arenas(run, false);
  return run;
}

struct Whole {
  std::vector<std::string> steps;
  Tensors tensors;
};
const Whole& whole_run() {
  static const Whole whole = [] {
    const DriveDirectory directory;
    TestRun run = run_of(directory, Overlap::never);
    Whole w;
    w.steps = fixed_bits(train(run).steps);
    w.tensors = newest_tensors(run.options.run.out);
    return w;
  }();
  return whole;
}

struct Outcome {
  bool ended = false;  // with an error
  uint64_t faults = 0;
  bool from_checkpoint = false;  // the resumed run had a checkpoint to start from
};

// Runs with the fault in the queue of every lane, then checks the contract.
Outcome run_with(const Fault& fault, ExecutorKind executor, IoChoice io) {
  const DriveDirectory directory;
  TestRun run = run_of(directory, fault.at % 3 == 0 ? Overlap::never : Overlap::always);
  run.options.batch.waves = fault.at % 2 + 1;
  run.arenas = least_arenas(run, false);
  run.executor = executor;
  run.options.memory.io = io;
  std::vector<std::string> seen;
  run.on_step = [&](const StepMetrics& m) { seen.push_back(fixed_bits(m)); };
  std::atomic<uint64_t> faults{0};
  struct Counting : FaultQueue {  // lives as long as its lane; adds up at its end
    Counting(std::unique_ptr<IoQueue> inner, const Fault& f, std::atomic<uint64_t>& all)
        : FaultQueue(std::move(inner), f), all_(all) {}
    ~Counting() override { all_ += faults(); }
    std::atomic<uint64_t>& all_;
  };
  run.wrap_queue = [&](std::unique_ptr<IoQueue> inner) -> std::unique_ptr<IoQueue> {
    return std::make_unique<Counting>(std::move(inner), fault, faults);
  };
  Outcome outcome;
  try {
    train(run);
  } catch (const Error& error) {
    outcome.ended = true;
    EXPECT_TRUE(error.code() == ExitCode::io || error.code() == ExitCode::malformed_file) << error.what();
    EXPECT_NE(std::string(error.what()), "");
    EXPECT_NE(error.remedy(), "");
  }
  outcome.faults = faults;
  const Whole& whole = whole_run();
  // What was reported before the end is right.
  EXPECT_LE(seen.size(), whole.steps.size());
  seen.resize(std::min(seen.size(), whole.steps.size()));
  EXPECT_EQ(seen, std::vector<std::string>(whole.steps.begin(),
                                           whole.steps.begin() + static_cast<std::ptrdiff_t>(seen.size())));
  if (outcome.ended) {
    TestRun again = run;
    again.wrap_queue = nullptr;
    again.on_step = nullptr;
    again.options.run.resume = "auto";
    outcome.from_checkpoint = newest_checkpoint(run.options.run.out).has_value();
    const TestResult rest = train(again);
    EXPECT_EQ(rest.end.step, kSteps);
  } else {
    EXPECT_EQ(seen, whole.steps);
  }
  const std::string different = differences(whole.tensors, newest_tensors(run.options.run.out));
  EXPECT_EQ(different, "");
  if (outcome.faults > 0)
    figures.holds(outcome.ended ? "faults that end the run with 5 or 6: resumed to the same bits"
                                : "faults that do not end the run: same bits",
                  different.empty());
  return outcome;
}

std::string name_of(const Fault& f) {
  constexpr const char* kNames[] = {"none", "short", "EAGAIN", "EINTR", "EIO", "ENOSPC", "bit flip"};
  return std::string(kNames[static_cast<int>(f.kind)]) + " at " + std::to_string(f.at) +
         (f.reads ? " r" : "") + (f.writes ? " w" : "");
}

// Short transfers and retries harm nothing: the run neither ends nor changes.
TEST(TrainingFaults, ShortTransfersAndRetriesChangeNothing) {
  const std::vector<const IoBackend*> io_backends = working_io_backends();
  uint64_t faults = 0;
  for (const FaultKind kind : {FaultKind::short_transfer, FaultKind::eagain, FaultKind::eintr})
    for (size_t i = 0; i < std::size(kPlaces); ++i) {
      const Fault fault{kind, kPlaces[i], 1 + i % 3, i};
      SCOPED_TRACE(name_of(fault));
      const Outcome outcome = run_with(fault, i % 2 == 0 ? ExecutorKind::threaded : ExecutorKind::shuffled,
                                       io_backends[i / 2 % io_backends.size()]);
      EXPECT_FALSE(outcome.ended);
      faults += outcome.faults;
    }
  EXPECT_GT(faults, 60u);
}

// Any request of a lane may fail, from the first to the last of the run.
TEST(TrainingFaults, AnyFailureEndsTheRunAndTheLastCheckpointGoesOn) {
  uint64_t at = 1, from_checkpoint = 0;
  for (bool reached = true; reached; ++at) {
    const Fault fault{FaultKind::eio, at, 1, at};
    SCOPED_TRACE(name_of(fault));
    const Outcome outcome = run_with(fault, ExecutorKind::threaded, nullptr);
    reached = outcome.faults > 0;
    EXPECT_EQ(outcome.ended, reached);
    from_checkpoint += outcome.from_checkpoint;
    if (HasFailure()) return;
  }
  EXPECT_GT(at, 100u);
  EXPECT_GT(from_checkpoint, 20u);
}

TEST(TrainingFaults, ADriveThatIsFullEndsTheRunToo) {
  const std::vector<const IoBackend*> io_backends = working_io_backends();
  size_t hit = 0;
  for (size_t i = 0; i < std::size(kPlaces); ++i) {
    const Fault fault{FaultKind::enospc, kPlaces[i], 1, i};
    SCOPED_TRACE(name_of(fault));
    const Outcome outcome = run_with(fault, i % 3 == 0 ? ExecutorKind::shuffled : ExecutorKind::threaded,
                                     io_backends[i / 2 % io_backends.size()]);
    EXPECT_EQ(outcome.ended, outcome.faults > 0);
    hit += outcome.faults > 0;
  }
  EXPECT_GE(hit, 10u);  // the later places are reached too
}

// Damage on a read is found when the piece arrives; damage on a write, when the piece is read again. The
// damaged writes are early ones, which fill the scratch files: a checkpoint's bytes are verified by whoever
// reads them.
TEST(TrainingFaults, AFlippedBitNeverPassesUnseen) {
  size_t ended = 0;
  for (size_t i = 0; i < std::size(kPlaces); ++i) {
    Fault fault{FaultKind::bit_flip, kPlaces[i], 1, i};
    fault.writes = false;
    SCOPED_TRACE(name_of(fault));
    const Outcome outcome =
        run_with(fault, i % 3 == 0 ? ExecutorKind::shuffled : ExecutorKind::threaded, nullptr);
    EXPECT_EQ(outcome.ended, outcome.faults > 0);
    ended += outcome.ended;
  }
  for (const uint64_t at : {1, 2, 3, 5, 8}) {
    Fault fault{FaultKind::bit_flip, at, 1, at};
    fault.reads = false;
    SCOPED_TRACE(name_of(fault));
    ended += run_with(fault, ExecutorKind::threaded, nullptr).ended;
  }
  EXPECT_GE(ended, 8u);
}

}  // namespace
}  // namespace sluice
