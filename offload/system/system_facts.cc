#include "offload/system/system_facts.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <sstream>

#include "offload/system/proc_files.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// The names in a directory that begin with `prefix` and a number, in order of number.
std::vector<std::pair<uint64_t, fs::path>> numbered(const std::string& directory, const std::string& prefix) {
  std::vector<std::pair<uint64_t, fs::path>> out;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    uint64_t number = 0;
    if (name.starts_with(prefix) &&
        std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number).ec == std::errc{})
      out.emplace_back(number, entry->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// "0-3,8" as a set.
std::set<int> parse_list(std::string text) {
  constexpr int kMost = 1 << 16;  // far above the number of processors or nodes
  std::set<int> out;
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    int first = 0, last = 0;
    const char* end = word.data() + word.size();
    const auto [rest, error] = std::from_chars(word.data(), end, first);
    if (error != std::errc{}) continue;
    if (rest == end || std::from_chars(rest + 1, end, last).ec != std::errc{}) last = first;
    for (int i = first; i <= std::min(last, kMost); ++i) out.insert(i);
  }
  return out;
}

std::vector<NumaNode> read_nodes(const std::string& root, const std::string& status) {
  const auto allowed_text = text_field(status, "Mems_allowed_list:");
  const std::set<int> allowed = parse_list(std::string(allowed_text.value_or("")));
  std::vector<NumaNode> nodes;
  for (const auto& [id, path] : numbered(root + "sys/devices/system/node", "node")) {
    NumaNode node{static_cast<int>(id)};
    const std::string key = "Node " + std::to_string(id) + " MemTotal:";
    node.memory_bytes = number_field(file_text(path / "meminfo"), key).value_or(0) << 10;  // in kB
    node.allowed = !allowed_text || allowed.contains(node.id);
    std::istringstream distances(file_text(path / "distance"));
    for (int distance = 0; distances >> distance;) node.distances.push_back(distance);
    nodes.push_back(std::move(node));
  }
  return nodes;
}

void read_huge_pages(const std::string& root, SystemFacts& facts) {
  const std::string folder = root + "sys/kernel/mm/";
  const std::string modes = file_text(folder + "transparent_hugepage/enabled");  // "always [madvise] never"
  const size_t begin = modes.find('['), end = modes.find(']', std::min(begin, modes.size()));
  if (end != std::string::npos) facts.transparent_huge_pages = modes.substr(begin + 1, end - begin - 1);
  for (const auto& [kib, path] : numbered(folder + "hugepages", "hugepages-"))
    facts.pools.push_back({kib << 10, number_in(path / "nr_hugepages").value_or(0),
                           number_in(path / "free_hugepages").value_or(0)});
}

// Version 2 has quota and period in one file: "max 100000" (no quota), "200000 100000". Version 1 has a file
// for each; -1 is no quota.
void read_processor_quota(const std::string& root, SystemFacts& facts) {
  for (const CgroupLevel& level : cgroup_levels(root, "cpu")) {
    const std::string file = level.path + (level.version2 ? "/cpu.max" : "/cpu.cfs_quota_us");
    const std::string text = file_text(file);
    const auto quota = number_field(text, "");
    auto period = level.version2 ? number_field(text.substr(std::min(text.find(' '), text.size())), "")
                                 : number_in(level.path + "/cpu.cfs_period_us");
    if (!quota || !period || *period == 0) continue;
    const double processors = static_cast<double>(*quota) / static_cast<double>(*period);
    if (facts.processor_quota && *facts.processor_quota <= processors) continue;
    facts.processor_quota = processors;
    facts.processor_quota_file = file;
  }
}

// Display and 3D controllers are PCI class 3; NVIDIA is vendor 0x10de.
bool has_nvidia_card(const std::string& root) {
  std::error_code error;
  for (fs::directory_iterator card(root + "sys/bus/pci/devices", error), end; !error && card != end;
       card.increment(error))
    if (file_text(card->path() / "vendor").starts_with("0x10de") &&
        file_text(card->path() / "class").starts_with("0x03"))
      return true;
  return false;
}

// The kernel writes blanks, tabs, line ends and backslashes as \ooo.
std::string without_escapes(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, code, 8).ec == std::errc{}) {
      out += static_cast<char>(code);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool lies_in(const std::string& directory, const std::string& mount_point) {
  if (mount_point == "/") return true;
  return directory.starts_with(mount_point) &&
         (directory.size() == mount_point.size() || directory[mount_point.size()] == '/');
}

}  // namespace

SystemFacts system_facts(const std::string& root) {
  SystemFacts facts;
  std::error_code ignored;
  std::istringstream(file_text(root + "proc/sys/kernel/osrelease")) >> facts.kernel;
  facts.container =
      fs::exists(root + ".dockerenv", ignored) || fs::exists(root + "run/.containerenv", ignored);
  const std::string status = file_text(root + "proc/self/status");
  const std::string processors(text_field(status, "Cpus_allowed_list:").value_or(""));
  facts.processors = static_cast<int>(parse_list(processors).size());
  facts.nodes = read_nodes(root, status);
  read_processor_quota(root, facts);
  read_huge_pages(root, facts);
  facts.nvidia_card = has_nvidia_card(root);
  return facts;
}

std::optional<int> numa_node_of_card(const std::string& pci_bus_id, const std::string& root) {
  // The kernel writes -1 where it does not know the node; number_in() returns nothing for that.
  const auto node = number_in(root + "sys/bus/pci/devices/" + pci_bus_id + "/numa_node");
  if (!node) return std::nullopt;
  return static_cast<int>(*node);
}

std::optional<FileSystem> file_system_of(const std::string& directory, const std::string& root) {
  std::optional<FileSystem> found;
  std::istringstream lines(file_text(root + "proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    // id, parent, device, root, mount point, options, optional fields, "-", type, source, options
    std::istringstream words(line.substr(0, line.find(" - ")));
    std::string word, options;
    for (int i = 0; i < 5; ++i) words >> word;
    words >> options;
    const std::string mount_point = without_escapes(word);
    // The longest mount point holds the directory; of equal ones, the last hides those before.
    if (line.find(" - ") == std::string::npos || !lies_in(directory, mount_point) ||
        (found && mount_point.size() < found->mount_point.size()))
      continue;
    std::istringstream rest(line.substr(line.find(" - ") + 3));
    std::string type, source;
    rest >> type >> source;
    found =
        FileSystem{type, without_escapes(source), mount_point, options == "ro" || options.starts_with("ro,")};
  }
  return found;
}

uint64_t lockable_bytes(uint64_t most) {
  void* memory = mmap(nullptr, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  uint64_t bytes = most;
  while (bytes > 0 && mlock2(memory, bytes, 0) != 0) bytes /= 2;  // not mlock(), which sanitizers disable
  munmap(memory, most);                                           // unlocks
  return bytes;
}

}  // namespace sluice
