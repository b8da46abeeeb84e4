// Shared by tests on the emulated GPU. The command's verbs run in the test's process, so that it can set the
// GPU up and count what is left on it.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/emulation/nothing_on_the_gpu.h"
#include "tests/support/cli_support.h"
#include "tools/bench/bench.h"
#include "tools/command/command_line.h"
#include "tools/command/run_verb.h"

namespace sluice {

struct Ended {
  ExitCode code = ExitCode::done;
  std::string out, what, remedy;
};

// Runs a verb as the command does. What it prints ends up in `out`. `scale` is for bench.
inline Ended run_command(const Words& arguments, const BenchScale& scale = {}) {
  Words words = Words{"sluice"} + arguments;
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  Ended ended;
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const out = open_memstream(&text, &size);
  try {
    const ParsedCommand command = parse_command_line(static_cast<int>(argv.size()), argv.data());
    ended.code = command.verb == Verb::bench ? run_bench(command.options, out, scale)
                                             : run_verb(command.verb, command.options, out);
  } catch (const Error& error) {
    ended.code = error.code();
    ended.what = error.what();
    ended.remedy = error.remedy();
  }
  std::fclose(out);
  ended.out.assign(text, size);
  std::free(text);
  return ended;
}

// Expects each text of a refusal to be one sentence on one line.
inline void expect_sentences(const Ended& ended) {
  for (const std::string& sentence : {ended.what, ended.remedy}) {
    EXPECT_TRUE(sentence.ends_with(".")) << sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
    EXPECT_EQ(sentence.find(". "), std::string::npos) << sentence;
  }
}

// Tests of the command on the emulated GPU, with a directory for the nvme tier's files beside the data.
class EmulatedRun : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    std::filesystem::create_directory(scratch);
    emulation::set_up({});
  }
  void TearDown() override { emulation::set_up({}); }

  const std::string scratch = directory / "scratch";
};

}  // namespace sluice
