#include "tools/bench/bench.h"

#include <fmt/format.h>

#include <filesystem>

#include "engine/base/file.h"
#include "engine/run/start/agreement.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/run_directory.h"
#include "tools/bench/algorithms.h"
#include "tools/bench/machine.h"
#include "tools/command/launch.h"

namespace sluice {

namespace {

// Throws if `path` exists or cannot be written. Leaves no file.
void check_new(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored))
    throw Error(ExitCode::usage, printable(path) + " exists already.",
                "Give another name with --out, or remove it.");
  const OutputFile can_be_written(path);
}

// Only the first rank prints and writes the file.
ExitCode bench_rank(Options options, const Ranks& ranks, const BenchScale& scale, std::FILE* out) {
  const std::string& path = options.bench.out;
  if (ranks.is_first()) check_new(path);
  settle_device(options, false);
  const bool of_model = !options.model.model.empty();
  std::vector<Product> products;
  if (of_model) {
    options.ranks.count = ranks.size();
    check_options(options, Verb::bench, ManifestUse::none);  // now with the number of ranks
    products = products_to_time(options);
  }
  check_facts({{"--device", options.memory.device.kind == DeviceKind::cuda ? "cuda" : "cpu"}}, ranks);
  MachineRates rates = measure_machine(options.memory, ranks, scale, out);
  if (!ranks.is_first()) return ExitCode::done;
  if (of_model) rates.matmul_algorithms = time_algorithms(options, products, scale.gpu, out).text;
  check_new(path);  // the file may have been made meanwhile
  rates.name = printable(std::filesystem::path(path).stem().string()) + ", measured";
  const std::string text = machine_rates_json(rates);
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.commit();
  fmt::print(out, "Written to {0}. Predict with it: sluice plan --machine {0} ...\n", printable(path));
  if (of_model)
    fmt::print(out, "Multiply by the chosen algorithms: sluice train --matmul-algorithms {} ...\n",
               printable(path));
  return ExitCode::done;
}

}  // namespace

ExitCode run_bench(Options options, std::FILE* out) {
  return run_bench(std::move(options), out, BenchScale{});
}

ExitCode run_bench(Options options, std::FILE* out, const BenchScale& scale) {
  const std::unique_ptr<Launch> launch = open_launch("", std::nullopt);
  if (!launch) return bench_rank(std::move(options), {}, scale, out);
  return launch->run([&](RunDirectory*) {
    check_same_program(launch->ranks());
    return bench_rank(options, launch->ranks(), scale, out);
  });
}

}  // namespace sluice
