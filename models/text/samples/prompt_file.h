// Prompts of a file. Callers: the verb generate, and runs that write samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/text/records/record_file.h"
#include "models/text/samples/sample_maker.h"

namespace sluice {

// The tokens of each line: {"prompt": TEXT}, or messages as record.h has them. Blank lines are left out. The
// maker notes what of the lines is not read. `limit`: of a line's length. Throws Error(malformed_file,
// infeasible) with the line's number.
std::vector<std::vector<uint32_t>> read_prompts(const std::string& path, SampleMaker& maker,
                                                const RecordLimit& limit = {});

}  // namespace sluice
