// What the facts of a machine mean for training: one line each, and what mends it. Pure functions of the
// facts.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/facts.h"

namespace sluice {

enum class CheckStatus : uint8_t {
  ok,
  warn,  // training works, slower or smaller than it could
  fail,  // training with the same --device and --nvme-dir would be refused
};
const char* status_name(CheckStatus status);  // "ok", "warn", "FAIL"

struct Check {
  const char* group;
  const char* name;
  CheckStatus status = CheckStatus::ok;
  std::string text;     // the fact
  std::string advice;   // a sentence: what follows from it; empty if ok
  std::string command;  // for a shell: mends it, or shows what stands in the way; empty if ok
};

std::vector<Check> judge(const DoctorFacts& facts);

// Nothing fails.
bool ready(const std::vector<Check>& checks);

}  // namespace sluice
