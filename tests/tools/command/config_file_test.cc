// The TOML that configuration files may have, how everything else is refused, and how a file joins the
// command line.
#include "tools/command/config_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "engine/base/error.h"
#include "tests/support/command_line_support.h"
#include "tests/support/test_directory.h"

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

class ConfigFile : public ::testing::Test {
 protected:
  void put(const std::string& text) { std::ofstream(path_) << text; }
  const TestDirectory directory_;
  const std::string path_ = directory_ / "run.toml";
};

TEST_F(ConfigFile, TheCommandLineWins) {
  put("model = \"gpt2\"\ndata = [\"x\", \"y\"]\nout = \"d\"\nbatch = 16\nhost-mem = \"3GiB\"\nlr = "
      "1e-3\nfrom-scratch = true\n");
  const Options o = options_of("train --batch 4 --config " + path_ + " --data z");
  EXPECT_EQ(o.batch.batch, 4);
  EXPECT_EQ(o.data.train, std::vector<std::string>{"z"});
  EXPECT_EQ(o.memory.host.bytes, uint64_t{3} << 30);
  EXPECT_EQ(o.optimizer.learning_rate, 1e-3);
  EXPECT_TRUE(o.model.from_scratch);
  EXPECT_TRUE(is_given(o, "lr"));
  EXPECT_TRUE(is_given(o, "batch"));
  EXPECT_EQ(std::set<std::string>(o.given.begin(), o.given.end()).size(), o.given.size());
}

TEST_F(ConfigFile, UnknownKeysAndBadValuesAreRefused) {
  put("model = \"gpt2\"\nbacth = 8\n");
  EXPECT_EQ(refusal("plan --config " + path_), "Line 2 of `" + path_ + "`: `bacth` is not an option.");
  EXPECT_EQ(remedy("plan --config " + path_), "Did you mean --batch? See `sluice plan --help`.");
  put("from = \"run\"\n");
  EXPECT_EQ(refusal("plan --config " + path_),
            "Line 1 of `" + path_ + "`: --from is not an option of `sluice plan`.");
  put("batch = 0\n");
  EXPECT_EQ(refusal("plan --config " + path_), "Line 1 of `" + path_ + "`: --batch is 0.");
  put("batch = [1, 2]\n");
  EXPECT_EQ(refusal("plan --config " + path_), "Line 1 of `" + path_ + "`: --batch has 2 values.");
  put("config = \"other\"\n");
  EXPECT_NE(refusal("plan --config " + path_), "accepted");
  EXPECT_EQ(refusal("plan --config " + path_ + ".no"),
            "Cannot open " + path_ + ".no: No such file or directory.");
}

}  // namespace
}  // namespace sluice
