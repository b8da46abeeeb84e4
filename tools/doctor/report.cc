#include "tools/doctor/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "gpu/cuda/nccl.h"
#include "tools/command/wrap.h"
#include "tools/doctor/gpu_checks.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

std::string counted(long count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string verdict(const DoctorFacts& facts, const std::vector<Check>& checks) {
  const auto count = [&](CheckStatus status) {
    return std::count_if(checks.begin(), checks.end(), [&](const Check& c) { return c.status == status; });
  };
  const long failures = count(CheckStatus::fail), warnings = count(CheckStatus::warn);
  if (failures > 0)
    return fmt::format("not ready: {}; training with these options would be refused\n",
                       counted(failures, "failure"));
  const std::string device =
      facts.cuda.status.available ? fmt::format("cuda:{}", facts.ordinal) : std::string("the cpu device");
  return fmt::format("ready: training can run on {}{}\n", device,
                     warnings == 0 ? "" : ", with " + counted(warnings, "warning"));
}

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json limit_json(uint64_t limit) {
  return limit == kNoLimit ? ordered_json(nullptr) : ordered_json(limit);
}

// Makes texts from files and from the system, which may hold any bytes, printable.
ordered_json text_json(const std::string& text) { return printable(text); }

// Sets `name` to the value. If that is not known, sets `name` to null and `name`_unknown to the reason.
template <class T, class Function>
void set_known(ordered_json& out, const std::string& name, const Known<T>& known, Function as_json) {
  out[name] = known.value ? as_json(*known.value) : ordered_json(nullptr);
  if (!known.value) out[name + "_unknown"] = text_json(known.reason);
}

std::string dotted(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

ordered_json cuda_json(const DoctorFacts& facts) {
  const CudaFacts& cuda = facts.cuda;
  const CudaStatus& status = cuda.status;
  ordered_json out;
  out["built"] = status.built;
  out["available"] = status.available;
  out["reason"] = text_json(status.reason);
  out["remedy"] = text_json(status.remedy);
  out["ordinal"] = facts.ordinal;
  out["name"] = status.name.empty() ? ordered_json(nullptr) : text_json(status.name);
  if (!status.available) return out;
  out["compute_capability"] = fmt::format("{}.{}", status.capability_major, status.capability_minor);
  out["multiprocessors"] = status.multiprocessors;
  out["bf16"] = status.bf16;
  out["pci_bus_id"] = text_json(cuda.pci_bus_id);
  out["numa_node"] = or_null(facts.gpu_node);
  set_known(out, "driver", cuda.driver, text_json);
  out["driver_cuda"] = dotted(status.driver_version);
  out["build_cuda"] = dotted(cuda.toolkit_version);
  set_known(out, "memory", cuda.memory, [](const NvmlMemory& m) {
    return ordered_json{{"total", m.total}, {"used", m.used}, {"free", m.free}};
  });
  set_known(out, "link", cuda.link, [](const NvmlLink& l) {
    return ordered_json{{"generation", l.generation},
                        {"generation_max", l.generation_max},
                        {"width", l.width},
                        {"width_max", l.width_max},
                        {"bytes_per_second", pcie_bytes_per_second(l.generation, l.width)}};
  });
  set_known(out, "copies", cuda.copies, [](const CudaCopies& c) {
    return ordered_json{{"bytes", c.bytes},
                        {"times", c.times},
                        {"host_to_device", c.host_to_device},
                        {"device_to_host", c.device_to_host},
                        {"both", c.both}};
  });
  set_known(out, "pinning", cuda.pinning, [](const CudaPinning& p) {
    return ordered_json{
        {"asked", p.asked}, {"pinned", p.pinned}, {"seconds", p.seconds}, {"reason", text_json(p.reason)}};
  });
  set_known(out, "cublas", facts.cuda.cublas, text_json);
  set_known(out, "nccl", facts.nccl, [](int version) { return text_json(nccl_version_text(version)); });
  return out;
}

ordered_json nodes_json(const SystemFacts& system) {
  ordered_json out = ordered_json::array();
  for (const NumaNode& n : system.nodes)
    out.push_back(
        {{"id", n.id}, {"memory", n.memory_bytes}, {"allowed", n.allowed}, {"distances", n.distances}});
  return out;
}

ordered_json huge_pages_json(const SystemFacts& system) {
  ordered_json pools = ordered_json::array();
  for (const HugePagePool& p : system.pools)
    pools.push_back({{"page_bytes", p.page_bytes}, {"pages", p.pages}, {"free_pages", p.free_pages}});
  const std::string& mode = system.transparent_huge_pages;
  return {{"transparent", mode.empty() ? ordered_json(nullptr) : text_json(mode)}, {"pools", pools}};
}

ordered_json directory_json(const DirectoryFacts& d) {
  ordered_json out{{"path", text_json(d.path)},           {"usable", d.probe.reason.empty()},
                   {"reason", text_json(d.probe.reason)}, {"exists", d.exists},
                   {"writable", d.probe.writable},        {"tmpfs", d.probe.memory},
                   {"direct_io", d.probe.direct_io},      {"alignment", d.probe.alignment},
                   {"free", d.probe.free_bytes}};
  for (const auto& [name, field] :
       {std::pair{"file_system", &FileSystem::type}, std::pair{"source", &FileSystem::source},
        std::pair{"mount_point", &FileSystem::mount_point}})
    out[name] = d.file_system ? text_json((*d.file_system).*field) : ordered_json(nullptr);
  return out;
}

const char* obstacle_name(IoObstacle obstacle) {
  switch (obstacle) {
    case IoObstacle::none:
      return "none";
    case IoObstacle::seccomp:
      return "seccomp";
    case IoObstacle::setting:
      return "setting";
    case IoObstacle::kernel:
      return "kernel";
    case IoObstacle::memory:
      return "memory";
    case IoObstacle::other:
      return "other";
  }
  check_failed("obstacle", __FILE__, __LINE__, "without a name");
}

}  // namespace

std::string doctor_text(const DoctorFacts& facts, const std::vector<Check>& checks) {
  constexpr size_t kIndent = 20;  // columns: more than the longest name has
  std::string out, group;
  for (const Check& c : checks) {
    if (group != c.group) out += fmt::format("{}{}\n", group.empty() ? "" : "\n", c.group);
    group = c.group;
    append_wrapped(out, fmt::format("  {:<5} {}", status_name(c.status), c.name), c.text, kIndent);
    if (c.status == CheckStatus::ok) continue;
    append_wrapped(out, "", c.advice, kIndent);
    out += fmt::format("{:{}}$ {}\n", "", kIndent, c.command);  // in one line, to be copied
  }
  return out + "\n" + verdict(facts, checks);
}

std::string doctor_json(const DoctorFacts& facts, const std::vector<Check>& checks) {
  const MemoryLimits& memory = facts.memory;
  const SystemFacts& system = facts.system;
  ordered_json out;
  out["ready"] = ready(checks);
  out["cuda"] = cuda_json(facts);
  out["memory"] = {{"total", memory.total}, {"available", memory.available}, {"usable", memory.usable()}};
  out["cgroup"] = {{"memory_limit", limit_json(memory.cgroup_limit)},
                   {"memory_used", memory.cgroup_used},
                   {"memory_file", text_json(memory.cgroup_file)},
                   {"processors", or_null(system.processor_quota)},
                   {"processors_file", text_json(system.processor_quota_file)}};
  out["memlock"] = {{"limit", limit_json(memory.lockable)},
                    {"hard_limit", limit_json(memory.lockable_hard)},
                    {"asked", facts.lock_asked},
                    {"locked", facts.locked}};
  out["address_space"] = limit_json(memory.address_space);
  out["huge_pages"] = huge_pages_json(system);
  out["numa_nodes"] = nodes_json(system);
  out["processors"] = system.processors;
  out["kernel"] = text_json(system.kernel);
  out["container"] = system.container;
  for (const auto& [backend, status] : facts.io)
    out[backend->title] = {{"available", status.obstacle == IoObstacle::none},
                           {"obstacle", obstacle_name(status.obstacle)},
                           {"reason", text_json(status.reason)}};
  out["nvme_dirs"] = ordered_json::array();
  for (const DirectoryFacts& directory : facts.directories)
    out["nvme_dirs"].push_back(directory_json(directory));
  out["checks"] = ordered_json::array();
  for (const Check& c : checks)
    out["checks"].push_back({{"group", c.group},
                             {"name", c.name},
                             {"status", status_name(c.status)},
                             {"text", c.text},
                             {"advice", c.advice},
                             {"command", c.command}});
  return out.dump(2) + "\n";
}

}  // namespace sluice
