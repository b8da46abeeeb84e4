// What `sluice bench` fits to the exchanges of ranks, on a network whose times are known.
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "tools/bench/network_rates.h"

namespace sluice {
namespace {

// Two nodes of two ranks. Within a node every rank sends 0.2 GB/s, at 10 ms a message. Between nodes the
// ranks of a node share 0.1 GB/s, at 25 ms. No bytes move.
class SlowNetwork final : public Communicator {
 public:
  explicit SlowNetwork(int rank) : rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return 4; }
  std::string transport() const override { return "sleep"; }
  void all_gather(const ProcessGroup& among, const void*, uint64_t bytes, void*) override {
    send(among, bytes);
  }
  void all_to_all(const ProcessGroup& among, const void*, uint64_t bytes, void*) override {
    send(among, bytes);
  }
  void broadcast(void*, uint64_t, int) override {}
  void barrier() override {}
  void send(const void*, uint64_t, int) override {}
  void receive(void*, uint64_t, int) override {}
  void throw_if_lost() override {}
  void abort(const std::string&) noexcept override {}

 private:
  static void send(const ProcessGroup& among, uint64_t bytes) {
    EXPECT_EQ(among.count, 2);
    const double n = static_cast<double>(bytes);
    const double seconds = among.stride == 1 ? 10e-3 + n / 0.2e9 : 25e-3 + 2 * n / 0.1e9;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  const int rank_;
};

// Sleeps end some tenths of a millisecond late on a busy machine. The tolerance of a fifth is 2 ms at least.
TEST(BenchRanks, LevelsAreFittedToMessages) {
  std::mutex mutex;
  std::vector<std::string> said;
  const auto rank = [&](const Ranks& threads) {
    Ranks ranks = threads;
    ranks.first_here = ranks.rank() / 2 * 2;
    ranks.here = ranks.rank() % 2;
    ranks.all_here = 2;
    SlowNetwork network(ranks.rank());
    std::vector<std::byte> memory(16 << 20);  // two messages of 4 MiB each way
    const auto levels = measure_network(ranks, network, memory, 0.01, [&](const std::string& s) {
      const std::lock_guard lock(mutex);
      if (ranks.is_first()) said.push_back(s);
    });
    ASSERT_EQ(levels.size(), 2u);
    EXPECT_EQ(levels[0].ranks, 2u);
    EXPECT_NEAR(levels[0].bytes_per_second, 0.2e9, 0.04e9);
    EXPECT_NEAR(levels[0].latency_seconds, 10e-3, 2e-3);
    EXPECT_EQ(levels[1].ranks, 4u);
    EXPECT_NEAR(levels[1].bytes_per_second, 0.1e9, 0.02e9);
    EXPECT_NEAR(levels[1].latency_seconds, 25e-3, 5e-3);
  };
  run_in_process(4, rank, [](const std::exception& e) { ADD_FAILURE() << e.what(); });
  ASSERT_EQ(said.size(), 4u);
  EXPECT_TRUE(said[0].starts_with("node of 2 ranks: ")) << said[0];
  EXPECT_TRUE(said[2].starts_with("cluster of 4 ranks: ")) << said[2];
  EXPECT_NE(said[3].find(" at 4096 KiB"), std::string::npos) << said[3];
  EXPECT_EQ(said[3].find("16384"), std::string::npos) << "memory holds none: " << said[3];
}

// With one rank a node, the network between nodes is the only level.
TEST(BenchRanks, MachinesOfOneRankHaveOneLevel) {
  const auto rank = [&](const Ranks& threads) {
    Ranks ranks = threads;
    ranks.first_here = ranks.rank();
    ranks.all_here = 1;
    std::vector<std::byte> memory(network_bytes_least(2));
    const auto levels = measure_network(ranks, *ranks.lane, memory, 0.01, [](const std::string&) {});
    ASSERT_EQ(levels.size(), 1u);
    EXPECT_EQ(levels[0].ranks, 2u);
    EXPECT_GT(levels[0].bytes_per_second, 0);
  };
  run_in_process(2, rank, [](const std::exception& e) { ADD_FAILURE() << e.what(); });
}

}  // namespace
}  // namespace sluice
