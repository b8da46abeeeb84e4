#include "tests/support/command.h"

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
#include <string_view>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/file.h"

namespace sluice {

std::string sluice_binary(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

std::vector<std::string> sluice_words(const std::vector<std::string>& arguments, const std::string& binary) {
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

Command::Command(const DriveDirectory& directory, const std::vector<std::string>& arguments,
                 const std::string& binary)
    : Command(directory / "", sluice_words(arguments, binary)) {}

Command::Command(const std::string& directory, std::vector<std::string> words)
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

Command::~Command() {
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

void Command::send(int number) const { ::kill(child_, number); }

bool Command::until(const std::function<bool()>& condition) const {
  for (int i = 0; i < 40000; ++i) {
    if (condition()) return true;
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid)
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  return false;
}

CommandResult Command::wait() {
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

CommandResult sluice_command(const DriveDirectory& directory, const std::vector<std::string>& arguments) {
  return Command(directory, arguments).wait();
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace sluice
