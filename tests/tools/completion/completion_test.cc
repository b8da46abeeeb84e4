// Scripts of `sluice completion`: what bash offers, and that zsh and fish can read theirs.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/rates/machine_rates.h"
#include "tests/support/cli_support.h"
#include "tools/command/verbs.h"
#include "tools/completion/scripts.h"

namespace sluice {
namespace {

class Completion : public ::testing::Test {
 protected:
  void SetUp() override {
    write_bytes(directory / "bash.sh", bash_script());
    write_bytes(directory / "zsh.sh", zsh_script());
    write_bytes(directory / "fish.sh", fish_script());
    write_bytes(directory / "tokens.bin", "");
    std::filesystem::create_directory(directory / "drive");
  }
  CommandResult run(const Words& words) const { return Command(directory / "", words).wait(); }
  bool has(const std::string& shell) const { return run({"sh", "-c", "command -v " + shell}).code == 0; }

  // What bash offers to complete the last word of `line`.
  Words offered(const Words& line) const {
    std::string words;
    for (const std::string& word : line) words += " '" + word + "'";
    const CommandResult result =
        run({"bash", "--norc", "-c",
             "cd '" + (directory / "") + "'; source ./bash.sh; COMP_WORDS=(" + words +
                 "); COMP_CWORD=" + std::to_string(line.size() - 1) +
                 "; _sluice; for reply in \"${COMPREPLY[@]}\"; do echo \"$reply\"; done"});
    EXPECT_EQ(result.code, 0) << words;
    EXPECT_EQ(result.err, "") << words;
    return lines_of(result.out);
  }
  // Whether a word is among those that bash offers.
  bool offers(const Words& line, const std::string& word) const {
    const Words all = offered(line);
    return std::count(all.begin(), all.end(), word) == 1;
  }

  const DriveDirectory directory;
};

TEST_F(Completion, TheVerbPrintsTheScript) {
  const std::pair<std::string, std::string> scripts[] = {
      {"bash", bash_script()}, {"zsh", zsh_script()}, {"fish", fish_script()}};
  for (const auto& [shell, script] : scripts) {
    const CommandResult result = sluice_command(directory, {"completion", shell});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, script);
    for (const OptionRow& row : option_table())
      EXPECT_NE(script.find(row.name), std::string::npos) << shell << " lacks " << row.name;
  }
}

TEST_F(Completion, BashOffersVerbsAndTheirOptions) {
  Words verbs = verb_names();
  verbs.insert(verbs.end(), {"help", "--help", "--version"});
  EXPECT_EQ(offered({"sluice", ""}), verbs);
  EXPECT_EQ(offered({"sluice", "pr"}), (Words{"prepare", "profile"}));
  EXPECT_EQ(offered({"sluice", "help", "ev"}), Words{"eval"});
  EXPECT_EQ(offered({"sluice", "train", "--lr"}), (Words{"--lr", "--lr-schedule"}));
  EXPECT_EQ(offered({"sluice", "doctor", "--"}),
            (Words{"--device", "--nvme-dir", "--json", "--help", "--help-all"}));
  EXPECT_EQ(offered({"sluice", "doctor", "--json", ""}), offered({"sluice", "doctor", "--"}));
  EXPECT_EQ(offered({"sluice", "train", "--model", "gpt2", "--no-su"}), Words{});
  for (const VerbRow& verb : verb_table())
    for (const OptionRow* row : options_of(verb.verb)) {
      const std::string name = std::string("--") + row->name;
      EXPECT_TRUE(offers({"sluice", verb_name(verb.verb), name}, name))
          << verb_name(verb.verb) << " " << name;
    }
}

TEST_F(Completion, BashOffersValues) {
  EXPECT_EQ(offered({"sluice", "train", "--lr-schedule", ""}), (Words{"constant", "cosine", "linear"}));
  EXPECT_EQ(offered({"sluice", "train", "--lr-schedule", "co"}), (Words{"constant", "cosine"}));
  EXPECT_EQ(offered({"sluice", "train", "--lr-schedule", "=", "li"}), Words{"linear"});
  EXPECT_EQ(offered({"sluice", "train", "--lr-schedule", "="}), (Words{"constant", "cosine", "linear"}));
  EXPECT_EQ(offered({"sluice", "train", "--lr", ""}), Words{});  // a number
  EXPECT_EQ(offered({"sluice", "plan", "--model", "gpt2-x"}), Words{"gpt2-xl"});
  EXPECT_TRUE(offers({"sluice", "plan", "--model", ""}, "drive"));  // or a Hugging Face directory
  for (const std::string& machine : built_in_machine_list())
    EXPECT_TRUE(offers({"sluice", "plan", "--machine", machine}, machine)) << machine;
  EXPECT_TRUE(offers({"sluice", "train", "--data", ""}, "tokens.bin"));
  EXPECT_TRUE(offers({"sluice", "train", "--data", "a.bin", "t"}, "tokens.bin"));  // takes several
  EXPECT_EQ(offered({"sluice", "train", "--nvme-dir", ""}), (Words{"none", "drive"}));
  EXPECT_EQ(offered({"sluice", "train", "--resume", "a"}), Words{"auto"});
  EXPECT_EQ(offered({"sluice", "completion", ""}), (Words{"bash", "zsh", "fish"}));
  EXPECT_EQ(offered({"sluice", "report", ""}), Words{"drive"});  // a run directory, and more of them
  EXPECT_EQ(offered({"sluice", "report", "a", "d"}), Words{"drive"});
  EXPECT_TRUE(offers({"sluice", "report", "a", "--out", ""}, "tokens.bin"));
}

TEST_F(Completion, BashKnowsWhoseOptionsAreDue) {
  EXPECT_EQ(offered({"sluice", "profile", "--mod"}), Words{});
  EXPECT_EQ(offered({"sluice", "profile", "--out", "r", "--", "--mod"}), Words{"--model"});
  EXPECT_EQ(offered({"sluice", "profile", "--out", "r", "--", "--precision", "f"}), (Words{"fp16", "fp32"}));
  EXPECT_FALSE(offers({"sluice", "profile", "--out", ""}, "tokens.bin"));  // a directory
  EXPECT_TRUE(offers({"sluice", "bench", "--out", ""}, "tokens.bin"));     // a file
}

TEST_F(Completion, BashLoadsTheScriptForTheCommand) {
  const CommandResult result =
      run({"bash", "--norc", "-c", "source '" + (directory / "bash.sh") + "'; complete -p sluice"});
  EXPECT_EQ(result.out, "complete -F _sluice sluice\n");
}

TEST_F(Completion, ZshReadsItsScript) {
  if (!has("zsh")) GTEST_SKIP() << "zsh is not installed";
  const CommandResult result = run({"zsh", "-n", directory / "zsh.sh"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
}

TEST_F(Completion, FishOffersVerbsOptionsAndValues) {
  if (!has("fish")) GTEST_SKIP() << "fish is not installed";
  const auto offered_by_fish = [&](const std::string& line) {
    const CommandResult result =
        run({"fish", "--no-config", "-c",
             "cd '" + (directory / "") + "'; source fish.sh; complete --do-complete '" + line + "'"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    Words words;
    for (const std::string& found : lines_of(result.out)) words.push_back(found.substr(0, found.find('\t')));
    return words;
  };
  EXPECT_EQ(offered_by_fish("sluice pr"), Words{"profile"});
  EXPECT_EQ(offered_by_fish("sluice train --lr-"), Words{"--lr-schedule"});
  EXPECT_EQ(offered_by_fish("sluice train --lr-schedule co"), (Words{"constant", "cosine"}));
  EXPECT_EQ(offered_by_fish("sluice plan --model gpt2-x"), Words{"gpt2-xl"});
  EXPECT_EQ(offered_by_fish("sluice train --data tok"), Words{"tokens.bin"});
  EXPECT_EQ(offered_by_fish("sluice train --nvme-dir d"), Words{"drive/"});
  EXPECT_EQ(offered_by_fish("sluice doctor --mod"), Words{});
  EXPECT_EQ(offered_by_fish("sluice completion z"), Words{"zsh"});
  EXPECT_EQ(offered_by_fish("sluice report d"), Words{"drive/"});
}

}  // namespace
}  // namespace sluice
