#include "engine/run/execute/session.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "engine/base/affinity.h"
#include "engine/base/pack.h"
#include "engine/base/parallel.h"
#include "offload/io/backends.h"
#include "offload/system/memory_limits.h"
#include "offload/system/system_facts.h"

namespace sluice {

namespace {

// Several threads fill an arena before it is pinned: the driver would fill it on one thread.
ArenaOptions host_arena_options(Accelerator* accelerator, const SessionOptions& options) {
  if (!accelerator) return {.near_processors = true};
  return {.near_processors = true,
          .near_node = numa_node_of_card(accelerator->pci_bus_id(), options.system_root),
          .prefault_threads = options.threads};
}

}  // namespace

int optimizer_threads(int threads, int processors) {
  constexpr int kFewProcessors = 8, kForLanes = 2;
  return processors < kFewProcessors ? threads : std::min(threads, processors - kForLanes);
}

PreparedDevice::PreparedDevice(const Plan& plan, Device& device) {
  const uint64_t before = process_resident_bytes();
  for (const SegmentPlan& segment : plan.lowering.plans()) {
    const SegmentPasses& passes = segment.at(Recompute::none);  // no other level has further ops
    for (const PassPlan* pass : {&passes.forward, &passes.backward})
      for (const OpStep& step : pass->steps)
        if (const OpShapes& shapes = segment.shapes[step.op]; !is_between_ranks(shapes.kind))
          device.prepare(shapes, step.pass);
  }
  Accelerator* const accelerator = device.accelerator();
  if (!accelerator) return;
  const uint64_t bytes = plan.program.arena_bytes.front();
  const uint64_t without_arena = process_resident_bytes();
  arena = accelerator->allocate(bytes);
  const uint64_t with_arena = process_resident_bytes();  // an emulated device's arena is host memory
  streams = accelerator->make_streams(longest_streams(plan.program));
  device.warm_up({arena.get(), bytes});
  accelerator->finish();
  const uint64_t grown = process_resident_bytes() + without_arena, was = before + with_arena;
  library_bytes = grown - std::min(grown, was);
}

Session::Session(const Plan& plan, Device& device, const SessionOptions& options, PreparedDevice prepared)
    : plan_(plan),
      ranks_(options.ranks),
      device_arena_(std::move(prepared.arena)),
      streams_(std::move(prepared.streams)) {
  CHECK(plan.program.rings.size() <= kRings, "a program with more rings than RingPositions has");
  const Machine& machine = plan.program.machine;
  const int processors = static_cast<int>(std::thread::hardware_concurrency());  // each has a TBB thread
  check_threads(std::max(options.threads, processors) + static_cast<int>(machine.lanes.size()));
  Memory memory;
  uint64_t nvme_bytes = 0;
  for (size_t t = 0; t < machine.tiers.size(); ++t)
    if (machine.tiers[t].file) nvme_bytes += round_up(plan.program.arena_bytes[t], kStripeBytes);
  const TierId host = lowest_memory_tier(machine);
  const uint64_t slots = nvme_bytes / kRequestBytes;
  arenas_.resize(machine.tiers.size());
  Accelerator* const accelerator = device.accelerator();
  for (size_t t = 0; t < machine.tiers.size(); ++t) {
    if (accelerator && t == 0) {
      memory.tiers.push_back(device_arena_.get());
      continue;
    }
    if (!machine.tiers[t].file) {
      const uint64_t bytes = plan.program.arena_bytes[t] + (t == host ? slots * sizeof(uint64_t) : 0);
      arenas_[t] = Arena(std::max<uint64_t>(bytes, 1), host_arena_options(accelerator, options));
      if (options.poison) std::memset(arenas_[t].data(), 0xFF, bytes);
      if (accelerator) pinned_.push_back(accelerator->pin(arenas_[t].span()));
    }
    memory.tiers.push_back(arenas_[t].data());
  }
  auto* table = reinterpret_cast<uint64_t*>(arenas_[host].data() + plan.program.arena_bytes[host]);
  memory.checksums = {table, slots};
  std::fill(memory.checksums.begin(), memory.checksums.end(), 0);
  if (nvme_bytes) {
    files_ = std::make_unique<NvmeFiles>(options.nvme_directories, nvme_bytes);
    memory.files = files_.get();
  }
  memory.streams = streams_.get();
  const int optimizers = optimizer_threads(options.threads, allowed_processors().count());
  runner_ = std::make_unique<Runner>(plan, memory, device, options.rules, optimizers, ranks_);
  ExecutorOptions executor;
  executor.kind = options.executor;
  executor.seed = options.seed;
  executor.streams = streams_.get();
  executor.on_error = [this] {
    try {
      check();
    } catch (const std::exception& e) {
      ranks_.abort("Rank " + std::to_string(ranks_.rank()) + " failed: " + e.what());
    } catch (...) {
      ranks_.abort("Rank " + std::to_string(ranks_.rank()) + " failed.");
    }
  };
  const std::span<std::byte> host_arena = arenas_[host].span();
  const uint32_t depth = requests_in_flight(files_ ? files_->files().size() : 1);
  executor.make_queue = [this, host_arena, depth, io = options.io,
                         wrap = options.wrap_queue](bool has_transfers) -> std::unique_ptr<IoQueue> {
    // Registering the arena takes time and kernel memory. A lane that only writes checkpoints does without.
    const std::span<std::byte> registered = has_transfers ? host_arena : std::span<std::byte>();
    auto queue = make_io_queue(io, depth, registered, &io_description_);
    return wrap ? wrap(std::move(queue)) : std::move(queue);
  };
  executor_ = make_executor(plan.program, *runner_, executor);
}

uint64_t Session::issue(BodyId body) {
  executor_->make_room();
  check();
  const std::vector<uint8_t>& advance = plan_.program.bodies[body].advance;
  for (size_t r = 0; r < advance.size(); ++r) rings_[r] += advance[r];
  return executor_->issue(body, rings_);
}

void Session::take_back(BodyId body) {
  const std::vector<uint8_t>& advance = plan_.program.bodies[body].advance;
  for (size_t r = 0; r < advance.size(); ++r) rings_[r] -= advance[r];
}

StepScalars& Session::scalars(uint64_t position) {
  return *reinterpret_cast<StepScalars*>(runner_->ring_slot(plan_.lowering.scalars, position));
}

void Session::check() const {
  if (const std::exception_ptr error = executor_->error()) std::rethrow_exception(error);
}

}  // namespace sluice
