// Embedding: rows of a table, plus rows of a position table.
//
// The gradient is cut by columns: a task walks all rows in order within its columns, so no two tasks share an
// element, and rows are added in order.
#include "engine/base/simd/targets.h"
#include "gpu/cpu/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/embedding.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "engine/base/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;

// The row's position in its document; 0 for an idle row.
HWY_INLINE int64_t position_of(const OpCall& call, int64_t row) {
  const auto* begins = static_cast<const int32_t*>(view_of(call.inputs, 1).data);
  return std::max<int64_t>(0, row % call.shapes->attributes.sequence - (begins == nullptr ? 0 : begins[row]));
}

void embedding_forward_rows(const OpCall& call, int64_t begin, int64_t end) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const int64_t vocabulary = call.shapes->parameters[0][0], columns = call.shapes->parameters[0][1];
    const auto* tokens = static_cast<const int32_t*>(call.inputs[0].data);
    const T* table = static_cast<const T*>(call.parameters[0].data);
    const T* positions =
        call.parameters.size() > 1 ? static_cast<const T*>(call.parameters[1].data) : nullptr;
    T* out = static_cast<T*>(call.outputs[0].data);
    const auto factor = static_cast<float>(call.shapes->attributes.factor());
    const FloatVector scale = hn::Set(Floats(), factor);
    for (int64_t r = begin; r < end; ++r) {
      CHECK(tokens[r] >= 0 && tokens[r] < vocabulary, "token outside the vocabulary");
      const T* from = table + tokens[r] * columns;
      T* to = out + r * columns;
      if (positions == nullptr && factor == 1) {
        std::memcpy(to, from, static_cast<size_t>(columns) * sizeof(T));
        continue;
      }
      const T* position = positions == nullptr ? nullptr : positions + position_of(call, r) * columns;
      for_each_vector(static_cast<size_t>(columns), [&](size_t i, auto lanes) SLUICE_KERNEL {
        FloatVector v = lanes.load(from + i);
        if (factor != 1) v = hn::Mul(v, scale);
        if (position != nullptr) v = hn::Add(v, lanes.load(position + i));
        lanes.store(v, to + i);
      });
    }
  });
}

// Adds columns [begin, begin + count) of row r of dy, times `factor`, to row row_of(r) of `gradient`.
template <class T, class RowOf>
HWY_INLINE void add_columns(const T* dy, float* gradient, int64_t rows, int64_t columns, int64_t begin,
                            int64_t count, float factor, const RowOf& row_of) {
  const FloatVector scale = hn::Set(Floats(), factor);
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = dy + r * columns + begin;
    float* to = gradient + row_of(r) * columns + begin;
    for_each_vector(static_cast<size_t>(count), [&](size_t i, auto lanes) SLUICE_KERNEL {
      FloatVector v = lanes.load(from + i);
      if (factor != 1) v = hn::Mul(v, scale);
      lanes.store(hn::Add(lanes.load(to + i), v), to + i);
    });
  }
}

void embedding_backward_columns(const OpCall& call, int64_t begin, int64_t count) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const int64_t vocabulary = call.shapes->parameters[0][0], columns = call.shapes->parameters[0][1];
    const int64_t rows = element_count(call.shapes->inputs[0]);
    const auto factor = static_cast<float>(call.shapes->attributes.factor());
    const auto* tokens = static_cast<const int32_t*>(call.inputs[0].data);
    const T* dy = static_cast<const T*>(call.output_gradients[0].data);
    if (auto* table = static_cast<float*>(call.parameter_gradients[0].data)) {
      add_columns(dy, table, rows, columns, begin, count, factor, [&](int64_t r) HWY_ATTR {
        CHECK(tokens[r] >= 0 && tokens[r] < vocabulary, "token outside the vocabulary");
        return tokens[r];
      });
    }
    if (call.parameter_gradients.size() < 2) return;
    if (auto* positions = static_cast<float*>(call.parameter_gradients[1].data))
      add_columns(dy, positions, rows, columns, begin, count, 1,
                  [&](int64_t r) HWY_ATTR { return position_of(call, r); });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
namespace {

HWY_EXPORT(embedding_forward_rows);
HWY_EXPORT(embedding_backward_columns);

constexpr int64_t kRows = 16;     // of one forward task
constexpr int64_t kColumns = 64;  // of one backward task: four cache lines of fp32

}  // namespace

void embedding_forward(const OpCall& call, const Resources& resources) {
  const int64_t rows = element_count(call.shapes->inputs[0]);
  resources.workers.parallel_for((rows + kRows - 1) / kRows, [&](int64_t block, int) {
    HWY_DYNAMIC_DISPATCH(embedding_forward_rows)(call, block * kRows, std::min(rows, (block + 1) * kRows));
  });
}

void embedding_backward(const OpCall& call, const Resources& resources) {
  const int64_t columns = call.shapes->parameters[0][1];
  resources.workers.parallel_for((columns + kColumns - 1) / kColumns, [&](int64_t block, int) {
    const int64_t begin = block * kColumns;
    HWY_DYNAMIC_DISPATCH(embedding_backward_columns)(call, begin, std::min(kColumns, columns - begin));
  });
}

}  // namespace sluice::cpu
#endif
