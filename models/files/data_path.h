// What a path of a user's data names: a folder of files, or a file that is something else than it should be.
// Callers: readers of data, and options that name data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/file.h"

namespace sluice {

struct DataFiles {
  std::vector<std::string> files;
  std::vector<std::string> left_out;  // in folders: what does not look like data, such as README.md or .git
};

// Returns each path's file, or all files in the folder and in folders within it, in the order of their paths.
// Throws Error(usage) for a folder without a file that could hold data.
DataFiles files_of(const std::vector<std::string>& paths);

// A sentence for a user where files of folders are left out; else empty.
std::string left_out_of_folders(const DataFiles& files);

// A kind of file that is not read as it is.
struct OtherKind {
  std::string name;    // "a gzip file"
  std::string remedy;  // a sentence with the one command that helps
};

// `is_text`: the file should hold text, so that signs of more kinds count, such as UTF-16. Throws Error(io).
std::optional<OtherKind> other_kind_of(const InputFile& file, bool is_text);

}  // namespace sluice
