// The option table: its rows are whole and agree with the options that they set.
#include "engine/run/options/options.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace sluice {
namespace {

TEST(OptionTable, DefaultsInHelpAreTheRealOnes) {
  const Options defaults;
  for (const OptionRow& row : option_table()) {
    if (*row.default_text == '\0') continue;
    Options options;
    const OptionField field = row.field(options);
    if (std::holds_alternative<Size*>(field)) {
      EXPECT_STREQ(row.default_text, "auto") << row.name;
      continue;
    }
    const std::vector<std::string> values = option_values(defaults, row);
    if (values == std::vector<std::string>{"auto"} || values.empty() || values.front().empty())
      continue;  // the help says it in words
    set_option(options, row, {row.default_text});
    EXPECT_EQ(option_values(options, row), values) << row.name;
  }
}

// A verb may give an option's name another meaning than another verb does.
TEST(OptionTable, NamesAreUniqueAndHelped) {
  std::set<std::pair<std::string, Verb>> names;
  for (const OptionRow& row : option_table()) {
    EXPECT_NE(row.verbs, 0) << row.name;
    EXPECT_NE(*row.help, '\0') << row.name;
    EXPECT_EQ(row.known != nullptr, std::string(row.help).find("{}") != std::string::npos) << row.name;
    for (size_t v = 0; v < kVerbCount; ++v) {
      const auto verb = static_cast<Verb>(v);
      if (!(row.verbs & verb_bit(verb))) continue;
      EXPECT_TRUE(names.insert({row.name, verb}).second) << row.name;
      EXPECT_EQ(find_option(row.name, verb), &row);
    }
  }
  EXPECT_EQ(find_option("no-such"), nullptr);
  EXPECT_EQ(find_option("model", Verb::profile), find_option("model"));  // found among other verbs' rows
}

}  // namespace
}  // namespace sluice
