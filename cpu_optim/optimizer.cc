#include "cpu_optim/optimizer.h"

#include <array>
#include <cstring>

#include "cpu_optim/adamw.h"
#include "engine/base/error.h"
#include "engine/base/simd/convert.h"

namespace sluice {

namespace {

constexpr std::array<Optimizer, kOptimizerKinds> kOptimizers{{
    {OptimizerKind::adamw, "adamw", 2, false, prepare_adamw, apply_adamw},
}};

constexpr bool in_order() {
  for (size_t i = 0; i < kOptimizers.size(); ++i)
    if (static_cast<size_t>(kOptimizers[i].kind) != i || kOptimizers[i].moments > kMomentsMax) return false;
  return true;
}
static_assert(in_order(), "kOptimizers has a row for each OptimizerKind, in its order");

}  // namespace

const Optimizer& optimizer_of(OptimizerKind kind) { return kOptimizers[static_cast<size_t>(kind)]; }

UpdateRange part_of(const UpdateRange& range, uint64_t begin, uint64_t elements) {
  CHECK((range.weights == nullptr) == (range.precision == DType::f32), "fp32 weights are the master");
  const uint64_t bytes = begin * dtype_bytes(range.precision);
  UpdateRange part = range;
  part.master += begin;
  for (float*& moment : part.moments)
    if (moment) moment += begin;
  part.gradient = static_cast<std::byte*>(range.gradient) + bytes;
  if (range.next_gradient) part.next_gradient = static_cast<const std::byte*>(range.next_gradient) + bytes;
  part.weights = range.weights == nullptr ? nullptr : static_cast<std::byte*>(range.weights) + bytes;
  part.elements = elements;
  return part;
}

void update_range(const Optimizer& optimizer, UpdateForm form, const UpdateRange& range,
                  const UpdateScalars& scalars, Workers& workers) {
  const bool visits = form == UpdateForm::visit;
  CHECK(form == UpdateForm::optimize || range.precision != DType::f32, "fp32 weights cannot be guessed");
  if (!scalars.update->skip) {
    const UpdateConstants& constants = scalars.update->constants;
    optimizer.apply(range, constants, workers, form, visits ? scalars.guess->constants : constants);
  } else if (visits) {
    for_each_part(range, workers, [](const UpdateRange& p) {
      std::memcpy(p.gradient, p.next_gradient, p.elements * dtype_bytes(p.precision));
    });
    const UpdateConstants& guessed = scalars.guess->constants;
    optimizer.apply(range, guessed, workers, UpdateForm::repair, guessed);
  } else if (range.precision != DType::f32) {
    for_each_part(range, workers,
                  [](const UpdateRange& p) { round_to(p.precision, p.master, p.weights, p.elements); });
  }
}

uint64_t state_plane_stride(uint64_t elements) {
  constexpr uint64_t kPage = 4096;
  const uint64_t pages = (elements * sizeof(float) + kPage - 1) / kPage;
  return (pages | 1) * kPage;  // an odd number of pages is no multiple of a larger power of two
}

}  // namespace sluice
