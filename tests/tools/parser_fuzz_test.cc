// Damaged inputs from outside: a reader either takes one or refuses it as it promises (tests/fuzz/targets.h).
// Each target replays its seeds, then damaged ones: the same in every run. Fuzzers use the same functions.
// (Token files and program texts are damaged in tests of their own.)
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/fuzz/seeds.h"
#include "tests/fuzz/targets.h"

namespace sluice::fuzzing {
namespace {

// What breaks parsers: ends, nesting, numbers at the limits of their types, tags of templates, and bytes that
// are not text.
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
                                  "9223372036854775807",
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
                                  "18446744073709551616",
                                  "{%",
                                  "-%}",
                                  "{{",
                                  "}}",
                                  " for ",
                                  " if ",
                                  " in ",
                                  "loop",
                                  "|",
                                  "%",
                                  std::string(1, '\0')};

std::string damaged(const std::string& whole, const std::vector<std::string>& seeds,
                    std::mt19937_64& random) {
  std::string text = whole;
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (size_t fault = 0, faults = 1 + below(3); fault < faults && !text.empty(); ++fault) {
    const size_t at = below(text.size());
    const std::string& other = seeds[below(seeds.size())];
    switch (below(7)) {
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
      case 5:
        text.insert(at, other.substr(below(other.size() + 1), below(40)));
        break;
      default:
        text.resize(at);
        break;
    }
  }
  return text;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr int kSlowness = 5;
#else
constexpr int kSlowness = 1;
#endif
// Limit on the processor time for one input, far above what any input takes, also under a sanitizer.
constexpr double kSecondsMax = 20;

// Runs the target; a failure of the test names the input.
bool replay(bool (*target)(Input), const std::string& input) {
  const std::clock_t begin = std::clock();
  bool taken = false;
  try {
    taken = target({reinterpret_cast<const uint8_t*>(input.data()), input.size()});
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what() << "\n" << printable(input);
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, kSecondsMax) << printable(input);
  return taken;
}

// Of the damaged inputs some must be taken and some refused, or nothing is tested.
void damage(const std::string& name, bool (*target)(Input), int rounds) {
  const std::vector<std::string> seeds = seeds_of(name);
  ASSERT_FALSE(seeds.empty()) << name;
  for (const std::string& seed : seeds) replay(target, seed);
  std::mt19937_64 random(1);
  int taken = 0, refused = 0;
  for (int round = 0; round < rounds / kSlowness && !::testing::Test::HasFailure(); ++round)
    (replay(target, damaged(seeds[random() % seeds.size()], seeds, random)) ? taken : refused)++;
  EXPECT_GT(taken, rounds / kSlowness / 100) << name;
  EXPECT_GT(refused, rounds / kSlowness / 20) << name;
}

TEST(ParserFuzz, Tokenizers) { damage("tokenizer", fuzz_tokenizer, 1000); }
TEST(ParserFuzz, ChatTemplates) { damage("chat_template", fuzz_chat_template, 20'000); }
TEST(ParserFuzz, Records) { damage("records", fuzz_records, 2000); }
TEST(ParserFuzz, TextModels) { damage("text_model", fuzz_text_model, 3000); }
TEST(ParserFuzz, SafetensorsFiles) { damage("safetensors", fuzz_safetensors, 5000); }
TEST(ParserFuzz, ModelConfigurations) { damage("model_config", fuzz_model_config, 20'000); }
TEST(ParserFuzz, ModelDescriptions) { damage("model_description", fuzz_model_description, 20'000); }
TEST(ParserFuzz, MachineDescriptions) { damage("machine", fuzz_machine, 5000); }
TEST(ParserFuzz, ConfigurationFiles) { damage("config_file", fuzz_config_file, 5000); }

// Without seeds that are taken, nothing behind a reader's first check would be reached.
TEST(ParserFuzz, WholeFilesAreTaken) {
  const std::pair<const char*, bool (*)(Input)> targets[] = {{"safetensors", fuzz_safetensors},
                                                             {"model_config", fuzz_model_config},
                                                             {"model_description", fuzz_model_description},
                                                             {"machine", fuzz_machine},
                                                             {"config_file", fuzz_config_file}};
  for (const auto& [name, target] : targets)
    for (const std::string& seed : seeds_of(name)) EXPECT_TRUE(replay(target, seed)) << name;
}

}  // namespace
}  // namespace sluice::fuzzing
