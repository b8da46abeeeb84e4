// Two ranks, each a process, share one GPU. They exchange through NCCL, which takes them for ranks of two
// machines, and must get the bits of an exchange through host memory. Skipped where there is no GPU, or NCCL
// refuses.
#include <gtest/gtest.h>

#include <cstdlib>

#include "gpu/cuda/device.h"
#include "tests/support/cli_support.h"
#include "tests/support/socket_communicator.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

constexpr const char* kModel = "gpt2:layers=2,width=64,heads=2,vocab=256,context=32";
constexpr const char* kRefused = "refused: ";

// What the parent tells its children, as variables.
constexpr const char *kRank = "SLUICE_TEST_RANK", *kDirectory = "SLUICE_TEST_DIRECTORY",
                     *kByNccl = "SLUICE_TEST_NCCL";

class SharedGpu : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    const CudaStatus status = cuda_status(0);
    if (!status.available) GTEST_SKIP() << status.reason;
  }

  // By these variables NCCL takes the processes for two machines, uses only the loopback interface, and has
  // no way but sockets between the "machines".
  static Words child(int rank, const std::string& out, bool by_nccl) {
    const std::string number = std::to_string(rank);
    return {"env",
            "NCCL_HOSTID=sluice-" + number,
            "NCCL_SOCKET_IFNAME=lo",
            "NCCL_IB_DISABLE=1",
            "NCCL_P2P_DISABLE=1",
            "NCCL_SHM_DISABLE=1",
            std::string(kRank) + "=" + number,
            std::string(kDirectory) + "=" + out,
            std::string(kByNccl) + "=" + (by_nccl ? "1" : "0"),
            std::filesystem::read_symlink("/proc/self/exe").string(),
            "--gtest_filter=SharedGpu.DISABLED_Rank",
            "--gtest_also_run_disabled_tests"};
  }

  // Trains with two ranks. Returns the bits of the steps that the first rank wrote.
  std::string train_two(const std::string& name, bool by_nccl) const {
    const std::string out = directory / name;
    for (const char* rank : {"/0", "/1"}) std::filesystem::create_directories(out + rank);
    Command first(out + "/0", child(0, out, by_nccl)), second(out + "/1", child(1, out, by_nccl));
    for (Command* command : {&first, &second}) {
      const CommandResult result = command->wait();
      EXPECT_EQ(result.code, 0) << result.out << result.err;
    }
    return read_text_file(out + "/bits", 1 << 16);
  }
};

TEST_F(SharedGpu, NcclGivesTheBitsOfHostMemory) {
  const std::string staged = train_two("staged", false);
  EXPECT_EQ(lines_of(staged).size(), 4u) << staged;
  const std::string nccl = train_two("nccl", true);
  if (nccl.starts_with(kRefused)) GTEST_SKIP() << nccl;
  EXPECT_EQ(nccl, staged);
}

// One of the two ranks.
TEST_F(SharedGpu, DISABLED_Rank) {
  const std::string out = std::getenv(kDirectory);
  const int rank = std::atoi(std::getenv(kRank));
  SocketCommunicator lane(out + "/lane", rank), trainer(out + "/trainer", rank);
  TestRun run;
  run.options = short_run(directory, kModel, text);
  run.options.batch = {4, std::nullopt, 1, 4};
  run.options.memory.device = {DeviceKind::cuda};
  run.options.memory.nvme_directories.clear();
  run.options.numbers.precision = cuda_status(0).bf16 ? DType::bf16 : DType::f16;
  run.options.run.out = out + "/run";
  run.options.ranks.count = 2;
  run.arenas = {kRoomy, kRoomy, std::nullopt};
  run.ranks = {&lane, &trainer};
  run.ranks_meet_in_device = std::string(std::getenv(kByNccl)) == "1";
  std::string told;
  try {
    for (const std::string& step : fixed_bits(sluice::train(run).steps)) told += step + "\n";
  } catch (const Error& error) {
    if (error.code() != ExitCode::environment) throw;
    told = kRefused + std::string(error.what());
  }
  if (rank == 0) write_bytes(out + "/bits", told);
  EXPECT_FALSE(told.empty());
}

}  // namespace
}  // namespace sluice
