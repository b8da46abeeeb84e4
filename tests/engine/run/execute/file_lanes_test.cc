// What lanes with files ask of the I/O back end: only those that read or write the nvme tier register the
// arena.
#include <gtest/gtest.h>

#include "tests/support/training_support.h"

namespace sluice {
namespace {

// The one line that a session says of its back end.
std::string description_of(const TestRun& run, ExecutorKind executor) {
  const auto device = make_device(run.options.memory, run.threads);
  const Plan plan = plan_or_throw(request_of(run, *device), budgets_of(run));
  SessionOptions options = session_options(run.options, run.threads);
  options.executor = executor;
  return Session(plan, *device, options).io_description();
}

TEST(FileLanes, OnlyThoseOfTheNvmeTierRegisterTheArena) {
  if (!works_here(&kUringBackend)) GTEST_SKIP() << "nothing is registered without io_uring";
  const DriveDirectory directory;
  TestRun run;
  run.options = short_run(directory, "gpt2:layers=2,width=32,heads=2,vocab=256,context=32", "");
  run.options.batch.sequence = 32;
  run.options.memory.io = &kUringBackend;
  for (const ExecutorKind executor : {ExecutorKind::serial, ExecutorKind::threaded}) {
    run.arenas = {std::nullopt, kRoomy, std::nullopt};  // `save` writes checkpoints
    EXPECT_EQ(description_of(run, executor), "io_uring (no buffers to register)");
    run.arenas = least_arenas(run, false);
    EXPECT_NE(description_of(run, executor).find(" MiB of buffers registered"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice
