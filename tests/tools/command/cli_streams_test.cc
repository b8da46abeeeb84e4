// The `sluice` command with closed, full and abandoned outputs, odd paths, and limits of the shell.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/cli_support.h"

namespace sluice {
namespace {

class Streams : public Cli {
 protected:
  // The exit code of `sluice ARGUMENTS` in a shell, which handles the redirections. `before` runs in the same
  // shell.
  int shell(const std::string& arguments, const std::string& before = "") const {
    const std::string script =
        before + " { '" + sluice_binary() + "' " + arguments + "; } 2> '" + (directory / "stderr") + "'";
    const int status = std::system(script.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string training(const std::string& out) const {
    return std::string("train --model ") + kTiny + " --data '" + text + "' --steps 2 --threads 2 --out '" +
           (directory / out) + "'";
  }
  const std::string plan = std::string("plan --no-advice --model ") + kTiny;
};

TEST_F(Streams, FactsThatDoNotArriveAreAFailure) {
  for (const std::string& arguments :
       {plan, plan + " --json", plan + " --text", std::string("plan --help")}) {
    EXPECT_EQ(shell(arguments + " > /dev/full"), 6) << arguments;
    EXPECT_EQ(lines_of(read_text_file(directory / "stderr", 1 << 20)).size(), 2u);
  }
  EXPECT_EQ(shell(training("run") + " > /dev/full"), 0);  // its results are in --out
}

TEST_F(Streams, AReaderMayLeaveEarly) {
  const std::string code = directory / "code";
  EXPECT_EQ(shell(plan + " --text; echo $? > '" + code + "'; } | { head -n 1 > /dev/null"), 0);
  EXPECT_EQ(read_text_file(code, 16), "0\n");
  EXPECT_EQ(read_text_file(directory / "stderr", 1 << 20), "");
}

TEST_F(Streams, AClosedOutputReachesNoFile) {
  EXPECT_EQ(shell(plan + " --json >&-"), 0);
  EXPECT_EQ(shell(training("run") + " <&- >&-"), 0);
  EXPECT_EQ(shell("train --resume auto --steps 3 --out '" + (directory / "run") + "' <&- >&-"), 0);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory / "run"))
    if (entry.is_regular_file()) {
      EXPECT_EQ(read_text_file(entry.path(), 1 << 24).find("predicted"), std::string::npos) << entry.path();
    }
}

TEST_F(Streams, ALimitOnFileSizesIsKnownAtTheStart) { EXPECT_EQ(shell(training("run"), "ulimit -f 64;"), 4); }

TEST_F(Streams, PathsThatTheSystemRefuses) {
  std::filesystem::create_symlink("loop", directory / "loop");
  for (const std::string& out : {directory / std::string(300, 'x'), directory / "loop"})
    expect_refusal({"train", "--model", kTiny, "--data", text, "--out", out}, 4, {out});
  ASSERT_EQ(mkfifo((directory / "pipe").c_str(), 0600), 0);
  expect_refused_training({"--metrics", directory / "pipe"}, 4, {"pipe"});
  expect_refused_training({"--metrics", text}, 2, {"train.txt", "not empty"});
  EXPECT_EQ(read_text_file(text, 1 << 20).size(), 4000u);
}

TEST_F(Streams, EvaluationWithAnotherBatchThanTheRuns) {
  ASSERT_EQ(run(train("run", 1)).code, 0);  // batches of 4 in micro-batches of 2
  const Words eval{"eval", "--from", directory / "run", "--data", validation, "--val-batches", "1"};
  EXPECT_EQ(run(eval + Words{"--batch", "3"}).code, 0);
  expect_refusal(eval + Words{"--batch", "3", "--micro-batch", "2"}, 2, {"--batch 3", "--micro-batch 2"});
}

}  // namespace
}  // namespace sluice
