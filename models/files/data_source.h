// What --data names: files and folders that are read one after the other, or sources that are mixed by
// weights, as in a.jsonl=0.7 b.jsonl=0.3. Callers: verbs that read data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/files/data_path.h"

namespace sluice {

struct DataSource {
  std::string path;                // without the weight; empty: all that was given, without weights
  std::vector<std::string> files;  // folders as their files
  // Millionths, divided by what all weights have in common; 0: none is given.
  uint64_t weight = 0;
};

// A value ends in =WEIGHT, unless a file of the whole name exists. One source of all files where no value
// has a weight, else a source of each. Throws Error(usage) for a weight that is no number from 0.000001 to
// 1e9, where only some have one, and as files_of().
std::vector<DataSource> sources_of(const std::vector<std::string>& values);

bool has_weight(const std::string& value);
bool are_weighted(const std::vector<DataSource>& sources);

// The files of all sources.
std::vector<std::string> files_of(const std::vector<DataSource>& sources);

}  // namespace sluice
