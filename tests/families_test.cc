// A model family stands in one short file. No other source may ask for a family by name: it would miss the
// next family. Reads the sources from the repository root, as structure_test.cc does.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "models/families/family.h"
#include "tests/support/sources.h"

namespace sluice {
namespace {

constexpr size_t kFamilyLinesMax = 150;

std::string home_of(std::string family) {
  std::ranges::replace(family, '-', '_');
  return "models/families/" + family + ".cc";
}

// Returns the lines that have the family's name as a literal, unless the source is the family's own. Longer
// literals may contain it: help texts give examples.
Lines uses_of(const std::string& family, const std::string& path, const Lines& lines) {
  Lines uses;
  if (path == home_of(family)) return uses;
  for (size_t i = 0; i < lines.size(); ++i)
    if (lines[i].substr(0, lines[i].find("//")).find('"' + family + '"') != std::string::npos)
      uses.push_back(path + ":" + std::to_string(i + 1) + ": only " + home_of(family) +
                     " knows this family by name: " + lines[i]);
  return uses;
}

TEST(FamilyFiles, AreShort) {
  for (const std::string& family : family_names()) {
    const size_t lines = lines_of_file(home_of(family)).size();
    EXPECT_GT(lines, 0u) << "there is no " << home_of(family);
    EXPECT_LE(lines, kFamilyLinesMax) << home_of(family);
  }
}

TEST(FamilyFiles, AloneKnowTheirFamilyByName) {
  size_t read = 0;
  for (const char* folder : {"engine", "models", "offload", "cpu_optim", "gpu", "tools"})
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const std::string path = entry.path().generic_string();
      const bool source = path.ends_with(".h") || path.ends_with(".cc") || path.ends_with(".cu");
      if (!source || path.starts_with("tools/benchmarks/")) continue;  // these measure certain models
      const Lines lines = lines_of_file(path);
      for (const std::string& family : family_names())
        for (const std::string& use : uses_of(family, path, lines)) ADD_FAILURE() << use;
      ++read;
    }
  EXPECT_GT(read, 100u) << "tests run in the repository root";
}

TEST(FamilyFiles, UsesElsewhereAreFound) {
  const Lines wrong = {"// \"gpt2\"", "if (family == \"gpt2\") return;"};
  EXPECT_EQ(
      uses_of("gpt2", "models/weights/x.cc", wrong),
      (Lines{"models/weights/x.cc:2: only models/families/gpt2.cc knows this family by name: " + wrong[1]}));
  EXPECT_TRUE(uses_of("gpt2", "models/families/gpt2.cc", wrong).empty());
  EXPECT_TRUE(uses_of("gpt2", "tools/x.cc", {"example(\"gpt2:layers=6\");"}).empty());
}

}  // namespace
}  // namespace sluice
