#include <algorithm>
#include <bit>
#include <cstring>

#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice {
namespace {

// T(first, ranks) of gpu/ranks/reduce.h for element i.
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

  void round(const Accumulators& accumulators, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    reference::with_precision(precision, [&]<typename T>(T) {
      const reference::Values<T> out({gradient});
      for (uint64_t begin = 0; begin < elements; begin += kNormBlock) {
        const uint64_t end = std::min(begin + kNormBlock, elements);
        double sum = 0;
        for (uint64_t i = begin; i < end; ++i) {
          const auto index = static_cast<int64_t>(i);
          float value = accumulators.of[0][i];
          for (uint32_t a = 1; a < accumulators.count; ++a) value += accumulators.of[a][i];
          out.put(index, value);
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

  void update(OptimizerKind optimizer, UpdateForm form, const UpdateRange& range,
              const UpdateScalars& scalars) override {
    with_optimizer(optimizer,
                   [&]<OptimizerKind kind>() { reference::update_by<kind>(form, range, scalars); });
  }

  void zero(void* data, uint64_t bytes) override {
    if (bytes > 0) std::memset(data, 0, bytes);
  }
};

}  // namespace

std::unique_ptr<Device> make_reference_device() { return std::make_unique<ReferenceDevice>(); }

}  // namespace sluice
