#include "tools/benchmarks/gpu/part_file.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"

namespace sluice {

using nlohmann::ordered_json;

PartFile::PartFile(std::string directory, std::string part)
    : directory_(std::move(directory)),
      part_(std::move(part)),
      path_(directory_ + "/" + part_ + ".json"),
      json_(std::make_unique<ordered_json>(ordered_json::object())) {
  if (!std::filesystem::exists(path_)) return;
  *json_ = ordered_json::parse(read_text_file(path_, 64 << 20), nullptr, false);
  if (!json_->is_object()) *json_ = ordered_json::object();
  const ordered_json none, machine = json_->value("machine", none), rows = json_->value("rows", none);
  const auto is_object = [](const ordered_json& value) { return value.is_object(); };
  if (json_->value("part", none) != part_ || !machine.is_object() || !rows.is_object() ||
      !std::all_of(rows.begin(), rows.end(), is_object))
    throw Error(ExitCode::malformed_file, printable(path_) + " is not the file of the part " + part_ + ".",
                "Move it away, and measure the part again.");
}

PartFile::~PartFile() = default;

ordered_json PartFile::row(const std::string& name) const {
  const ordered_json none = ordered_json::object();
  return json_->contains("rows") ? (*json_)["rows"].value(name, none) : none;
}

bool PartFile::has(const std::string& row) const {
  return this->row(row).value("state", ordered_json()) == "measured";
}

void PartFile::settle(const ordered_json& machine, const std::string& commit) {
  if (json_->contains("rows")) {
    const ordered_json& known = (*json_)["machine"];
    const auto same = [&](const char* key) {
      return known.value(key, ordered_json()) == machine.value(key, ordered_json());
    };
    if (same("gpu") && same("device") && same("rehearsal") && (*json_)["commit"] == commit) return;
    throw Error(ExitCode::usage, printable(path_) + " has rows of another GPU or build.",
                "Move it away to measure all of them here.");
  }
  *json_ = {{"part", part_},
            {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
            {"commit", commit},
            {"machine", machine},
            {"rows", ordered_json::object()}};
  write();
}

void PartFile::put(const std::string& row, const ordered_json& values) {
  (*json_)["rows"][row] = values;
  write();
}

void PartFile::write() const {
  std::filesystem::create_directories(directory_);
  const std::string next = path_ + ".next";
  std::ofstream file(next, std::ios::binary);
  file << json_->dump(2) << "\n";
  file.close();
  if (file && std::rename(next.c_str(), path_.c_str()) == 0) return;
  const std::string reason = std::strerror(errno);
  std::remove(next.c_str());
  throw Error(ExitCode::io, "Cannot write " + printable(path_) + ": " + reason + ".",
              "Free some space there, or name another directory.");
}

}  // namespace sluice
