// Damaged texts from outside: a reader either takes the text or refuses it with a typed error, of one
// printable sentence and a remedy. (safetensors, token files and program texts are damaged in tests of their
// own.)
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/rates/machine_rates.h"
#include "models/families/family.h"
#include "models/files/file.h"
#include "tests/support/families.h"
#include "tests/support/fixtures.h"
#include "tools/command/config_file.h"

namespace sluice {
namespace {

constexpr int kRounds = 3000;

// What breaks parsers: ends, nesting, numbers at the limits of their types, and bytes that are not text.
const std::string kFragments[] = {"{",
                                  "}",
                                  "[",
                                  "]",
                                  "\"",
                                  "'",
                                  ",",
                                  ":",
                                  "=",
                                  "#",
                                  "\\",
                                  "\\u0000",
                                  "\\ud800",
                                  "\n",
                                  "\r",
                                  "\t",
                                  "-",
                                  "-1",
                                  "0",
                                  "1",
                                  "1.5",
                                  "1e9",
                                  "1e99",
                                  "1e999",
                                  "-0",
                                  "2147483648",
                                  "null",
                                  "false",
                                  "true",
                                  "\"\x01\"",
                                  "\xff",
                                  "\xc3",
                                  "[[",
                                  "{}",
                                  "\"\"",
                                  "nan",
                                  "1099511627776",
                                  "18446744073709551616"};

std::string damaged(const std::string& whole, std::mt19937_64& random) {
  std::string text = whole;
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (size_t fault = 0, faults = 1 + below(3); fault < faults && !text.empty(); ++fault) {
    const size_t at = below(text.size());
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + below(8));
        break;
      case 2:
        text.insert(at, kFragments[below(std::size(kFragments))]);
        break;
      case 3:
        text.replace(at, 1 + below(6), kFragments[below(std::size(kFragments))]);
        break;
      case 4:
        text.insert(at, whole.substr(below(whole.size()), below(80)));
        break;
      default:
        text.resize(at);
        break;
    }
  }
  return text;
}

// Reads `whole` in kRounds damaged versions. Some must be taken and some refused, or nothing is tested.
void damage(const std::string& whole, const std::function<void(const std::string&)>& read) {
  ASSERT_NO_THROW(read(whole));
  std::mt19937_64 random(1);
  int taken = 0, refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = damaged(whole, random);
    SCOPED_TRACE(text);
    try {
      read(text);
      ++taken;
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == ExitCode::malformed_file || error.code() == ExitCode::usage)
          << error.what();
      ASSERT_EQ(printable(error.what()), error.what());
      ASSERT_TRUE(std::string(error.what()).ends_with('.')) << error.what();
      ASSERT_FALSE(error.remedy().empty()) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(taken, kRounds / 100);
  EXPECT_GT(refused, kRounds / 10);
}

TEST(ParserFuzz, ModelConfigurations) {
  for (const Fixture& fixture : fixtures())
    damage(fixture.config, [](const std::string& text) {
      const ModelConfig config = config_from_json(text, "config.json");
      config_from_json(config_to_json(config, DType::bf16), "written.json");
    });
}

TEST(ParserFuzz, ModelDescriptions) {
  for (const Family* family : families())
    damage(described(*family, family->presets().front().config),
           [](const std::string& text) { config_from_name(text); });
}

TEST(ParserFuzz, MachineDescriptions) {
  const std::string page = read_text_file("docs/machine.md", 1 << 20);
  const size_t begin = page.find("```json\n") + 8;
  damage(page.substr(begin, page.find("```", begin) - begin),
         [](const std::string& text) { parse_machine_rates(text, "machine.json"); });
  damage(read_text_file("engine/rates/machines/rtx-4090.json", 1 << 20),
         [](const std::string& text) { parse_machine_rates(text, "machine.json"); });
}

TEST(ParserFuzz, ConfigurationFiles) {
  damage(
      "# a run\nmodel = \"gpt2:layers=2\"\ndata = [\"a.bin\", 'b.bin',\n  # more\n]\nlr = 3e-4\nsteps = "
      "1_000\n"
      "from-scratch = true\nout = \"runs/\\\"first\\\"\"\n",
      [](const std::string& text) { parse_config(text, "run.toml"); });
}

}  // namespace
}  // namespace sluice
