// What operands an op takes, and the shapes and types of its outputs: a function for each row of the table of
// ops (op_table.cc). They throw std::invalid_argument with a sentence when the operands do not fit.
#pragma once

#include <vector>

#include "engine/graph/op.h"

namespace sluice {

void infer_embedding(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_layer_norm(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_rms_norm(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_linear(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
// All inputs have one shape, and so has the output.
void infer_elementwise(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_swiglu(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_rope(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_attention(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_cached_attention(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_pick_rows(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_cross_entropy(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);

// Columns of a linear op's output.
inline int64_t linear_columns(const OpShapes& s) {
  return s.parameters[0][s.attributes.weight_out_in ? 0 : 1];
}

}  // namespace sluice
