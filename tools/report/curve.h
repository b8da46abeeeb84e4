// Curves over steps: thinned to what a screen can show, and smoothed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice {

struct Curve {
  std::vector<int64_t> steps;  // ascending
  std::vector<double> values;  // NaN: there was no finite number

  size_t size() const { return steps.size(); }
  void add(int64_t step, double value);
  void cut(int64_t step);  // removes this step and those after it
};

// About the number of columns of a screen that a curve may take.
constexpr size_t kColumns = 1000;

// Divides the steps into `columns` ranges of equal length, and keeps the least and the greatest value of each
// range, at their own steps. It also keeps the first and the last point of the curve. A range without a
// finite value keeps one point. A curve of no more than 2 x `columns` points stays as it is. So at most 2 x
// `columns` + 2 points are left.
Curve thinned(const Curve& curve, size_t columns = kColumns);

// Exponential moving average that forgets within about a fiftieth of the points, at least 5. Each average is
// divided by the sum of its weights, so that the first averages are not drawn towards 0 (as the moments of
// Adam: Kingma, Ba 2015, section 3).
Curve smoothed(const Curve& curve);

}  // namespace sluice
