// The learning rate of a step, a pure function of options and step. Caller: the trainer, before it issues a
// step.
#pragma once

#include <cstdint>

#include "engine/run/options/options.h"

namespace sluice {

// The rate at the schedule's end: min_learning_rate, or a tenth of the learning rate if none was given.
double minimum_learning_rate(const OptimizerOptions& options);

// `steps`: the run's length. A warm-up that is given as a part of it is rounded up.
int64_t warmup_steps(const OptimizerOptions& options, int64_t steps);

// `step` counts from 0, `steps` is the run's length. With W warm-up steps:
//   step < W   lr * (step + 1) / W
//   constant   lr
//   linear     lr + (min - lr) * (step - W) / (steps - W)
//   cosine     min + (lr - min) / 2 * (1 + cos(pi * (step - W) / (steps - W)))
// From `steps` on, cosine (SGDR, Loshchilov and Hutter 2017) and linear stay at the minimum.
double learning_rate(const OptimizerOptions& options, int64_t step, int64_t steps);

}  // namespace sluice
