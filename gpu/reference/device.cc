#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu_optim/adamw.h"
#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice {
namespace {

struct Element {
  float master, m, v;
};

// AdamW on one element, by the formulas of cpu_optim/adamw.h, each operation rounded to fp32.
Element updated(Element e, const AdamWConstants& c, float gradient) {
  const float g = gradient * c.s;
  e.m = std::fma(c.b1, e.m, c.k1 * g);
  e.v = std::fma(c.b2, e.v, c.k2 * g * g);
  e.master *= c.d;
  e.master = std::fma(-c.a, e.m / std::fma(std::sqrt(e.v), c.r, c.eps), e.master);
  return e;
}

// The constants with the range's factor of the learning rate and weight decay, by the formulas of
// cpu_optim/adamw.h.
AdamWConstants constants_of(const UpdateConstants& constants, const UpdateRange& range) {
  auto c = constants.as<AdamWConstants>();
  const double rate = c.learning_rate * range.learning_rate_factor;
  c.a = static_cast<float>(c.step * range.learning_rate_factor);
  c.d = static_cast<float>(1 - rate * range.weight_decay);
  return c;
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

  void update(OptimizerKind, UpdateForm form, const UpdateRange& range,
              const UpdateScalars& scalars) override {
    static_assert(kOptimizerKinds == 1, "the reference device updates by AdamW only");
    const AdamWConstants constants = constants_of(scalars.update->constants, range);
    const AdamWConstants guessed =
        form == UpdateForm::visit ? constants_of(scalars.guess->constants, range) : constants;
    reference::with_precision(range.precision, [&]<typename T>(T) {
      const reference::Values<T> gradients({range.gradient}), weights({range.weights});
      const reference::Values<const T> next({const_cast<void*>(range.next_gradient)});
      for (uint64_t i = 0; i < range.elements; ++i) {
        const auto index = static_cast<int64_t>(i);
        float &master = range.master[i], &m = range.moments[0][i], &v = range.moments[1][i];
        Element e{master, m, v};
        if (!scalars.update->skip) e = updated(e, constants, static_cast<float>(gradients[index]));
        if (form != UpdateForm::repair) master = e.master, m = e.m, v = e.v;
        if (form == UpdateForm::visit) {
          const auto g = static_cast<float>(next[index]);
          gradients.put(index, g);
          e = updated(e, guessed, g);
        }
        if (range.weights) weights.put(index, e.master);
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
