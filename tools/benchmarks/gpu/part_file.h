// The file of one part, DIRECTORY/PART.json: the machine, the build, and the values of each row. A part may
// take several calls: what was measured stays, and what failed or was skipped is tried again. A failed row
// may have values too: those that were known when it failed.
//
//   {"part", "date", "commit", "machine": {...}, "rows": {NAME: {"state": "measured" | "failed" | "skipped",
//    "note", ...}}}
//
// Caller: one process at a time.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

class PartFile {
 public:
  // Throws Error(malformed_file) for a file that does not hold this part.
  PartFile(std::string directory, std::string part);
  ~PartFile();
  PartFile(PartFile&&) = default;
  PartFile& operator=(PartFile&&) = default;

  const nlohmann::ordered_json& json() const { return *json_; }  // empty object: nothing was measured yet
  nlohmann::ordered_json row(const std::string& name) const;     // an empty object: there is no such row
  // Whether the row was measured.
  bool has(const std::string& row) const;

  // Sets the machine and build of the rows, and writes a new file. Throws Error(io), and Error(usage) if the
  // file has rows of another GPU or build. Other facts of the machine may change from call to call; the file
  // keeps the first ones.
  void settle(const nlohmann::ordered_json& machine, const std::string& commit);
  // Sets a row and writes the file, in one rename. Throws Error(io).
  void put(const std::string& row, const nlohmann::ordered_json& values);

 private:
  void write() const;

  std::string directory_, part_, path_;
  std::unique_ptr<nlohmann::ordered_json> json_;
};

}  // namespace sluice
