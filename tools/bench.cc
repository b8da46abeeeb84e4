#include <fmt/format.h>

#include <filesystem>

#include "engine/run/setup.h"
#include "models/file.h"
#include "tools/bench/machine.h"
#include "tools/verbs.h"

namespace sluice {

ExitCode run_bench(Options options, std::FILE* out) {
  const std::string& path = options.bench.out;
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored))
    throw Error(ExitCode::usage, "There is already a file " + printable(path) + ".",
                "Give another name with --out, or remove it.");
  settle_device(options, false);
  if (options.memory.device.kind == DeviceKind::cuda)
    throw Error(ExitCode::environment, "`sluice bench` measures the cpu device, and not a GPU yet.",
                "Add --device cpu for that; for the GPU, name a description near to it in --machine.");
  OutputFile file(path);
  const std::string text = machine_rates_json(measure_machine(options.memory, {}, out));
  file.write(text.data(), text.size());
  file.commit();
  fmt::print(out, "Written to {0}. Predict with it: sluice plan --machine {0} ...\n", printable(path));
  return ExitCode::done;
}

}  // namespace sluice
