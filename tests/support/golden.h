// Golden files: texts in tests/golden that the result of a test must equal. `PROGRAM --update` writes them
// anew; look at the difference before you commit it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace sluice {

// Set once by main.
inline bool& updates_golden_files() {
  static bool updates = false;
  return updates;
}

inline std::vector<std::string> golden_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The first difference with some lines around it, as in a unified diff.
inline std::string first_difference(const std::string& wanted, const std::string& found) {
  constexpr size_t kBefore = 3, kAfter = 6;
  const std::vector<std::string> a = golden_lines(wanted), b = golden_lines(found);
  size_t at = 0;
  while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
  std::string text = fmt::format("@@ line {} ({} lines wanted, {} found) @@\n", at + 1, a.size(), b.size());
  for (size_t k = at < kBefore ? 0 : at - kBefore; k < at; ++k) text += "  " + a[k] + "\n";
  for (size_t k = at; k < std::min(a.size(), at + kAfter); ++k) text += "- " + a[k] + "\n";
  for (size_t k = at; k < std::min(b.size(), at + kAfter); ++k) text += "+ " + b[k] + "\n";
  return text;
}

// `name` is "gpt2.tasks" for tests/golden/gpt2.tasks.txt. The test must run in the repository root.
inline void expect_golden(const std::string& name, const std::string& found) {
  const std::string path = "tests/golden/" + name + ".txt";
  if (updates_golden_files()) {
    std::ofstream file(path);
    file << found;
    file.close();
    EXPECT_TRUE(file) << path << " cannot be written";
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file.good()) << path << " is not there; run with --update in the repository root";
  std::ostringstream wanted;
  wanted << file.rdbuf();
  EXPECT_TRUE(wanted.str() == found)
      << path << "\n"
      << first_difference(wanted.str(), found)
      << "If this is as it should be, run with --update in the repository root.";
}

}  // namespace sluice
