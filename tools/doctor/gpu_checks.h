// The lines of `sluice doctor` about the GPU, for judge() of checks.h, and what they share with the
// rest of the report. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/checks.h"

namespace sluice {

std::vector<Check> judge_gpu(const DoctorFacts& facts);

// Raises the limit on locked memory: by the shell where the hard limit allows it.
std::string unlock_command(const DoctorFacts& facts);

// Bytes a second that a PCIe link of this generation and width carries each way, its encoding taken off, but
// not the headers of packets; 0 for a generation that is not known here.
double pcie_bytes_per_second(int generation, int width);

}  // namespace sluice
