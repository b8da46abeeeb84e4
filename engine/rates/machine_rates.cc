#include "engine/rates/machine_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"

namespace sluice {

namespace {

using Json = nlohmann::json;

constexpr uint32_t kRanksMax = 1 << 20;
// Outside of these limits, times of a step leave the range of a double.
constexpr double kLeast = 1e-18, kMost = 1e30, kSecondsMost = 1e9;
constexpr double kTierBytesLeast = 1 << 20;
constexpr size_t kTextMost = 1000;  // characters

class Reader {
 public:
  explicit Reader(std::string source) : source_(std::move(source)) {}

  MachineRates read(const std::string& text) {
    const Json root = parse(text);
    known_keys(root, "the file",
               {"format", "name", "source", "gpu", "memory", "pools", "drives", "lanes", "links", "network",
                "matmul_algorithms"});
    if (string(root, "format", "the file") != "sluice-machine-1") fail("its format is not sluice-machine-1");
    rates_.name = string(root, "name", "the file");
    rates_.source = optional_text(root, "source");
    rates_.gpu = optional_text(root, "gpu");
    if (root.contains("memory")) read_memory(root["memory"]);
    if (root.contains("pools")) read_pools(root["pools"]);
    for (const Json& row : rows(root, "drives")) read_drive(row);
    for (const Json& row : rows(root, "lanes")) read_lane(row);
    for (const Json& row : rows(root, "links")) read_link(row);
    for (const Json& row : rows(root, "network")) read_level(row);
    if (root.contains("matmul_algorithms")) {
      known_keys(root["matmul_algorithms"], "matmul_algorithms",
                 {"gpu", "compute_capability", "cublaslt", "products"});
      rates_.matmul_algorithms = root["matmul_algorithms"].dump();
    }
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
    if (!object.contains(key) || !object[key].is_string())
      fail(fmt::format("{} lacks the text `{}`", where, key));
    return object[key].get<std::string>();
  }
  std::string optional_text(const Json& root, const char* key) const {
    const std::string text = root.contains(key) ? string(root, key, "the file") : "";
    if (text.size() > kTextMost) fail(fmt::format("{} is longer than {} characters", key, kTextMost));
    return text;
  }
  Json rows(const Json& root, const char* key) const {
    if (!root.contains(key)) return Json::array();
    if (!root[key].is_array()) fail(fmt::format("{} is not a list", key));
    return root[key];
  }
  double positive(const Json& value, const std::string& what) const {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0)
      fail(what + " is not a positive number");
    if (value.get<double>() < kLeast || value.get<double>() > kMost)
      fail(fmt::format("{} is not between {:g} and {:g}", what, kLeast, kMost));
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
    if (value.get<double>() > kSecondsMost)
      fail(fmt::format("{} of {} is more than {:g}", key, where, kSecondsMost));
    return value.get<double>();
  }

  std::optional<uint64_t> bytes(const Json& memory, const char* tier) const {
    if (!memory.contains(tier)) return std::nullopt;
    const std::string what = fmt::format("{} of memory", tier);
    const double value = positive(memory[tier], what);
    if (value < kTierBytesLeast || value > kTierBytesMost || value != std::floor(value))
      fail(fmt::format("{} is not a whole number of bytes between {:.0f} and {:g}", what, kTierBytesLeast,
                       kTierBytesMost));
    return static_cast<uint64_t>(value);
  }
  void read_memory(const Json& memory) {
    known_keys(memory, "memory", {"device", "host", "nvme"});
    const std::optional<uint64_t> host = bytes(memory, "host");
    if (!host) fail("memory has no host");
    rates_.memory = {bytes(memory, "device"), *host, bytes(memory, "nvme")};
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
    known_keys(row, "a drive", {"tier", "read", "write", "mixed", "directory"});
    const std::string tier = string(row, "tier", "a drive"), where = "the drive of " + printable(tier);
    for (const char* key : {"read", "write", "mixed"})
      if (!row.contains(key)) fail(fmt::format("{} has no {}", where, key));
    const std::string directory = row.contains("directory") ? string(row, "directory", where) : "";
    for (const DriveRates& other : rates_.drives)
      if (!directory.empty() && other.tier == tier && other.directory == directory)
        fail(fmt::format("{} in {} appears twice", where, printable(directory)));
    rates_.drives.push_back({tier, rate(row, "read", where, 0), rate(row, "write", where, 0),
                             rate(row, "mixed", where, 0), directory});
  }

  PrecisionRates precision_rates(const Json& row, const char* key, const std::string& where) const {
    PrecisionRates rates;
    if (!row.contains(key)) return rates;
    const Json& values = row[key];
    known_keys(values, fmt::format("{} of {}", key, where), {"fp32", "bf16", "fp16"});
    rates.fp32 = rate(values, "fp32", where, kUnlimited);
    rates.bf16 = rate(values, "bf16", where, kUnlimited);
    rates.fp16 = rate(values, "fp16", where, kUnlimited);
    return rates;
  }
  void read_ops(const Json& ops, const std::string& lane, std::vector<OpRates>& out) const {
    if (!ops.is_object()) fail("ops of " + lane + " is not an object");
    for (const auto& [name, row] : ops.items()) {
      const std::optional<OpKind> kind = op_kind(name);
      if (!kind) fail(fmt::format("ops of {} names {}, which is no op", lane, printable(name)));
      const std::string where = fmt::format("{} of {}", name, lane);
      known_keys(row, where, {"flops_per_second", "bytes_per_second"});
      out.push_back({*kind, precision_rates(row, "flops_per_second", where),
                     precision_rates(row, "bytes_per_second", where)});
    }
  }

  void read_lane(const Json& row) {
    known_keys(row, "a lane",
               {"lane", "tier", "flops_per_second", "bytes_per_second", "ops", "overhead_seconds", "occupies",
                "per_byte"});
    LaneRates lane;
    lane.lane = string(row, "lane", "a lane");
    if (row.contains("tier")) lane.tier = string(row, "tier", "a lane");
    const std::string in = lane.tier.empty() ? "" : " in tier " + printable(lane.tier);
    const std::string where = "lane " + printable(lane.lane) + in;
    for (const LaneRates& other : rates_.lanes)
      if (other.lane == lane.lane && other.tier == lane.tier) fail(where + " appears twice");
    lane.flops = precision_rates(row, "flops_per_second", where);
    lane.bytes_per_second = rate(row, "bytes_per_second", where, kUnlimited);
    lane.overhead_seconds = seconds(row, "overhead_seconds", where);
    if (row.contains("ops")) read_ops(row["ops"], where, lane.ops);
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

  void read_level(const Json& row) {
    known_keys(row, "a network level", {"name", "ranks", "bytes_per_second", "latency_seconds"});
    NetworkLevel level;
    level.name = string(row, "name", "a network level");
    const std::string where = "network level " + printable(level.name);
    const uint32_t below = rates_.network.empty() ? 1 : rates_.network.back().ranks;
    const Json ranks = row.value("ranks", Json());
    if (!ranks.is_number_unsigned() || ranks.get<uint64_t>() <= below || ranks.get<uint64_t>() > kRanksMax ||
        ranks.get<uint64_t>() % below != 0)
      fail(fmt::format("ranks of {} must be a multiple of {} that is larger than it and at most {}", where,
                       below, kRanksMax));
    level.ranks = ranks.get<uint32_t>();
    if (!row.contains("bytes_per_second")) fail(where + " has no bytes_per_second");
    level.bytes_per_second = rate(row, "bytes_per_second", where, kUnlimited);
    level.latency_seconds = seconds(row, "latency_seconds", where);
    for (const NetworkLevel& other : rates_.network)
      if (other.name == level.name) fail(where + " appears twice");
    rates_.network.push_back(std::move(level));
  }

  const std::string source_;
  MachineRates rates_;
};

}  // namespace

const LaneRates* find_lane(const MachineRates& rates, std::string_view lane, std::string_view tier) {
  const LaneRates* found = nullptr;
  for (const LaneRates& row : rates.lanes)
    if (row.lane == lane && (row.tier == tier || (row.tier.empty() && !found))) found = &row;
  return found;
}

bool describes_gpu(const MachineRates& rates, std::string_view name) {
  const auto in_word = [&](size_t at) {
    return at < name.size() && std::isalnum(static_cast<unsigned char>(name[at])) != 0;
  };
  if (rates.gpu.empty()) return false;
  for (size_t at = name.find(rates.gpu); at != std::string_view::npos; at = name.find(rates.gpu, at + 1))
    if (!(at > 0 && in_word(at - 1)) && !in_word(at + rates.gpu.size())) return true;
  return false;
}

void share_machine(MachineRates& rates, uint32_t ranks) {
  const double share = (rates.network.empty() ? 1.0 : rates.network.front().ranks) / ranks;
  for (PoolRate& pool : rates.pools) pool.capacity *= share;
  for (DriveRates& d : rates.drives) d.read *= share, d.write *= share, d.mixed *= share;
  if (!rates.memory) return;
  const auto scaled = [&](uint64_t bytes) {  // with fewer ranks than described, the part may be far more
    return static_cast<uint64_t>(std::min(static_cast<double>(bytes) * share, kTierBytesMost));
  };
  rates.memory->host = scaled(rates.memory->host);
  if (rates.memory->nvme) rates.memory->nvme = scaled(*rates.memory->nvme);
}

MachineRates parse_machine_rates(const std::string& json, const std::string& source) {
  return Reader(printable(source)).read(json);
}

}  // namespace sluice
