#include "tools/bench/network_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/run/start/rank_share.h"
#include "tools/bench/median.h"
#include "tools/bench/op_rates.h"

namespace sluice {

namespace {

// Bytes of a message: from the part of a shard of a small model to the part of a shard of a large model.
constexpr uint64_t kMessages[] = {64 << 10, 512 << 10, 4 << 20, 16 << 20};

enum class Collective { gather, exchange };

class NetworkBench {
 public:
  NetworkBench(const Ranks& ranks, Communicator& communicator, std::span<std::byte> memory,
               double seconds_each, const std::function<void(const std::string&)>& say)
      : ranks_(ranks), communicator_(communicator), memory_(memory), seconds_each_(seconds_each), say_(say) {}

  // `unit`: number of ranks that share the bandwidth of the level.
  NetworkLevel measure(const ProcessGroup& among, int unit, int joined) const {
    std::vector<OpPoint> points;
    std::string rates;
    for (const uint64_t bytes : kMessages) {
      if (bytes > kMessages[0] && needed(among.count, bytes) > memory_.size()) break;
      const double messages = static_cast<double>(among.count) - 1;
      const double moved = messages * unit * static_cast<double>(bytes);
      double fastest = 0;
      for (const Collective what : {Collective::gather, Collective::exchange}) {
        const double seconds = seconds_of(what, among, bytes);
        points.push_back({messages, moved, seconds});
        fastest = std::max(fastest, moved / seconds);
      }
      rates += fmt::format("{}{:.2f} GB/s at {} KiB", rates.empty() ? "" : ", ", fastest / 1e9, bytes >> 10);
    }
    const OpFit fit = fit_op(points);
    const OpPoint& longest = points.back();
    const bool bound = std::isfinite(fit.bytes_per_second);  // else latency alone decides the times
    NetworkLevel level{among.name, static_cast<uint32_t>(joined),
                       bound ? fit.bytes_per_second : longest.bytes / longest.seconds,
                       1 / fit.flops_per_second};
    say_(fmt::format(
        "{} of {} ranks: {:.2f} GB/s sent by {}, {:.1f} us a message; this fit is off by {:.0f} % at most",
        level.name, joined, level.bytes_per_second / 1e9, unit == 1 ? "each" : "each machine",
        level.latency_seconds * 1e6, 100 * fit.error_max));
    say_("  messages: " + rates);
    return level;
  }

  static uint64_t needed(uint32_t count, uint64_t bytes) { return uint64_t{2} * count * bytes; }

 private:
  // The largest of the ranks' median seconds. Every rank makes as many runs as the first rank decides.
  double seconds_of(Collective what, const ProcessGroup& among, uint64_t bytes) const {
    constexpr double kRunsLeast = 5, kRunsMost = 2000;
    std::byte* const parts = memory_.data();
    std::byte* const all = parts + static_cast<uint64_t>(among.count) * bytes;
    const auto run = [&] {
      if (what == Collective::exchange)
        communicator_.all_to_all(among, parts, bytes, all);
      else
        communicator_.all_gather(among, parts, bytes, all);
      communicator_.finish();
    };
    run();
    ranks_.barrier();
    double begin = steady_seconds();
    run();
    const double first = ranks_.all(steady_seconds() - begin).front();
    const int runs = static_cast<int>(std::clamp(seconds_each_ / first, kRunsLeast, kRunsMost));
    std::vector<double> seconds;
    for (int i = 0; i < runs; ++i) {
      begin = steady_seconds();
      run();
      seconds.push_back(steady_seconds() - begin);
    }
    const std::vector<double> of_ranks = ranks_.all(median(std::move(seconds)));
    return *std::max_element(of_ranks.begin(), of_ranks.end());
  }

  const Ranks& ranks_;
  Communicator& communicator_;
  const std::span<std::byte> memory_;
  const double seconds_each_;
  const std::function<void(const std::string&)>& say_;
};

}  // namespace

std::vector<NetworkLevel> measure_network(const Ranks& ranks, Communicator& communicator,
                                          std::span<std::byte> memory, double seconds_each,
                                          const std::function<void(const std::string&)>& say) {
  const NetworkBench bench(ranks, communicator, memory, seconds_each, say);
  const int all = ranks.size(), here = ranks_together(ranks.all(ranks.first_here));
  const auto of_node = static_cast<uint32_t>(here), nodes = static_cast<uint32_t>(all / here);
  std::vector<NetworkLevel> levels;
  if (here > 1) levels.push_back(bench.measure({"node", of_node, 1}, 1, here));
  if (all > here) levels.push_back(bench.measure({"cluster", nodes, of_node}, here, all));
  return levels;
}

uint64_t network_bytes_least(int ranks) {
  return NetworkBench::needed(static_cast<uint32_t>(ranks), kMessages[0]);
}

}  // namespace sluice
