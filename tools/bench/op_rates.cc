#include "tools/bench/op_rates.h"

#include <algorithm>
#include <cmath>

#include "tools/bench/median.h"
#include "tools/bench/op_timer.h"

namespace sluice {

namespace {

// Every op is timed once in each of kRounds rounds over all ops. If something slows the machine for a while,
// it slows one timing of an op, and the median leaves that one out.
constexpr int kRounds = 3;

struct Timings {
  OpShapes shapes;
  Pass pass;
  std::vector<double> seconds;  // by round
};

double error_of(std::span<const OpPoint> points, double per_flop, double per_byte) {
  double sum = 0;
  for (const OpPoint& p : points)
    sum += std::pow((p.flops * per_flop + p.bytes * per_byte) / p.seconds - 1, 2);
  return sum;
}

std::vector<OpShapes> examples(const Device& device, OpKind kind, DType precision, const OpSizes& s) {
  std::vector<OpShapes> all = op_examples(kind, precision, {s.rows, s.width, s.vocabulary});
  if (kind == OpKind::linear_cross_entropy)
    for (OpShapes& shapes : all) shapes.attributes.loss_rows = loss_rows(s.vocabulary, device.sizes().logits);
  return all;
}

}  // namespace

double& rate_of(PrecisionRates& rates, DType precision) {
  return precision == DType::bf16 ? rates.bf16 : precision == DType::f16 ? rates.fp16 : rates.fp32;
}

OpFit fit_op(std::span<const OpPoint> points) {
  // x seconds a flop and y seconds a byte solve the normal equations of x f + y b = 1 over all points.
  struct {
    double ff = 0, fb = 0, bb = 0, f = 0, b = 0;
  } n;
  for (const OpPoint& p : points) {
    const double f = p.flops / p.seconds, b = p.bytes / p.seconds;
    n.ff += f * f, n.fb += f * b, n.bb += b * b, n.f += f, n.b += b;
  }
  // Candidates for (x, y): the solution of the equations, and, since one of its numbers may be negative, the
  // best solution with y = 0 and the best with x = 0.
  std::vector<std::pair<double, double>> candidates;
  const double determinant = n.ff * n.bb - n.fb * n.fb;
  if (determinant > 1e-9 * n.ff * n.bb)
    candidates.emplace_back((n.f * n.bb - n.b * n.fb) / determinant, (n.b * n.ff - n.f * n.fb) / determinant);
  if (n.ff > 0) candidates.emplace_back(n.f / n.ff, 0);
  if (n.bb > 0) candidates.emplace_back(0, n.b / n.bb);
  std::pair<double, double> best;
  double least = kUnlimited;
  for (const auto& [per_flop, per_byte] : candidates) {
    if (per_flop < 0 || per_byte < 0) continue;
    const double error = error_of(points, per_flop, per_byte);
    if (error >= least) continue;
    least = error;
    best = {per_flop, per_byte};
  }
  OpFit fit;
  if (best.first > 0) fit.flops_per_second = 1 / best.first;
  if (best.second > 0) fit.bytes_per_second = 1 / best.second;
  double flops = 0, seconds = 0;
  for (const OpPoint& p : points) {
    fit.error_max =
        std::max(fit.error_max, std::fabs((p.flops * best.first + p.bytes * best.second) / p.seconds - 1));
    flops += p.flops;
    seconds += p.seconds;
  }
  fit.flops_together = flops / seconds;
  return fit;
}

uint64_t ops_bytes(const Device& device, std::span<const DType> precisions, const OpSizes& sizes) {
  uint64_t bytes = 0;
  for (const DType precision : precisions)
    for (const OpKind kind : kAllOps)
      for (const OpShapes& shapes : examples(device, kind, precision, sizes))
        bytes = std::max(bytes, OpTimer::bytes_needed(device, shapes));
  return bytes;
}

namespace {

std::vector<Timings> time_ops(Device& device, DType precision, const OpSizes& sizes) {
  BenchMemory memory(device, ops_bytes(device, std::span(&precision, 1), sizes));
  OpTimer timer(device, memory);
  const Repeats repeats{.seconds_at_least = sizes.seconds_at_least / kRounds, .rounds_at_least = 1};
  std::vector<Timings> all;
  for (const OpKind kind : kAllOps)
    for (const OpShapes& shapes : examples(device, kind, precision, sizes))
      for (const Pass pass : {Pass::forward, Pass::backward})
        if (pass == Pass::forward || op_rule(kind).has_backward()) all.push_back({shapes, pass, {}});
  const auto time = [&](Timings& t) { t.seconds.push_back(timer.seconds(t.shapes, t.pass, repeats)); };
  for (int round = 0; round < kRounds; ++round) std::ranges::for_each(all, time);
  const double end = steady_seconds() + sizes.repeat_seconds;
  for (bool again = true; again;) {
    again = false;
    for (Timings& t : all) {
      if (steady_seconds() >= end) return all;
      if (!disagree(rounds_of(t.seconds))) continue;
      time(t);
      again = true;
    }
  }
  return all;
}

}  // namespace

void measure_ops(Device& device, DType precision, const OpSizes& sizes, std::vector<OpRates>& rates,
                 const std::function<void(OpKind, const OpFit&, const Rounds&)>& say) {
  const std::vector<Timings> all = time_ops(device, precision, sizes);
  for (const OpKind kind : kAllOps) {
    std::vector<OpPoint> points;
    std::vector<Rounds> rounds;
    for (const Timings& t : all) {
      if (t.shapes.kind != kind) continue;
      rounds.push_back(rounds_of(t.seconds));
      points.push_back({op_rule(kind).flops(t.shapes, t.pass),
                        static_cast<double>(op_bytes(t.shapes, t.pass)), rounds.back().median});
    }
    const OpFit fit = fit_op(points);
    auto row = std::find_if(rates.begin(), rates.end(), [&](const OpRates& r) { return r.kind == kind; });
    if (row == rates.end()) row = rates.insert(row, {kind, {}, {}});
    rate_of(row->flops, precision) = fit.flops_per_second;
    rate_of(row->bytes, precision) = fit.bytes_per_second;
    say(kind, fit, *std::ranges::max_element(rounds, {}, &Rounds::spread));
  }
}

}  // namespace sluice
