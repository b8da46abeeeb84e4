// A machine description: how fast the lanes and links of a machine are, and what they share. docs/machine.md
// has the JSON.
//
// Rows are matched to a program's tables by name. Pools are shared resources with a capacity in units a
// second (processor cores, memory traffic in bytes); every task or copy takes from them while it runs. Read
// by the simulator; plain data.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/op.h"

namespace sluice {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct PoolRate {
  std::string name;
  double capacity = 0;  // units a second
};

struct PoolUse {
  uint32_t pool = 0;  // index into MachineRates::pools
  double amount = 0;
};

// What one kind of work takes from pools: `occupies` units a second while it runs at full speed, however fast
// that is, and `per_byte` units for every byte.
struct Sharing {
  std::vector<PoolUse> occupies, per_byte;
};

// Units a second, by working precision.
struct PrecisionRates {
  double fp32 = kUnlimited, bf16 = kUnlimited, fp16 = kUnlimited;
  double of(DType precision) const {
    return precision == DType::bf16 ? bf16 : precision == DType::f16 ? fp16 : fp32;
  }
};

// Measured rates of one kind of op. An op takes flops / rate + bytes / rate seconds. The two terms are added,
// so that they can also cover what a kernel does beside its products, or computes in vain at the edges of its
// tiles.
struct OpRates {
  OpKind kind;
  PrecisionRates flops, bytes;
};

// Tasks on a lane. Alone, a task takes its overhead plus the time of its work; if a pool needs longer for
// that work, the pool's time counts. The work of a forward or backward is the sum over its kinds of op. For a
// kind without a row, and for other tasks, the time is the longer of flops / rate and bytes / rate.
struct LaneRates {
  std::string lane, tier;  // tier: of the first operand; empty: any tier that no other row names
  PrecisionRates flops;
  double bytes_per_second = kUnlimited;
  std::vector<OpRates> ops;
  double overhead_seconds = 0;
  Sharing sharing;
};

struct LinkRates {  // copies between two tiers
  std::string from, to;
  double bytes_per_second = kUnlimited;
  double latency_seconds = 0;
  Sharing sharing;
};

struct DriveRates {  // one directory of a file tier; drives.h says which part of the tier's bytes it has
  std::string tier;
  double read = 0, write = 0;  // bytes a second, alone
  double mixed = 0;            // bytes a second of reads and writes together while both are under way
  std::string directory;       // where it was measured; empty: not said
};

// A level joins members. Each member is a group that the level below has joined. The lowest level joins the
// ranks of one machine; its members are single ranks.
struct NetworkLevel {
  std::string name;
  uint32_t ranks = 0;           // joined at most
  double bytes_per_second = 0;  // that a member sends to others, while it receives equally many
  double latency_seconds = 0;   // that a message costs its sender, whatever its bytes
};

constexpr double kTierBytesMost = 1e18;

// How large a machine's tiers are, in bytes, each at most kTierBytesMost. Where several ranks share the
// machine: the part of one rank.
struct MachineMemory {
  std::optional<uint64_t> device;  // of its GPU; none: the machine has no GPU
  uint64_t host = 0;
  std::optional<uint64_t> nvme;  // scratch space on its drives; none: not known
};

struct MachineRates {
  std::string name;
  std::string source;                   // which machine it is, for people; may be empty
  std::string gpu;                      // as in the name that its driver gives; empty: no GPU, or not said
  std::optional<MachineMemory> memory;  // for plans made elsewhere; the simulator does not look at it
  std::vector<PoolRate> pools;
  std::vector<DriveRates> drives;
  std::vector<LaneRates> lanes;
  std::vector<LinkRates> links;
  std::vector<NetworkLevel> network;  // lowest first; empty: collectives go at their lane's rates
  // Algorithms of matrix products that were timed on the GPU: JSON that only its device reads. Empty: none.
  // The simulator does not look at it.
  std::string matmul_algorithms;
  // Working precision: which of the rates in PrecisionRates apply. Set by the caller, not in the file.
  DType precision = DType::bf16;
};

// Parses JSON text; `source` names it in messages. Throws Error(malformed_file) with what is wrong.
MachineRates parse_machine_rates(const std::string& json, const std::string& source);

// JSON text that parse_machine_rates reads back to the same rates, except for `precision`. Bytes in names
// that are not UTF-8 are replaced.
std::string machine_rates_json(const MachineRates& rates);

// The row for tasks on the lane whose first operand is in the tier; nullptr: there is none.
const LaneRates* find_lane(const MachineRates& rates, std::string_view lane, std::string_view tier);

// Whether a GPU of this name, as a driver gives it, is the described one: the name has rates.gpu as whole
// words, as "NVIDIA A100-SXM4-80GB" has "A100".
bool describes_gpu(const MachineRates& rates, std::string_view name);

// The pool of processor cores.
constexpr const char* kCoresPool = "cores";

constexpr const char* kDefaultMachine = "cpu-2core";
constexpr const char* kGpuMachine = "gpu-server";

// Scales pools, drives and memory (but not device memory) to one rank's part of a machine that `ranks` ranks
// share. Before the call, the figures are for one of the ranks that the lowest network level joins, or,
// without network levels, for the whole machine.
void share_machine(MachineRates& rates, uint32_t ranks);

// A description that Sluice brings along; none for an unknown name.
std::optional<MachineRates> built_in_machine(const std::string& name);

// "cpu-2core, gpu-server, ...", for messages.
std::string built_in_machine_names();
std::vector<std::string> built_in_machine_list();  // the same

// The description named kDefaultMachine.
MachineRates default_machine_rates();

}  // namespace sluice
