#include "gpu/cuda_workspace.h"

#include "engine/error.h"
#include "gpu/cuda_device.h"
#include "gpu/products.h"

namespace sluice::cuda {
namespace {

uint64_t column_sums_bytes(int64_t rows, int64_t columns) {
  return static_cast<uint64_t>(column_sum_chunks(rows) * columns) * sizeof(float);
}

uint64_t norm_bytes(const OpShapes& shapes, Pass pass) {
  if (pass == Pass::forward) return 0;
  return shapes.parameters.size() * column_sums_bytes(shapes.inputs[0][0], shapes.inputs[0][1]);
}

uint64_t rope_bytes(const OpAttributes& a) {
  return static_cast<uint64_t>(a.sequence * (a.head_size / 2)) * kTurnBytes;
}

uint64_t linear_bytes(const OpShapes& shapes, Pass pass) {
  if (pass == Pass::forward || shapes.parameters.size() < 2) return kMatmulWorkspaceBytes;
  return std::max(kMatmulWorkspaceBytes,
                  column_sums_bytes(shapes.inputs[0][0], shapes.parameters[1][0]));
}

uint64_t attention_bytes(const OpShapes& shapes, Pass pass) {
  const OpAttributes& a = shapes.attributes;
  if (a.head_size > kHeadSizeMax)
    throw Error(ExitCode::usage,
                "The cuda device's attention takes heads of up to " + std::to_string(kHeadSizeMax) +
                    " columns, the model's have " + std::to_string(a.head_size) + ".",
                "Choose a model with smaller heads, or train on --device cpu.");
  if (pass == Pass::forward) return 0;
  const int64_t sequences = shapes.inputs[0][0] / a.sequence;
  return static_cast<uint64_t>(sequences * a.heads * padded_queries(a.sequence)) * kStatisticsBytes;
}

}  // namespace
}  // namespace sluice::cuda

namespace sluice {

uint64_t cuda_workspace_bytes(const OpShapes& shapes, Pass pass) {
  switch (shapes.kind) {
    case OpKind::embedding:
    case OpKind::swiglu:
    case OpKind::add:
      return 0;
    case OpKind::layer_norm:
    case OpKind::rms_norm:
      return cuda::norm_bytes(shapes, pass);
    case OpKind::rope:
      return cuda::rope_bytes(shapes.attributes);
    case OpKind::linear:
    case OpKind::linear_gelu:
      return cuda::linear_bytes(shapes, pass);
    case OpKind::attention:
      return cuda::attention_bytes(shapes, pass);
    case OpKind::linear_cross_entropy:
      return loss_layout(shapes).bytes() + cuda::kMatmulWorkspaceBytes;
  }
  CHECK(false, "an op that the cuda device does not know");
  return 0;
}

}  // namespace sluice
