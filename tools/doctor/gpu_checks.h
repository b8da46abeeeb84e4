// The checks of `sluice doctor` about the GPU, for judge() of checks.h, and what other checks share with
// them. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/checks.h"

namespace sluice {

std::vector<Check> judge_gpu(const DoctorFacts& facts);

// A command that raises the limit on locked memory: in the shell where the hard limit allows that, else as
// root. For a container, the command starts another one.
std::string unlock_command(const DoctorFacts& facts);

// Bytes a second that a PCIe link of this generation and width carries each way, without the bits of its
// encoding, but with the headers of packets. 0 for an unknown generation.
double pcie_bytes_per_second(int generation, int width);

}  // namespace sluice
