// What the tests of the `sluice` binary share: the command as a child process, with its output, exit code, peak of memory,
// and signals at a chosen moment.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "models/file.h"
#include "tests/training_support.h"

namespace sluice {

// The binary lies beside the tests.
inline std::string sluice_binary() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "sluice").string();
}

struct CommandResult {
  int code = -1;            // exit code, or -signal
  std::string out, err;
  uint64_t peak_bytes = 0;  // of resident memory, as the kernel counted it
};

// A child that was started and is to be waited for.
class Command {
 public:
  // Output goes to files in `directory`.
  Command(const DriveDirectory& directory, const std::vector<std::string>& arguments)
      : out_(directory / "stdout"), err_(directory / "stderr") {
    std::vector<std::string> words{sluice_binary()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    child_ = fork();
    if (child_ == 0) {
      const int out = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      const int err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      if (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0) _exit(126);
      execv(argv[0], argv.data());
      _exit(127);
    }
    EXPECT_GT(child_, 0);
  }
  ~Command() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  void send(int number) const { ::kill(child_, number); }

  // Looks every few milliseconds until `condition` holds; false when the child ended or half a minute passed before.
  bool until(const std::function<bool()>& condition) const {
    for (int i = 0; i < 10000; ++i) {
      if (condition()) return true;
      siginfo_t info{};
      if (waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid) return false;
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

inline CommandResult sluice_command(const DriveDirectory& directory, const std::vector<std::string>& arguments) {
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

}  // namespace sluice
