#include "cpu_optim/adamw.h"

#include <cmath>

#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice::reference {
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

}  // namespace

template <>
void update_by<OptimizerKind::adamw>(UpdateForm form, const UpdateRange& range,
                                     const UpdateScalars& scalars) {
  const AdamWConstants constants = constants_of(scalars.update->constants, range);
  const AdamWConstants guessed =
      form == UpdateForm::visit ? constants_of(scalars.guess->constants, range) : constants;
  auto *const first_moments = static_cast<float*>(range.planes[0]), *const second_moments =
                                                                        static_cast<float*>(range.planes[1]);
  with_precision(range.precision, [&]<typename T>(T) {
    const Values<T> gradients({range.gradient}), weights({range.weights});
    const Values<const T> next({const_cast<void*>(range.next_gradient)});
    for (uint64_t i = 0; i < range.elements; ++i) {
      const auto index = static_cast<int64_t>(i);
      float &master = range.master[i], &m = first_moments[i], &v = second_moments[i];
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

}  // namespace sluice::reference
