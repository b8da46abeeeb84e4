// The small text files in which the kernel tells limits and facts, below a `root`: "/", or in tests a
// directory with such files. Used by memory_limits.cc and system_facts.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// The file's text; empty where it cannot be read.
std::string file_text(const std::string& path);

// The rest of the first line that begins with `key`, without white space after `key`; none: no such line.
std::optional<std::string_view> text_field(std::string_view text, std::string_view key);

// The number at the start of text_field(), or at the start of the file. None: no number stands there.
std::optional<uint64_t> number_field(std::string_view text, std::string_view key);
std::optional<uint64_t> number_in(const std::string& path);

// A directory of the cgroup file system.
struct CgroupLevel {
  std::string path;
  bool version2 = true;
};

// The directories that may have the files of this process's cgroup for `controller` ("memory", "cpu") and of
// the levels above it, nearest first. Knows both cgroup versions, also side by side ("hybrid"). The kernel
// may tell a path of the host that does not exist in a container. Then only the mount's own directory has
// files.
std::vector<CgroupLevel> cgroup_levels(const std::string& root, const std::string& controller);

}  // namespace sluice
