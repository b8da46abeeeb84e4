#include "engine/run/start/budgets.h"

#include <algorithm>
#include <thread>

#include "engine/base/affinity.h"
#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/run/execute/executor.h"
#include "engine/run/execute/trace.h"
#include "engine/run/start/nvme_directories.h"
#include "offload/io/backends.h"
#include "offload/transfer_lane.h"

namespace sluice {

namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kProgramInReserve = 24 * kMiB, kTableInReserve = kMiB, kRegistrationInReserve = 8 * kMiB;
constexpr uint64_t kCodeInReserve = 14 * kMiB;  // of the program and its libraries, as measured
// With a driver, a reserve is more than 150 MiB. It differs by process, by up to 1.1 MiB, since other pages
// of code are mapped. For this difference, limit_for() adds one part in kDriverMargin of the reserve.
constexpr uint64_t kDriverMargin = 128;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kFileLanes = 2;  // lanes between host memory and an nvme tier, one each way

// Planning holds three programs at a time, without transfers (the one that the search began with, the best so
// far and the one that is weighed), and one body while it is staged. Measured with 7,000 to 78,000 tasks at
// the least budgets: 2.4 to 2.6 such programs, and for each instruction of the longest body 270 to 530 bytes.
constexpr uint64_t kProgramsPlanned = 3, kStagingBytes = 560;

// The bytes that an `auto` limit leaves free of one sharer's part `free`: a twentieth of it. But it is at
// least the smaller of a quarter of the part and 512 MiB / sharers.
uint64_t margin_of(uint64_t free, int sharers) {
  return std::max(free / 20, std::min(free / 4, 512 * kMiB / static_cast<uint64_t>(sharers)));
}

struct Found {
  uint64_t free = 0, margin = 0;  // what a rank finds free, and the part of it that stays free for others
  std::string remedy;             // what helps besides a smaller limit
  std::string where;              // "" or " in DIR"
};

Found found(uint64_t free, const char* remedy, int sharers = 1) {
  return {free, margin_of(free, sharers), remedy, ""};
}

// " are free in DIR for each of the 2 ranks here"
std::string free_words(const Found& found, int sharers) {
  return in_mib(found.free) + " are free" + found.where +
         (sharers == 1 ? "" : " for each of the " + std::to_string(sharers) + " ranks here");
}

// Whether the run that goes on had more than is free here. If so, a note says what becomes of the limit.
bool gives_way(const Size& size, const Found& found, const char* option, Budgets& budgets, int sharers,
               const char* becomes) {
  if (!size.of_run || size.kind != Size::Kind::bytes || size.bytes <= found.free) return false;
  budgets.notes.push_back(std::string("--") + option + " of the run is " + in_mib(size.bytes) +
                          ", but only " + free_words(found, sharers) + ": " + becomes + ".");
  return true;
}

uint64_t limit_of(Size size, const Found& found, const char* option, bool check_free, Budgets& budgets,
                  int sharers = 1) {
  const uint64_t free = found.free, margin = found.margin;
  if (check_free && gives_way(size, found, option, budgets, sharers, "auto holds instead")) size = {};
  switch (size.kind) {
    case Size::Kind::automatic:
      budgets.notes.push_back(
          std::string("--") + option + " auto: " + in_mib(free - margin) +
          (sharers == 1 ? "" : " for each of the " + std::to_string(sharers) + " ranks here") +
          ", which leaves " + in_mib(margin) +
          (sharers == 1 ? " of what is free." : " of its part of what is free."));
      return free - margin;
    case Size::Kind::percent:
      return static_cast<uint64_t>(static_cast<double>(free) * size.percent / 100.0);
    case Size::Kind::bytes:
      break;
  }
  if (check_free && size.bytes > free)
    throw Error(ExitCode::environment,
                std::string("--") + option + " asks for " + in_mib(size.bytes) + ", but only " +
                    free_words(found, sharers) + ".",
                std::string("Give a smaller --") + option + ", or " + found.remedy + ".");
  return size.bytes;
}

// `drive_bytes`: size of another machine's drives, or 0 where a plan has --nvme-mem in bytes.
TierBudget nvme_budget(const MemoryOptions& options, bool check_free, std::optional<uint64_t> drive_bytes,
                       Budgets& budgets, int sharers) {
  TierBudget budget{"nvme", "nvme-mem"};
  budget.granule = kStripeBytes;
  const auto limited = [&](const Found& there, bool is_known) {
    budget.limit = limit_of(options.nvme, there, "nvme-mem", check_free, budgets, sharers);
    if (is_known) budget.most = there.free;
    budget.set_aside(0);
    return budget;
  };
  const std::vector<NvmeDirectory> directories = nvme_directories(options);
  if (directories.size() > 1) budgets.notes.push_back(describe_directories(options, directories));
  if (drive_bytes) return limited(found(*drive_bytes, "free some", sharers), *drive_bytes > 0);
  if (check_free) NvmeFiles probe(directories, 0);  // even if the plan will not need the tier
  const NvmeRoom room =
      nvme_room(directories, sharers, [&](uint64_t free) { return margin_of(free, sharers); });
  budgets.notes.insert(budgets.notes.end(), room.notes.begin(), room.notes.end());
  const std::string where = (directories.size() == 1 ? " in " : " until it is full in ") + room.full;
  return limited({room.free, room.free - room.after_margin, "free some there", where}, true);
}

// Address space that is left for the arenas.
uint64_t address_space_left(const MemoryLimits& limits, int threads) {
  if (limits.address_space == kNoLimit) return kNoLimit;
  const uint64_t taken = limits.address_space_used + address_space_beside_arenas(threads);
  if (limits.address_space > taken) return limits.address_space - taken;
  throw Error(ExitCode::environment,
              "The limit on address space (ulimit -v) is " + in_mib(limits.address_space) + ", and " +
                  std::to_string(threads) + " threads with their libraries take " + in_mib(taken) + ".",
              "Raise it (ulimit -v unlimited), and bound memory with --host-mem.");
}

}  // namespace

// For each thread a heap of malloc's (64 MiB) and a stack (8 MiB); for lanes, libraries and planning 190 MiB,
// counted as 224. Measured at 1, 2 and 4 threads: 257, 341 and 480 MiB. Where there is less, OpenBLAS may
// wait for its buffer for ever.
uint64_t address_space_beside_arenas(int threads) {
  return 224 * kMiB + static_cast<uint64_t>(threads) * (64 + 8) * kMiB;
}

void TierBudget::set_aside(uint64_t bytes) {
  reserve = bytes;
  // The largest arena whose taken_by() is at most `room`. 0: the planner's error says which limit would do.
  const uint64_t room = limit - std::min(limit, bytes), with_pages = room + kRegistrationInReserve;
  const uint64_t pages = with_pages / (kPage + bytes_a_page), rest = with_pages % (kPage + bytes_a_page);
  const uint64_t fits = pages * kPage + rest - std::min(rest, bytes_a_page);
  arena = std::min(room, fits) / granule * granule;
}

uint64_t TierBudget::taken_by(uint64_t arena_bytes) const {
  const uint64_t whole = round_up(arena_bytes, granule);
  const uint64_t registration = round_up(whole, kPage) / kPage * bytes_a_page;
  return whole + registration - std::min(registration, kRegistrationInReserve);
}

uint64_t TierBudget::limit_for(uint64_t arena_bytes) const {
  return taken_by(arena_bytes) + reserve + (driver ? reserve / kDriverMargin : 0);
}

std::vector<const TierBudget*> Budgets::by_tier() const {
  std::vector<const TierBudget*> rows;
  if (device) rows.push_back(&*device);
  rows.push_back(&host);
  if (nvme) rows.push_back(&*nvme);
  return rows;
}

TierCapacities Budgets::arenas() const {
  TierCapacities bytes;
  if (device) bytes.device = device->arena;
  bytes.host = host.arena;
  if (nvme) bytes.nvme = nvme->arena;
  return bytes;
}

std::vector<uint64_t> Budgets::most_arenas() const {
  std::vector<uint64_t> bytes;
  for (const TierBudget* row : by_tier()) {
    TierBudget all = *row;
    all.limit = std::max(row->limit, row->most);
    all.set_aside(row->reserve);
    bytes.push_back(row->most == kNoLimit ? kNoLimit : all.arena);
  }
  return bytes;
}

void Budgets::reserve_table(uint64_t bytes) {
  if (bytes > kTableInReserve) host.set_aside(host.reserve + bytes - kTableInReserve);
}

std::vector<uint64_t> Budgets::limits_for(const std::vector<uint64_t>& arena_bytes) const {
  std::vector<uint64_t> limits;
  for (const TierBudget* row : by_tier()) limits.push_back(row->limit_for(arena_bytes[limits.size()]));
  if (!device || !device->driver) return limits;
  limits.front() = with_host_limit(limits[1]).device->limit_for(arena_bytes.front());
  return limits;
}

std::vector<std::optional<uint64_t>> Budgets::limits_alone(const std::vector<std::optional<uint64_t>>& alone,
                                                           const std::vector<uint64_t>& together) const {
  const std::vector<const TierBudget*> rows = by_tier();
  const std::vector<uint64_t> least = limits_for(together);
  const auto others_suffice = [&](size_t tier) {
    for (size_t t = 0; t < rows.size(); ++t)
      if (t != tier && least[t] > rows[t]->limit) return false;
    return true;
  };
  std::vector<std::optional<uint64_t>> limits(rows.size());
  for (size_t t = 0; t < rows.size(); ++t) {
    if (!alone[t]) continue;
    limits[t] = rows[t]->limit_for(*alone[t]);
    if (others_suffice(t)) limits[t] = std::min(*limits[t], least[t]);
  }
  return limits;
}

Budgets Budgets::with_host_limit(uint64_t limit) const {
  Budgets other = *this;
  other.host.limit = limit;
  other.host.set_aside(host.reserve);
  if (device && device->driver)
    other.device->set_aside(device->reserve - page_table_bytes(host.limit) + page_table_bytes(limit));
  return other;
}

uint64_t runtime_reserve_bytes(int threads) { return 64 * kMiB + static_cast<uint64_t>(threads) * kMiB; }

uint64_t running_bytes_beside_reserve(const ProgramSize& size) {
  const uint64_t traces = Trace::bytes_at_most(size.longest);
  const uint64_t orders =
      (size.tasks + size.transfers) * sizeof(LaneOrders::value_type::value_type::value_type);
  const uint64_t bytes = program_bytes(size) + traces + orders;
  return bytes - std::min(bytes, kProgramInReserve);
}

uint64_t planning_bytes_beside_reserve(std::span<const ProgramSize> sizes) {
  uint64_t lowered = 0, longest = 0;
  for (ProgramSize size : sizes) {
    longest = std::max(longest, size.longest);
    size.transfers = 0;
    lowered += program_bytes(size);
  }
  const uint64_t bytes = kProgramsPlanned * lowered + kStagingBytes * longest;
  return bytes - std::min(bytes, kProgramInReserve);
}

int resolve_threads(const MemoryOptions& options) {
  if (options.threads) return static_cast<int>(*options.threads);
  const int allowed = allowed_processors().count();
  return allowed ? allowed : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

Budgets resolve_budgets(const MemoryOptions& options, const MemoryLimits& limits, bool check_free,
                        const std::optional<AcceleratorUse>& accelerator, int sharers,
                        std::optional<uint64_t> drive_bytes) {
  Budgets b;
  b.threads = resolve_threads(options);
  uint64_t host_reserve = runtime_reserve_bytes(b.threads);
  uint64_t free = limits.usable();
  const char* more_memory = "free some";
  if (const uint64_t left = check_free ? address_space_left(limits, b.threads) : kNoLimit; left < free) {
    free = left;
    more_memory = "raise the limit on address space (ulimit -v)";
  }
  if (accelerator) {  // a limit covers all memory of the process, also what it holds already
    const AcceleratorMemory& device = accelerator->device;
    b.library_bytes = kLibraryKernelBytes;
    host_reserve +=
        b.library_bytes + accelerator->host_bytes - std::min(accelerator->host_bytes, kCodeInReserve);
    b.device = {"device", "gpu-mem"};
    const char* const more_memory_there = "end what else holds the GPU's memory (nvidia-smi shows who)";
    b.device->limit =
        limit_of(options.gpu, found(device.free + device.held, more_memory_there), "gpu-mem", check_free, b);
    if (accelerator->is_here) b.device->most = device.free + device.held;
    b.device->granule = kAcceleratorGranule;
    b.device->driver = b.host.driver = true;
    if (accelerator->is_here) free += accelerator->host_bytes;
  } else if (const Found here = found(free, more_memory, sharers);  // the cpu device's arena, in host memory
             options.gpu.kind != Size::Kind::automatic &&
             !(check_free && gives_way(options.gpu, here, "gpu-mem", b, sharers, "it is left out"))) {
    b.device = {"device", "gpu-mem", limit_of(options.gpu, here, "gpu-mem", check_free, b, sharers)};
    b.device->set_aside(0);
    free -= std::min(free, b.device->limit);
  }
  if (limits.physical() > 0) b.host.most = limits.physical() / static_cast<uint64_t>(sharers);
  if (b.device && !accelerator) b.device->most = b.host.most;
  b.host.limit =
      limit_of(options.host, found(free, more_memory, sharers), "host-mem", check_free, b, sharers);
  if (!drive_bytes && !check_free && options.nvme.kind == Size::Kind::bytes) drive_bytes = 0;
  if (drive_bytes || !options.nvme_directories.empty()) {
    b.nvme = nvme_budget(options, check_free, drive_bytes, b, sharers);
    b.host.bytes_a_page = kFileLanes * registration_bytes_a_page(options.io);
  }
  b.host.set_aside(host_reserve);
  if (accelerator)
    b.device->set_aside(accelerator->device.held + kLibraryKernelBytes + page_table_bytes(b.host.limit));
  return b;
}

RecordBytes bytes_for_records(const MemoryOptions& options, int threads) {
  constexpr uint64_t kOfThread = 16 * kMiB;  // tables of words, marks of a part
  const uint64_t limit = resolve_budgets(options, memory_limits(), false).host.limit;
  const uint64_t taken = process_resident_bytes() + static_cast<uint64_t>(threads) * kOfThread;
  return {limit - std::min(limit, taken), taken};
}

}  // namespace sluice
