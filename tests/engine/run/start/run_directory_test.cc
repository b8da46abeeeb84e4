// Of several runs that start at once, one gets the run directory, and it keeps it.
#include "engine/run/start/run_directory.h"

#include <array>
#include <barrier>
#include <memory>
#include <thread>

#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

using RunDirectoryTest = FormatTest;

TEST_F(RunDirectoryTest, TheLockIsOfTheDirectoryThatIsUsed) {
  const std::string run = path("run");
  std::filesystem::create_directory(run);
  RunDirectory first(run);
  std::filesystem::remove(run);  // by a run that had made it, and could not start
  first.create();
  expect_error(ExitCode::environment, {"Another process is training"}, [&] { RunDirectory{run}; });
}

// Both runs see no directory and make it. The run that is refused leaves the directory to the other run.
TEST_F(RunDirectoryTest, WhoIsRefusedRemovesNothingOfAnother) {
  const std::string run = path("above/run");
  std::barrier start(2);
  for (int round = 0; round < 500; ++round) {
    std::array<std::unique_ptr<RunDirectory>, 2> runs;
    const auto create = [&](size_t i) {
      runs[i] = std::make_unique<RunDirectory>(run);
      start.arrive_and_wait();
      try {
        runs[i]->create();
      } catch (const Error&) {
        runs[i].reset();
      }
    };
    std::thread other(create, 1);
    create(0);
    other.join();
    ASSERT_NE(runs[0] == nullptr, runs[1] == nullptr) << "round " << round;
    ASSERT_TRUE(std::filesystem::is_directory(run)) << "round " << round;
    runs = {};
    std::filesystem::remove_all(path("above"));
  }
}

}  // namespace
}  // namespace sluice
