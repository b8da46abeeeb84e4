// The manual page says what the help says, and roff renders it without a warning.
#include "tools/command/manual.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/cli_support.h"
#include "tools/command/help.h"
#include "tools/command/verbs.h"

namespace sluice {
namespace {

class Manual : public ::testing::Test {
 protected:
  CommandResult run(const Words& words) const { return Command(directory / "", words).wait(); }
  const DriveDirectory directory;
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

TEST_F(Manual, ExplainsEveryOptionOnce) {
  const std::string page = manual();
  for (const OptionRow& row : option_table()) {
    std::string head = row.name;
    for (size_t at = 0; (at = head.find('-', at)) != std::string::npos; at += 2) head.insert(at, "\\");
    const size_t rows = static_cast<size_t>(
        std::count_if(option_table().begin(), option_table().end(),
                      [&](const OptionRow& r) { return std::string(r.name) == row.name; }));
    const std::string item = ".TP\n\\fB\\-\\-" + head;
    EXPECT_EQ(count_of(page, item + " ") + count_of(page, item + "\\fR"), rows) << row.name;
  }
  for (const VerbRow& verb : verb_table())
    EXPECT_NE(page.find(std::string("\\fBsluice ") + verb_name(verb.verb)), std::string::npos);
  EXPECT_TRUE(
      std::all_of(page.begin(), page.end(), [](char c) { return c == '\n' || (c >= ' ' && c < 127); }));
}

TEST_F(Manual, RoffRendersItWithoutWarnings) {
  if (run({"sh", "-c", "command -v groff"}).code != 0) GTEST_SKIP() << "groff is not installed";
  write_bytes(directory / "sluice.1", manual());
  const CommandResult page = run({"groff", "-man", "-Tascii", "-P-c", "-ww", directory / "sluice.1"});
  EXPECT_EQ(page.code, 0);
  EXPECT_EQ(page.err, "");
  EXPECT_NE(page.out.find("sluice train --out runs/first --resume auto"), std::string::npos);
  EXPECT_NE(page.out.find("--help-all"), std::string::npos);
}

}  // namespace
}  // namespace sluice
