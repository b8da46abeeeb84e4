// What tracing costs: the same steps with tracing and without, in turn, in one process, on the same pages.
//
//   trace_bench [--dir DIR] [--small]
//
// A round times two steps. One is traced as `sluice profile` does it: the executor keeps records, and the
// recorder copies the body's records. Each step runs alone, so that nothing hides the copy. The first
// configuration is the worst case: tensors of a few KiB in two memory tiers, so that instructions are many
// and short. The second has three tiers, with files in DIR. Prints three figures of the rounds' ratios: the
// median, the middle half, and the range that holds the true median with a probability of 95 % (by order
// statistics in their normal approximation: 0.98 sqrt(rounds) places on either side of the middle). --small:
// few rounds, to show that the benchmark works.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/execute/recorder.h"
#include "tools/benchmarks/contest.h"
#include "tools/benchmarks/stepped_session.h"
#include "tools/command/command_line.h"

namespace sluice {
namespace {

constexpr double kOverheadMax = 0.01;

struct Configuration {
  std::string name;
  std::vector<std::string> options;
  int rounds;
};

const Configuration kConfigurations[] = {
    {"many short instructions",
     {"--model", "gpt2:layers=6,width=64,heads=4,vocab=256,context=32", "--batch", "4", "--micro-batch", "1",
      "--gpu-mem", "800KiB", "--host-mem", "128MiB", "--threads", "1"},
     2000},
    {"4.8 million parameters",
     {"--model", "gpt2:layers=6,width=256,heads=4,vocab=256,context=128", "--batch", "4", "--gpu-mem", "30MB",
      "--host-mem", "100MiB", "--threads", "2", "--nvme-dir"},
     150}};

Options options_of(const Configuration& configuration, const std::string& directory) {
  std::vector<std::string> words{"trace_bench", "train", "--overlap", "never",      "--waves", "1",
                                 "--device",    "cpu",   "--data",    "unused.txt", "--out",   "unused"};
  words.insert(words.end(), configuration.options.begin(), configuration.options.end());
  if (words.back() == "--nvme-dir") words.push_back(directory);
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_command_line(static_cast<int>(argv.size()), argv.data()).options;
}

class Steps {
 public:
  Steps(const Configuration& configuration, const std::string& directory, int rounds)
      : session_(options_of(configuration, directory), ExecutorKind::threaded),
        step_(session_.plan().lowering.bodies().usual().front()),
        recorder_(session_.plan().program, std::span(&step_, 1), static_cast<size_t>(rounds)) {
    session_.wait(session_.issue_step());  // the first body is not a `step`
  }

  void run(bool traced) {
    session_.executor().set_traced(traced);
    const uint64_t ticket = session_.issue_step();
    session_.wait(ticket);
    if (!traced) return;
    recorder_.copy(session_.executor().trace(), ticket, step_, 1);
    CHECK(recorder_.bodies().back().count == instructions(), "a step was not traced");
  }
  size_t instructions() const { return session_.plan().program.bodies[step_].instructions.size(); }

 private:
  SteppedSession session_;
  const BodyId step_;
  Recorder recorder_;
};

std::string percent(double ratio) { return fmt::format("{:+.2f} %", 100 * (ratio - 1)); }

void compare(const Configuration& configuration, const std::string& directory, bool small) {
  const int rounds = small ? 4 : configuration.rounds;
  Steps steps(configuration, directory, rounds + 1);  // one warms up
  std::vector<Contestant> both{{"traced", [&] { steps.run(true); }}, {"not", [&] { steps.run(false); }}};
  time_alternating(both, rounds);
  std::vector<double> ratios = time_ratios(both[0], both[1]);
  std::sort(ratios.begin(), ratios.end());
  const auto rank = [&](double of) {
    return ratios[static_cast<size_t>(std::clamp(of, 0.0, static_cast<double>(rounds - 1)) + 0.5)];
  };
  const double middle = static_cast<double>(rounds - 1) / 2, reach = 0.98 * std::sqrt(rounds);
  fmt::print("{}: {} instructions, {:.3f} ms a step, {} rounds\n", configuration.name, steps.instructions(),
             1e3 * median(both[1].seconds), rounds);
  fmt::print("  a traced step against one that is not: {} (95 %: {} to {}; middle half: {} to {})\n",
             percent(median(ratios)), percent(rank(middle - reach)), percent(rank(middle + reach)),
             percent(rank(middle / 2)), percent(rank(middle * 1.5)));
  fmt::print("  bar: {}  {}\n", percent(1 + kOverheadMax),
             median(ratios) <= 1 + kOverheadMax ? "ok" : "short");
}

void compare_all(int argc, char** argv) {
  std::string directory = ".";
  bool small = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--small")
      small = true;
    else if (word == "--dir" && i + 1 < argc)
      directory = argv[++i];
    else
      throw Error(ExitCode::usage, "Unknown option " + word + ", or one without its value.",
                  "Usage: trace_bench [--dir DIR] [--small]");
  }
  for (const Configuration& configuration : kConfigurations) compare(configuration, directory, small);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    sluice::compare_all(argc, argv);
    return 0;
  } catch (const sluice::Error& e) {
    fmt::print(stderr, "trace_bench: {}\n{}\n", e.what(), e.remedy());
    return static_cast<int>(e.code());
  }
}
