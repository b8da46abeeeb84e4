#include "tools/bench/algorithms.h"

#include <fmt/format.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/plan_request.h"
#include "gpu/cuda/device.h"
#include "tools/command/screen.h"

namespace sluice {

std::vector<Product> products_to_time(const Options& options) {
  if (options.memory.device.kind != DeviceKind::cuda)
    throw Error(ExitCode::usage, "--model is for --device cuda, whose library has several algorithms.",
                "Leave out --model, or run bench where there is a GPU.");
  const ModelConfig config = resolve_model(options.model).config;
  BatchOptions batch = options.batch;
  batch.batch /= options.ranks.count;
  const int64_t sequence = batch.sequence.value_or(config.context);
  std::vector<Product> all;
  const int64_t tokens = busy_tokens(config, kCudaSizes.micro_batch_tokens);
  for (const int64_t micro_batch : micro_batch_candidates(batch, sequence, tokens)) {
    const Model model = sized_model(config, options.numbers.precision, kCudaSizes, micro_batch, sequence);
    for (const Segment& segment : model.segments)
      for (const Op& op : segment.ops)
        for (const Pass pass : {Pass::forward, Pass::backward}) {
          const std::vector<Product> some = products_of(shapes_of(segment, op, model.precision), pass);
          all.insert(all.end(), some.begin(), some.end());
        }
  }
  return all;
}

TimedAlgorithms time_algorithms(const Options& options, const std::vector<Product>& products,
                                const GpuScale& scale, std::FILE* out) {
  constexpr double kTera = 1e12;
  show(out, fmt::format("products of {} in {}: the first algorithm that cuBLASLt proposes, and the chosen\n"
                        "  {:<58}{:>12}{:>12}{:>8}\n",
                        printable(options.model.model), dtype_name(options.numbers.precision),
                        "m x n x k, types, strides of rows", "first", "chosen", "of"));
  AlgorithmMeasurement measurement{.ordinal = options.memory.device.ordinal, .products = products};
  measurement.seconds_least = scale.product_seconds;
  measurement.clock = steady_seconds;
  measurement.timed = [&](const TimedProduct& p) {
    show(out, fmt::format("  {:<58}{:>8.1f}{:>16}{:>6}\n", p.name, p.first / kTera,
                          fmt::format("{:.1f} TFLOP/s", p.chosen / kTera), p.candidates));
  };
  return cuda_time_algorithms(measurement);
}

}  // namespace sluice
