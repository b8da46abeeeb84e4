// What a run shows and writes while it trains: progress lines, the metrics file and, with --tensorboard, the
// event file. Owner: the verb's thread of the first rank.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "engine/plan/plan.h"
#include "engine/run/options/options.h"
#include "engine/run/train/event_file.h"
#include "engine/run/train/metrics.h"
#include "engine/run/train/trainer.h"
#include "gpu/accelerator.h"
#include "models/families/config.h"
#include "tools/command/progress.h"
#include "tools/train/comparison.h"
#include "tools/train/router_watch.h"

namespace sluice {

class Records {
 public:
  // `metrics`: path of the file. `done`: steps that the run has done before. Throws as MetricsFile
  // and EventFile do.
  Records(const Options& options, const std::string& metrics, int64_t done, const Plan& plan,
          const ModelConfig& model, std::FILE* out, StopForecast& forecast);

  // Shows and records every event, and tells once if a stop takes longer than --stop-within. After the first
  // step it also prints how much GPU memory is held, of at most `limit` bytes, unless `accelerator` is null.
  // After some more steps it prints how steps compare with the prediction, and what is wrong with routers.
  // This object, `comparison` and `accelerator` outlive the events.
  TrainEvents events(Comparison& comparison, Accelerator* accelerator, uint64_t limit);
  // Ends the line of progress, and says how much could not be written.
  void finish();

 private:
  void write(const auto& figures);
  std::optional<std::string> late_stop(const StepMetrics& newest);

  MetricsFile metrics_;
  std::optional<EventFile> events_;
  Progress progress_;
  RouterWatch routers_;
  StopForecast& forecast_;
  double stop_within_;  // seconds; 0: no limit, or the user was told that a stop takes longer
};

}  // namespace sluice
