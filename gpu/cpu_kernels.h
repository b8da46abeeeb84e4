// Kernels of the cpu device: one forward and one backward per op, free functions that cpu_device.cc
// dispatches to.
//
// Operands are in the working precision (bf16, f16 or f32), all arithmetic is fp32, statistics and parameter
// gradients are fp32. Semantics of operands, nullptr and `accumulate` are those of gpu/device.h; when a
// 16-bit gradient is added to, it is widened, added and rounded once. Work is cut by shape alone and partial
// sums are added in index order, so results do not depend on the number of threads. Nothing allocates;
// scratch is the call's workspace, sized by the *_workspace_bytes functions (an op without one needs none).
// Caller: the compute lane, one call at a time.
#pragma once

#include <cstdint>

#include "engine/parallel.h"
#include "gpu/device.h"

namespace sluice::cpu {

class Multiplier;  // cpu_matmul.h: matrix products; the device owns it, workspace_bytes prepares it

// cpu_embedding.cc. Backward: d wte[token] += dy, d wpe[position] += dy, rows in order.
void embedding_forward(const OpCall& call, Workers& workers);
void embedding_backward(const OpCall& call, Workers& workers);

// cpu_norm.cc. Biased variance, as in Ba, Kiros, Hinton 2016 (arXiv:1607.06450) and Zhang, Sennrich 2019
// (arXiv:1910.07467): y = (x - mean) * rstd * weight + bias, and y = x * rstd * weight.
void layer_norm_forward(const OpCall& call, Workers& workers);
void layer_norm_backward(const OpCall& call, Workers& workers);
void rms_norm_forward(const OpCall& call, Workers& workers);
void rms_norm_backward(const OpCall& call, Workers& workers);
uint64_t layer_norm_workspace_bytes(const OpShapes& shapes, Pass pass, int threads);
uint64_t rms_norm_workspace_bytes(const OpShapes& shapes, Pass pass, int threads);

// cpu_elementwise.cc. y = gelu(x), and dy = dy gelu'(x) in place, of `count` elements.
void gelu(DType precision, const void* x, void* y, uint64_t count, Workers& workers);
void gelu_gradient(DType precision, const void* x, void* dy, uint64_t count, Workers& workers);
void swiglu_forward(const OpCall& call, Workers& workers);
void swiglu_backward(const OpCall& call, Workers& workers);
void add_forward(const OpCall& call, Workers& workers);
void add_backward(const OpCall& call, Workers& workers);

// cpu_rope.cc. Angles in double.
void rope_forward(const OpCall& call, Workers& workers);
void rope_backward(const OpCall& call, Workers& workers);
uint64_t rope_workspace_bytes(const OpShapes& shapes, Pass pass, int threads);

// Device::round. The squares of a block are added in 16 interleaved double sums, which are then added in
// order: the same bits on every target.
void round_gradient(const float* accumulator, void* gradient, DType precision, uint64_t elements,
                    double* block_sums, Workers& workers);

// cpu_linear.cc. Forward and the workspace: linear_gelu's too.
void linear_forward(const OpCall& call, Multiplier& multiplier, Workers& workers);
void linear_backward(const OpCall& call, Multiplier& multiplier, Workers& workers);
void linear_gelu_backward(const OpCall& call, Multiplier& multiplier, Workers& workers);
uint64_t linear_workspace_bytes(const OpShapes& shapes, Pass pass, Multiplier& multiplier);

// cpu_attention.cc.
void attention_forward(const OpCall& call, const Multiplier& multiplier, Workers& workers);
void attention_backward(const OpCall& call, const Multiplier& multiplier, Workers& workers);
uint64_t attention_workspace_bytes(const OpShapes& shapes, Pass pass, int threads);

// cpu_cross_entropy.cc. Backward also adds the loss to outputs[0].
void linear_cross_entropy_forward(const OpCall& call, Multiplier& multiplier, Workers& workers);
void linear_cross_entropy_backward(const OpCall& call, Multiplier& multiplier, Workers& workers);
uint64_t linear_cross_entropy_workspace_bytes(const OpShapes& shapes, Pass pass, Multiplier& multiplier);

}  // namespace sluice::cpu
