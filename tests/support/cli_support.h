// What the tests of the `sluice` command share: the command runs as a child process. Tests see its output,
// exit code and peak memory, and send it signals at a chosen moment.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "models/files/file.h"
#include "tests/support/training_support.h"

namespace sluice {

// The command lies beside the tests. `sluice_emulated` is the same over the emulated GPU.
inline std::string sluice_binary(const std::string& name = "sluice") {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

struct CommandResult {
  int code = -1;  // exit code, or -signal
  std::string out, err;
  uint64_t peak_bytes = 0;  // of resident memory, as the kernel counted it
};

// Adds `--device cpu` to verbs that take a device, so that tests give the same results anywhere. The words
// stay as they are when they name a device, or resume a run, which has one.
inline std::vector<std::string> sluice_words(const std::vector<std::string>& arguments,
                                             const std::string& binary) {
  constexpr std::array<std::string_view, 4> kVerbsWithDevice{"train", "plan", "eval", "generate"};
  std::vector<std::string> words{sluice_binary(binary)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const auto is_given = [&](std::string_view option) {
    return std::count(arguments.begin(), arguments.end(), option) > 0;
  };
  if (!arguments.empty() && std::count(kVerbsWithDevice.begin(), kVerbsWithDevice.end(), arguments[0]) > 0 &&
      !is_given("--device") && !is_given("--resume"))
    words.insert(words.begin() + 2, {"--device", "cpu"});
  return words;
}

// A child process. The destructor kills it unless it was waited for.
class Command {
 public:
  // Output goes to files in `directory`.
  Command(const DriveDirectory& directory, const std::vector<std::string>& arguments,
          const std::string& binary = "sluice")
      : Command(directory / "", sluice_words(arguments, binary)) {}
  // Any command. The shell's search path applies.
  Command(const std::string& directory, std::vector<std::string> words)
      : out_(directory + "/stdout"), err_(directory + "/stderr") {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    // The parent opens these files, so that nobody reads the output of an earlier command.
    const int out = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const int err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    child_ = fork();
    if (child_ == 0) {
      if (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0) _exit(126);
      execvp(argv[0], argv.data());
      _exit(127);
    }
    close(out), close(err);
    CHECK(child_ > 0, "fork failed");  // a signal to -1 goes to every process
  }
  ~Command() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t process() const { return child_; }
  void send(int number) const { ::kill(child_, number); }

  // Checks `condition` every 3 ms. Returns false when the child ends, or two minutes pass, before it
  // holds.
  bool until(const std::function<bool()>& condition) const {
    for (int i = 0; i < 40000; ++i) {
      if (condition()) return true;
      siginfo_t info{};
      if (waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid)
        return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    return false;
  }

  CommandResult wait() {
    int status = 0;
    rusage usage{};
    EXPECT_EQ(wait4(child_, &status, 0, &usage), child_);
    child_ = -1;
    CommandResult result;
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    result.out = read_text_file(out_, 1 << 26);
    result.err = read_text_file(err_, 1 << 26);
    result.peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
    return result;
  }

 private:
  std::string out_, err_;
  pid_t child_ = -1;
};

inline CommandResult sluice_command(const DriveDirectory& directory,
                                    const std::vector<std::string>& arguments) {
  return Command(directory, arguments).wait();
}

inline std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

using Words = std::vector<std::string>;
inline const std::string kFixtures = std::filesystem::absolute("tests/fixtures/").string();
inline constexpr const char* kExperts =
    "mixtral:layers=2,width=32,heads=2,kv_heads=1,ffn=48,vocab=256,context=32,experts=4,top=2";
inline constexpr const char* kTiny = "gpt2:layers=2,width=32,heads=2,vocab=256,context=32";

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    write_bytes(text, sample_text(4000));
    write_bytes(validation, sample_text(1000, 9));
  }
  Words train(const std::string& out, int64_t steps, const Words& more = {}) const {
    return Words{"train",
                 "--model",
                 kTiny,
                 "--data",
                 text,
                 "--batch",
                 "4",
                 "--micro-batch",
                 "2",
                 "--steps",
                 std::to_string(steps),
                 "--out",
                 directory / out,
                 "--threads",
                 "2",
                 "--lr",
                 "2e-3"} +
           more;
  }
  CommandResult run(const Words& arguments) const { return sluice_command(directory, arguments); }

  // The command must end with `code` and an error of two lines, in which every one of `parts` occurs. A slow
  // machine says first that it plans.
  void expect_refusal(const Words& arguments, int code, const Words& parts) const {
    const CommandResult result = run(arguments);
    std::string line;
    for (const std::string& word : arguments) line += word + " ";
    EXPECT_EQ(result.code, code) << line << "\n" << result.out << result.err;
    for (const std::string& part : parts)
      EXPECT_NE(result.err.find(part), std::string::npos) << line << "\n" << result.err;
    EXPECT_TRUE(result.err.starts_with("sluice: ")) << line << "\n" << result.err;
    std::vector<std::string> lines = lines_of(result.err);
    std::erase_if(lines, [](const std::string& l) { return l.starts_with("sluice: planning"); });
    EXPECT_EQ(lines.size(), 2u) << line << "\n" << result.err;
  }
  void expect_refused_training(const Words& more, int code, const Words& parts) const {
    expect_refusal(train("refused", 2, more), code, parts);
    EXPECT_FALSE(std::filesystem::exists(directory / "refused/checkpoints"));
  }

  const DriveDirectory directory;
  const std::string text = directory / "train.txt", validation = directory / "val.txt";
};

}  // namespace sluice
