// Ranks under mpirun on emulated GPUs. A launcher shows a rank all GPUs of the machine, or only some.
#include <gtest/gtest.h>

#include "tests/support/mpi_support.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

class LaunchedGpus : public Mpi {
 protected:
  Words on_gpus(const std::string& out) const {
    return train_rows(out, 3, 12, {"--device", "cuda", "--gpu-mem", "400MiB", "--micro-batch", "1"});
  }
  // Starts one rank for each of `shown`, which are settings of the emulated GPU.
  CommandResult train(const std::string& out, const Words& shown) const {
    std::vector<Words> ranks;
    for (const std::string& gpus : shown)
      ranks.push_back(Words{"env", "SLUICE_EMULATED_GPU=" + gpus} +
                      sluice_words(on_gpus(out), "sluice_emulated"));
    return mpirun_each(ranks);
  }
};

TEST_F(LaunchedGpus, EachRankTakesOneThatNoOtherHas) {
  const Words all(3, "count=3");
  const CommandResult wanted = train("all", all);
  ASSERT_EQ(wanted.code, 0) << wanted.err;
  // Each rank sees only its own GPU; or rank 0 sees only GPU 2, and the others see GPUs 0 and 1.
  for (const Words& shown :
       {Words{"hidden=0", "hidden=1", "hidden=2"}, Words{"hidden=2", "count=2", "count=2"}}) {
    const CommandResult found = train("own", shown);
    ASSERT_EQ(found.code, 0) << found.err;
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(status("own", rank), "0 \n");
    EXPECT_EQ(numbers_of("own"), numbers_of("all"));
    EXPECT_EQ(differences(newest_tensors(directory / "own"), newest_tensors(directory / "all")), "");
    std::filesystem::remove_all(directory / "own");
  }
}

TEST_F(LaunchedGpus, RanksDoNotShareOne) {
  std::filesystem::create_directory(directory / "one");
  const CommandResult result = train("one", {"hidden=1", "hidden=1"});
  EXPECT_EQ(result.code, 4) << result.err;
  const std::string missing = "There is no GPU 1: this machine has 1.";
  EXPECT_EQ(status("one", 1), "4 " + missing + "\n");
  EXPECT_TRUE(status("one", 0).starts_with("7 Rank 1 ended: " + missing)) << status("one", 0);
}

}  // namespace
}  // namespace sluice
