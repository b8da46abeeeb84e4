// What --help says about models comes from the registry of families.
#include "tools/command/help.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace sluice
