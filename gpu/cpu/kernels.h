// Kernels of the cpu device: one forward and one backward per op, free functions of one signature; and the
// table of them.
//
// Operands are in the working precision (bf16, f16 or f32). Statistics and parameter gradients are fp32.
// Arithmetic is fp32, except that losses and what is named double below are computed in double. Semantics of
// operands, nullptr and addends are those of gpu/device.h. An addend of 16 bits is added in fp32, and the
// sum is rounded once. Work is cut by shape alone and partial sums are added in index order,
// so results do not depend on the number of threads. Nothing allocates: kernels use the call's workspace. The
// *_workspace_bytes functions tell its size (an op without such a function needs none) and prepare the op's
// products. Caller: the compute lane, one call at a time.
#pragma once

#include <cstdint>

#include "engine/base/parallel.h"
#include "gpu/device.h"
#include "gpu/kernel_table.h"

namespace sluice::cpu {

class Multiplier;      // matmul.h: matrix products
class TileMultiplier;  // tile_matmul.h: products of some tiles of rows

// What the device owns and its kernels work with.
struct Resources {
  Workers& workers;
  Multiplier& multiplier;
  TileMultiplier& tiles;
};

// embedding.cc. Backward: d wte[token] += dy, d wpe[position] += dy, rows in order.
void embedding_forward(const OpCall& call, const Resources& resources);
void embedding_backward(const OpCall& call, const Resources& resources);

// norm.cc. Biased variance, as in Ba, Kiros, Hinton 2016 (arXiv:1607.06450) and Zhang, Sennrich 2019
// (arXiv:1910.07467): y = (x - mean) * rstd * weight + bias, and y = x * rstd * weight.
void layer_norm_forward(const OpCall& call, const Resources& resources);
void layer_norm_backward(const OpCall& call, const Resources& resources);
void rms_norm_forward(const OpCall& call, const Resources& resources);
void rms_norm_backward(const OpCall& call, const Resources& resources);
uint64_t norm_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);

// elementwise.cc.
void gelu_forward(const OpCall& call, const Resources& resources);
void gelu_backward(const OpCall& call, const Resources& resources);
void swiglu_forward(const OpCall& call, const Resources& resources);
void swiglu_backward(const OpCall& call, const Resources& resources);
void add_forward(const OpCall& call, const Resources& resources);
void add_backward(const OpCall& call, const Resources& resources);
void add_sum_forward(const OpCall& call, const Resources& resources);
void add_sum_backward(const OpCall& call, const Resources& resources);
void repeat_forward(const OpCall& call, const Resources& resources);
void repeat_backward(const OpCall& call, const Resources& resources);

// rope.cc. Angles are computed in double.
void rope_forward(const OpCall& call, const Resources& resources);
void rope_backward(const OpCall& call, const Resources& resources);
uint64_t rope_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);

// Device::round. The squares of a block are added in 16 interleaved double sums, which are then added in
// order: the same bits on every target.
void round_gradient(const Accumulators& accumulators, void* gradient, DType precision, uint64_t elements,
                    double* block_sums, Workers& workers);

// linear.cc.
void linear_forward(const OpCall& call, const Resources& resources);
void linear_backward(const OpCall& call, const Resources& resources);
uint64_t linear_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);

// attention.cc.
void attention_forward(const OpCall& call, const Resources& resources);
void attention_backward(const OpCall& call, const Resources& resources);
uint64_t attention_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);

// cross_entropy.cc. Backward also adds the loss to outputs[0].
void linear_cross_entropy_forward(const OpCall& call, const Resources& resources);
void linear_cross_entropy_backward(const OpCall& call, const Resources& resources);
uint64_t linear_cross_entropy_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);

// cached_attention.cc.
void cached_attention_forward(const OpCall& call, const Resources& resources);
uint64_t cached_attention_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);
void pick_rows_forward(const OpCall& call, const Resources& resources);

// routers.cc. Logits are processed in double.
void router_forward(const OpCall& call, const Resources& resources);
void router_backward(const OpCall& call, const Resources& resources);
uint64_t router_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);
void router_statistics_forward(const OpCall& call, const Resources& resources);
void router_statistics_backward(const OpCall& call, const Resources& resources);
uint64_t router_statistics_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);
void router_loss_forward(const OpCall& call, const Resources& resources);  // both passes add to outputs[0]
void router_loss_backward(const OpCall& call, const Resources& resources);

// route.cc. Logits are processed in double.
void route_forward(const OpCall& call, const Resources& resources);
void route_backward(const OpCall& call, const Resources& resources);
uint64_t route_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);
void add_noise_forward(const OpCall& call, const Resources& resources);
void add_noise_backward(const OpCall& call, const Resources& resources);

// shared_sum.cc.
uint64_t add_shared_sum_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);
void add_shared_sum_forward(const OpCall& call, const Resources& resources);
void add_shared_sum_backward(const OpCall& call, const Resources& resources);

// experts.cc.
void dispatch_forward(const OpCall& call, const Resources& resources);
void dispatch_backward(const OpCall& call, const Resources& resources);
void expert_swiglu_forward(const OpCall& call, const Resources& resources);
void expert_swiglu_backward(const OpCall& call, const Resources& resources);
void combine_forward(const OpCall& call, const Resources& resources);
void combine_backward(const OpCall& call, const Resources& resources);

// expert_linear.cc.
void expert_linear_forward(const OpCall& call, const Resources& resources);
void expert_linear_backward(const OpCall& call, const Resources& resources);
uint64_t expert_linear_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources);

// The table: what the device runs for an op.
using Kernels =
    KernelRow<void(const OpCall&, const Resources&), uint64_t(const OpShapes&, Pass, const Resources&)>;
inline constexpr Kernels kKernels[kOpKinds] = {
    {OpKind::embedding, embedding_forward, embedding_backward},
    {OpKind::layer_norm, layer_norm_forward, layer_norm_backward, norm_workspace_bytes},
    {OpKind::rms_norm, rms_norm_forward, rms_norm_backward, norm_workspace_bytes},
    {OpKind::linear, linear_forward, linear_backward, linear_workspace_bytes},
    {OpKind::gelu, gelu_forward, gelu_backward},
    {OpKind::swiglu, swiglu_forward, swiglu_backward},
    {OpKind::rope, rope_forward, rope_backward, rope_workspace_bytes},
    {OpKind::attention, attention_forward, attention_backward, attention_workspace_bytes},
    {OpKind::add, add_forward, add_backward},
    {OpKind::linear_cross_entropy, linear_cross_entropy_forward, linear_cross_entropy_backward,
     linear_cross_entropy_workspace_bytes},
    {OpKind::cached_attention, cached_attention_forward, no_backward, cached_attention_workspace_bytes},
    {OpKind::pick_rows, pick_rows_forward, no_backward},
    {OpKind::router, router_forward, router_backward, router_workspace_bytes},
    {OpKind::route, route_forward, route_backward, route_workspace_bytes},
    {OpKind::router_statistics, router_statistics_forward, router_statistics_backward,
     router_statistics_workspace_bytes},
    {OpKind::router_loss, router_loss_forward, router_loss_backward},
    {OpKind::dispatch, dispatch_forward, dispatch_backward},
    {OpKind::expert_linear, expert_linear_forward, expert_linear_backward, expert_linear_workspace_bytes},
    {OpKind::expert_swiglu, expert_swiglu_forward, expert_swiglu_backward},
    {OpKind::combine, combine_forward, combine_backward},
    {OpKind::add_sum, add_sum_forward, add_sum_backward},
    {OpKind::add_noise, add_noise_forward, add_noise_backward},
    {OpKind::add_shared_sum, add_shared_sum_forward, add_shared_sum_backward, add_shared_sum_workspace_bytes},
    {OpKind::repeat, repeat_forward, repeat_backward},
};
static_assert(NoneMissing<first_missing(kKernels)>,
              "gpu/cpu/kernels.h: every OpKind has a row in kKernels, in the order of OpKind");

}  // namespace sluice::cpu
