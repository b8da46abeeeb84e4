// The option table: its rows are whole and agree with the options that they set.
#include "engine/run/options/options.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/run/options/elsewhere.h"

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
      continue;  // the help gives such a default in words
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

// A name that another tool uses stands for one option of a verb, and is not itself an option of that verb.
TEST(OptionTable, NamesOfOtherToolsAreClear) {
  size_t names = 0;
  for (size_t v = 0; v < kVerbCount; ++v) {
    const auto verb = static_cast<Verb>(v);
    std::set<std::string> seen;
    for (const OptionRow& row : option_table()) {
      if (!(row.verbs & verb_bit(verb))) continue;
      EXPECT_EQ(*row.hints.unlike == '\0', *row.hints.difference == '\0') << row.name;
      EXPECT_EQ(row.hints.first_in & ~row.verbs, 0u) << row.name;
      for (const bool unlike : {false, true}) {
        std::istringstream list(unlike ? row.hints.unlike : row.hints.elsewhere);
        for (std::string name; list >> name; ++names) {
          EXPECT_TRUE(seen.insert(name).second) << name;
          EXPECT_FALSE(find_option(name) && (find_option(name, verb)->verbs & verb_bit(verb))) << name;
          const NamedElsewhere found = find_elsewhere(name, verb);
          EXPECT_EQ(found.row, &row) << name;
          EXPECT_EQ(found.unlike, unlike) << name;
        }
      }
    }
    for (const NotHere& other : kNotHere) {
      if (!(other.verbs & verb_bit(verb))) continue;
      std::istringstream list(other.names);
      for (std::string name; list >> name; ++names) {
        EXPECT_TRUE(seen.insert(name).second) << name;
        EXPECT_EQ(find_option(name), nullptr) << name;
        EXPECT_EQ(find_elsewhere(name, verb).row, nullptr) << name;
        EXPECT_EQ(not_here(name, verb), other.instead) << name;
      }
      // The sentence that is told instead names only options that the verb has.
      std::istringstream sentence(other.instead);
      for (std::string word; sentence >> word;) {
        if (!word.starts_with("--")) continue;
        const std::string name = word.substr(2, word.find_first_of(",.;:)", 2) - 2);
        if (find_option(name) == nullptr) continue;
        EXPECT_TRUE(find_option(name, verb)->verbs & verb_bit(verb)) << word;
      }
    }
  }
  EXPECT_GT(names, 400u);
  EXPECT_EQ(find_elsewhere("no-such", Verb::train).row, nullptr);
  EXPECT_EQ(find_elsewhere("learning-rate", Verb::doctor).row, nullptr);
  EXPECT_EQ(not_here("no-such", Verb::train), nullptr);
  EXPECT_EQ(not_here("tp", Verb::doctor), nullptr);
}

// An option can be set to each of its words, and an error that lists words lists these.
TEST(OptionTable, WordsAreValues) {
  const auto words = [](const char* name) { return option_words(*find_option(name)); };
  EXPECT_EQ(words("lr-schedule"), (std::vector<std::string>{"constant", "cosine", "linear"}));
  EXPECT_EQ(words("micro-batch"), std::vector<std::string>{"auto"});
  EXPECT_EQ(words("shard-weights"), (std::vector<std::string>{"auto", "all", "node"}));
  EXPECT_EQ(words("lr"), std::vector<std::string>{});
  EXPECT_EQ(words("model").front(), "gpt2");
  for (const OptionRow& row : option_table())
    for (const std::string& word : option_words(row)) {
      Options options;
      if (word.ends_with(':')) continue;  // powersgd:RANK
      EXPECT_NO_THROW(set_option(options, row, {word})) << row.name << " " << word;
    }
}

}  // namespace
}  // namespace sluice
