// Runs a test body once on every vector target that this build and this processor have, the scalar one
// included. Include it before any Highway header.
#pragma once

#include "engine/base/simd/targets.h"
// After targets.h, which says which targets there are:
#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

namespace sluice {

template <class Body>
void on_every_target(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace sluice
