// attention: causal, grouped-query, blockwise, never T x T (Dao et al. 2022, arXiv:2205.14135; backward
// after Dao 2023, arXiv:2307.08691).
//
// Forward: one task per (sequence, head, block of queries); it passes over the blocks of keys with a running
// maximum and sum. Backward recomputes probabilities from lse, with delta = rowsum(dO * O). Where there are
// enough pairs of sequence and key/value head, or a sequence is one block of queries, one task does a pair,
// with five products a block. Otherwise tasks for blocks of queries compute dq, and tasks for blocks of keys
// compute dk and dv. That costs two products more, but tasks share no sums. The shape decides which way.
// Every sum is owned by one task and has a fixed order. Operands that are not fp32 are widened block by
// block.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/simd/convert.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matmul.h"
#include "gpu/cpu/rows.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kQueries = 64;  // rows of a block: half of a block on the diagonal is wasted
constexpr int64_t kKeys = 256;    // 64 x 256 scores are 64 KiB: they stay in the second-level cache
constexpr int64_t kScoreStride = kKeys + 16;
constexpr int64_t kPairsMin = 4;  // (sequence, key/value head) pairs that are enough tasks

// Columns of one head within a [rows, stride] tensor.
struct Columns {
  void* data = nullptr;  // of the tensor; nullptr: not wanted
  int64_t stride = 0, first = 0;
  bool accumulate = false;
};

struct Problem {
  DType precision;
  int64_t sequences, length, heads, kv_heads, size;
  float scale;
  Columns q, k, v;  // of head 0
  int64_t group() const { return heads / kv_heads; }
};

void* address(const Columns& c, DType precision, int64_t row, int64_t column) {
  return static_cast<std::byte*>(c.data) +
         static_cast<uint64_t>(row * c.stride + c.first + column) * dtype_bytes(precision);
}

Problem problem_of(const OpShapes& s) {
  const OpAttributes& a = s.attributes;
  return {s.precision,
          s.inputs[0][0] / a.sequence,
          a.sequence,
          a.heads,
          a.kv_heads,
          a.head_size,
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_size))),
          {},
          {},
          {}};
}

// q, k and v (or their gradients) in separate tensors, or one after the other in the columns of one.
void bind_columns(const Problem& p, std::span<const TensorView> views, Columns& q, Columns& k, Columns& v) {
  const int64_t q_columns = p.heads * p.size, kv_columns = p.kv_heads * p.size;
  if (views.size() == 1) {
    const int64_t stride = q_columns + 2 * kv_columns;
    q = {views[0].data, stride, 0, views[0].accumulate};
    k = {views[0].data, stride, q_columns, views[0].accumulate};
    v = {views[0].data, stride, q_columns + kv_columns, views[0].accumulate};
  } else {
    q = {views[0].data, q_columns, 0, views[0].accumulate};
    k = {views[1].data, kv_columns, 0, views[1].accumulate};
    v = {views[2].data, kv_columns, 0, views[2].accumulate};
  }
}

struct Block {
  const float* data;
  int64_t stride;
};

// Rows of one head as fp32: in place, or widened into `scratch` [rows, size].
Block load(const Problem& p, const Columns& c, int64_t row, int64_t column, int64_t rows, float* scratch) {
  if (p.precision == DType::f32)
    return {static_cast<const float*>(address(c, p.precision, row, column)), c.stride};
  for (int64_t r = 0; r < rows; ++r)
    widen(p.precision, address(c, p.precision, row + r, column), scratch + r * p.size,
          static_cast<uint64_t>(p.size));
  return {scratch, p.size};
}

void store(const Problem& p, const float* from, const Columns& c, int64_t row, int64_t column, int64_t rows) {
  if (c.data == nullptr) return;
  for (int64_t r = 0; r < rows; ++r)
    finish_row(p.precision, from + r * p.size, nullptr, address(c, p.precision, row + r, column),
               c.accumulate, p.size);
}

// Hands out parts of one thread's workspace, aligned to 64 bytes. Without a base it only measures.
class Scratch {
 public:
  explicit Scratch(std::byte* base) : base_(base) {}
  float* floats(int64_t count) {
    const uint64_t offset = bytes_;
    bytes_ += static_cast<uint64_t>((count + 15) / 16 * 16) * sizeof(float);
    return base_ == nullptr ? nullptr : reinterpret_cast<float*>(base_ + offset);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  uint64_t bytes_ = 0;
};

struct ForwardScratch {
  float *q, *k, *v, *scores, *o, *maximum, *sum;
  ForwardScratch(const Problem& p, Scratch& s)
      : q(s.floats(kQueries * p.size)),
        k(s.floats(kKeys * p.size)),
        v(s.floats(kKeys * p.size)),
        scores(s.floats(kQueries * kScoreStride)),
        o(s.floats(kQueries * p.size)),
        maximum(s.floats(kQueries)),
        sum(s.floats(kQueries)) {}
};

struct BackwardScratch {
  float *q, *k, *v, *o, *d_o, *probabilities, *gradients, *delta, *dq, *dk, *dv;
  BackwardScratch(const Problem& p, int64_t keys, Scratch& s)
      : q(s.floats(kQueries * p.size)),
        k(s.floats(kKeys * p.size)),
        v(s.floats(kKeys * p.size)),
        o(s.floats(kQueries * p.size)),
        d_o(s.floats(kQueries * p.size)),
        probabilities(s.floats(kQueries * kScoreStride)),
        gradients(s.floats(kQueries * kScoreStride)),
        delta(s.floats(kQueries)),
        dq(s.floats(kQueries * p.size)),
        dk(s.floats(keys * p.size)),
        dv(s.floats(keys * p.size)) {}
};

bool one_task_per_pair(const Problem& p) {
  return p.sequences * p.kv_heads >= kPairsMin || p.length <= kQueries;
}

// Rows of dk and dv that one task holds.
int64_t keys_held(const Problem& p) { return one_task_per_pair(p) ? p.length : std::min(p.length, kKeys); }

uint64_t thread_bytes(const Problem& p, Pass pass) {
  Scratch scratch(nullptr);
  if (pass == Pass::forward) {
    ForwardScratch measure(p, scratch);
  } else {
    BackwardScratch measure(p, keys_held(p), scratch);
  }
  return scratch.bytes();
}

// One block of keys: scores to probabilities in place, running maximum and sum, o = o * correction +
// probabilities * v. Row r sees the block's keys up to number first_query + r - first_key.
void add_keys(const Problem& p, const ForwardScratch& s, const Block& q, const Block& k, const Block& v,
              int64_t queries, int64_t keys, int64_t first_query, int64_t first_key,
              const Multiplier& multiplier) {
  multiplier.multiply({queries, keys, p.size, false, true, q.stride, k.stride, kScoreStride, false}, p.scale,
                      q.data, k.data, s.scores);
  for (int64_t r = 0; r < queries; ++r) {
    float* row = s.scores + r * kScoreStride;
    const int64_t seen = std::clamp<int64_t>(first_query + r + 1 - first_key, 0, keys);
    std::fill(row + seen, row + keys, 0.0f);
    if (seen == 0) continue;
    const float block_maximum = finite_maximum(row, seen);
    // NaN must win, and std::max would drop it on one side.
    const float maximum =
        block_maximum > s.maximum[r] || std::isnan(block_maximum) ? block_maximum : s.maximum[r];
    const float correction = first_key == 0 ? 0.0f : std::exp(s.maximum[r] - maximum);
    s.sum[r] = s.sum[r] * correction + static_cast<float>(exponential_row(row, maximum, seen));
    s.maximum[r] = maximum;
    if (first_key > 0) scale_row(s.o + r * p.size, correction, p.size);
  }
  multiplier.multiply({queries, p.size, keys, false, false, kScoreStride, v.stride, p.size, first_key > 0},
                      1.0f, s.scores, v.data, s.o);
}

void forward_block(const Problem& p, const Columns& o, float* lse, int64_t sequence, int64_t head,
                   int64_t first_query, std::byte* workspace, const Multiplier& multiplier) {
  Scratch scratch(workspace);
  const ForwardScratch s(p, scratch);
  const int64_t base = sequence * p.length, column = head * p.size, kv_column = head / p.group() * p.size;
  const int64_t queries = std::min(kQueries, p.length - first_query), keys_end = first_query + queries;
  const Block q = load(p, p.q, base + first_query, column, queries, s.q);
  std::fill(s.maximum, s.maximum + queries, std::numeric_limits<float>::lowest());
  std::fill(s.sum, s.sum + queries, 0.0f);
  for (int64_t first_key = 0; first_key < keys_end; first_key += kKeys) {
    const int64_t keys = std::min(kKeys, keys_end - first_key);
    const Block k = load(p, p.k, base + first_key, kv_column, keys, s.k);
    const Block v = load(p, p.v, base + first_key, kv_column, keys, s.v);
    add_keys(p, s, q, k, v, queries, keys, first_query, first_key, multiplier);
  }
  for (int64_t r = 0; r < queries; ++r) {
    scale_row(s.o + r * p.size, 1.0f / s.sum[r], p.size);
    lse[(sequence * p.heads + head) * p.length + first_query + r] = s.maximum[r] + std::log(s.sum[r]);
  }
  store(p, s.o, o, base + first_query, column, queries);
}

struct BackwardCall {
  Problem p;
  Columns o, d_o, dq, dk, dv;
  const float* lse;
};

// What one task computes: dq of some queries, or dk and dv of some keys, or all of a pair's.
struct Part {
  int64_t sequence, first_head, heads;  // the heads share one key/value head
  int64_t query_begin, query_end, key_begin, key_end;
  bool dq, dkv;
};

// probabilities and score gradients of one block, zero above the diagonal.
void block_gradients(const BackwardCall& c, const BackwardScratch& s, const Block& q, const Block& k,
                     const Block& v, const Block& d_o, const float* lse, int64_t queries, int64_t keys,
                     int64_t first_query, int64_t first_key, const Multiplier& multiplier) {
  const Problem& p = c.p;
  multiplier.multiply({queries, keys, p.size, false, true, q.stride, k.stride, kScoreStride, false}, p.scale,
                      q.data, k.data, s.probabilities);
  multiplier.multiply({queries, keys, p.size, false, true, d_o.stride, v.stride, kScoreStride, false}, 1.0f,
                      d_o.data, v.data, s.gradients);
  for (int64_t r = 0; r < queries; ++r) {
    float *probability = s.probabilities + r * kScoreStride, *gradient = s.gradients + r * kScoreStride;
    const int64_t seen = std::clamp<int64_t>(first_query + r + 1 - first_key, 0, keys);
    exponential_row(probability, lse[first_query + r], seen);
    softmax_gradient_row(probability, gradient, s.delta[r], p.scale, seen);
    std::fill(probability + seen, probability + keys, 0.0f);
    std::fill(gradient + seen, gradient + keys, 0.0f);
  }
}

// One block of queries of one head against the part's keys.
void backward_queries(const BackwardCall& c, const BackwardScratch& s, const Part& part, int64_t head,
                      int64_t first_query, const Multiplier& multiplier) {
  const Problem& p = c.p;
  const int64_t base = part.sequence * p.length, column = head * p.size,
                kv_column = head / p.group() * p.size;
  const int64_t queries = std::min(kQueries, p.length - first_query);
  const int64_t keys_end = std::min(part.key_end, first_query + queries);
  const Block q = load(p, p.q, base + first_query, column, queries, s.q);
  const Block o = load(p, c.o, base + first_query, column, queries, s.o);
  const Block d_o = load(p, c.d_o, base + first_query, column, queries, s.d_o);
  for (int64_t r = 0; r < queries; ++r)
    s.delta[r] = dot_row(d_o.data + r * d_o.stride, o.data + r * o.stride, p.size);
  const float* lse = c.lse + (part.sequence * p.heads + head) * p.length;
  for (int64_t first_key = part.key_begin; first_key < keys_end; first_key += kKeys) {
    const int64_t keys = std::min(kKeys, keys_end - first_key);
    const Block k = load(p, p.k, base + first_key, kv_column, keys, s.k);
    const Block v = load(p, p.v, base + first_key, kv_column, keys, s.v);
    block_gradients(c, s, q, k, v, d_o, lse, queries, keys, first_query, first_key, multiplier);
    if (part.dq)
      multiplier.multiply(
          {queries, p.size, keys, false, false, kScoreStride, k.stride, p.size, first_key > 0}, 1.0f,
          s.gradients, k.data, s.dq);
    if (!part.dkv) continue;
    const int64_t held = (first_key - part.key_begin) * p.size;
    multiplier.multiply({keys, p.size, queries, true, false, kScoreStride, q.stride, p.size, true}, 1.0f,
                        s.gradients, q.data, s.dk + held);
    multiplier.multiply({keys, p.size, queries, true, false, kScoreStride, d_o.stride, p.size, true}, 1.0f,
                        s.probabilities, d_o.data, s.dv + held);
  }
  if (part.dq) store(p, s.dq, c.dq, base + first_query, column, queries);
}

void backward_part(const BackwardCall& c, const Part& part, std::byte* workspace,
                   const Multiplier& multiplier) {
  const Problem& p = c.p;
  Scratch scratch(workspace);
  const BackwardScratch s(p, keys_held(p), scratch);
  const int64_t keys = part.key_end - part.key_begin;
  if (part.dkv) {
    std::fill(s.dk, s.dk + keys * p.size, 0.0f);
    std::fill(s.dv, s.dv + keys * p.size, 0.0f);
  }
  for (int64_t head = part.first_head; head < part.first_head + part.heads; ++head)
    for (int64_t query = part.query_begin; query < part.query_end; query += kQueries)
      backward_queries(c, s, part, head, query, multiplier);
  if (!part.dkv) return;
  const int64_t row = part.sequence * p.length + part.key_begin,
                column = part.first_head / p.group() * p.size;
  store(p, s.dk, c.dk, row, column, keys);
  store(p, s.dv, c.dv, row, column, keys);
}

}  // namespace

uint64_t attention_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources) {
  return thread_bytes(problem_of(shapes), pass) * static_cast<uint64_t>(resources.workers.threads());
}

void attention_forward(const OpCall& call, const Resources& resources) {
  Problem p = problem_of(*call.shapes);
  bind_columns(p, call.inputs, p.q, p.k, p.v);
  const Columns o{call.outputs[0].data, p.heads * p.size, 0, false};
  auto* lse = static_cast<float*>(call.outputs[1].data);
  const int64_t blocks = (p.length + kQueries - 1) / kQueries;
  const uint64_t bytes = thread_bytes(p, Pass::forward);
  resources.workers.parallel_for(p.sequences * p.heads * blocks, [&](int64_t index, int thread) {
    const int64_t block = blocks - 1 - index % blocks, pair = index / blocks;  // the longest first
    forward_block(p, o, lse, pair / p.heads, pair % p.heads, block * kQueries,
                  call.workspace + static_cast<uint64_t>(thread) * bytes, resources.multiplier);
  });
}

void attention_backward(const OpCall& call, const Resources& resources) {
  BackwardCall c = {};
  Problem& p = c.p = problem_of(*call.shapes);
  bind_columns(p, call.inputs, p.q, p.k, p.v);
  bind_columns(p, call.input_gradients, c.dq, c.dk, c.dv);
  c.o = {call.outputs[0].data, p.heads * p.size, 0, false};
  c.d_o = {call.output_gradients[0].data, p.heads * p.size, 0, false};
  c.lse = static_cast<const float*>(call.outputs[1].data);
  const uint64_t bytes = thread_bytes(p, Pass::backward);
  const auto run = [&](const Part& part, int thread) {
    backward_part(c, part, call.workspace + static_cast<uint64_t>(thread) * bytes, resources.multiplier);
  };
  const int64_t group = p.group();
  if (one_task_per_pair(p)) {
    resources.workers.parallel_for(p.sequences * p.kv_heads, [&](int64_t index, int thread) {
      run({index / p.kv_heads, index % p.kv_heads * group, group, 0, p.length, 0, p.length, true, true},
          thread);
    });
    return;
  }
  const int64_t query_blocks = (p.length + kQueries - 1) / kQueries,
                key_blocks = (p.length + kKeys - 1) / kKeys;
  resources.workers.parallel_for(p.sequences * p.heads * query_blocks, [&](int64_t index, int thread) {
    const int64_t begin = (query_blocks - 1 - index % query_blocks) * kQueries, pair = index / query_blocks;
    run({pair / p.heads, pair % p.heads, 1, begin, std::min(p.length, begin + kQueries), 0, p.length, true,
         false},
        thread);
  });
  resources.workers.parallel_for(p.sequences * p.kv_heads * key_blocks, [&](int64_t index, int thread) {
    const int64_t begin = index % key_blocks * kKeys, pair = index / key_blocks;
    run({pair / p.kv_heads, pair % p.kv_heads * group, group, begin, p.length, begin,
         std::min(p.length, begin + kKeys), false, true},
        thread);
  });
}

}  // namespace sluice::cpu
