// Ops on numbers that a test gives: fp32 operands, and the outputs of the reference device beside numbers
// that were worked out by hand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/support/op_runs.h"

namespace sluice {

using Numbers = std::vector<double>;

// The tolerance is relative to the number, or to 1 if the number is smaller. Operands and results are rounded
// to fp32 once each (6e-8), and the numbers that tests give have seven digits.
constexpr double kNumbersTolerance = 3e-7;

inline void set(Guarded& tensor, const Numbers& values) {
  ASSERT_EQ(tensor.bytes(), values.size() * sizeof(float));
  for (size_t i = 0; i < values.size(); ++i)
    write_value(tensor.data(), DType::f32, static_cast<int64_t>(i), values[i]);
}

inline void set_indices(Guarded& tensor, const std::vector<int32_t>& values) {
  ASSERT_EQ(tensor.bytes(), values.size() * sizeof(int32_t));
  std::memcpy(tensor.data(), values.data(), tensor.bytes());
}

// An fp32 op whose inputs and parameters hold the given numbers.
inline Operands operands_of(OpKind kind, const OpAttributes& attributes, const std::vector<Shape>& inputs,
                            const std::vector<Numbers>& input_values,
                            const std::vector<Shape>& parameters = {},
                            const std::vector<Numbers>& parameter_values = {}) {
  Operands out({"", kind, attributes, inputs, parameters}, DType::f32);
  for (size_t i = 0; i < input_values.size(); ++i)
    if (!out.is_index(i)) set(out.inputs[i], input_values[i]);
  for (size_t i = 0; i < parameter_values.size(); ++i) set(out.parameters[i], parameter_values[i]);
  out.freeze();
  return out;
}

inline void expect_outputs(Operands operands, const std::vector<Numbers>& wanted) {
  const auto device = make_reference_device();
  const auto found = results_of(operands, run_forward(*device, operands));
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t k = 0; k < found.size(); ++k) {
    ASSERT_EQ(found[k].values.size(), wanted[k].size());
    for (size_t i = 0; i < wanted[k].size(); ++i)
      EXPECT_NEAR(found[k].values[i], wanted[k][i],
                  kNumbersTolerance * std::max(1.0, std::fabs(wanted[k][i])))
          << found[k].name << " at " << i;
  }
}

}  // namespace sluice
