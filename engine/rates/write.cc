#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/rates/machine_rates.h"

namespace sluice {

namespace {

// Writes nothing where there is no limit.
void put(nlohmann::ordered_json& object, const char* key, double rate) {
  if (std::isfinite(rate)) object[key] = rate;
}

void put(nlohmann::ordered_json& object, const char* key, const PrecisionRates& rates) {
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  put(values, "fp32", rates.fp32);
  put(values, "bf16", rates.bf16);
  put(values, "fp16", rates.fp16);
  if (!values.empty()) object[key] = values;
}

void put(nlohmann::ordered_json& object, const MachineRates& rates, const Sharing& sharing) {
  for (const PoolUse& use : sharing.occupies) object["occupies"][rates.pools[use.pool].name] = use.amount;
  for (const PoolUse& use : sharing.per_byte) object["per_byte"][rates.pools[use.pool].name] = use.amount;
}

nlohmann::ordered_json json_of(const MachineRates& rates, const LaneRates& lane) {
  nlohmann::ordered_json row{{"lane", lane.lane}};
  if (!lane.tier.empty()) row["tier"] = lane.tier;
  put(row, "flops_per_second", lane.flops);
  put(row, "bytes_per_second", lane.bytes_per_second);
  if (lane.overhead_seconds > 0) row["overhead_seconds"] = lane.overhead_seconds;
  for (const OpRates& op : lane.ops) {
    nlohmann::ordered_json& values = row["ops"][op_rule(op.kind).name] = nlohmann::ordered_json::object();
    put(values, "flops_per_second", op.flops);
    put(values, "bytes_per_second", op.bytes);
  }
  put(row, rates, lane.sharing);
  return row;
}

nlohmann::ordered_json json_of(const MachineRates& rates, const LinkRates& link) {
  nlohmann::ordered_json row{{"from", link.from}, {"to", link.to}};
  put(row, "bytes_per_second", link.bytes_per_second);
  if (link.latency_seconds > 0) row["latency_seconds"] = link.latency_seconds;
  put(row, rates, link.sharing);
  return row;
}

}  // namespace

std::string machine_rates_json(const MachineRates& rates) {
  nlohmann::ordered_json out{{"format", "sluice-machine-1"}, {"name", rates.name}};
  if (!rates.source.empty()) out["source"] = rates.source;
  if (!rates.gpu.empty()) out["gpu"] = rates.gpu;
  if (rates.memory) {
    nlohmann::ordered_json& memory = out["memory"] = nlohmann::ordered_json::object();
    if (rates.memory->device) memory["device"] = *rates.memory->device;
    memory["host"] = rates.memory->host;
    if (rates.memory->nvme) memory["nvme"] = *rates.memory->nvme;
  }
  for (const PoolRate& pool : rates.pools) out["pools"][pool.name] = pool.capacity;
  for (const DriveRates& d : rates.drives) {
    nlohmann::ordered_json row{{"tier", d.tier}, {"read", d.read}, {"write", d.write}, {"mixed", d.mixed}};
    if (!d.directory.empty()) row["directory"] = d.directory;
    out["drives"].push_back(row);
  }
  for (const LaneRates& lane : rates.lanes) out["lanes"].push_back(json_of(rates, lane));
  for (const LinkRates& link : rates.links) out["links"].push_back(json_of(rates, link));
  for (const NetworkLevel& level : rates.network) {
    nlohmann::ordered_json row{
        {"name", level.name}, {"ranks", level.ranks}, {"bytes_per_second", level.bytes_per_second}};
    if (level.latency_seconds > 0) row["latency_seconds"] = level.latency_seconds;
    out["network"].push_back(row);
  }
  if (!rates.matmul_algorithms.empty())
    out["matmul_algorithms"] = nlohmann::ordered_json::parse(rates.matmul_algorithms);
  // Directories may have names that are no UTF-8.
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sluice
