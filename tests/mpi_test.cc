// Ranks as processes under mpirun: the bits of ranks in one process, the exit codes behind mpirun's own.
#include <gtest/gtest.h>

#include "tests/mpi_support.h"

namespace sluice {
namespace {

TEST_F(Mpi, BitsAreThoseOfRanksInOneProcess) {
  for (const int ranks : {2, 4})
    for (const char* precision : {"fp32", "bf16"}) {
      const std::string name = std::to_string(ranks) + precision;
      const Words more{"--precision", precision, "--micro-batch", "1"};
      const CommandResult threads =
          run(train_rows("threads" + name, 6, 8, more + Words{"--gpus", std::to_string(ranks)}));
      ASSERT_EQ(threads.code, 0) << threads.err;
      const CommandResult processes = mpirun(ranks, train_rows("mpi" + name, 6, 8, more));
      ASSERT_EQ(processes.code, 0) << processes.out << processes.err;
      EXPECT_EQ(numbers_of("mpi" + name).size(), 6u);
      EXPECT_EQ(numbers_of("mpi" + name), numbers_of("threads" + name));
      EXPECT_EQ(differences(newest_tensors(directory / "mpi" + name),
                            newest_tensors(directory / "threads" + name)),
                "");
      for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(status("mpi" + name, rank), "0 \n");
    }
}

TEST_F(Mpi, GoesOnFromOtherNumbersOfRanks) {
  const Words more{"--precision", "fp32", "--lr-schedule", "constant"};
  ASSERT_EQ(mpirun(2, train_rows("run", 2, 8, more)).code, 0);
  const Words resume{"train", "--resume", "auto", "--out", directory / "run", "--steps"};
  ASSERT_EQ(mpirun(4, resume + Words{"4"}).code, 0);
  ASSERT_EQ(run(resume + Words{"6"}).code, 0);
  ASSERT_EQ(run(train_rows("whole", 6, 8, more)).code, 0);
  const auto found = numbers_of("run"), wanted = numbers_of("whole");
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i)  // the order in which gradients are summed differs
    EXPECT_NEAR(std::stod(found[i]), std::stod(wanted[i]), 1e-6 * std::stod(wanted[i]));
}

}  // namespace
}  // namespace sluice
