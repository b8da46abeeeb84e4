// Kernels of the cuda device: one forward and one backward per op, free functions of one signature; and the
// table of them. A call enqueues work on the queue's stream and returns; nothing waits for the GPU.
//
// Operands are in device memory, in the working precision (bf16, f16 or f32). Arithmetic is fp32 but for
// losses and what is named double below. Statistics and parameter gradients are fp32. Semantics of operands,
// nullptr and addends are those of gpu/device.h; an addend of 16 bits is widened, the new gradient is added,
// and the sum is rounded once. No float atomics: every sum has one owner and an order that is a function of
// the shape, so results do not depend on the number of multiprocessors. Nothing allocates: kernels use the
// call's workspace, whose size is a function of the shape alone (workspace.h). Caller: the compute lane, one
// call at a time.
#pragma once

#include <cstdint>

#include "gpu/cuda/workspace.h"
#include "gpu/kernel_table.h"
#include "gpu/products.h"

namespace sluice::cuda {

class Multiplier;  // matmul.h: matrix products

// Where kernels go and what limits a launch.
struct Queue {
  void* stream;         // a cudaStream_t
  int multiprocessors;  // sizes grids that stride over their work
  // Filled in by make_ops_device. Shared memory:
  uint64_t shared_bytes_max = 0;       // of a block
  uint64_t shared_bytes_together = 0;  // of all blocks on a multiprocessor
  uint64_t shared_bytes_reserved = 0;  // of each block, beside its own
  Multiplier* multiplier = nullptr;    // the products of ops
};

// Set-up: loads every kernel, since nothing may be loaded in the step. Each file has a function for its own
// kernels.
void load_kernels(const Queue& queue);
void load_embedding_kernels();
void load_norm_kernels();
void load_elementwise_kernels();
void load_rope_kernels();
void load_attention_forward_kernels(const Queue& queue);
void load_attention_backward_kernels(const Queue& queue);
void load_loss_kernels(const Queue& queue);
void load_cached_attention_kernels();
void load_router_kernels();
void load_route_kernels();
void load_expert_kernels();
void load_expert_linear_kernels();
void load_gradient_kernels();
template <OptimizerKind kind>
void load_update_kernels();

// embedding.cu. Backward: d wte[token] += the sum of the token's rows of dy, in order.
void embedding_forward(const Queue& queue, const OpCall& call);
void embedding_backward(const Queue& queue, const OpCall& call);

// norm.cu. Backward reads its operands once if rows have at most 8192 columns, and their number is a multiple
// of 8.
void layer_norm_forward(const Queue& queue, const OpCall& call);
void layer_norm_backward(const Queue& queue, const OpCall& call);
void rms_norm_forward(const Queue& queue, const OpCall& call);
void rms_norm_backward(const Queue& queue, const OpCall& call);

// elementwise.cu. A float of 1 in the device's memory.
const float* one_on_device();
// *to = value, in the device's memory.
void put(const Queue& queue, float value, float* to);
// Copies `row` to each of the `rows` rows of `to`.
void repeat_row(const Queue& queue, DType precision, const void* row, void* to, int64_t rows,
                int64_t columns);
void gelu_forward(const Queue& queue, const OpCall& call);
void gelu_backward(const Queue& queue, const OpCall& call);
void swiglu_forward(const Queue& queue, const OpCall& call);
void swiglu_backward(const Queue& queue, const OpCall& call);
void add_forward(const Queue& queue, const OpCall& call);
void add_backward(const Queue& queue, const OpCall& call);

// rope.cu. Angles are computed in double, once for every (position, pair), and kept in the workspace.
void rope_forward(const Queue& queue, const OpCall& call);
void rope_backward(const Queue& queue, const OpCall& call);

// attention_forward.cu and attention_backward.cu. Head sizes up to kHeadSizeMax.
void attention_forward(const Queue& queue, const OpCall& call);
void attention_backward(const Queue& queue, const OpCall& call);

// cached_attention.cu. Head sizes up to kHeadSizeMax.
void cached_attention_forward(const Queue& queue, const OpCall& call);
void pick_rows_forward(const Queue& queue, const OpCall& call);

// linear.cc: products, and the bias's gradient by add_column_sums.
void linear_forward(const Queue& queue, const OpCall& call);
void linear_backward(const Queue& queue, const OpCall& call);

// cross_entropy.cc: products, and the rows in between.
void linear_cross_entropy_forward(const Queue& queue, const OpCall& call);
void linear_cross_entropy_backward(const Queue& queue, const OpCall& call);

// routers.cu and route.cu.
void router_forward(const Queue& queue, const OpCall& call);
void router_backward(const Queue& queue, const OpCall& call);
void route_forward(const Queue& queue, const OpCall& call);
void route_backward(const Queue& queue, const OpCall& call);
void add_noise_forward(const Queue& queue, const OpCall& call);
void add_noise_backward(const Queue& queue, const OpCall& call);
void router_statistics_forward(const Queue& queue, const OpCall& call);
void router_statistics_backward(const Queue& queue, const OpCall& call);
void router_loss_forward(const Queue& queue, const OpCall& call);
void router_loss_backward(const Queue& queue, const OpCall& call);

// experts.cu and expert_linear.cu. The numbers of an expert's rows are read on the device.
void dispatch_forward(const Queue& queue, const OpCall& call);
void dispatch_backward(const Queue& queue, const OpCall& call);
void expert_linear_forward(const Queue& queue, const OpCall& call);
void expert_linear_backward(const Queue& queue, const OpCall& call);
void expert_swiglu_forward(const Queue& queue, const OpCall& call);
void expert_swiglu_backward(const Queue& queue, const OpCall& call);
void combine_forward(const Queue& queue, const OpCall& call);
void combine_backward(const Queue& queue, const OpCall& call);
void add_sum_forward(const Queue& queue, const OpCall& call);
void add_sum_backward(const Queue& queue, const OpCall& call);
void repeat_forward(const Queue& queue, const OpCall& call);
void repeat_backward(const Queue& queue, const OpCall& call);
void add_shared_sum_forward(const Queue& queue, const OpCall& call);
void add_shared_sum_backward(const Queue& queue, const OpCall& call);
// to [count] = addend, or zeros if `addend` is nullptr. An expert's rows then add to `to`. Does nothing if
// `to` is the addend.
void begin_choices(const Queue& queue, float* to, const float* addend, int64_t count);

// norm.cu: to[c] += the sum over rows of from[r, c]. Chunks of rows are summed in fp32, then the chunks'
// sums in double, both in order.
void add_column_sums(const Queue& queue, DType precision, const void* from, int64_t rows, int64_t columns,
                     float* to, std::byte* workspace);

// loss_rows.cu. Computes losses (double, one a row) from rows of fp32 logits, which are `stride` floats
// apart. Unless `loss_scale` is nullptr, replaces the logits by their gradients in `precision`; each row of
// gradients begins where its row of logits did. The scalars are OpCall's. A row with a logit that is NaN or
// +infinity has the loss NaN and gradients NaN.
void finish_loss_rows(const Queue& queue, const LossRows& rows, DType precision, const double* loss_scale,
                      const double* valid_tokens);
// *count += the number of right rows (OpAttributes::counts_right), by their logits. Rows that are right get a
// 1 in `rights`, others a 0.
void count_right_rows(const Queue& queue, const LossRows& rows, double* count);
// *loss += the sum of the rows' losses.
void add_losses(const Queue& queue, const double* losses, int64_t rows, double* loss);

// optimize.cu: Device::round, Device::sum, Device::zero, and Device::update by AdamW. Each optimizer's file
// defines the templates for its kind.
void round_gradient(const Queue& queue, const Accumulators& accumulators, void* gradient, DType precision,
                    uint64_t elements, double* block_sums);
void sum_parts(const Queue& queue, DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to,
               void* out, double* block_sums);
template <OptimizerKind kind>
void update_by(const Queue& queue, UpdateForm form, const UpdateRange& range, const UpdateScalars& scalars);
void zero(const Queue& queue, void* data, uint64_t bytes);

// The table: what the device runs for an op. Workspaces are in workspace.cc, which is also part of builds
// without the CUDA Toolkit.
inline constexpr KernelRow<void(const Queue&, const OpCall&)> kKernels[kOpKinds] = {
    {OpKind::embedding, embedding_forward, embedding_backward},
    {OpKind::layer_norm, layer_norm_forward, layer_norm_backward},
    {OpKind::rms_norm, rms_norm_forward, rms_norm_backward},
    {OpKind::linear, linear_forward, linear_backward},
    {OpKind::gelu, gelu_forward, gelu_backward},
    {OpKind::swiglu, swiglu_forward, swiglu_backward},
    {OpKind::rope, rope_forward, rope_backward},
    {OpKind::attention, attention_forward, attention_backward},
    {OpKind::add, add_forward, add_backward},
    {OpKind::linear_cross_entropy, linear_cross_entropy_forward, linear_cross_entropy_backward},
    {OpKind::cached_attention, cached_attention_forward, no_backward},
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
              "gpu/cuda/kernels.h: every OpKind has a row in kKernels, in the order of OpKind");

}  // namespace sluice::cuda
