// Rates of every kind of op on a device, as a machine description has them (OpRates).
//
// Every kind is timed on its examples (engine/graph/op.h), forward and backward, and
// seconds = flops / F + bytes / B is fitted to the times, so that relative errors are least. Times whose
// rounds disagree are repeated.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/rates/machine_rates.h"
#include "gpu/device.h"
#include "tools/bench/rounds.h"

namespace sluice {

double& rate_of(PrecisionRates& rates, DType precision);

struct OpPoint {
  double flops = 0, bytes = 0, seconds = 0;
};
struct OpFit {
  double flops_per_second = kUnlimited, bytes_per_second = kUnlimited;
  double error_max = 0;       // largest relative error of the fitted seconds
  double flops_together = 0;  // flops a second of all points one after the other
};
// Least squares of the relative errors, with rates that are not negative. Requires points, all of positive
// seconds.
OpFit fit_op(std::span<const OpPoint> points);

struct OpSizes {
  int64_t rows = 1024, width = 1024, vocabulary = 16384;
  double seconds_at_least = 0.03;  // for each op and pass
  double repeat_seconds = 5;       // at most, for all that is timed again in one precision
};

// The most device memory that measure_ops() needs for any of the precisions.
uint64_t ops_bytes(const Device& device, std::span<const DType> precisions, const OpSizes& sizes);

// Puts the rates of all kinds in one precision into `rates`. Calls `say` for each kind, with its fit and with
// the rounds of the time whose rounds disagree most.
void measure_ops(Device& device, DType precision, const OpSizes& sizes, std::vector<OpRates>& rates,
                 const std::function<void(OpKind, const OpFit&, const Rounds&)>& say);

}  // namespace sluice
