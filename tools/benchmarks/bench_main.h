// The command line and the end of a benchmark: options by name, and one sentence with an exit code for each
// error. CLI11 is compiled once for all benchmarks, since that takes longer than most of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sluice {

class BenchMain {
 public:
  explicit BenchMain(const std::string& what);  // what it measures, for --help
  ~BenchMain();

  // An option keeps the variable's value where it is not given. Numbers are positive; a flag takes no value.
  void add(const std::string& option, int& value, const std::string& help);
  void add(const std::string& option, int64_t& value, const std::string& help);
  void add(const std::string& option, uint64_t& value, const std::string& help);
  void add(const std::string& option, std::vector<uint32_t>& values, const std::string& help);
  void add(const std::string& option, std::vector<int64_t>& values, const std::string& help);
  void add(const std::string& option, std::string& value, const std::string& help);
  void add_flag(const std::string& option, bool& value, const std::string& help);
  void add_small(bool& value);  // --small

  // Calls `measure` once the options are set. Returns the process's exit code; what is wrong goes to stderr.
  int run(int argc, char** argv, const std::function<void()>& measure);

 private:
  struct App;
  std::unique_ptr<App> app_;
};

}  // namespace sluice
