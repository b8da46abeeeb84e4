#include "tools/doctor/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/run/start/budgets.h"
#include "tools/doctor/gpu_checks.h"

namespace sluice {
namespace {

constexpr const char *kHost = "host", *kFiles = "files";
constexpr uint64_t kTooLittle = 96ull << 20;  // to train anything: the program alone takes 66 MiB

// One word of a shell command, whatever characters it has.
std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return printable(out + "'");
}

std::string without_sudo(std::string command) {
  const std::string word = "sudo ";
  for (size_t at; (at = command.find(word)) != std::string::npos;) command.erase(at, word.size());
  return command;
}

// A size as an option of docker.
std::string in_megabytes(uint64_t bytes) { return fmt::format("{}m", bytes >> 20); }

Check check_memory(const DoctorFacts& f) {
  Check c{kHost, "memory"};
  c.text = fmt::format("{} available of {}", format_size(f.memory.available), format_size(f.memory.total));
  if (f.memory.usable() < f.memory.available)
    c.text += fmt::format(", {} of it to this process", format_size(f.memory.usable()));
  if (f.memory.usable() > kTooLittle) return c;
  c.status = CheckStatus::fail;
  c.advice =
      "The program alone takes 66 MiB, so next to nothing is left for training. This lists the processes "
      "that "
      "hold most.";
  c.command = "ps aux --sort=-rss | head";
  return c;
}

Check check_cgroup(const DoctorFacts& f) {
  Check c{kHost, "cgroup"};
  const MemoryLimits& m = f.memory;
  if (m.cgroup_limit == kNoLimit) {
    c.text = "no limit on memory";
    return c;
  }
  c.text = fmt::format("{} of {} used ({})", format_size(m.cgroup_used), format_size(m.cgroup_limit),
                       printable(m.cgroup_file));
  if (m.cgroup_left() >= m.available / 2) return c;
  c.status = CheckStatus::warn;
  c.advice = "Training may use less than half of the memory that is available.";
  const bool version2 = m.cgroup_file.ends_with("memory.max");
  c.command =
      f.system.container
          ? fmt::format("docker update --memory {0} --memory-swap {0} CONTAINER", in_megabytes(m.available))
          : fmt::format("echo {} | sudo tee {}", version2 ? "max" : "-1", quoted(m.cgroup_file));
  return c;
}

Check check_lock(const DoctorFacts& f) {
  Check c{kHost, "memlock"};
  const uint64_t limit = f.memory.lockable;
  if (limit == kNoLimit) {
    c.text = "unlimited";
    return c;
  }
  c.text = fmt::format("{} may be locked (RLIMIT_MEMLOCK)", format_size(limit));
  if (f.locked > limit) {
    c.text += ", which does not bind this user";
    return c;
  }
  if (limit >= f.memory.total) return c;
  c.status = CheckStatus::warn;
  c.advice = "io_uring pins no more than that in advance; transfers of the rest cost more time.";
  c.command = unlock_command(f);
  return c;
}

// Warns of any limit, since it is better to lift it. `words` follow the size of the limit.
Check check_limit(Check c, uint64_t limit, const char* words, const char* advice, const char* command) {
  c.text = "unlimited";
  if (limit == kNoLimit) return c;
  c.status = CheckStatus::warn;
  c.text = format_size(limit) + words;
  c.advice = advice;
  c.command = command;
  return c;
}

Check check_address_space(const DoctorFacts& f) {
  Check c = check_limit(
      {kHost, "addresses"}, f.memory.address_space, " may be mapped (RLIMIT_AS)",
      "Libraries map far more than they use, CUDA most of all; bound memory with --host-mem instead.",
      "ulimit -v unlimited");
  const uint64_t least =
      f.memory.address_space_used + address_space_beside_arenas(std::max(1, f.system.processors));
  if (f.memory.address_space > least) return c;
  c.status = CheckStatus::fail;
  c.advice =
      fmt::format("Threads and libraries take {}, which leaves nothing for training.", format_size(least));
  return c;
}

Check check_file_size(const DoctorFacts& f) {
  return check_limit({kFiles, "file size"}, f.memory.file_size, " a file (RLIMIT_FSIZE)",
                     "Checkpoints, exports and the files of the nvme tier are refused where they are larger.",
                     "ulimit -f unlimited");
}

Check check_huge_pages(const DoctorFacts& f) {
  Check c{kHost, "huge pages"};
  const std::string& mode = f.system.transparent_huge_pages;
  c.text = "transparent: " + (mode.empty() ? "none in this kernel" : mode);
  uint64_t kept = 0;
  for (const HugePagePool& pool : f.system.pools) {
    if (pool.pages == 0) continue;
    kept += pool.free_pages * pool.page_bytes;
    c.text += fmt::format(", {} of {} in a pool", pool.pages, format_size(pool.page_bytes));
  }
  if (mode == "never") {
    c.status = CheckStatus::warn;
    c.advice = "Training asks for huge pages; with small pages optimizer and copies are slower.";
    c.command = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
  } else if (kept > f.memory.total / 10) {
    c.status = CheckStatus::warn;
    c.advice =
        fmt::format("The pools keep {} from training, which uses transparent ones.", format_size(kept));
    c.command = "echo 0 | sudo tee /sys/kernel/mm/hugepages/hugepages-*/nr_hugepages";
  }
  return c;
}

Check check_nodes(const DoctorFacts& f) {
  Check c{kHost, "NUMA"};
  const std::vector<NumaNode>& nodes = f.system.nodes;
  if (nodes.size() < 2) {
    c.text = "one node";
    return c;
  }
  c.text = fmt::format("{} nodes", nodes.size());
  if (!f.cuda.status.available) {
    for (const NumaNode& node : nodes)
      c.text += fmt::format(", node {}: {}", node.id, format_size(node.memory_bytes));
    return c;
  }
  const auto own =
      std::find_if(nodes.begin(), nodes.end(), [&](const NumaNode& n) { return n.id == f.gpu_node; });
  if (own == nodes.end()) {
    c.status = CheckStatus::warn;
    c.text += "; it is not known to which one the GPU is attached";
    c.advice = "Memory of another node may be slower to copy from.";
    c.command = "nvidia-smi topo -m";
    return c;
  }
  c.text += fmt::format("; the GPU is at node {}, at distance", own->id);
  for (size_t i = 0; i < nodes.size() && i < own->distances.size(); ++i)
    c.text += fmt::format("{} {} from node {}", i == 0 ? "" : ",", own->distances[i], nodes[i].id);
  if (own->allowed) return c;
  c.status = CheckStatus::warn;
  c.advice =
      "This process is not allowed memory of the GPU's node, so copies cross the link between sockets.";
  c.command = fmt::format("numactl --cpunodebind={0} --membind={0} sluice train ...", own->id);
  return c;
}

Check check_processors(const DoctorFacts& f) {
  Check c{kHost, "processors"};
  c.text = fmt::format("{}", f.system.processors);
  const auto quota = f.system.processor_quota;
  if (!quota) return c;
  c.text += fmt::format(", of which the cgroup grants {:g} at a time", *quota);
  if (*quota > f.system.processors - 0.5) return c;
  c.status = CheckStatus::warn;
  const int threads = std::max(1, static_cast<int>(*quota));
  c.advice = "More threads than that are stopped for a part of the time.";
  c.command = f.system.container ? fmt::format("docker update --cpus {} CONTAINER", f.system.processors)
                                 : fmt::format("sluice train --threads {} ...", threads);
  return c;
}

// The back end that `auto` takes.
const IoBackend& first_that_works(const DoctorFacts& f) {
  const auto first = std::find_if(f.io.begin(), f.io.end(),
                                  [](const IoFacts& io) { return io.status.obstacle == IoObstacle::none; });
  return first == f.io.end() ? **std::rbegin(kIoBackends) : *first->backend;
}

// Whether `auto` prefers one back end to another.
bool is_before(const IoBackend& a, const IoBackend& b) {
  const auto place = [](const IoBackend& x) {
    return std::find(std::begin(kIoBackends), std::end(kIoBackends), &x);
  };
  return place(a) < place(b);
}

Check check_io(const DoctorFacts& f, const IoFacts& io) {
  Check c{kFiles, io.backend->title};
  c.text = fmt::format("works (Linux {})", printable(f.system.kernel));
  if (io.status.obstacle == IoObstacle::none) return c;
  const IoBackend& instead = first_that_works(f);
  c.text = io.status.reason;
  if (is_before(instead, *io.backend)) return c;  // a better one works
  c.status = CheckStatus::warn;
  c.advice = fmt::format("{} reads and writes instead, which takes more processor time.", instead.title);
  c.command = io.status.command;
  if (io.status.obstacle == IoObstacle::seccomp)
    c.command = "docker run --security-opt seccomp=unconfined ...";
  if (io.status.obstacle == IoObstacle::memory) c.command = unlock_command(f);
  if (c.command.empty()) c.command = fmt::format("sluice train --io {} ...", instead.name);
  return c;
}

std::string directory_command(const DirectoryFacts& d) {
  if (!d.exists) return "mkdir -p " + quoted(d.path);
  if (!d.probe.directory) return "ls -ld " + quoted(d.path);
  if (!d.probe.memory && d.file_system && d.file_system->read_only)
    return "sudo mount -o remount,rw " + quoted(d.file_system->mount_point);
  if (!d.probe.memory && !d.probe.writable) return "sudo chown $(id -u) " + quoted(d.path);
  return "lsblk -o NAME,FSTYPE,FSAVAIL,MOUNTPOINT  # shows the drives";
}

Check check_directory(const DirectoryFacts& d) {
  Check c{kFiles, "nvme"};
  if (!d.probe.reason.empty()) {
    c.status = CheckStatus::fail;
    c.text = d.probe.reason;
    c.advice = d.probe.remedy;
    c.command = directory_command(d);
    return c;
  }
  c.text = fmt::format("{}: {} free", printable(d.path), format_size(d.probe.free_bytes));
  if (d.file_system)
    c.text += fmt::format(", {} on {}", printable(d.file_system->type), printable(d.file_system->source));
  c.text += fmt::format(", O_DIRECT aligned to {}", d.probe.alignment);
  if (d.probe.free_bytes > kTooLittle) return c;
  c.status = CheckStatus::fail;
  c.advice = "That is too little to train anything: free some space there, or give another directory.";
  c.command = "du -xh --max-depth=2 " + quoted(d.path) + " | sort -h | tail";
  return c;
}

}  // namespace

const char* status_name(CheckStatus status) {
  constexpr const char* kNames[] = {"ok", "warn", "FAIL"};
  return kNames[static_cast<int>(status)];
}

std::vector<Check> judge(const DoctorFacts& facts) {
  std::vector<Check> checks = judge_gpu(facts);
  for (const auto check : {check_memory, check_cgroup, check_lock, check_address_space, check_huge_pages,
                           check_nodes, check_processors})
    checks.push_back(check(facts));
  checks.push_back(check_file_size(facts));
  for (const IoFacts& io : facts.io) checks.push_back(check_io(facts, io));
  for (const DirectoryFacts& directory : facts.directories) checks.push_back(check_directory(directory));
  if (facts.root)
    for (Check& c : checks) c.command = without_sudo(c.command);
  return checks;
}

bool ready(const std::vector<Check>& checks) {
  return std::none_of(checks.begin(), checks.end(),
                      [](const Check& c) { return c.status == CheckStatus::fail; });
}

}  // namespace sluice
