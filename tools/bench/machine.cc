#include "tools/bench/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/affinity.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/rates/drives.h"
#include "engine/run/execute/session.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/nvme_directories.h"
#include "engine/run/start/rank_share.h"
#include "gpu/cuda/facts.h"
#include "offload/system/memory_limits.h"
#include "tools/bench/bench_memory.h"
#include "tools/bench/device_rates.h"
#include "tools/bench/drive_rates.h"
#include "tools/bench/memory_rates.h"
#include "tools/bench/network_rates.h"
#include "tools/command/screen.h"

namespace sluice {
namespace {

// Memory in which ranks exchange: host memory or device memory.
class RankMemory {
 public:
  RankMemory(Device* device, uint64_t bytes) {
    if (device)
      there_.emplace(*device, bytes);
    else
      host_ = Arena(bytes, {.prefault_threads = 1});
  }
  std::span<std::byte> span() const { return there_ ? there_->span() : host_.span(); }

 private:
  Arena host_;
  std::optional<BenchMemory> there_;
};

// The processors of all ranks that share this rank's machine.
ProcessorSet machine_processors(const Ranks& ranks) {
  struct Post {
    int machine;
    ProcessorSet allowed;
  };
  ProcessorSet all;
  for (const Post& post : ranks.all(Post{ranks.first_here, allowed_processors()}))
    if (post.machine == ranks.first_here)
      for (int p = 0; p < CPU_SETSIZE; ++p)
        if (post.allowed.has(p)) all.add(p);
  return all;
}

// A rate that bounded no measurement is infinite; it is printed as "-".
std::string rate_text(double rate, const char* unit) {
  return std::isfinite(rate) ? fmt::format("{:.1f} {}", rate / 1e9, unit) : fmt::format("- {}", unit);
}

// Measures part by part, and prints each figure.
class Bench {
 public:
  Bench(const MemoryOptions& memory, const Ranks& ranks, const BenchScale& scale, std::FILE* out)
      : memory_(memory),
        ranks_(ranks),
        processors_(machine_processors(ranks)),
        scale_(scale),
        out_(ranks.is_first() ? out : nullptr) {
    memory_.device = rank_share(memory, ranks).memory.device;
    if (memory_.threads)
      memory_.threads = *memory_.threads * ranks_.all_here;
    else if (ranks_.size() > 1 && processors_.count() > 0)
      memory_.threads = processors_.count();
    threads_ = resolve_threads(memory_);
  }

  MachineRates run() {
    if (ranks_.is_first())
      for (const std::string& directory : memory_.nvme_directories) check_drive(directory, drive_sizes());
    if (ranks_.is_first() || on_gpu()) device_ = make_device(memory_, threads_);
    const AcceleratorRanks connected = device_ ? connect_accelerators(*device_, ranks_) : AcceleratorRanks{};
    fit_memory();
    if (ranks_.is_first()) measure_machine();
    ranks_.barrier();
    if (ranks_.size() > 1) measure_ranks(connected);
    if (ranks_.is_first()) add_doubts();
    return std::move(rates_);
  }

 private:
  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    if (!out_) return;
    show(out_, fmt::format(format, std::forward<Args>(args)...) + "\n");
  }

  void note(const std::string& rate, const Rounds& rounds) { timed_.push_back({rate, rounds}); }

  // Adds doubtful rates to the description's source, which plans that use the description print.
  void add_doubts() {
    const std::vector<RatedRounds> doubts = doubtful(timed_);
    if (out_) std::fputs(doubts_text(doubts).c_str(), out_);
    if (!doubts.empty())
      rates_.source += fmt::format("; {} of {} rates were doubtful", doubts.size(), timed_.size());
  }

  bool on_gpu() const { return memory_.device.kind == DeviceKind::cuda; }
  DriveSizes drive_sizes() const { return {scale_.drive_bytes, scale_.lane_bytes}; }
  Sharing all_cores() const { return cores(threads_); }
  Sharing cores(int count) const { return {{{cores_, static_cast<double>(count)}}, {{memory_pool_, 1}}}; }
  Sharing one_core() const { return {{{cores_, 1}}, {{memory_pool_, 2}}}; }

  uint32_t add_pool(const std::string& name, double capacity) {
    rates_.pools.push_back({name, capacity});
    return static_cast<uint32_t>(rates_.pools.size() - 1);
  }

  // Called by all ranks, since they share the free memory.
  void fit_memory() {
    MemoryOptions memory = memory_;
    memory.nvme_directories.clear();  // they have been checked
    const Budgets budgets =
        resolve_shared_budgets(memory, ranks_, device_ ? accelerator_use(*device_) : std::nullopt);
    host_arena_ = budgets.host.arena;
    if (!device_) return;
    if (on_gpu()) {
      const CudaStatus status = cuda_status(memory_.device.ordinal);
      if (!status.bf16) std::erase(precisions_, DType::bf16);
    }
    const OpBytes op_bytes = [&](const OpSizes& sizes) { return ops_bytes(*device_, precisions_, sizes); };
    if (on_gpu()) fit_gpu_memory(budgets.device->arena, op_bytes);
    const OpBytes op_host_bytes = on_gpu() ? [](const OpSizes&) { return uint64_t{0}; } : op_bytes;
    const uint64_t wanted = host_bytes(scale_, op_host_bytes(scale_.ops));
    scale_ = scale_within(scale_, host_arena_, op_host_bytes);
    const uint64_t needed = host_bytes(scale_, op_host_bytes(scale_.ops));
    if (needed > host_arena_)
      throw Error(ExitCode::infeasible,
                  fmt::format("The measurements need {} of host memory at least, but only {} may be used.",
                              in_mib(needed), in_mib(host_arena_)),
                  fmt::format("Give --host-mem {} or more.", budgets.host.limit_for(needed)));
    if (needed < wanted)
      say("host memory: at most {} at once instead of {}, so caches may count for more than in training",
          in_mib(needed), in_mib(wanted));
  }

  void fit_gpu_memory(uint64_t free, const OpBytes& op_bytes) {
    scale_.gpu = gpu_scale_within(scale_.gpu, free, op_bytes);
    const uint64_t needed = std::max(op_bytes(scale_.gpu.ops), update_bytes(scale_.gpu.elements));
    if (needed <= free) return;
    throw Error(ExitCode::environment,
                fmt::format("The measurements need {} of GPU memory at least, but only {} may be used.",
                            in_mib(needed), in_mib(free)),
                "End other processes that hold the GPU's memory (nvidia-smi shows them).");
  }

  // Measures what the ranks of a machine share. Only the first of all ranks does so, on all cores of its
  // machine.
  void measure_machine() {
    std::optional<Bound> bound;
    if (ranks_.size() > 1 && processors_.count() > 0) bound.emplace(processors_);
    rates_.source = fmt::format("measured by sluice bench with {} threads", threads_);
    cores_ = add_pool(kCoresPool, threads_);
    measure_memory();
    measure_compute();
    if (on_gpu())
      measure_gpu_links();
    else
      for (const auto& [from, to] : {std::pair{"host", "device"}, {"device", "host"}})
        rates_.links.push_back({from, to, copy_, handover_, one_core()});
    for (const std::string& directory : memory_.nvme_directories) measure_directory(directory);
    if (memory_.nvme_directories.empty())
      say("no --nvme-dir was given, so the description has no drives: a plan with an nvme tier will ask for "
          "one");
    if (on_gpu()) add_sizes();
  }

  // The capacity of pool `memory` is the largest traffic that any measurement reached.
  void measure_memory() {
    const int optimizers = optimizer_threads(threads_, processors_.count());
    Workers workers(optimizers);
    const OptimizerRate update = measure_optimizer(DType::bf16, scale_.parameters, workers);
    const double optimizer = update.parameters_per_second * update.bytes_a_parameter;
    say("optimizer: AdamW on {} threads {:.2f} G parameters/s, {:.1f} GB/s of memory", optimizers,
        update.parameters_per_second / 1e9, optimizer / 1e9);
    note("the optimizer", update.rounds);
    double traffic = optimizer;
    std::string copies;
    for (int k = 1; k <= threads_; k *= 2) {
      const TimedRate copied = measure_copies(k, scale_.copy_bytes);
      const double rate = copied.per_second;
      note(fmt::format("copies by {} thread{}", k, k == 1 ? "" : "s"), copied.rounds);
      if (k == 1) copy_ = rate;
      traffic = std::max(traffic, 2 * rate);
      copies += fmt::format("{}{:.1f} GB/s by {}", k == 1 ? "" : ", ", rate / 1e9, k);
    }
    memory_pool_ = add_pool("memory", traffic);
    handover_ = measure_handover();
    say("memory: {:.1f} GB/s of traffic at the most; copies {} at once; one lane wakes another in {:.1f} us",
        traffic / 1e9, copies, handover_ * 1e6);
    LaneRates lane{.lane = "optimizer", .bytes_per_second = optimizer, .overhead_seconds = handover_};
    lane.sharing = cores(optimizers);
    rates_.lanes.push_back(std::move(lane));
  }

  // On a GPU, lane `compute` also updates the parameters that live there. So its bytes a second are a mean of
  // rounding and updating, for the same number of parameters.
  void measure_compute() {
    LaneRates lane{.lane = "compute", .overhead_seconds = handover_};
    const DType narrow = precisions_.front();
    const uint64_t elements = on_gpu() ? scale_.gpu.elements / 2 : scale_.round_elements;
    const TimedRate rounding = measure_round(*device_, narrow, elements);
    const double round = lane.bytes_per_second = rounding.per_second;
    note("rounding of gradients", rounding.rounds);
    say("gradients: rounded at {:.1f} GB/s", round / 1e9);
    if (on_gpu()) {
      const DeviceMemoryRates rates = measure_device_memory(*device_, narrow, scale_.gpu.elements);
      const DeviceOverheads overheads = measure_overheads(*device_);
      constexpr double kRounded = 6, kUpdated = 28;  // bytes a parameter
      lane.bytes_per_second = (kRounded + kUpdated) / (kRounded / round + kUpdated / rates.update.per_second);
      lane.overhead_seconds = overheads.instruction;
      copy_seconds_ = overheads.copy;
      say("GPU memory: AdamW {:.1f} GB/s, zeroed at {:.1f} GB/s", rates.update.per_second / 1e9,
          rates.zero.per_second / 1e9);
      note("AdamW in GPU memory", rates.update.rounds);
      note("zeroing of GPU memory", rates.zero.rounds);
      say("overhead: {:.1f} us an instruction, {:.1f} us a copy", overheads.instruction * 1e6,
          overheads.copy * 1e6);
    } else {
      lane.sharing = all_cores();
    }
    measure_ops_of(lane);
    rates_.lanes.push_back(std::move(lane));
  }

  void measure_ops_of(LaneRates& lane) {
    say("ops: rates F and B are fitted to the times of each op, forward and backward, in several sizes:\n"
        "  seconds = flops / F + bytes / B. A rate of \"-\" adds nothing.\n"
        "  off by: how far this sum is from a time at most.\n"
        "  rounds: how far the median of a time's rounds is above their fastest eighth at most.\n"
        "    Above {:.0f} %, the rates are doubtful.",
        100 * kSpreadMost);
    for (const DType precision : precisions_) {
      say("{:<24}{:>18}{:>16}{:>9}{:>9}", fmt::format("ops in {}", dtype_name(precision)), "F", "B", "off by",
          "rounds");
      measure_ops(*device_, precision, on_gpu() ? scale_.gpu.ops : scale_.ops, lane.ops,
                  [&](OpKind kind, const OpFit& fit, const Rounds& rounds) {
                    const char* const name = op_rule(kind).name;
                    say("  {:<22}{:>18}{:>16}{:>9}{:>9}", name, rate_text(fit.flops_per_second, "GFLOP/s"),
                        rate_text(fit.bytes_per_second, "GB/s"), fmt::format("{:.0f} %", 100 * fit.error_max),
                        fmt::format("{:.0f} %", 100 * rounds.spread()));
                    note(fmt::format("{} in {}", name, dtype_name(precision)), rounds);
                    if (kind != OpKind::linear) return;
                    const bool bound = std::isfinite(fit.flops_per_second);
                    rate_of(lane.flops, precision) = bound ? fit.flops_per_second : fit.flops_together;
                  });
    }
  }

  // Times copies each way alone, and both ways at once. The latter rate is the capacity of pool `link`.
  void measure_gpu_links() {
    const CudaFacts facts =
        cuda_facts({memory_.device.ordinal, 2 * scale_.copy_bytes, steady_seconds, open_nvml()});
    if (!facts.copies.value)
      throw Error(ExitCode::environment, "Copies could not be timed: " + facts.copies.reason + ".",
                  "`sluice doctor` says what this machine lacks.");
    const CudaCopies& copies = *facts.copies.value;
    say("link: {:.1f} GB/s to the GPU, {:.1f} from it, {:.1f} both ways at once", copies.host_to_device / 1e9,
        copies.device_to_host / 1e9, copies.both / 1e9);
    link_ = add_pool("link", copies.both);
    const Sharing sharing{{}, {{memory_pool_, 1}, {*link_, 1}}};
    rates_.links.push_back({"host", "device", copies.host_to_device, copy_seconds_, sharing});
    rates_.links.push_back({"device", "host", copies.device_to_host, copy_seconds_, sharing});
  }

  void measure_directory(const std::string& directory) {
    const DriveMeasurement drive = measure_drive(directory, drive_sizes(), memory_.io, scale_.drive_seconds);
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
    LaneRates saves{.lane = "nvme_write", .overhead_seconds = drive.latency_seconds};
    saves.sharing = {{}, {{memory_pool_, 2}}};
    rates_.lanes.push_back(std::move(saves));
  }

  // Adds the sizes of tiers, so that other machines, which may have no such GPU, can plan for this one.
  void add_sizes() {
    const CudaStatus status = cuda_status(memory_.device.ordinal);
    const MemoryLimits limits = memory_limits();
    rates_.source += " and one " + printable(status.name);
    rates_.gpu = printable(status.name);
    MachineMemory sizes{status.memory_bytes, std::min(limits.total, limits.cgroup_limit), std::nullopt};
    std::vector<NvmeDirectory> directories;
    for (size_t i = 0; i < memory_.nvme_directories.size(); ++i)
      directories.push_back({memory_.nvme_directories[i], drive_weight(rates_.drives[i])});
    if (!directories.empty()) sizes.nvme = nvme_room(directories, 1, [](uint64_t) { return 0; }).free;
    rates_.memory = sizes;
    say("sizes: {} of GPU memory, {} of host memory", in_mib(*sizes.device), in_mib(sizes.host));
  }

  // Ranks exchange from device memory or host memory, as programs would.
  void measure_ranks(const AcceleratorRanks& connected) {
    constexpr uint64_t kMessageMost = 16ull << 20;
    Communicator& communicator = connected.communicator ? *connected.communicator : *ranks_.lane;
    say("ranks: {}, exchanging by {}{}", ranks_.size(), communicator.transport(),
        connected.reason.empty() ? "" : " (not by NCCL: " + connected.reason + ")");
    const auto all = static_cast<uint64_t>(ranks_.size());
    const uint64_t bytes = std::max(network_bytes_least(ranks_.size()),
                                    std::min(2 * all * kMessageMost, ranks_.least({host_arena_}).front()));
    // After an error MPI may still write into this memory until the process ends, so it is not freed.
    auto memory = std::make_unique<RankMemory>(connected.communicator ? device_.get() : nullptr, bytes);
    std::vector<NetworkLevel> levels;
    try {
      levels = measure_network(ranks_, communicator, memory->span(), scale_.network_seconds,
                               [&](const std::string& text) { say("{}", text); });
    } catch (...) {
      (void)memory.release();
      throw;
    }
    if (ranks_.is_first()) add_network(std::move(levels), connected.communicator != nullptr);
  }

  void add_network(std::vector<NetworkLevel> levels, bool in_device) {
    // From here on pools are a rank's share of the machine. A GPU's link belongs to one rank already.
    const double link = link_ ? rates_.pools[*link_].capacity : 0;
    share_machine(rates_, levels.front().ranks);
    if (link_) rates_.pools[*link_].capacity = link;
    if (levels.size() > 1 || ranks_.all_here < ranks_.size())
      say("machines: all are taken to be like the first, which was measured");
    rates_.network = std::move(levels);
    LaneRates lane{.lane = "collective", .overhead_seconds = handover_};
    lane.sharing = {{}, {{memory_pool_, 1}}};
    if (in_device) lane.tier = "device", lane.sharing = {};
    rates_.lanes.push_back(std::move(lane));
  }

  MemoryOptions memory_;
  const Ranks& ranks_;
  const ProcessorSet processors_;
  BenchScale scale_;
  std::FILE* const out_;  // nullptr: another rank prints
  int threads_ = 1;
  std::unique_ptr<Device> device_;  // nullptr on ranks that only exchange
  std::vector<DType> precisions_{DType::bf16, DType::f32, DType::f16};
  uint64_t host_arena_ = 0;
  uint32_t cores_ = 0, memory_pool_ = 0;  // pools
  std::optional<uint32_t> link_;          // pool of a GPU's link
  double copy_ = 0, handover_ = 0, copy_seconds_ = 0;
  MachineRates rates_;
  std::vector<RatedRounds> timed_;
};

// Rounds to four digits: a measurement is less exact than that, and people read and edit the file.
void round_rates(MachineRates& rates) {
  const auto round = [](double& rate) {
    if (std::isfinite(rate)) rate = std::strtod(fmt::format("{:.4g}", rate).c_str(), nullptr);
  };
  const auto round_all = [&](PrecisionRates& r) {
    for (double* rate : {&r.fp32, &r.bf16, &r.fp16}) round(*rate);
  };
  for (PoolRate& pool : rates.pools) round(pool.capacity);
  for (NetworkLevel& level : rates.network) round(level.bytes_per_second), round(level.latency_seconds);
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

MachineRates measure_machine(const MemoryOptions& options, const Ranks& ranks, const BenchScale& scale,
                             std::FILE* out) {
  MachineRates rates = Bench(options, ranks, scale, out).run();
  round_rates(rates);
  return rates;
}

}  // namespace sluice
