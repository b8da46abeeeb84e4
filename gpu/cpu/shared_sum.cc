// add_shared_sum: adds to each row the sum of its experts and the output of a dense part, each times the
// row's share for it. A task is a block of rows; its thread has one row of fp32 in the workspace.
#include <cmath>
#include <cstring>

#include "engine/base/simd/convert.h"
#include "gpu/cpu/router_rows.h"
#include "gpu/cpu/rows.h"

namespace sluice::cpu {
namespace {

// Row r of a tensor in `type`; nullptr stays nullptr.
std::byte* row_of(const void* data, int64_t r, int64_t columns, DType type) {
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(data));
  return bytes == nullptr ? nullptr : bytes + static_cast<uint64_t>(r * columns) * dtype_bytes(type);
}

uint64_t row_bytes(const OpShapes& s) { return aligned_bytes(s.inputs[0][1], sizeof(float)); }
float* row_memory(const OpCall& call, int thread) {
  return reinterpret_cast<float*>(call.workspace + row_bytes(*call.shapes) * static_cast<uint64_t>(thread));
}

// The softmax of a row's two shares.
struct Shares {
  Shares(const OpCall& call, int64_t row) {
    const auto* const shares = static_cast<const float*>(call.inputs[3].data) + 2 * row;
    const double difference = static_cast<double>(shares[0]) - static_cast<double>(shares[1]);
    of_sum = 1 / (1 + std::exp(-difference)), of_z = 1 / (1 + std::exp(difference));
  }
  double of_sum, of_z;
};

// Writes row r of a gradient in `type`: factor * dy. `memory` is for widening dy.
void put_scaled(const TensorView& to, DType type, int64_t r, const std::byte* dy, DType dy_type,
                double factor, float* memory, int64_t columns) {
  if (to.data == nullptr) return;
  widen(dy_type, dy, memory, static_cast<uint64_t>(columns));
  if (factor != 1) scale_row(memory, static_cast<float>(factor), columns);
  finish_row(type, memory, nullptr, row_of(to.addend, r, columns, type), row_of(to.data, r, columns, type),
             columns);
}

}  // namespace

uint64_t add_shared_sum_workspace_bytes(const OpShapes& shapes, Pass, const Resources& resources) {
  return row_bytes(shapes) * static_cast<uint64_t>(resources.workers.threads());
}

void add_shared_sum_forward(const OpCall& call, const Resources& resources) {
  const int64_t columns = call.shapes->inputs[0][1];
  const DType type = call.shapes->precision;
  for_each_block(call.shapes->inputs[0][0], resources.workers, [&](int64_t begin, int64_t end, int thread) {
    float* const y = row_memory(call, thread);
    for (int64_t r = begin; r < end; ++r) {
      const Shares shares(call, r);
      std::memcpy(y, row_of(call.inputs[2].data, r, columns, DType::f32),
                  static_cast<uint64_t>(columns) * sizeof(float));
      scale_row(y, static_cast<float>(shares.of_sum), columns);
      add_scaled_row(type, row_of(call.inputs[1].data, r, columns, type), static_cast<float>(shares.of_z), y,
                     columns);
      finish_row(type, y, nullptr, row_of(call.inputs[0].data, r, columns, type),
                 row_of(call.outputs[0].data, r, columns, type), columns);
    }
  });
}

// The gradient of share 0 is s0 s1 (dy . sum - dy . z). The gradient of share 1 is its negative.
void add_shared_sum_backward(const OpCall& call, const Resources& resources) {
  const int64_t columns = call.shapes->inputs[0][1];
  const DType type = call.shapes->precision;
  const TensorView to_shares = call.input_gradients[3];
  for_each_block(call.shapes->inputs[0][0], resources.workers, [&](int64_t begin, int64_t end, int thread) {
    float* const memory = row_memory(call, thread);
    for (int64_t r = begin; r < end; ++r) {
      const Shares shares(call, r);
      const std::byte* const dy = row_of(call.output_gradients[0].data, r, columns, type);
      put_scaled(call.input_gradients[0], type, r, dy, type, 1, memory, columns);
      put_scaled(call.input_gradients[1], type, r, dy, type, shares.of_z, memory, columns);
      put_scaled(call.input_gradients[2], DType::f32, r, dy, type, shares.of_sum, memory, columns);
      if (to_shares.data == nullptr) continue;
      widen(type, dy, memory, static_cast<uint64_t>(columns));
      const auto* const sum =
          reinterpret_cast<const float*>(row_of(call.inputs[2].data, r, columns, DType::f32));
      const double difference =
          static_cast<double>(dot_row(memory, sum, columns)) -
          static_cast<double>(dot_row(type, dy, row_of(call.inputs[1].data, r, columns, type), columns));
      const double d = shares.of_sum * shares.of_z * difference;
      const auto* const addend = static_cast<const float*>(to_shares.addend);
      for (const int64_t i : {int64_t{0}, int64_t{1}})
        static_cast<float*>(to_shares.data)[2 * r + i] = static_cast<float>(
            (addend == nullptr ? 0 : static_cast<double>(addend[2 * r + i])) + (i == 0 ? d : -d));
    }
  });
}

}  // namespace sluice::cpu
