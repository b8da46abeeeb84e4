#include "tools/benchmarks/bench_main.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "engine/base/error.h"

namespace sluice {

struct BenchMain::App : CLI::App {
  using CLI::App::App;
};

BenchMain::BenchMain(const std::string& what) : app_(std::make_unique<App>(what)) {}
BenchMain::~BenchMain() = default;

void BenchMain::add(const std::string& option, int& value, const std::string& help) {
  app_->add_option(option, value, help)->check(CLI::PositiveNumber);
}
void BenchMain::add(const std::string& option, int64_t& value, const std::string& help) {
  app_->add_option(option, value, help)->check(CLI::PositiveNumber);
}
void BenchMain::add(const std::string& option, uint64_t& value, const std::string& help) {
  app_->add_option(option, value, help)->check(CLI::PositiveNumber);
}
void BenchMain::add(const std::string& option, std::vector<uint32_t>& values, const std::string& help) {
  app_->add_option(option, values, help)->check(CLI::PositiveNumber);
}
void BenchMain::add(const std::string& option, std::vector<int64_t>& values, const std::string& help) {
  app_->add_option(option, values, help)->check(CLI::PositiveNumber);
}
void BenchMain::add(const std::string& option, std::string& value, const std::string& help) {
  app_->add_option(option, value, help);
}
void BenchMain::add_flag(const std::string& option, bool& value, const std::string& help) {
  app_->add_flag(option, value, help);
}
void BenchMain::add_small(bool& value) { add_flag("--small", value, "tiny: shows that it works, no more"); }

int BenchMain::run(int argc, char** argv, const std::function<void()>& measure) {
  CLI11_PARSE(*app_, argc, argv);
  try {
    measure();
    return 0;
  } catch (const Error& e) {
    fmt::print(stderr, "{}: {}\n{}\n", std::filesystem::path(argv[0]).filename().string(), e.what(),
               e.remedy());
    return static_cast<int>(e.code());
  }
}

}  // namespace sluice
