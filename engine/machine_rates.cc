#include "engine/machine_rates.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "engine/error.h"
#include "engine/strict_json.h"

namespace sluice {

namespace {

using Json = nlohmann::json;

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

class Reader {
 public:
  explicit Reader(std::string source) : source_(std::move(source)) {}

  MachineRates read(const std::string& text) {
    const Json root = parse(text);
    known_keys(root, "the file", {"format", "name", "pools", "drives", "lanes", "links"});
    if (string(root, "format", "the file") != "sluice-machine-1") fail("its format is not sluice-machine-1");
    rates_.name = string(root, "name", "the file");
    if (root.contains("pools")) read_pools(root["pools"]);
    for (const Json& row : rows(root, "drives")) read_drive(row);
    for (const Json& row : rows(root, "lanes")) read_lane(row);
    for (const Json& row : rows(root, "links")) read_link(row);
    return std::move(rates_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ExitCode::malformed_file,
                fmt::format("The machine description {} cannot be used: {}.", source_, what),
                "Compare it with docs/machine.md.");
  }

  Json parse(const std::string& text) const {
    try {
      return parse_strict_json(text);
    } catch (const std::invalid_argument& error) {
      fail(error.what());
    }
  }

  void known_keys(const Json& object, const std::string& where, const std::set<std::string>& keys) const {
    if (!object.is_object()) fail(where + " is not an object");
    for (const auto& [key, value] : object.items())
      if (!keys.contains(key)) fail(fmt::format("{} has the unknown key {}", where, printable(key)));
  }
  std::string string(const Json& object, const char* key, const std::string& where) const {
    if (!object.contains(key) || !object[key].is_string()) fail(fmt::format("{} has no text {}", where, key));
    return object[key].get<std::string>();
  }
  Json rows(const Json& root, const char* key) const {
    if (!root.contains(key)) return Json::array();
    if (!root[key].is_array()) fail(fmt::format("{} is not a list", key));
    return root[key];
  }
  double positive(const Json& value, const std::string& what) const {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0)
      fail(what + " is not a positive number");
    return value.get<double>();
  }
  double rate(const Json& object, const char* key, const std::string& where, double absent) const {
    return object.contains(key) ? positive(object[key], fmt::format("{} of {}", key, where)) : absent;
  }
  double seconds(const Json& object, const char* key, const std::string& where) const {
    if (!object.contains(key)) return 0;
    const Json& value = object[key];
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
      fail(fmt::format("{} of {} is not a number of seconds", key, where));
    return value.get<double>();
  }

  void read_pools(const Json& pools) {
    if (!pools.is_object()) fail("pools is not an object");
    for (const auto& [name, capacity] : pools.items())
      rates_.pools.push_back({name, positive(capacity, "pool " + printable(name))});
  }
  std::vector<PoolUse> pool_uses(const Json& row, const char* key, const std::string& where) const {
    std::vector<PoolUse> uses;
    if (!row.contains(key)) return uses;
    if (!row[key].is_object()) fail(fmt::format("{} of {} is not an object", key, where));
    for (const auto& [name, amount] : row[key].items()) {
      uint32_t pool = 0;
      while (pool < rates_.pools.size() && rates_.pools[pool].name != name) ++pool;
      if (pool == rates_.pools.size())
        fail(fmt::format("{} of {} names the unknown pool {}", key, where, printable(name)));
      uses.push_back({pool, positive(amount, fmt::format("{} of {}", key, where))});
    }
    return uses;
  }
  Sharing sharing(const Json& row, const std::string& where) const {
    return {pool_uses(row, "occupies", where), pool_uses(row, "per_byte", where)};
  }

  void read_drive(const Json& row) {
    known_keys(row, "a drive", {"tier", "read", "write", "mixed"});
    const std::string tier = string(row, "tier", "a drive"), where = "the drive of " + printable(tier);
    for (const char* key : {"read", "write", "mixed"})
      if (!row.contains(key)) fail(fmt::format("{} has no {}", where, key));
    rates_.drives.push_back(
        {tier, rate(row, "read", where, 0), rate(row, "write", where, 0), rate(row, "mixed", where, 0)});
  }

  void read_lane(const Json& row) {
    known_keys(row, "a lane",
               {"lane", "flops_per_second", "bytes_per_second", "overhead_seconds", "occupies", "per_byte"});
    LaneRates lane;
    lane.lane = string(row, "lane", "a lane");
    const std::string where = "lane " + printable(lane.lane);
    for (const LaneRates& other : rates_.lanes)
      if (other.lane == lane.lane) fail(where + " appears twice");
    if (row.contains("flops_per_second")) {
      const Json& flops = row["flops_per_second"];
      known_keys(flops, "flops_per_second of " + where, {"fp32", "bf16", "fp16"});
      lane.flops_fp32 = rate(flops, "fp32", where, kUnlimited);
      lane.flops_bf16 = rate(flops, "bf16", where, kUnlimited);
      lane.flops_fp16 = rate(flops, "fp16", where, kUnlimited);
    }
    lane.bytes_per_second = rate(row, "bytes_per_second", where, kUnlimited);
    lane.overhead_seconds = seconds(row, "overhead_seconds", where);
    lane.sharing = sharing(row, where);
    rates_.lanes.push_back(std::move(lane));
  }

  void read_link(const Json& row) {
    known_keys(row, "a link", {"from", "to", "bytes_per_second", "latency_seconds", "occupies", "per_byte"});
    LinkRates link;
    link.from = string(row, "from", "a link");
    link.to = string(row, "to", "a link");
    const std::string where = fmt::format("the link from {} to {}", printable(link.from), printable(link.to));
    for (const LinkRates& other : rates_.links)
      if (other.from == link.from && other.to == link.to) fail(where + " appears twice");
    link.bytes_per_second = rate(row, "bytes_per_second", where, kUnlimited);
    link.latency_seconds = seconds(row, "latency_seconds", where);
    link.sharing = sharing(row, where);
    rates_.links.push_back(std::move(link));
  }

  const std::string source_;
  MachineRates rates_;
};

}  // namespace

MachineRates parse_machine_rates(const std::string& json, const std::string& source) {
  return Reader(printable(source)).read(json);
}

MachineRates gpu_machine_rates() { return parse_machine_rates(kGpuJson, kGpuMachine); }

MachineRates default_machine_rates() { return parse_machine_rates(kDefaultJson, kDefaultMachine); }

}  // namespace sluice
