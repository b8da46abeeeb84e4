// The TOML that configuration files may have, and how everything else is refused.
#include "tools/command/config_file.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace sluice {
namespace {

TEST(Config, ReadsTheTomlThatOptionsNeed) {
  const auto entries = parse_config(
      "# a comment\n\nbatch = 1_6   # trailing\nlr=3e-4\nfrom-scratch = true\nmodel = \"g # \\\"2\\\\\"\r\n"
      "out = 'C:\\d'\ndata = [ \"a\", # first\n  \"b\",\n]\nval-data = []\nmin-lr = +1.5\n",
      "f.toml");
  ASSERT_EQ(entries.size(), 8u);
  EXPECT_EQ(entries[0].key, "batch");
  EXPECT_EQ(entries[0].line, 3);
  EXPECT_EQ(entries[0].values, std::vector<std::string>{"16"});
  EXPECT_EQ(entries[1].values, std::vector<std::string>{"3e-4"});
  EXPECT_EQ(entries[2].values, std::vector<std::string>{"true"});
  EXPECT_EQ(entries[3].values, std::vector<std::string>{"g # \"2\\"});
  EXPECT_EQ(entries[4].values, std::vector<std::string>{"C:\\d"});
  EXPECT_EQ(entries[5].values, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(entries[6].values.empty());
  EXPECT_EQ(entries[7].values, std::vector<std::string>{"1.5"});
  EXPECT_TRUE(parse_config("", "f").empty());
}

TEST(Config, MalformedFilesNameTheLine) {
  for (const char* text : {"batch",
                           "batch 8",
                           "batch =",
                           "= 8",
                           "batch = 8 9",
                           "host-mem = 3GiB",
                           "model = gpt2",
                           "model = \"gpt2",
                           "model = \"gpt2\nbatch = 8",
                           "[memory]",
                           "data = [\"a\" \"b\"]",
                           "data = [\"a\"",
                           "model = \"\\q\"",
                           "batch = 8\nbatch = 9",
                           "a.b = 1",
                           "lr = nan",
                           "lr = 1979-05-27T07:32:00Z",
                           "model = \"\"\"x\"\"\"",
                           "\"batch\" = 8",
                           "batch = 8; seed = 1",
                           "data = [[\"a\"]]",
                           "batch = _"}) {
    try {
      parse_config(std::string("\n") + text, "f.toml");
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::malformed_file);
      EXPECT_TRUE(std::string(error.what()).starts_with("Line ")) << error.what();
      EXPECT_NE(std::string(error.what()).find("`f.toml`"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace sluice
