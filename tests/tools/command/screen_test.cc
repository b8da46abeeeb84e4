// What is shown on a narrow terminal, and without UTF-8: lines break at blanks, and µ becomes u.
#include "tools/command/screen.h"

#include <gtest/gtest.h>
#include <pty.h>

#include <algorithm>
#include <regex>

#include "tests/support/cli_support.h"
#include "tools/command/wrap.h"

namespace sluice {
namespace {

TEST(Screen, LinesBreakAtBlanks) {
  EXPECT_EQ(fitted("short\n", 10), "short\n");
  EXPECT_EQ(fitted("one two three four", 10), "one two\n  three\n  four");
  EXPECT_EQ(fitted("  a  one two three\n\nb\n", 12), "  a  one two\n     three\n\nb\n");  // under `one`
  EXPECT_EQ(fitted("  a      b  one two\n", 14),
            "  a      b\n    one two\n");                                      // it would begin too far right
  EXPECT_EQ(fitted("a longer-than-that b", 8), "a\n  longer-than-that\n  b");  // no word is cut
  EXPECT_EQ(fitted("", 8), "");
}

TEST(Screen, OnlyATerminalBreaksLines) {
  const std::string text = "one two three four takes 3 \u00b5s\n";
  EXPECT_EQ(shown(text, {.is_terminal = false, .columns = 10}), text);
  EXPECT_EQ(shown(text, {.is_terminal = true, .columns = 80}), text);
  EXPECT_EQ(shown(text, {.is_terminal = true, .columns = 80, .is_utf8 = false}),
            "one two three four takes 3 us\n");
}

TEST(Screen, LocalesWithUtf8) {
  for (const char* name : {"C.UTF-8", "de_DE.UTF-8", "C.utf8", "de_DE.utf8@euro"})
    EXPECT_TRUE(is_utf8_locale(name)) << name;
  for (const char* name : {"", "C", "POSIX", "de_DE", "de_DE.ISO-8859-15", "utf8"})
    EXPECT_FALSE(is_utf8_locale(name)) << name;
}

// Runs `words` on a terminal with this many columns and more variables. Returns what the terminal shows.
std::string on_terminal(unsigned short columns, const Words& environment, Words words) {
  words.insert(words.begin(), environment.begin(), environment.end());
  words.insert(words.begin(), "env");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const winsize size{24, columns, 0, 0};
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    execvp(argv[0], argv.data());
    _exit(127);
  }
  EXPECT_GT(child, 0);
  std::string text;
  char part[4096];
  for (ssize_t n; (n = ::read(terminal, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(n));
  ::close(terminal);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << text;
  text = std::regex_replace(text, std::regex("\r+\n"), "\n");
  std::replace(text.begin(), text.end(), '\r', '\n');  // progress is written over: each stand is a line
  return text;
}

const Words kPlan{sluice_binary(), "plan", "--model", kTiny, "--device", "cpu", "--batch", "4"};

TEST(Screen, ANarrowTerminalCutsNoWord) {
  const Words commands[] = {{sluice_binary(), "--help"},
                            {sluice_binary(), "train", "--help"},
                            {sluice_binary(), "train", "--help-all"},
                            kPlan};
  for (const Words& command : commands) {
    const std::string text = on_terminal(60, {"LANG=C", "LC_ALL=C"}, command);
    EXPECT_GT(text.size(), 500u);
    for (const std::string& line : lines_of(text)) {
      const bool one_word = line.find(' ', line.find_first_not_of(' ')) == std::string::npos ||
                            line.ends_with(" \\");  // an example, of one word and the backslash
      EXPECT_TRUE(line.size() <= 60 || one_word) << line;
    }
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) {
      return c == '\n' || (c >= ' ' && c < 127);
    })) << text;
  }
}

TEST(Screen, AWideTerminalShowsTheSameHelpAsAFile) {
  const DriveDirectory directory;
  EXPECT_EQ(on_terminal(200, {}, {sluice_binary(), "train", "--help"}),
            sluice_command(directory, {"train", "--help"}).out);
}

// Steps of the small model take microseconds, so the plan has the sign.
TEST(Screen, TheLocaleChoosesTheLetters) {
  const std::string micro = "\u00b5s";
  const Words why = kPlan + Words{"--why", "h.0"};
  const std::string utf8 = on_terminal(200, {"LC_ALL=C.UTF-8"}, why),
                    ascii = on_terminal(200, {"LC_ALL=C"}, why);
  EXPECT_NE(utf8.find(micro), std::string::npos) << utf8;
  EXPECT_EQ(ascii.find(micro), std::string::npos);
  EXPECT_NE(ascii.find(" us"), std::string::npos) << ascii;
}

// A terminal gets no escape codes, whatever NO_COLOR and TERM say.
TEST(Screen, TrainingWritesNoEscapeCodes) {
  const DriveDirectory directory;
  write_bytes(directory / "train.txt", sample_text(4000));
  int run = 0;
  for (const Words& environment : {Words{"NO_COLOR=1"}, Words{"TERM=dumb"}, Words{"TERM=xterm-256color"}}) {
    const std::string text =
        on_terminal(60, environment,
                    {sluice_binary(), "train", "--model", kTiny, "--device", "cpu", "--batch", "4", "--steps",
                     "3", "--data", directory / "train.txt", "--out", directory / std::to_string(run++)});
    EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
    EXPECT_NE(text.find("step 3/3  loss "), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace sluice
