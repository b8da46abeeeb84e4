#include "tools/bench/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "engine/error.h"
#include "engine/run/budgets.h"
#include "engine/run/setup.h"
#include "engine/units.h"
#include "offload/memory_limits.h"
#include "tools/bench/drive_rates.h"
#include "tools/bench/memory_rates.h"
#include "tools/bench/nvme_lane.h"

namespace sluice {
namespace {

constexpr DType kPrecisions[] = {DType::bf16, DType::f32, DType::f16};

// Measures part by part, and says so.
class Bench {
 public:
  Bench(const MemoryOptions& memory, const BenchScale& scale, std::FILE* out)
      : memory_(memory), scale_(scale), out_(out), threads_(resolve_threads(memory)) {
    rates_.name = "measured";
    rates_.source = fmt::format("measured by sluice bench with {} threads", threads_);
    cores_ = add_pool(kCoresPool, threads_);
  }

  MachineRates run() {
    for (const std::string& directory : memory_.nvme_directories) check_drive(directory, drive_sizes());
    const std::unique_ptr<Device> device = make_device(memory_, threads_);
    fit_memory(*device);
    measure_memory(*device);
    measure_compute(*device);
    add_copies();
    for (const std::string& directory : memory_.nvme_directories) measure_directory(directory);
    if (memory_.nvme_directories.empty())
      say("no --nvme-dir was given, so the description has no drives: a plan with an nvme tier will ask for "
          "one");
    return std::move(rates_);
  }

 private:
  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    std::fputs((fmt::format(format, std::forward<Args>(args)...) + "\n").c_str(), out_);
    std::fflush(out_);
  }

  uint32_t add_pool(const std::string& name, double capacity) {
    rates_.pools.push_back({name, capacity});
    return static_cast<uint32_t>(rates_.pools.size() - 1);
  }

  DriveSizes drive_sizes() const { return {scale_.drive_bytes, scale_.lane_bytes}; }

  void fit_memory(Device& device) {
    MemoryOptions memory = memory_;
    memory.nvme_directories.clear();  // only host memory is in question
    const TierBudget host = resolve_budgets(memory, memory_limits(), true).host;
    const OpBytes op_bytes = [&](const OpSizes& sizes) { return ops_bytes(device, kPrecisions, sizes); };
    const uint64_t wanted = host_bytes(scale_, op_bytes(scale_.ops));
    scale_ = scale_within(scale_, host.arena, op_bytes);
    const uint64_t needed = host_bytes(scale_, op_bytes(scale_.ops));
    if (needed > host.arena)
      throw Error(ExitCode::infeasible,
                  fmt::format("What bench measures needs {} of host memory at least, and may have {}.",
                              in_mib(needed), in_mib(host.arena)),
                  fmt::format("Give --host-mem {} or more.", host.limit_for(needed)));
    if (needed < wanted)
      say("host memory: at most {} at once instead of {}, so caches may count for more than in training",
          in_mib(needed), in_mib(wanted));
  }

  // The most traffic that anything brings about is what the memory can do.
  void measure_memory(Device& device) {
    Workers workers(threads_);
    const OptimizerRate update = measure_optimizer(DType::bf16, scale_.parameters, workers);
    const double optimizer = update.parameters_per_second * update.bytes_a_parameter;
    say("optimizer: AdamW on {} threads {:.2f} G parameters/s, {:.1f} GB/s of memory", threads_,
        update.parameters_per_second / 1e9, optimizer / 1e9);
    double traffic = optimizer;
    std::string copies;
    for (int k = 1; k <= threads_; k *= 2) {
      const double rate = measure_copies(k, scale_.copy_bytes);
      if (k == 1) copy_ = rate;
      traffic = std::max(traffic, 2 * rate);
      copies += fmt::format("{}{:.1f} GB/s by {}", k == 1 ? "" : ", ", rate / 1e9, k);
    }
    say("memory: {:.1f} GB/s of traffic at the most; copies {} at once", traffic / 1e9, copies);
    memory_pool_ = add_pool("memory", traffic);
    round_ = measure_round(device, scale_.round_elements);
    handover_ = measure_handover();
    say("gradients: rounded at {:.1f} GB/s; a lane hears of another in {:.1f} us", round_ / 1e9,
        handover_ * 1e6);
    LaneRates lane{.lane = "optimizer", .bytes_per_second = optimizer, .overhead_seconds = handover_};
    lane.sharing = all_cores();
    rates_.lanes.push_back(std::move(lane));
  }

  Sharing all_cores() const { return {{{cores_, static_cast<double>(threads_)}}, {{memory_pool_, 1}}}; }
  Sharing one_core() const { return {{{cores_, 1}}, {{memory_pool_, 2}}}; }

  void measure_compute(Device& device) {
    LaneRates lane{.lane = "compute", .bytes_per_second = round_, .overhead_seconds = handover_};
    for (const DType precision : kPrecisions) {
      say("ops in {}:", dtype_name(precision));
      measure_ops(device, precision, scale_.ops, lane.ops, [&](OpKind kind, const OpFit& fit) {
        say("  {:<22}{:>9.1f} GFLOP/s {:>9.1f} GB/s, fitted within {:.0f} %", op_rule(kind).name,
            fit.flops_per_second / 1e9, fit.bytes_per_second / 1e9, 100 * fit.error_max);
      });
    }
    const auto linear = std::find_if(lane.ops.begin(), lane.ops.end(),
                                     [](const OpRates& r) { return r.kind == OpKind::linear; });
    lane.flops = linear->flops;
    lane.sharing = all_cores();
    rates_.lanes.push_back(std::move(lane));
  }

  void add_copies() {
    for (const auto& [from, to] : {std::pair{"host", "device"}, {"device", "host"}})
      rates_.links.push_back({from, to, copy_, handover_, one_core()});
  }

  void measure_directory(const std::string& directory) {
    const DriveMeasurement drive =
        measure_drive(directory, drive_sizes(), memory_.io, scale_.drive_seconds);
    say("drive {}: reads {:.2f} GB/s, writes {:.2f}, both at once {:.2f} ({})", printable(directory),
        drive.read / 1e9, drive.write / 1e9, drive.mixed / 1e9, drive.queue);
    for (const RequestRate& r :
         measure_requests(directory, drive_sizes(), memory_.io, scale_.request_seconds))
      say("  reads of {:>4} KiB, {:>2} in flight: {:.2f} GB/s", r.bytes >> 10, r.depth,
          r.bytes_per_second / 1e9);
    std::error_code error;
    std::string path = std::filesystem::canonical(directory, error).string();
    if (error || printable(path) != path) path.clear();  // JSON cannot hold every name
    rates_.drives.push_back({"nvme", drive.read, drive.write, drive.mixed, path});
    if (rates_.drives.size() > 1) return;
    Sharing sharing{{}, {{memory_pool_, 2}, {cores_, drive.core_seconds_a_byte}}};
    rates_.links.push_back({"nvme", "host", kUnlimited, drive.latency_seconds, sharing});
    rates_.links.push_back({"host", "nvme", kUnlimited, drive.latency_seconds, sharing});
    LaneRates saves{
        .lane = "nvme_write", .bytes_per_second = drive.write, .overhead_seconds = drive.latency_seconds};
    saves.sharing = {{}, {{memory_pool_, 2}}};
    rates_.lanes.push_back(std::move(saves));
  }

  const MemoryOptions& memory_;
  BenchScale scale_;
  std::FILE* const out_;
  const int threads_;
  uint32_t cores_ = 0, memory_pool_ = 0;  // pools
  double copy_ = 0, round_ = 0, handover_ = 0;
  MachineRates rates_;
};

// Four digits say more than a measurement knows, and people shall read and edit them.
void round_rates(MachineRates& rates) {
  const auto round = [](double& rate) {
    if (std::isfinite(rate)) rate = std::strtod(fmt::format("{:.4g}", rate).c_str(), nullptr);
  };
  const auto round_all = [&](PrecisionRates& r) {
    for (double* rate : {&r.fp32, &r.bf16, &r.fp16}) round(*rate);
  };
  for (PoolRate& pool : rates.pools) round(pool.capacity);
  for (DriveRates& d : rates.drives)
    for (double* rate : {&d.read, &d.write, &d.mixed}) round(*rate);
  for (LaneRates& lane : rates.lanes) {
    round_all(lane.flops);
    for (OpRates& op : lane.ops) round_all(op.flops), round_all(op.bytes);
    round(lane.bytes_per_second), round(lane.overhead_seconds);
  }
  for (LinkRates& link : rates.links) {
    round(link.bytes_per_second), round(link.latency_seconds);
    for (PoolUse& use : link.sharing.per_byte) round(use.amount);
  }
}

}  // namespace

MachineRates measure_machine(const MemoryOptions& options, const BenchScale& scale, std::FILE* out) {
  MachineRates rates = Bench(options, scale, out).run();
  round_rates(rates);
  return rates;
}

}  // namespace sluice
