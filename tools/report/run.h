// What the page says of a run: figures for the tables, curves thin enough for a page, and samples. All
// comes from the run's metrics file, and from its newest checkpoint if there is one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/run/checkpoint/manifest.h"
#include "engine/run/train/metrics.h"
#include "tools/report/curve.h"

namespace sluice {

struct ReportedRun {
  std::string name;                     // the directory, as the user wrote it
  std::vector<ManifestOption> options;  // of the newest checkpoint; empty: there is none
  int64_t last_step = 0;
  double last_loss = 0;                   // smoothed
  std::optional<double> best_validation;  // the least; none: there was no validation
  int64_t best_validation_step = 0;
  double tokens = 0;                 // of the steps in the metrics file
  double tokens_per_second = 0;      // median
  std::optional<double> clip;        // above which gradient norms are clipped; none: no checkpoint says so
  int64_t clipped = 0, skipped = 0;  // steps
  // By name: the keys of the metrics file, `loss_smooth`, `clipped` (gradient norms of clipped steps), and
  // `memory TIER` for each tier and the process.
  std::vector<std::pair<std::string, Curve>> curves;
  std::vector<SampleMetrics> samples;  // by step; kSampledSteps at most, the first and the last among them
};
constexpr size_t kSampledSteps = 20;

// If a step stands twice in the file, the run went back to an earlier step. The step's first record, and all
// records between its two records, are left out. Changes no file. Throws Error(usage) for a directory that
// holds no run or no step yet, and as read_metrics() does.
ReportedRun read_run(const std::string& directory);

}  // namespace sluice
