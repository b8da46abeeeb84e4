#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu_optim/adamw.h"
#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice {
namespace {

// AdamW on one element, by the formulas of cpu_optim/adamw.h, each operation rounded to fp32.
void update(const UpdateRange& range, const AdamWConstants& c, float gradient, uint64_t i) {
  float &w = range.master[i], &m = range.moments[0][i], &v = range.moments[1][i];
  const float g = gradient * c.s;
  m = std::fma(c.b1, m, c.k1 * g);
  v = std::fma(c.b2, v, c.k2 * g * g);
  w *= range.decay ? c.d : 1.0f;
  w = std::fma(-c.a, m / std::fma(std::sqrt(v), c.r, c.eps), w);
}

// T(first, ranks) of gpu/ranks/reduce.h, of element i.
template <typename T>
float tree_sum(const reference::Values<const T>& parts, uint64_t elements, uint64_t i, uint64_t first,
               uint64_t ranks) {
  if (ranks == 1) return static_cast<float>(parts[static_cast<int64_t>(first * elements + i)]);
  const uint64_t left = std::bit_floor(ranks - 1);
  return tree_sum(parts, elements, i, first, left) + tree_sum(parts, elements, i, first + left, ranks - left);
}

template <typename From, typename To>
void sum_parts(const void* parts, uint64_t ranks, uint64_t elements, void* to, double* block_sums) {
  const reference::Values<const From> from({const_cast<void*>(parts)});
  const reference::Values<To> out({to});
  for (uint64_t begin = 0; begin < elements; begin += kNormBlock) {
    double squares[32] = {};  // of every 32nd element
    for (uint64_t i = begin; i < std::min(begin + kNormBlock, elements); ++i) {
      const auto index = static_cast<int64_t>(i);
      out.put(index, tree_sum(from, elements, i, 0, ranks));
      squares[(i - begin) % 32] += out[index] * out[index];
    }
    double total = 0;
    for (const double s : squares) total += s;
    if (block_sums) block_sums[begin / kNormBlock] = total;
  }
}

class ReferenceDevice final : public Device {
 public:
  void forward(const OpCall& call) override {
    kernels_of(reference::kKernels, call.shapes->kind).forward(call);
  }
  void backward(const OpCall& call) override {
    kernels_of(reference::kKernels, call.shapes->kind).backward(call);
  }
  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    return workspace_bytes_of(reference::kKernels, shapes, pass);
  }

  void round(const float* accumulator, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    reference::with_precision(precision, [&]<typename T>(T) {
      const reference::Values<T> out({gradient});
      for (uint64_t begin = 0; begin < elements; begin += kNormBlock) {
        const uint64_t end = std::min(begin + kNormBlock, elements);
        double sum = 0;
        for (uint64_t i = begin; i < end; ++i) {
          const auto index = static_cast<int64_t>(i);
          out.put(index, accumulator[i]);
          sum += out[index] * out[index];
        }
        if (block_sums) block_sums[begin / kNormBlock] = sum;
      }
    });
  }

  void sum(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
           double* block_sums) override {
    reference::with_precision(from, [&]<typename From>(From) {
      reference::with_precision(
          to, [&]<typename To>(To) { sum_parts<From, To>(parts, ranks, elements, out, block_sums); });
    });
  }

  void optimize(OptimizerKind, const UpdateRange& range, const StepScalars::Update* step) override {
    static_assert(kOptimizerKinds == 1, "the reference device updates by AdamW only");
    const auto constants = step->constants.as<AdamWConstants>();
    reference::with_precision(range.precision, [&]<typename T>(T) {
      const reference::Values<const T> gradients({const_cast<void*>(range.gradient)});
      const reference::Values<T> weights({range.weights});
      for (uint64_t i = 0; i < range.elements; ++i) {
        const auto index = static_cast<int64_t>(i);
        if (!step->skip) update(range, constants, static_cast<float>(gradients[index]), i);
        if (range.weights) weights.put(index, range.master[i]);
      }
    });
  }

  void zero(void* data, uint64_t bytes) override {
    if (bytes > 0) std::memset(data, 0, bytes);
  }
};

}  // namespace

std::unique_ptr<Device> make_reference_device() { return std::make_unique<ReferenceDevice>(); }

}  // namespace sluice
