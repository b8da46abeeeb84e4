// Optimizers on fp32 masters: prepare, then apply. What an update needs of all gradients (AdamW: the norm) is
// known before.
//
// prepare: once a step, in double, the constants of the update. apply: one pass over memory that fuses
// unscaling, clipping, moments, decay, master update and the write of the 16-bit weights. Results agree to
// the bit on every target and thread count. Callers: the runner's optimizer lane, and devices.
#pragma once

#include <cstdint>

#include "engine/parallel.h"
#include "engine/program.h"

namespace sluice {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
};

// t >= 1 counts updates that were not skipped, this one included.
AdamWConstants prepare_adamw(const AdamWOptions& options, int64_t t, double learning_rate,
                             double clip_factor, double loss_scale);

// One range of parameters. Streams may have any alignment and must not overlap. Working precision fp32: the
// master is the weight, and `weights` is nullptr.
struct AdamWRange {
  float* master;
  float* first_moment;
  float* second_moment;
  const void* gradient;  // in `precision`
  void* weights;         // in `precision`; nullptr for fp32
  DType precision;       // bf16, f16 or f32
  uint64_t elements;
  bool decay;            // false: d = 1
};

// g = gradient*s; m = fma(b1,m,k1*g); v = fma(b2,v,(k2*g)*g); w = w*d; w = fma(-a, m/fma(sqrt(v),r,eps), w);
// weights = round(w).
void apply_adamw(const AdamWRange& range, const AdamWConstants& constants, Workers& workers);

// The skipped update of fp16: state unchanged, weights = round(master).
void refresh_weights(const AdamWRange& range, Workers& workers);

// apply_adamw, or refresh_weights if the update is skipped.
inline void update_range(const AdamWRange& range, const StepScalars::Update& update, Workers& workers) {
  if (update.skip)
    refresh_weights(range, workers);
  else
    apply_adamw(range, update.adamw, workers);
}

// Bytes between the planes (master, first moment, second moment) of a shard of `elements`: 4 bytes each,
// rounded up to 4096, plus a skew, so that the streams never lie a power of two apart (measured: costs two
// thirds of the speed).
uint64_t state_plane_stride(uint64_t elements);

// Rounding to nearest even and widening, any length and alignment; f32 copies.
void round_to(DType to, const float* from, void* out, uint64_t elements);
void widen(DType from, const void* in, float* out, uint64_t elements);

}  // namespace sluice
