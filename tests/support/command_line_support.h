// Parses command lines as users type them, and returns the refusals of wrong ones.
#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tools/command/command_line.h"

namespace sluice {

inline ParsedCommand parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"sluice"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return parse_command_line(static_cast<int>(argv.size()), argv.data());
}

// Words of one line; enough for arguments without blanks.
inline std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

inline ParsedCommand parse(const std::string& line) { return parse(words(line)); }
inline Options options_of(const std::string& line) { return parse(line).options; }

// The sentence of the refusal; checks that it is a usage error with a remedy.
inline std::string refusal(const std::vector<std::string>& arguments) {
  try {
    parse(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage) << error.what();
    EXPECT_FALSE(error.remedy().empty()) << error.what();
    return error.what();
  }
  return "accepted";
}
inline std::string refusal(const std::string& line) { return refusal(words(line)); }

inline std::string remedy(const std::string& line) {
  try {
    parse(line);
  } catch (const Error& error) {
    return error.remedy();
  }
  return "accepted";
}

inline const std::string kTrain = "train --model gpt2 --data a.bin --out run ";

}  // namespace sluice
