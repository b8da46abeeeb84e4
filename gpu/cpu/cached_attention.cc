// cached_attention. First, tasks for rows write keys and values into the cache; then, tasks for (row,
// key/value head) answer the queries of the heads that share the key/value head. They pass over the keys in
// blocks with a running maximum and sum, as attention.cc does. A query's results depend on its position and
// on what is cached, not on the other rows.
#include "engine/base/simd/targets.h"
#include "gpu/cpu/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/cached_attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/simd/simd-inl.h"
#include "engine/graph/attention_operands.h"
#include "gpu/cpu/rows.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;

// scores[i] = scale * (q . key i), for `keys` keys that are `stride` elements apart.
void score_keys(DType precision, const float* q, const void* first, int64_t keys, int64_t stride,
                int64_t size, float scale, float* scores) {
  with_precision(precision, [&](auto type) HWY_ATTR {
    const auto* key = static_cast<const decltype(type)*>(first);
    for (int64_t i = 0; i < keys; ++i, key += stride) {
      FloatVector sum = hn::Zero(Floats());
      for_each_vector(static_cast<size_t>(size), [&](size_t d, auto lanes) SLUICE_KERNEL {
        sum = fma(lanes.load(q + d), lanes.load(key + d), sum);
      });
      scores[i] = scale * hn::GetLane(hn::SumOfLanes(Floats(), sum));
    }
  });
}

// o += the sum of weights[i] * value i.
void add_values(DType precision, const float* weights, const void* first, int64_t keys, int64_t stride,
                int64_t size, float* o) {
  with_precision(precision, [&](auto type) HWY_ATTR {
    const auto* value = static_cast<const decltype(type)*>(first);
    for (int64_t i = 0; i < keys; ++i, value += stride) {
      const FloatVector weight = hn::Set(Floats(), weights[i]);
      for_each_vector(static_cast<size_t>(size), [&](size_t d, auto lanes) SLUICE_KERNEL {
        lanes.store(fma(weight, lanes.load(value + d), lanes.load(o + d)), o + d);
      });
    }
  });
}

void widen_row(DType precision, const void* from, float* to, int64_t n) {
  with_precision(precision, [&](auto type) HWY_ATTR {
    const auto* x = static_cast<const decltype(type)*>(from);
    for_each_vector(static_cast<size_t>(n),
                    [&](size_t i, auto lanes) SLUICE_KERNEL { lanes.store(lanes.load(x + i), to + i); });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
namespace {

HWY_EXPORT(score_keys);
HWY_EXPORT(add_values);
HWY_EXPORT(widen_row);

constexpr int64_t kKeys = 256;  // of a block
constexpr int64_t kRows = 16;   // of a task that writes

// One thread's workspace: a query, its o, the scores of a block. Each takes whole cache lines.
int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }
int64_t thread_floats(const OpShapes& s) { return 2 * padded(s.attributes.head_size) + kKeys; }

class Problem {
 public:
  explicit Problem(const OpCall& call)
      : call_(call),
        s_(*call.shapes),
        a_(s_.attributes),
        width_(static_cast<int64_t>(dtype_bytes(s_.precision))),
        q_columns_(a_.heads * a_.head_size),
        kv_columns_(a_.kv_heads * a_.head_size),
        packed_(cached_attention_is_packed(s_)) {}

  int64_t rows() const { return s_.inputs[kCachedBegins][0]; }
  int64_t kv_heads() const { return a_.kv_heads; }

  void write(int64_t row) const {
    const int64_t position = position_of(row);
    if (position < 0) return;
    for (int64_t part = 0; part < 2; ++part)
      std::memcpy(cached(row, position, part), projected(row, part + 1),
                  static_cast<size_t>(kv_columns_ * width_));
  }

  // Answers the row's queries of the heads that share a key/value head.
  void answer(int64_t row, int64_t kv_head, float* workspace) const {
    const int64_t group = a_.heads / a_.kv_heads;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
      answer_head(row, kv_head, head, workspace);
  }

 private:
  int64_t position_of(int64_t row) const {
    const auto* begins = static_cast<const int32_t*>(call_.inputs[kCachedBegins].data);
    return row % a_.sequence - begins[row];
  }
  // The row's q (0), k (1) or v (2).
  const std::byte* projected(int64_t row, int64_t part) const {
    const auto* data = static_cast<const std::byte*>(
        call_.inputs[kCachedQuery + (packed_ ? 0 : static_cast<size_t>(part))].data);
    if (!packed_) return data + row * (part == 0 ? q_columns_ : kv_columns_) * width_;
    const int64_t before = part == 0 ? 0 : q_columns_ + (part - 1) * kv_columns_;
    return data + (row * (q_columns_ + 2 * kv_columns_) + before) * width_;
  }
  // All keys (0) or values (1) at a position of the row's sequence.
  std::byte* cached(int64_t row, int64_t position, int64_t part) const {
    const int64_t token = row / a_.sequence * a_.context + position;
    return static_cast<std::byte*>(call_.inputs[kCache].data) + (2 * token + part) * kv_columns_ * width_;
  }

  void answer_head(int64_t row, int64_t kv_head, int64_t head, float* workspace) const {
    const int64_t size = a_.head_size, position = position_of(row), column = kv_head * size * width_;
    float *const q = workspace, *const o = q + padded(size), *const scores = o + padded(size);
    std::byte* const out =
        static_cast<std::byte*>(call_.outputs[0].data) + (row * a_.heads + head) * size * width_;
    std::fill(o, o + size, 0.0f);
    HWY_DYNAMIC_DISPATCH(widen_row)(s_.precision, projected(row, 0) + head * size * width_, q, size);
    float maximum = std::numeric_limits<float>::lowest(), sum = 0;
    if (attention_has_sinks(s_)) {
      const auto* sinks = static_cast<const std::byte*>(call_.parameters[0].data);
      HWY_DYNAMIC_DISPATCH(widen_row)(s_.precision, sinks + head * width_, &maximum, 1);
      sum = 1;
    }
    const auto scale = static_cast<float>(attention_scale(a_)), cap = static_cast<float>(a_.soft_cap);
    const int64_t begin = a_.window == 0 ? 0 : std::max<int64_t>(0, position - a_.window + 1);
    for (int64_t first = begin; first <= position; first += kKeys) {
      const int64_t keys = std::min(kKeys, position + 1 - first);
      HWY_DYNAMIC_DISPATCH(score_keys)
      (s_.precision, q, cached(row, first, 0) + column, keys, 2 * kv_columns_, size, scale, scores);
      if (cap > 0) soft_cap_row(scores, cap, nullptr, keys);
      const float block = finite_maximum(scores, keys);
      // NaN must win, and std::max would drop it on one side.
      const float larger = block > maximum || std::isnan(block) ? block : maximum;
      const float correction = std::exp(maximum - larger);
      sum = sum * correction + static_cast<float>(exponential_row(scores, larger, keys));
      maximum = larger;
      scale_row(o, correction, size);
      HWY_DYNAMIC_DISPATCH(add_values)
      (s_.precision, scores, cached(row, first, 1) + column, keys, 2 * kv_columns_, size, o);
    }
    scale_and_round_row(s_.precision, o, position < 0 ? 0.0f : 1.0f / sum, out, size);
  }

  const OpCall& call_;
  const OpShapes& s_;
  const OpAttributes& a_;
  int64_t width_, q_columns_, kv_columns_;
  bool packed_;
};

}  // namespace

void cached_attention_forward(const OpCall& call, const Resources& resources) {
  const Problem p(call);
  resources.workers.parallel_for((p.rows() + kRows - 1) / kRows, [&](int64_t block, int) {
    for (int64_t row = block * kRows; row < std::min(p.rows(), (block + 1) * kRows); ++row) p.write(row);
  });
  auto* const workspace = reinterpret_cast<float*>(call.workspace);
  resources.workers.parallel_for(p.rows() * p.kv_heads(), [&](int64_t index, int thread) {
    p.answer(index / p.kv_heads(), index % p.kv_heads(), workspace + thread * thread_floats(*call.shapes));
  });
}

uint64_t cached_attention_workspace_bytes(const OpShapes& shapes, Pass, const Resources& resources) {
  return static_cast<uint64_t>(resources.workers.threads() * thread_floats(shapes)) * sizeof(float);
}

void pick_rows_forward(const OpCall& call, const Resources&) {
  const int64_t picked = call.shapes->inputs[1][0], rows = call.shapes->inputs[0][0];
  const auto bytes = static_cast<uint64_t>(call.shapes->inputs[0][1]) * dtype_bytes(call.shapes->precision);
  const auto* numbers = static_cast<const int32_t*>(call.inputs[1].data);
  for (int64_t i = 0; i < picked; ++i) {
    CHECK(numbers[i] >= 0 && numbers[i] < rows, "a row to be picked that is not there");
    std::memcpy(
        static_cast<std::byte*>(call.outputs[0].data) + static_cast<uint64_t>(i) * bytes,
        static_cast<const std::byte*>(call.inputs[0].data) + static_cast<uint64_t>(numbers[i]) * bytes,
        bytes);
  }
}

}  // namespace sluice::cpu
#endif
