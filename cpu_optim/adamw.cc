// AdamW (Loshchilov, Hutter 2019, arXiv:1711.05101) by PyTorch's formula, in one pass over memory.
//
// Each operation is the one that the header names, rounded once, so every target gives the same bits. Memory
// traffic is the limit. The 16-bit weights are only written, so they are streamed past the caches: that saves
// reading their lines first, 2 of 30 bytes. The planes are read and written, so they are prefetched instead.
// Streaming and prefetching were measured to gain 5 to 10 % together.
#include "cpu_optim/adamw.h"

#include <cmath>

#include "engine/base/simd/convert.h"
#include "engine/base/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/adamw.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/base/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {

constexpr size_t kPrefetch = 512;  // elements ahead: 2 KiB of each plane

// The constants of one update, for all lanes of a vector.
struct AdamWVectors {
  explicit AdamWVectors(const AdamWConstants& c)
      : b1(set(c.b1)),
        b2(set(c.b2)),
        k1(set(c.k1)),
        k2(set(c.k2)),
        minus_a(set(-c.a)),
        r(set(c.r)),
        eps(set(c.eps)),
        decay(set(c.d)),
        s(set(c.s)) {}

  // Updates m, v and w in place.
  HWY_INLINE void update(FloatVector gradient, FloatVector& m, FloatVector& v, FloatVector& w) const {
    const FloatVector g = hn::Mul(gradient, s);
    m = fma(b1, m, hn::Mul(k1, g));
    v = fma(b2, v, hn::Mul(hn::Mul(k2, g), g));
    w = fma(minus_a, hn::Div(m, fma(hn::Sqrt(v), r, eps)), hn::Mul(w, decay));
  }

  FloatVector b1, b2, k1, k2, minus_a, r, eps, decay, s;

 private:
  static HWY_INLINE FloatVector set(float value) { return hn::Set(Floats(), value); }
};

// `weights` is nullptr in fp32, where `master` is the weights. kStream requires `weights` to be aligned to a
// cache line.
template <UpdateForm kForm, bool kStream, class T>
HWY_INLINE void adamw(float* HWY_RESTRICT master, float* HWY_RESTRICT first_moment,
                      float* HWY_RESTRICT second_moment, T* HWY_RESTRICT gradient,
                      const T* HWY_RESTRICT next_gradient, T* HWY_RESTRICT weights, size_t elements,
                      const AdamWConstants& constants, const AdamWConstants& guessed) {
  const AdamWVectors now(constants), next(guessed);
  for_each_vector(elements, [&](size_t i, auto lanes) SLUICE_KERNEL {
    FloatVector m = lanes.load(first_moment + i), v = lanes.load(second_moment + i),
                w = lanes.load(master + i);
    now.update(lanes.load(gradient + i), m, v, w);
    if constexpr (kForm != UpdateForm::repair) {
      lanes.store(m, first_moment + i);
      lanes.store(v, second_moment + i);
      lanes.store(w, master + i);
    }
    if constexpr (kForm == UpdateForm::visit) {
      const FloatVector g = lanes.load(next_gradient + i);
      lanes.store(g, gradient + i);
      next.update(g, m, v, w);
    }
    if constexpr (kStream) {
      lanes.stream(w, weights + i);
    } else if (weights != nullptr) {
      lanes.store(w, weights + i);
    }
    hwy::Prefetch(master + i + kPrefetch);
    hwy::Prefetch(first_moment + i + kPrefetch);
    hwy::Prefetch(second_moment + i + kPrefetch);
  });
  if constexpr (kStream) hwy::FlushStream();
}

template <UpdateForm kForm>
void adamw_range(const UpdateRange& range, const AdamWConstants& constants, const AdamWConstants& guessed) {
  with_precision(range.precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    T* gradient = static_cast<T*>(range.gradient);
    const T* next = static_cast<const T*>(range.next_gradient);
    T* weights = static_cast<T*>(range.weights);
    float *first_moment = static_cast<float*>(range.planes[0]),
          *second_moment = static_cast<float*>(range.planes[1]);
    if constexpr (sizeof(T) == 2) {
      if (reinterpret_cast<uintptr_t>(weights) % 64 == 0)
        return adamw<kForm, true>(range.master, first_moment, second_moment, gradient, next, weights,
                                  range.elements, constants, guessed);
    }
    adamw<kForm, false>(range.master, first_moment, second_moment, gradient, next, weights, range.elements,
                        constants, guessed);
  });
}

void optimize_range(const UpdateRange& range, const AdamWConstants& constants) {
  adamw_range<UpdateForm::optimize>(range, constants, constants);
}
void repair_range(const UpdateRange& range, const AdamWConstants& constants) {
  adamw_range<UpdateForm::repair>(range, constants, constants);
}
void visit_range(const UpdateRange& range, const AdamWConstants& constants, const AdamWConstants& guessed) {
  adamw_range<UpdateForm::visit>(range, constants, guessed);
}

}  // namespace sluice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {
namespace {

HWY_EXPORT(optimize_range);
HWY_EXPORT(repair_range);
HWY_EXPORT(visit_range);

}  // namespace

UpdateConstants prepare_adamw(const OptimizerSettings& settings, const UpdateStep& step) {
  CHECK(step.t >= 1, "updates are counted from 1");
  const double b1 = settings.beta1, b2 = settings.beta2, power = static_cast<double>(step.t);
  AdamWConstants c;
  c.learning_rate = step.learning_rate;
  c.step = step.learning_rate / (1 - std::pow(b1, power));
  c.b1 = static_cast<float>(b1);
  c.b2 = static_cast<float>(b2);
  c.k1 = static_cast<float>(1 - b1);
  c.k2 = static_cast<float>(1 - b2);
  c.a = static_cast<float>(c.step);
  c.r = static_cast<float>(1 / std::sqrt(1 - std::pow(b2, power)));
  c.eps = static_cast<float>(settings.epsilon);
  c.d = static_cast<float>(1 - step.learning_rate * settings.weight_decay);
  c.s = static_cast<float>(step.clip_factor / step.loss_scale);
  return UpdateConstants::of(c);
}

AdamWConstants of_range(AdamWConstants c, const UpdateRange& range) {
  c.a = static_cast<float>(c.step * range.learning_rate_factor);
  c.d = static_cast<float>(1 - c.learning_rate * range.learning_rate_factor * range.weight_decay);
  return c;
}

void apply_adamw(const UpdateRange& range, const UpdateConstants& constants, Workers& workers,
                 UpdateForm form, const UpdateConstants& guessed) {
  const AdamWConstants c = of_range(constants.as<AdamWConstants>(), range),
                       g = of_range(guessed.as<AdamWConstants>(), range);
  for_each_part(range, kAdamWPlanes, workers, [&](const UpdateRange& p) {
    switch (form) {
      case UpdateForm::optimize:
        return HWY_DYNAMIC_DISPATCH(optimize_range)(p, c);
      case UpdateForm::repair:
        return HWY_DYNAMIC_DISPATCH(repair_range)(p, c);
      case UpdateForm::visit:
        return HWY_DYNAMIC_DISPATCH(visit_range)(p, c, g);
    }
  });
}

}  // namespace sluice
#endif
