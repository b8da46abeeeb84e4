// Tests, for every device, whether the loss counts the labels whose logit is the largest of its row. The rows
// are made so that the largest logit is known by hand.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/op_runs.h"

namespace sluice {

// Token v has the weights v % 10 and -v. So x = (1, 0) gives the logits 0, 1, ..., 9, 0, 1, ... Likewise
// x = (0, 1) gives the logits 0, -1, -2, ... All logits are whole numbers that every precision represents. 37
// tokens are no multiple of a vector.
inline constexpr int64_t kRightTokens = 37, kRightRows = 43;
struct RightRow {
  int x[2];
  int32_t label;
  bool right;
};
inline constexpr std::array<RightRow, 10> kRightCases = {{
    {{1, 0}, 9, true},    // one of three that have 9
    {{1, 0}, 29, true},   // another one
    {{1, 0}, 8, false},   // 8 is below 9
    {{0, 1}, 0, true},    // the first token alone has 0
    {{0, 1}, 1, false},   // -1
    {{0, -1}, 36, true},  // the last token alone has 36
    {{0, -1}, 35, false},
    {{-1, 0}, 30, true},  // one of four that have 0
    {{1, 0}, kIgnoreLabel, false},
    {{0, 0}, 5, true},  // all are equal
}};
// The 43 rows are four times the ten cases, six of them right, and then three cases, two of them right.
inline constexpr double kRightCount = 26;

inline Operands right_operands(const OpAttributes& attributes, DType precision) {
  const OpCase c{
      "", OpKind::linear_cross_entropy, attributes, {{kRightRows, 2}, {kRightRows}}, {{kRightTokens, 2}}};
  Operands operands(c, precision);
  std::vector<int32_t> labels;
  for (int64_t r = 0; r < kRightRows; ++r) {
    const RightRow& row = kRightCases[static_cast<size_t>(r) % kRightCases.size()];
    for (const int64_t i : {0, 1}) write_value(operands.inputs[0].data(), precision, 2 * r + i, row.x[i]);
    labels.push_back(row.label);
  }
  std::memcpy(operands.inputs[1].data(), labels.data(), operands.inputs[1].bytes());
  for (int64_t v = 0; v < kRightTokens; ++v) {
    write_value(operands.parameters[0].data(), precision, 2 * v, static_cast<double>(v % 10));
    write_value(operands.parameters[0].data(), precision, 2 * v + 1, static_cast<double>(-v));
  }
  operands.freeze();
  return operands;
}

// Forward and backward must count right labels, for any number of rows at a time, scale and cap. The count
// must not change a bit of losses and gradients.
inline void expect_right_labels_counted(Device& device, DType precision) {
  for (const int64_t rows : {0, 16, 1})
    for (const double cap : {0, 3})
      for (const double scale : {0.0, 0.5}) {
        SCOPED_TRACE("rows " + std::to_string(rows) + ", cap " + std::to_string(cap) + ", scale " +
                     std::to_string(scale));
        OpAttributes a{.loss_rows = rows, .soft_cap = cap, .scale = scale};
        Operands without = right_operands(a, precision);
        a.counts_right = true;
        Operands with = right_operands(a, precision);
        std::vector<Guarded> expected = run_forward(device, without), found = run_forward(device, with);
        const auto losses = results_of(with, found)[0].values;
        EXPECT_EQ(losses[0], results_of(without, expected)[0].values[0]);
        EXPECT_EQ(losses[1], kLossBefore + kRightCount) << "forward";
        const auto wanted = run_backward(device, without, expected),
                   gradients = run_backward(device, with, found);
        EXPECT_EQ(gradients[0].values, wanted[0].values);
        EXPECT_EQ(gradients[1].values, wanted[1].values);
        EXPECT_EQ(gradients[2].values[0], wanted[2].values[0]);
        EXPECT_EQ(gradients[2].values[1], kLossBefore + kRightCount) << "backward";
      }
}

}  // namespace sluice
