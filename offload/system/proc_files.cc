#include "offload/system/proc_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace sluice {
namespace {

// `path` below `mount` and every level above it.
void add_levels(const std::string& mount, std::string path, bool version2, std::vector<CgroupLevel>& out) {
  for (;;) {
    out.push_back({mount + path, version2});
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<std::string_view> text_field(std::string_view text, std::string_view key) {
  for (size_t line = 0; line < text.size();) {
    const size_t end = std::min(text.find('\n', line), text.size());
    if (text.substr(line, key.size()) == key) {
      const size_t begin = std::min(text.find_first_not_of(" \t", line + key.size()), end);
      return text.substr(begin, end - begin);
    }
    line = end + 1;
  }
  return std::nullopt;
}

std::optional<uint64_t> number_field(std::string_view text, std::string_view key) {
  const auto found = text_field(text, key);
  uint64_t value = 0;
  if (found && std::from_chars(found->data(), found->data() + found->size(), value).ec == std::errc{})
    return value;
  return std::nullopt;
}

std::optional<uint64_t> number_in(const std::string& path) { return number_field(file_text(path), ""); }

std::vector<CgroupLevel> cgroup_levels(const std::string& root, const std::string& controller) {
  std::vector<CgroupLevel> out;
  std::istringstream lines(file_text(root + "proc/self/cgroup"));
  const std::string mount = root + "sys/fs/cgroup";
  for (std::string line; std::getline(lines, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    if (!path.empty() && path.front() != '/') continue;
    if (controllers == ",,") {
      add_levels(mount, path, true, out);
      add_levels(mount + "/unified", path, true, out);
    } else if (controllers.find("," + controller + ",") != std::string::npos) {
      add_levels(mount + "/" + controller, path, false, out);
    }
  }
  return out;
}

}  // namespace sluice
