#include "cpu_optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "cpu_optim/adamw.h"
#include "engine/base/error.h"
#include "engine/base/simd/convert.h"

namespace sluice {

namespace {

constexpr std::array<Optimizer, kOptimizerKinds> kOptimizers{{
    {OptimizerKind::adamw, "adamw", kAdamWPlanes, false, prepare_adamw, apply_adamw},
}};

// Whether the optimizer's planes fit kStatePlanesMax and have names that no other plane of checkpoints has.
// Checkpoints name their files after planes.
constexpr bool has_planes_of_its_own(const Optimizer& optimizer) {
  if (optimizer.planes.size() >= kStatePlanesMax) return false;
  std::array<std::string_view, kStatePlanesMax + 4> taken{
      kMasterWeights.name, kCompressionError.name, kRightFactors.name, frozen_weights(DType::f32).name};
  size_t count = 4;
  for (const StatePlane& plane : optimizer.planes) {
    for (size_t i = 0; i < count; ++i)
      if (taken[i] == plane.name) return false;
    taken[count++] = plane.name;
  }
  return true;
}

constexpr bool in_order() {
  for (size_t i = 0; i < kOptimizers.size(); ++i)
    if (static_cast<size_t>(kOptimizers[i].kind) != i) return false;
  return true;
}
static_assert(in_order(), "kOptimizers has a row for each OptimizerKind, in its order");
static_assert(
    std::ranges::all_of(kOptimizers, has_planes_of_its_own),
    "an optimizer has at most kStatePlanesMax - 1 planes beside the master weights, each with a name "
    "that no other plane of checkpoints has");

}  // namespace

const Optimizer& optimizer_of(OptimizerKind kind) { return kOptimizers[static_cast<size_t>(kind)]; }

std::vector<StatePlane> planes_of(const Optimizer& optimizer) {
  std::vector<StatePlane> planes{kMasterWeights};
  planes.insert(planes.end(), optimizer.planes.begin(), optimizer.planes.end());
  return planes;
}

OptimizerLayout layout_of(const Optimizer& optimizer, DType precision) {
  OptimizerLayout layout{planes_of(optimizer), optimizer.whole_tensors};
  if (precision == DType::f32) layout.planes.erase(layout.planes.begin());
  return layout;
}

UpdateRange part_of(const UpdateRange& range, std::span<const StatePlane> planes, uint64_t begin,
                    uint64_t elements) {
  CHECK((range.weights == nullptr) == (range.precision == DType::f32), "fp32 weights are the master");
  const uint64_t bytes = begin * dtype_bytes(range.precision);
  UpdateRange part = range;
  part.master += begin;
  for (size_t p = 0; p < planes.size(); ++p)
    part.planes[p] = static_cast<std::byte*>(range.planes[p]) + planes[p].bytes(begin);
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
    for_each_part(range, optimizer.planes, workers, [](const UpdateRange& p) {
      std::memcpy(p.gradient, p.next_gradient, p.elements * dtype_bytes(p.precision));
    });
    const UpdateConstants& guessed = scalars.guess->constants;
    optimizer.apply(range, guessed, workers, UpdateForm::repair, guessed);
  } else if (range.precision != DType::f32) {
    for_each_part(range, optimizer.planes, workers,
                  [](const UpdateRange& p) { round_to(p.precision, p.master, p.weights, p.elements); });
  }
}

}  // namespace sluice
