// Judges the facts of a machine: what each means for training, and which command mends it. Pure functions.
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
  std::string advice;   // a sentence: the consequence; empty if ok
  std::string command;  // for a shell: mends it, or shows what is wrong; empty if ok
};

std::vector<Check> judge(const DoctorFacts& facts);

// Whether no check fails.
bool ready(const std::vector<Check>& checks);

}  // namespace sluice
