// Measurements of the machine, against which training is held. Each returns the values of one row.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/run/options/options.h"

namespace sluice {

// `small`, here and below: a rehearsal with tiny sizes, which only shows that the measurement works.

// The machine of a part's rows: its GPU, driver, libraries, cores, memory. Throws Error(environment) where
// there is no GPU.
nlohmann::ordered_json machine_facts(DeviceKind device, bool small);

// The name of the folder for results of this GPU and build, such as "nvidia-h100-80gb-hbm3-1a2b3c4".
std::string place_name(const nlohmann::ordered_json& machine, const std::string& commit);

// Rates in bytes or floating-point operations a second. All functions from here on throw Error(environment);
// measure_disk() throws Error(io), too.
nlohmann::ordered_json measure_link(DeviceKind device, bool small);
nlohmann::ordered_json measure_disk(const std::string& directory, bool small);
nlohmann::ordered_json measure_matmul(DeviceKind device, bool small);  // by precision

// Causal attention by itself, as a step calls it: forward and backward for each head size, in the precision
// that `sluice train` takes on this device. Only operations of products count. For each column of a head, and
// each pair of a query and a key that the query sees, there are 4 in forward and 10 in backward.
nlohmann::ordered_json measure_attention(DeviceKind device, bool small);

// In experts.cc. Operations a second of the first products of a layer's experts, computed in two ways: expert
// after expert as in a step, and as one product of as many rows by the library.
nlohmann::ordered_json measure_experts(DeviceKind device, bool small);

int threads_of_machine();

}  // namespace sluice
