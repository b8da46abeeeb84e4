// The descriptions that the program brings along.
#include "engine/machine_rates.h"

namespace sluice {

namespace {

// Measured on two cores with AVX-512: the matrix products of a GPT-2 124M step 380 GFLOP/s in fp32 and 656 in
// bf16 (some room is left for what is smaller); AdamW 2.2 G parameters/s at 28 bytes = 60 GB/s, which is
// taken for the memory's rate; XXH3 22 GB/s a core; disk 2.4 GB/s reading, 6.7 writing, 2.4 to 2.6 both
// together; a thread copies 10 GB/s, which is 20 GB/s of traffic.
constexpr const char* kDefaultJson = R"({
  "format": "sluice-machine-1",
  "name": "cpu-2core",
  "pools": {"cores": 2, "memory": 60e9},
  "drives": [{"tier": "nvme", "read": 2.4e9, "write": 6.5e9, "mixed": 2.5e9}],
  "lanes": [
    {"lane": "compute", "flops_per_second": {"fp32": 360e9, "bf16": 630e9, "fp16": 340e9},
     "bytes_per_second": 40e9, "overhead_seconds": 2e-5, "occupies": {"cores": 2}, "per_byte": {"memory": 1}},
    {"lane": "optimizer", "bytes_per_second": 60e9, "overhead_seconds": 1e-5, "occupies": {"cores": 2},
     "per_byte": {"memory": 1}},
    {"lane": "collective", "bytes_per_second": 10e9, "overhead_seconds": 2e-5, "occupies": {"cores": 1},
     "per_byte": {"memory": 1}},
    {"lane": "nvme_write", "bytes_per_second": 2e9, "overhead_seconds": 1e-3, "per_byte": {"memory": 2}}
  ],
  "links": [
    {"from": "host", "to": "device", "bytes_per_second": 10e9, "latency_seconds": 5e-6,
     "occupies": {"cores": 1}, "per_byte": {"memory": 2}},
    {"from": "device", "to": "host", "bytes_per_second": 10e9, "latency_seconds": 5e-6,
     "occupies": {"cores": 1}, "per_byte": {"memory": 2}},
    {"from": "nvme", "to": "host", "latency_seconds": 2e-4, "per_byte": {"memory": 2, "cores": 4.5e-11}},
    {"from": "host", "to": "nvme", "latency_seconds": 2e-4, "per_byte": {"memory": 2, "cores": 4.5e-11}}
  ]
})";

// Taken at 60 to 80 % of the data sheets, as much as software usually reaches: 989 TFLOP/s in bf16 and fp16,
// 60 in fp32 without tensor cores, 3.35 TB/s, 63 GB/s a direction on PCIe 5 x16; eight channels of DDR5-4800
// 307 GB/s, of which AdamW takes half; a PCIe 4 drive 7 GB/s reading, 5 writing.
constexpr const char* kGpuJson = R"({
  "format": "sluice-machine-1",
  "name": "gpu-server",
  "pools": {"cores": 16, "memory": 200e9},
  "drives": [{"tier": "nvme", "read": 6e9, "write": 4e9, "mixed": 5e9}],
  "lanes": [
    {"lane": "compute", "flops_per_second": {"fp32": 40e12, "bf16": 600e12, "fp16": 600e12},
     "bytes_per_second": 2.5e12, "overhead_seconds": 5e-6},
    {"lane": "optimizer", "bytes_per_second": 150e9, "overhead_seconds": 1e-5, "occupies": {"cores": 16},
     "per_byte": {"memory": 1}},
    {"lane": "collective", "bytes_per_second": 50e9, "overhead_seconds": 2e-5, "per_byte": {"memory": 1}},
    {"lane": "collective", "tier": "device", "bytes_per_second": 50e9, "overhead_seconds": 2e-5},
    {"lane": "nvme_write", "bytes_per_second": 2e9, "overhead_seconds": 1e-3, "per_byte": {"memory": 2}}
  ],
  "links": [
    {"from": "host", "to": "device", "bytes_per_second": 50e9, "latency_seconds": 1e-5,
     "per_byte": {"memory": 1}},
    {"from": "device", "to": "host", "bytes_per_second": 50e9, "latency_seconds": 1e-5,
     "per_byte": {"memory": 1}},
    {"from": "nvme", "to": "host", "latency_seconds": 2e-4, "per_byte": {"memory": 2, "cores": 4.5e-11}},
    {"from": "host", "to": "nvme", "latency_seconds": 2e-4, "per_byte": {"memory": 2, "cores": 4.5e-11}}
  ]
})";

// Ten machines of eight A100 with 80 GB and one network card of 100 Gb/s; pools are one rank's share. Data
// sheets: 312 TFLOP/s in bf16 and fp16, 19.5 in fp32, 2.0 TB/s, 32 GB/s a direction on PCIe 4 x16; two
// processors of 64 cores with eight channels of DDR4-3200 each, 410 GB/s in all; taken at the parts of them
// as above. Networks are taken at what NCCL was seen to reach: 232 of 300 GB/s between eight A100 (issue 175
// of nccl-tests), 600 Gb/s of eight Ethernet cards of 100 (issue 495 of nccl). Latencies are those of usual
// software.
constexpr const char* kA100Json = R"({
  "format": "sluice-machine-1",
  "name": "a100-cluster, data sheets",
  "pools": {"cores": 16, "memory": 34e9},
  "drives": [{"tier": "nvme", "read": 6e9, "write": 4e9, "mixed": 5e9}],
  "lanes": [
    {"lane": "compute", "flops_per_second": {"fp32": 13e12, "bf16": 190e12, "fp16": 190e12},
     "bytes_per_second": 1.5e12, "overhead_seconds": 5e-6},
    {"lane": "optimizer", "bytes_per_second": 26e9, "overhead_seconds": 1e-5, "occupies": {"cores": 16},
     "per_byte": {"memory": 1}},
    {"lane": "collective", "overhead_seconds": 2e-5, "per_byte": {"memory": 1}},
    {"lane": "collective", "tier": "device", "overhead_seconds": 2e-5},
    {"lane": "nvme_write", "bytes_per_second": 2e9, "overhead_seconds": 1e-3, "per_byte": {"memory": 2}}
  ],
  "links": [
    {"from": "host", "to": "device", "bytes_per_second": 25e9, "latency_seconds": 1e-5,
     "per_byte": {"memory": 1}},
    {"from": "device", "to": "host", "bytes_per_second": 25e9, "latency_seconds": 1e-5,
     "per_byte": {"memory": 1}},
    {"from": "nvme", "to": "host", "latency_seconds": 2e-4, "per_byte": {"memory": 2, "cores": 4.5e-11}},
    {"from": "host", "to": "nvme", "latency_seconds": 2e-4, "per_byte": {"memory": 2, "cores": 4.5e-11}}
  ],
  "network": [
    {"name": "node", "ranks": 8, "bytes_per_second": 232e9, "latency_seconds": 2e-6},
    {"name": "cluster", "ranks": 80, "bytes_per_second": 9.4e9, "latency_seconds": 5e-6}
  ]
})";

// 128 machines of eight H100 with a network card of 400 Gb/s for each; pools are one rank's share. Data
// sheets as for the server above; two processors of 56 cores with eight channels of DDR5-4800 each, 614 GB/s
// in all. NCCL reaches 370 of 450 GB/s over NVLink (issue 212 of nccl-tests), and 86 of 100 GB/s over cards
// of InfiniBand (issue 1048 of nccl).
constexpr const char* kH100Json = R"({
  "format": "sluice-machine-1",
  "name": "h100-cluster, data sheets",
  "pools": {"cores": 14, "memory": 50e9},
  "drives": [{"tier": "nvme", "read": 6e9, "write": 4e9, "mixed": 5e9}],
  "lanes": [
    {"lane": "compute", "flops_per_second": {"fp32": 40e12, "bf16": 600e12, "fp16": 600e12},
     "bytes_per_second": 2.5e12, "overhead_seconds": 5e-6},
    {"lane": "optimizer", "bytes_per_second": 38e9, "overhead_seconds": 1e-5, "occupies": {"cores": 14},
     "per_byte": {"memory": 1}},
    {"lane": "collective", "overhead_seconds": 2e-5, "per_byte": {"memory": 1}},
    {"lane": "collective", "tier": "device", "overhead_seconds": 2e-5},
    {"lane": "nvme_write", "bytes_per_second": 2e9, "overhead_seconds": 1e-3, "per_byte": {"memory": 2}}
  ],
  "links": [
    {"from": "host", "to": "device", "bytes_per_second": 50e9, "latency_seconds": 1e-5,
     "per_byte": {"memory": 1}},
    {"from": "device", "to": "host", "bytes_per_second": 50e9, "latency_seconds": 1e-5,
     "per_byte": {"memory": 1}},
    {"from": "nvme", "to": "host", "latency_seconds": 2e-4, "per_byte": {"memory": 2, "cores": 4.5e-11}},
    {"from": "host", "to": "nvme", "latency_seconds": 2e-4, "per_byte": {"memory": 2, "cores": 4.5e-11}}
  ],
  "network": [
    {"name": "node", "ranks": 8, "bytes_per_second": 370e9, "latency_seconds": 2e-6},
    {"name": "cluster", "ranks": 1024, "bytes_per_second": 344e9, "latency_seconds": 5e-6}
  ]
})";

struct BuiltIn {
  const char *name, *json;
};
constexpr BuiltIn kBuiltIn[] = {{kDefaultMachine, kDefaultJson},
                                {kGpuMachine, kGpuJson},
                                {"a100-cluster", kA100Json},
                                {"h100-cluster", kH100Json}};

}  // namespace

std::optional<MachineRates> built_in_machine(const std::string& name) {
  for (const BuiltIn& machine : kBuiltIn)
    if (name == machine.name) return parse_machine_rates(machine.json, machine.name);
  return std::nullopt;
}

std::string built_in_machine_names() {
  std::string names;
  for (const BuiltIn& machine : kBuiltIn) names += (names.empty() ? "" : ", ") + std::string(machine.name);
  return names;
}

MachineRates default_machine_rates() { return parse_machine_rates(kDefaultJson, kDefaultMachine); }

}  // namespace sluice
