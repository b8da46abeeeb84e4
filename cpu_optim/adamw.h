// AdamW's arithmetic, which every device follows to the bit: each operation is rounded once to fp32.
#pragma once

#include "cpu_optim/optimizer.h"

namespace sluice {

// The first moment and the second.
constexpr StatePlane kAdamWPlanes[] = {{"exp_avg", "the checkpoint's exp_avg.safetensors"},
                                       {"exp_avg_sq", "the checkpoint's exp_avg_sq.safetensors"}};

// Constants of one update, each computed in double and rounded to fp32 once: a = lr/(1-b1^t),
// r = 1/sqrt(1-b2^t), k1 = 1-b1, k2 = 1-b2, d = 1-lr*wd, s = clip factor / loss scale. `a` and `d` are for
// a range with a learning rate factor of 1 and the settings' weight decay; of_range() has them for others.
struct AdamWConstants {
  double learning_rate, step;  // lr, lr/(1-b1^t)
  float b1, b2, k1, k2, a, r, eps, d, s;
};

// The constants for a range with learning rate factor f and weight decay wd: a = step*f, d = 1-(lr*f)*wd.
// Each operation is rounded to double, and the result to fp32.
AdamWConstants of_range(AdamWConstants constants, const UpdateRange& range);

UpdateConstants prepare_adamw(const OptimizerSettings& settings, const UpdateStep& step);

// g = gradient*s; m = fma(b1,m,k1*g); v = fma(b2,v,(k2*g)*g); w = w*d; w = fma(-a, m/fma(sqrt(v),r,eps), w);
// weights = round(w). `a` and `d` are those of the range (of_range()).
void apply_adamw(const UpdateRange& range, const UpdateConstants& constants, Workers& workers,
                 UpdateForm form = UpdateForm::optimize, const UpdateConstants& guessed = {});

}  // namespace sluice
