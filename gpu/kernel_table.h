// How a device states what it runs for an op: an array with a row for every kind, in the order of OpKind.
//
// All kernels of a device have one signature. A static_assert beside the array (engine/graph/op.h,
// first_missing) keeps a device that lacks an op from compiling.
#pragma once

#include <cstdint>

#include "engine/base/error.h"
#include "engine/graph/op.h"

namespace sluice {

// Kernel: the type of the device's kernels, such as void(const OpCall&). WorkspaceRule: uint64_t(const
// OpShapes&, Pass, ...); void where the device states its workspaces elsewhere.
template <typename Kernel, typename WorkspaceRule = void>
struct KernelRow {
  OpKind kind;
  Required<Kernel> forward, backward;
  WorkspaceRule* workspace_bytes = nullptr;  // nullptr: neither pass needs a workspace

  constexpr bool complete() const { return forward.given && backward.given; }
};

// Stands in the row of an op that has no backward (OpRule::has_backward).
template <typename... Arguments>
void no_backward(Arguments...) {
  CHECK(false, "backward of an op that has none");
}

template <typename Row>
const Row& kernels_of(const Row (&rows)[kOpKinds], OpKind kind) {
  CHECK(kind < OpKind::number_of_kinds, "an op without kernels");
  return rows[static_cast<size_t>(kind)];
}

template <typename Row, typename... Arguments>
uint64_t workspace_bytes_of(const Row (&rows)[kOpKinds], const OpShapes& shapes, Pass pass,
                            const Arguments&... arguments) {
  const Row& row = kernels_of(rows, shapes.kind);
  return row.workspace_bytes == nullptr ? 0 : row.workspace_bytes(shapes, pass, arguments...);
}

}  // namespace sluice
