// What --help says about models comes from the registry of families.
#include "tools/command/help.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "models/families/family.h"

namespace sluice {
namespace {

TEST(Help, ListsEveryFamilyPresetAndSize) {
  for (const Verb verb : {Verb::train, Verb::plan}) {
    const std::string text = verb_help(verb);
    for (const Family* family : families()) {
      EXPECT_NE(text.find(fmt::format("\n  {} ({}) ", family->title, family->name)), std::string::npos)
          << family->name;
      for (const Preset& preset : family->presets())
        for (const std::string name : {preset.name, preset.alias})
          EXPECT_NE(text.find(name + " "), std::string::npos) << name;
      for (const SizeKey& key : size_keys(*family))
        EXPECT_NE(text.find(std::string("\n  ") + key.name + "="), std::string::npos) << key.name;
    }
  }
  EXPECT_EQ(verb_help(Verb::export_run).find("presets"), std::string::npos);
}

TEST(Help, TellsParametersAndWhoTakesASize) {
  const std::string text = verb_help(Verb::plan);
  EXPECT_NE(text.find("gpt2 (124M), gpt2-medium (355M), gpt2-large (774M), gpt2-xl (1.56B)"),
            std::string::npos);
  EXPECT_NE(text.find("; A = B are two names of one preset\n"), std::string::npos);
  EXPECT_NE(text.find("tinyllama (1.1B), llama-1b = llama-3.2-1b (1.24B),"), std::string::npos);
  EXPECT_NE(text.find("llama-7b = llama-2-7b (6.74B; also llama:KEY=VALUE)"), std::string::npos);
  EXPECT_NE(text.find("llama-405b = llama-3.1-405b (406B)"), std::string::npos);
  EXPECT_NE(text.find("\n  kv_heads=N                llama"), std::string::npos);
  EXPECT_NE(text.find("\n  ffn=N                     columns inside"), std::string::npos);  // every family
}

std::vector<std::string> lines_of_help(Verb verb, HelpExtent extent) {
  std::istringstream in(verb_help(verb, extent));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Help, BeginsWithTheOptionsThatOneNeeds) {
  const std::vector<std::string> lines = lines_of_help(Verb::train, HelpExtent::first);
  std::vector<std::string> explained, headings;
  bool more = false;
  for (const std::string& line : lines) {
    if (line.starts_with("  --")) explained.push_back(line.substr(2, line.find(' ', 2) - 2));
    if (line.empty()) more = false;
    if (more && line[2] != ' ') headings.push_back(line);  // no line that goes on
    more = more || line == "more options, which `sluice train --help-all` explains";
  }
  EXPECT_EQ(explained,
            (std::vector<std::string>{"--model", "--lora", "--data", "--batch", "--seq", "--steps",
                                      "--epochs", "--lr", "--gpu-mem", "--host-mem", "--nvme-dir", "--out"}));
  ASSERT_EQ(headings.size(), 11u);
  EXPECT_EQ(headings[0],
            "  model                     --from-scratch, --router-loss, --router-z-loss, --imbalance");
  for (const Family* family : families())
    EXPECT_NE(verb_help(Verb::train, HelpExtent::first).find(family->plain_preset), std::string::npos)
        << family->name;
  EXPECT_EQ(headings[5], "  batch                     --micro-batch, --waves");
  EXPECT_LT(lines.size(), 75u);
  EXPECT_GT(lines_of_help(Verb::train, HelpExtent::all).size(), 120u);
}

TEST(Help, HasAnExampleForEachKindOfUser) {
  const std::string text = verb_help(Verb::train, HelpExtent::first);
  for (const char* words :
       {"# A first try on a laptop", "# One GPU and a drive", "# Several GPUs under mpirun",
        "# Go on where the run stopped", "--resume auto", "  mpirun "})
    EXPECT_NE(text.find(words), std::string::npos) << words;
}

// A verb with few options explains all of them at once.
TEST(Help, AFewOptionsAreExplainedAtOnce) {
  for (const Verb verb :
       {Verb::eval, Verb::export_run, Verb::doctor, Verb::bench, Verb::completion, Verb::report})
    EXPECT_EQ(verb_help(verb, HelpExtent::first), verb_help(verb, HelpExtent::all)) << verb_name(verb);
}

TEST(Help, BreaksNoExampleThatCanBePasted) {
  const std::string text = verb_help(Verb::train, HelpExtent::first, 50);
  EXPECT_NE(text.find("  sluice train --out runs/first --resume auto\n"), std::string::npos);
  EXPECT_NE(text.find("  sluice train --model ./Qwen3-8B \\\n      --data chats.jsonl"), std::string::npos)
      << text;
}

}  // namespace
}  // namespace sluice
