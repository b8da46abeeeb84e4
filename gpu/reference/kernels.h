// Kernels of the reference device: one forward and one backward per op, plain loops in the order of the
// formulas; and the table of them.
//
// Operands are read in the working precision and widened to double, all arithmetic is double, and every
// result is rounded once to the type of its output. The gradient of a parameter is added to the fp32
// accumulator before it is rounded. gpu/device.h says what operands, nullptr and addends mean. Kernels
// use the call's workspace, whose size the *_workspace_bytes functions tell (an op without such a function
// needs none). Caller: the reference device, one call at a time.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "gpu/kernel_table.h"

namespace sluice::reference {

// rows.cc: ops that work row by row. Norms as in Ba, Kiros, Hinton 2016 (arXiv:1607.06450) and Zhang,
// Sennrich 2019 (arXiv:1910.07467); their backward reads the saved statistics.
void embedding_forward(const OpCall& call);
void embedding_backward(const OpCall& call);
void layer_norm_forward(const OpCall& call);
void layer_norm_backward(const OpCall& call);
void rms_norm_forward(const OpCall& call);
void rms_norm_backward(const OpCall& call);
// Su et al. 2021 (arXiv:2104.09864), rotate-half form: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), x1
// the first half of a head.
void rope_forward(const OpCall& call);
void rope_backward(const OpCall& call);
uint64_t embedding_workspace_bytes(const OpShapes& shapes, Pass pass);
uint64_t layer_norm_workspace_bytes(const OpShapes& shapes, Pass pass);
uint64_t rms_norm_workspace_bytes(const OpShapes& shapes, Pass pass);

// elementwise.cc. gelu in the tanh form of Hendrycks, Gimpel 2016 (arXiv:1606.08415); swiglu of Shazeer 2020
// (arXiv:2002.05202).
void gelu_forward(const OpCall& call);
void gelu_backward(const OpCall& call);
void swiglu_forward(const OpCall& call);
void swiglu_backward(const OpCall& call);
void add_forward(const OpCall& call);
void add_backward(const OpCall& call);

// matmul.cc. The loss works in chunks of OpAttributes::loss_rows and adds a micro-batch's losses in row
// order.
void linear_forward(const OpCall& call);
void linear_backward(const OpCall& call);
void linear_cross_entropy_forward(const OpCall& call);
void linear_cross_entropy_backward(const OpCall& call);
uint64_t linear_cross_entropy_workspace_bytes(const OpShapes& shapes, Pass pass);

// attention.cc. Vaswani et al. 2017 (arXiv:1706.03762), causal; query head h reads key/value head
// h / (heads / kv_heads) (Ainslie et al. 2023, arXiv:2305.13245). Backward takes the probabilities from lse
// and the rest from the inputs. Sinks as in gpt-oss (OpenAI 2025, arXiv:2508.10925), the soft cap as in
// Gemma 2 (arXiv:2408.00118).
void attention_forward(const OpCall& call);
void attention_backward(const OpCall& call);
uint64_t attention_workspace_bytes(const OpShapes& shapes, Pass pass);

// cached_attention.cc.
void cached_attention_forward(const OpCall& call);
uint64_t cached_attention_workspace_bytes(const OpShapes& shapes, Pass pass);
// rows.cc.
void pick_rows_forward(const OpCall& call);

// routers.cc. Jacobs et al. 1991; Shazeer et al. 2017 (arXiv:1701.06538); sigmoids, groups and corrections as
// in DeepSeek-V3 (arXiv:2412.19437).
void router_forward(const OpCall& call);
void router_backward(const OpCall& call);
void route_forward(const OpCall& call);
void route_backward(const OpCall& call);
void router_statistics_forward(const OpCall& call);
void router_statistics_backward(const OpCall& call);
void router_loss_forward(const OpCall& call);
void router_loss_backward(const OpCall& call);

// experts.cc.
void dispatch_forward(const OpCall& call);
void dispatch_backward(const OpCall& call);
void expert_linear_forward(const OpCall& call);
void expert_linear_backward(const OpCall& call);
void expert_swiglu_forward(const OpCall& call);
void expert_swiglu_backward(const OpCall& call);
void combine_forward(const OpCall& call);
void combine_backward(const OpCall& call);
void add_sum_forward(const OpCall& call);
void add_sum_backward(const OpCall& call);
void repeat_forward(const OpCall& call);
void repeat_backward(const OpCall& call);
void add_noise_forward(const OpCall& call);
void add_noise_backward(const OpCall& call);
void add_shared_sum_forward(const OpCall& call);
void add_shared_sum_backward(const OpCall& call);

// Device::update, by plain loops. Each optimizer's file defines it for its kind.
template <OptimizerKind kind>
void update_by(UpdateForm form, const UpdateRange& range, const UpdateScalars& scalars);

// The table: what the device runs for an op.
inline constexpr KernelRow<void(const OpCall&), uint64_t(const OpShapes&, Pass)> kKernels[kOpKinds] = {
    {OpKind::embedding, embedding_forward, embedding_backward, embedding_workspace_bytes},
    {OpKind::layer_norm, layer_norm_forward, layer_norm_backward, layer_norm_workspace_bytes},
    {OpKind::rms_norm, rms_norm_forward, rms_norm_backward, rms_norm_workspace_bytes},
    {OpKind::linear, linear_forward, linear_backward},
    {OpKind::gelu, gelu_forward, gelu_backward},
    {OpKind::swiglu, swiglu_forward, swiglu_backward},
    {OpKind::rope, rope_forward, rope_backward},
    {OpKind::attention, attention_forward, attention_backward, attention_workspace_bytes},
    {OpKind::add, add_forward, add_backward},
    {OpKind::linear_cross_entropy, linear_cross_entropy_forward, linear_cross_entropy_backward,
     linear_cross_entropy_workspace_bytes},
    {OpKind::cached_attention, cached_attention_forward, no_backward, cached_attention_workspace_bytes},
    {OpKind::pick_rows, pick_rows_forward, no_backward},
    {OpKind::router, router_forward, router_backward},
    {OpKind::route, route_forward, route_backward},
    {OpKind::router_statistics, router_statistics_forward, router_statistics_backward},
    {OpKind::router_loss, router_loss_forward, router_loss_backward},
    {OpKind::dispatch, dispatch_forward, dispatch_backward},
    {OpKind::expert_linear, expert_linear_forward, expert_linear_backward},
    {OpKind::expert_swiglu, expert_swiglu_forward, expert_swiglu_backward},
    {OpKind::combine, combine_forward, combine_backward},
    {OpKind::add_sum, add_sum_forward, add_sum_backward},
    {OpKind::add_noise, add_noise_forward, add_noise_backward},
    {OpKind::add_shared_sum, add_shared_sum_forward, add_shared_sum_backward},
    {OpKind::repeat, repeat_forward, repeat_backward},
};
static_assert(NoneMissing<first_missing(kKernels)>,
              "gpu/reference/kernels.h: every OpKind has a row in kKernels, in the order of OpKind");

}  // namespace sluice::reference
