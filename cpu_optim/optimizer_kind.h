// The kinds of optimizers, for options and manifests. optimizer.h has their rows.
#pragma once

#include <cstdint>

namespace sluice {

enum class OptimizerKind : uint8_t { adamw };
constexpr int kOptimizerKinds = 1;

}  // namespace sluice
