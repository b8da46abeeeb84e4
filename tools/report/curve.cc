#include "tools/report/curve.h"

#include <algorithm>
#include <cmath>

namespace sluice {

void Curve::add(int64_t step, double value) {
  steps.push_back(step);
  values.push_back(std::isfinite(value) ? value : std::nan(""));
}

void Curve::cut(int64_t step) {
  while (!steps.empty() && steps.back() >= step) steps.pop_back(), values.pop_back();
}

Curve thinned(const Curve& curve, size_t columns) {
  const size_t size = curve.size();
  if (size <= 2 * columns) return curve;
  const auto first = static_cast<double>(curve.steps.front()), last = static_cast<double>(curve.steps.back());
  const auto column_of = [&](size_t i) {
    const double part = (static_cast<double>(curve.steps[i]) - first) / (last - first);
    return std::min(static_cast<size_t>(part * static_cast<double>(columns)), columns - 1);
  };
  Curve out;
  const auto keep = [&](size_t i) {
    if (out.steps.empty() || out.steps.back() < curve.steps[i]) out.add(curve.steps[i], curve.values[i]);
  };
  keep(0);
  for (size_t i = 0; i < size;) {
    const size_t column = column_of(i);
    size_t least = i, most = i;
    for (; i < size && column_of(i) == column; ++i) {  // a comparison with NaN is false
      if (std::isnan(curve.values[least]) || curve.values[i] < curve.values[least]) least = i;
      if (std::isnan(curve.values[most]) || curve.values[i] > curve.values[most]) most = i;
    }
    keep(std::min(least, most));
    keep(std::max(least, most));
  }
  keep(size - 1);
  return out;
}

Curve smoothed(const Curve& curve) {
  const double points = std::max(5.0, static_cast<double>(curve.size()) / 50);
  const double stays = std::exp(-1 / points);
  double sum = 0, weights = 0;
  Curve out;
  for (size_t i = 0; i < curve.size(); ++i) {
    const double value = curve.values[i];
    if (!std::isnan(value)) {
      sum = sum * stays + value;
      weights = weights * stays + 1;
    }
    out.add(curve.steps[i], std::isnan(value) ? value : sum / weights);
  }
  return out;
}

}  // namespace sluice
