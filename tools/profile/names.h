// What the names of buffers and instructions mean, in the words of docs/program.md. That document is built
// into the command, so there is no second list. Any thread.
#pragma once

#include <string>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

struct NameMeaning {
  std::string name, meaning;  // "s.GROUP.SHARD", "optimizer state of a shard"
};

// Names of instructions, then names of the buffers that `program` has.
std::vector<NameMeaning> instruction_names();
std::vector<NameMeaning> buffer_names(const Program& program);

// Whether the buffer name begins with the same word as `name`, such as "s" of "s.h.2.0".
bool has_form(const std::string& buffer, const std::string& name);

}  // namespace sluice
