// The kinds of optimizers, for options and manifests. optimizer.h has their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace sluice {

enum class OptimizerKind : uint8_t { adamw };
constexpr int kOptimizerKinds = 1;

// Calls f.operator()<kind>(). A device has a function template by kind, and each optimizer's file defines it
// for its kind. If a kind has no definition, the linker names the function and the kind's number.
template <typename F>
void with_optimizer(OptimizerKind kind, const F& f) {
  const auto call = [&]<size_t... kKinds>(std::index_sequence<kKinds...>) {
    ((static_cast<size_t>(kind) == kKinds ? f.template operator()<static_cast<OptimizerKind>(kKinds)>()
                                          : void()),
     ...);
  };
  call(std::make_index_sequence<kOptimizerKinds>());
}

}  // namespace sluice
