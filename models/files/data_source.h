// What --data names: files and folders that are read one after the other, or sources that are mixed by
// weights, as in a.jsonl=0.7 b.jsonl=0.3. Callers: verbs that read data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/files/data_path.h"

namespace sluice {

struct DataSource {
  std::string path;                // without the weight; empty: one source has all values
  std::vector<std::string> files;  // with the files of folders in their place
  // In millionths, divided by the greatest common divisor of all weights; 0: none is given.
  uint64_t weight = 0;
};

// A value may end in =WEIGHT, which is a part of the name if a file with that whole name exists. If no value
// has a weight, there is one source of all files, else one source for each value. Throws Error(usage) for a
// weight that is no number from 0.000001 to 1e9, if only some values have a weight, and as files_of() does.
std::vector<DataSource> sources_of(const std::vector<std::string>& values);

bool has_weight(const std::string& value);
bool are_weighted(const std::vector<DataSource>& sources);

// The files of all sources.
std::vector<std::string> files_of(const std::vector<DataSource>& sources);

}  // namespace sluice
