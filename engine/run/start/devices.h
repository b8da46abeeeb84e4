// --machine and --device become a machine description and a device. Callers: every verb that computes or
// plans.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/segment.h"
#include "engine/rates/machine_rates.h"
#include "engine/run/options/options.h"
#include "engine/run/ranks/ranks.h"
#include "engine/run/start/budgets.h"
#include "gpu/device.h"

namespace sluice {

// The description that --machine names: a built-in one, a JSON file, or, without --machine, the device's
// default. If --nvme-dir has directories, each is matched to one of the description's drives. memory->nvme,
// the bytes of all described drives together, becomes the sum of the matched drives' shares. Throws
// Error(usage, malformed_file).
MachineRates resolve_machine(const MemoryOptions& options);

// The machine of --machine, if its description has sizes: `plan` then plans for it instead of this machine.
std::optional<MachineRates> described_machine(const MemoryOptions& options);

// A sentence if the description names the GPU of its rates, and names another one than `gpu`; else empty.
// `gpu`: the name of this machine's GPU, or "" if it is not known. Throws as resolve_machine() does.
std::string other_gpu_note(const MemoryOptions& options, const std::string& gpu);

// --device auto becomes cuda where there is a GPU, else cpu. Without --precision, a GPU that has no bf16
// takes fp16, unless a checkpoint has settled the precision. `elsewhere`: the machine in question, if it is
// not this one. Returns printable sentences: one for each choice that is not the usual one, and one where the
// rates of --machine are of another device than the one that is used here.
std::vector<std::string> settle_device(Options& options, bool precision_is_settled,
                                       const MachineRates* elsewhere = nullptr);

// Sets options.chosen_algorithms to the algorithms of --matmul-algorithms, or without that option to
// `of_run`, those of the run that goes on. Returns a printable sentence where the run's algorithms are used
// or replaced; else "". Throws Error(usage, malformed_file).
std::string settle_algorithms(MemoryOptions& options, const std::string& of_run);

// The settled device. Throws Error(environment) for a GPU that is not there.
std::unique_ptr<Device> make_device(const MemoryOptions& options, int threads);

// The communicator between the accelerators of several ranks; or none, and a clause that says why. All ranks
// call it.
AcceleratorRanks connect_accelerators(Device& device, const Ranks& ranks);

// The memory that the device holds by now, if it is an accelerator.
std::optional<AcceleratorUse> accelerator_use(Device& device);

// What a plan must know of the device.
struct DeviceNeeds {
  WorkspaceBytes workspaces;
  DeviceSizes sizes;
};
DeviceNeeds needs_of(const Device& device);  // the device outlives the result

}  // namespace sluice
