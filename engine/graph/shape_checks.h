// Checks that shape rules share (op_shapes.h, expert_ops.h). They throw std::invalid_argument with a
// sentence.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/op.h"

namespace sluice {

template <typename... Values>
void require(bool condition, const OpShapes& in, const char* sentence, const Values&... values) {
  if (condition) return;
  const char* name = op_rule(in.kind).name;
  throw std::invalid_argument(fmt::format("{}: {}", name, fmt::format(fmt::runtime(sentence), values...)));
}

inline std::string text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// Checks that hold for every op: operand counts, precision, and shapes of a representable, non-zero size.
inline void check_operands(const OpShapes& in) {
  const OpRule& rule = op_rule(in.kind);
  require(in.inputs.size() >= rule.inputs.least && in.inputs.size() <= rule.inputs.most, in,
          "{} inputs are given, {} to {} are taken.", in.inputs.size(), rule.inputs.least, rule.inputs.most);
  require(in.parameters.size() >= rule.parameters.least && in.parameters.size() <= rule.parameters.most, in,
          "{} parameters are given, {} to {} are taken.", in.parameters.size(), rule.parameters.least,
          rule.parameters.most);
  require(in.precision == DType::f32 || in.precision == DType::bf16 || in.precision == DType::f16, in,
          "{} is no working precision.", dtype_name(in.precision));
  for (const std::vector<Shape>* shapes : {&in.inputs, &in.parameters})
    for (const Shape& shape : *shapes)
      require(element_count(shape) > 0 && !shape.empty(), in, "an operand of shape {} is empty.",
              text(shape));
}

inline void check_rank(const OpShapes& in, const Shape& shape, size_t rank, const char* what) {
  require(shape.size() == rank, in, "{} of shape {} needs {} dimensions.", what, text(shape), rank);
}

inline void check_shape(const OpShapes& in, const Shape& shape, const Shape& wanted, const char* what) {
  require(shape == wanted, in, "{} has shape {} where {} is needed.", what, text(shape), text(wanted));
}

// Rows must be whole sequences.
inline void check_sequence(const OpShapes& in, int64_t rows) {
  const int64_t sequence = in.attributes.sequence;
  require(sequence > 0, in, "the sequence length {} is not positive.", sequence);
  require(rows % sequence == 0, in, "{} rows are not whole sequences of {}.", rows, sequence);
}

// heads * head_size, checked.
inline int64_t head_columns(const OpShapes& in, int64_t heads) {
  const int64_t size = in.attributes.head_size;
  int64_t columns = 0;
  require(heads > 0 && size > 0, in, "{} heads of size {} are not possible.", heads, size);
  require(!__builtin_mul_overflow(heads, size, &columns), in, "{} heads of size {} overflow.", heads, size);
  return columns;
}

inline void check_index_range(const OpShapes& in, int64_t vocabulary) {
  require(vocabulary <= std::numeric_limits<int32_t>::max(), in,
          "a vocabulary of {} does not fit the 32-bit token type.", vocabulary);
}

inline void check_documents(const OpShapes& in, const Shape& begins, int64_t rows) {
  check_shape(in, begins, {rows}, "the vector of document begins");
}

inline bool not_negative(double value) { return std::isfinite(value) && value >= 0; }

inline void check_scale(const OpShapes& in) {
  require(not_negative(in.attributes.scale), in, "the scale {} is neither a positive number nor 0.",
          in.attributes.scale);
}

inline void check_soft_cap(const OpShapes& in) {
  require(not_negative(in.attributes.soft_cap), in, "the soft cap {} is neither a positive number nor 0.",
          in.attributes.soft_cap);
}

inline void check_epsilon(const OpShapes& in) {
  const double epsilon = in.attributes.epsilon;
  require(std::isfinite(epsilon) && epsilon > 0, in, "epsilon {} is not a positive number.", epsilon);
}

inline void set_outputs(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes,
                        std::vector<Shape> shapes, std::vector<DType> types) {
  for (const Shape& shape : shapes) require(element_count(shape) > 0, in, "output {} is empty.", text(shape));
  outputs = std::move(shapes);
  dtypes = std::move(types);
}

}  // namespace sluice
