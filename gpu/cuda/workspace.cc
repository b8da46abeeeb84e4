#include "gpu/cuda/workspace.h"

#include "engine/base/error.h"
#include "gpu/cuda/device.h"
#include "gpu/products.h"

namespace sluice::cuda {
namespace {

uint64_t partials_bytes(int64_t chunks, int64_t columns) {
  return static_cast<uint64_t>(chunks * columns) * sizeof(float);
}

uint64_t norm_bytes(const OpShapes& shapes, Pass pass) {
  if (pass == Pass::forward) return 0;
  const auto parameters = static_cast<int64_t>(shapes.parameters.size());
  const int64_t columns = shapes.parameters[0][0], rows = element_count(shapes.inputs[0]) / columns;
  return partials_bytes(parameters * norm_chunks(rows, parameters), columns);
}

uint64_t rope_bytes(const OpShapes& shapes, Pass) {
  const OpAttributes& a = shapes.attributes;
  const bool by_row = a.context > 0 && shapes.inputs.size() == 2;
  const int64_t entries = by_row ? shapes.inputs[0][0] : a.sequence;
  return static_cast<uint64_t>(entries) * a.frequencies.size() * kTurnBytes;
}

uint64_t linear_bytes(const OpShapes& shapes, Pass pass) {
  if (pass == Pass::forward || shapes.parameters.size() < 2) return kMatmulWorkspaceBytes;
  return std::max(kMatmulWorkspaceBytes,
                  partials_bytes(column_sum_chunks(shapes.inputs[0][0]), shapes.parameters[1][0]));
}

void check_head_size(const OpAttributes& a) {
  if (a.head_size > kHeadSizeMax)
    throw Error(ExitCode::usage,
                "The cuda device's attention takes heads of up to " + std::to_string(kHeadSizeMax) +
                    " columns, the model's have " + std::to_string(a.head_size) + ".",
                "Choose a model with smaller heads, or use --device cpu.");
}

uint64_t cached_attention_bytes(const OpShapes& shapes, Pass) {
  check_head_size(shapes.attributes);
  return 0;
}

uint64_t attention_bytes(const OpShapes& shapes, Pass pass) {
  const OpAttributes& a = shapes.attributes;
  check_head_size(a);
  if (pass == Pass::forward) return 0;
  const int64_t sequences = shapes.inputs[0][0] / a.sequence;
  return static_cast<uint64_t>(sequences * a.heads * padded_queries(a.sequence)) * kStatisticsBytes;
}

uint64_t cross_entropy_bytes(const OpShapes& shapes, Pass) {
  return loss_layout(shapes).bytes() + kMatmulWorkspaceBytes;
}

uint64_t router_bytes(const OpShapes& shapes, Pass pass) {
  if (pass == Pass::forward || shapes.parameters.size() < 2) return 0;
  return partials_bytes(column_sum_chunks(shapes.inputs[0][0]), shapes.parameters[1][0]);
}

uint64_t route_bytes(const OpShapes& shapes, Pass pass) {
  if (pass == Pass::backward) return 0;
  const Routing& r = shapes.attributes.routing;
  const int64_t rows = shapes.inputs[0][0];
  const int64_t takers = r.drops() ? rows * r.chosen : 0;
  return static_cast<uint64_t>(route_chunks(rows * r.chosen) * r.experts + 2 * rows * r.groups + takers) *
         sizeof(int32_t);
}

uint64_t router_statistics_bytes(const OpShapes& shapes, Pass pass) {
  if (pass == Pass::backward) return 0;
  const int64_t rows = shapes.inputs[0][0];
  return static_cast<uint64_t>(rows) * kRouterRowBytes +
         partials_bytes(statistics_chunks(rows), shapes.outputs[0][1]);
}

// The workspace of one op's kernels. An op without a row in the table needs none.
struct WorkspaceRow {
  OpKind kind;
  uint64_t (*bytes)(const OpShapes&, Pass);
};
constexpr WorkspaceRow kWorkspaces[] = {
    {OpKind::layer_norm, norm_bytes},
    {OpKind::rms_norm, norm_bytes},
    {OpKind::linear, linear_bytes},
    {OpKind::rope, rope_bytes},
    {OpKind::attention, attention_bytes},
    {OpKind::linear_cross_entropy, cross_entropy_bytes},
    {OpKind::cached_attention, cached_attention_bytes},
    {OpKind::router, router_bytes},
    {OpKind::route, route_bytes},
    {OpKind::router_statistics, router_statistics_bytes},
};

}  // namespace
}  // namespace sluice::cuda

namespace sluice {

uint64_t cuda_workspace_bytes(const OpShapes& shapes, Pass pass) {
  for (const cuda::WorkspaceRow& row : cuda::kWorkspaces)
    if (row.kind == shapes.kind) return row.bytes(shapes, pass);
  return 0;
}

}  // namespace sluice
