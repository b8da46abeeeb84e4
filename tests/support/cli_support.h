// What the tests of the `sluice` command share: files to train on, words of a short training, and refusals.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/file.h"
#include "tests/support/command.h"
#include "tests/support/sample_text.h"
#include "tests/support/test_directory.h"

namespace sluice {

using Words = std::vector<std::string>;
inline const std::string kFixtures = std::filesystem::absolute("tests/fixtures/").string();
inline constexpr const char* kExperts =
    "mixtral:layers=2,width=32,heads=2,kv_heads=1,ffn=48,vocab=256,context=32,experts=4,top=2";
inline constexpr const char* kTiny = "gpt2:layers=2,width=32,heads=2,vocab=256,context=32";

class Cli : public ::testing::Test {
 protected:
  void SetUp() override;
  Words train(const std::string& out, int64_t steps, const Words& more = {}) const;
  CommandResult run(const Words& arguments) const;

  // The command must end with `code` and an error of two lines, in which every one of `parts` occurs. On a
  // slow machine, lines that say that it plans may come too.
  void expect_refusal(const Words& arguments, int code, const Words& parts) const;
  void expect_refused_training(const Words& more, int code, const Words& parts) const;

  const DriveDirectory directory;
  const std::string text = directory / "train.txt", validation = directory / "val.txt";
};

}  // namespace sluice
