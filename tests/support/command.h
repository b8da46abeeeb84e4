// A command as a child process. Tests see its output, exit code and peak memory, and send it signals at a
// chosen moment.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/test_directory.h"

namespace sluice {

// The path of the command, which lies beside the tests. `sluice_emulated` is the command over the emulated
// GPU.
std::string sluice_binary(const std::string& name = "sluice");

struct CommandResult {
  int code = -1;  // exit code, or -signal
  std::string out, err;
  uint64_t peak_bytes = 0;  // of resident memory, as the kernel counted it
};

// Adds `--device cpu` to verbs that take a device, so that tests give the same results anywhere. Arguments
// that name a device, or that resume a run (which has a device), stay as they are.
std::vector<std::string> sluice_words(const std::vector<std::string>& arguments, const std::string& binary);

// A child process. The destructor kills it unless it was waited for.
class Command {
 public:
  // Output goes to files in `directory`.
  Command(const DriveDirectory& directory, const std::vector<std::string>& arguments,
          const std::string& binary = "sluice");
  // Any command. The shell's search path applies.
  Command(const std::string& directory, std::vector<std::string> words);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t process() const { return child_; }
  void send(int number) const;

  // Checks `condition` every 3 ms. Returns false when the child ends, or two minutes pass, before it
  // holds.
  bool until(const std::function<bool()>& condition) const;
  CommandResult wait();

 private:
  std::string out_, err_;
  pid_t child_ = -1;
};

CommandResult sluice_command(const DriveDirectory& directory, const std::vector<std::string>& arguments);

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b);
std::vector<std::string> lines_of(const std::string& text);

}  // namespace sluice
