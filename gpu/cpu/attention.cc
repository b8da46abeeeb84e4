// attention: causal, grouped-query, blockwise, never T x T (Dao et al. 2022, arXiv:2205.14135; backward
// after Dao 2023, arXiv:2307.08691).
//
// Forward: one task per (sequence, head, block of queries); it passes over the blocks of keys with a running
// maximum and sum. Backward recomputes probabilities from lse, with delta = rowsum(dO * O). Where there are
// enough pairs of sequence and key/value head, or a sequence is one block of queries, a task does a whole
// pair, with five products a block. Otherwise tasks for blocks of queries compute dq, and tasks for blocks of
// keys compute dk and dv. That costs two more products a block, but tasks share no sums. The shape decides
// which way. Every sum is owned by one task and has a fixed order. Operands that are not fp32 are widened
// block by block.
//
// With a window or documents, a block of queries starts at the first key that its first query sees, because
// later queries see no earlier keys. A task for keys ends with the last block of queries that sees one of its
// keys. With a sink, a query's running maximum starts at the sink's score, and its sum at 1. The gradient of
// a sink is a sum over all queries: tasks leave the sums of blocks of queries, which are then added in order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/simd/convert.h"
#include "engine/graph/attention_operands.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matmul.h"
#include "gpu/cpu/rows.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kQueries = 64;  // rows of a block; few, since half of a block on the diagonal is wasted
constexpr int64_t kKeys = 256;    // 64 x 256 scores are 64 KiB: they stay in the second-level cache
constexpr int64_t kScoreStride = kKeys + 16;
constexpr int64_t kPairsMin = 4;  // this many (sequence, key/value head) pairs are enough tasks

// Columns of one head within a [rows, stride] tensor.
struct Columns {
  TensorView tensor;
  int64_t stride = 0, first = 0;
};

struct Problem {
  DType precision = DType::f32;
  int64_t sequences = 0, length = 0, heads = 0, kv_heads = 0, size = 0, window = 0;
  float scale = 1, soft_cap = 0;
  bool packed = false, has_sinks = false;
  Columns q, k, v;                  // of head 0
  const int32_t* begins = nullptr;  // by row: where its document begins; nullptr: a sequence is a document
  const void* sinks = nullptr;      // by head

  int64_t group() const { return heads / kv_heads; }
  int64_t query_blocks() const { return (length + kQueries - 1) / kQueries; }
  // The first key that a query of a sequence sees; the last key that it sees is its own.
  int64_t first_key(int64_t sequence, int64_t query) const {
    const int64_t of_window = window == 0 ? 0 : std::max<int64_t>(0, query - window + 1);
    return begins == nullptr ? of_window : std::max<int64_t>(of_window, begins[sequence * length + query]);
  }
};

uint64_t offset(const Columns& c, DType precision, int64_t row, int64_t column) {
  return static_cast<uint64_t>(row * c.stride + c.first + column) * dtype_bytes(precision);
}

Problem problem_of(const OpShapes& s) {
  const OpAttributes& a = s.attributes;
  Problem p;
  p.precision = s.precision;
  p.sequences = s.inputs[0][0] / a.sequence, p.length = a.sequence;
  p.heads = a.heads, p.kv_heads = a.kv_heads, p.size = a.head_size;
  p.window = a.window;
  p.scale = static_cast<float>(attention_scale(a)), p.soft_cap = static_cast<float>(a.soft_cap);
  p.packed = attention_is_packed(s), p.has_sinks = attention_has_sinks(s);
  return p;
}

// Finds q, k and v (or their gradients), which lie in separate tensors or one after the other in the columns
// of one tensor.
void bind_columns(const Problem& p, std::span<const TensorView> views, Columns& q, Columns& k, Columns& v) {
  const int64_t q_columns = p.heads * p.size, kv_columns = p.kv_heads * p.size;
  if (p.packed) {
    const int64_t stride = q_columns + 2 * kv_columns;
    q = {views[0], stride, 0};
    k = {views[0], stride, q_columns};
    v = {views[0], stride, q_columns + kv_columns};
  } else {
    q = {views[0], q_columns, 0};
    k = {views[1], kv_columns, 0};
    v = {views[2], kv_columns, 0};
  }
}

// The problem with the operands that both passes have.
Problem problem_of(const OpCall& call) {
  Problem p = problem_of(*call.shapes);
  bind_columns(p, call.inputs, p.q, p.k, p.v);
  if (const auto documents = attention_documents(*call.shapes))
    p.begins = static_cast<const int32_t*>(call.inputs[*documents].data);
  if (p.has_sinks) p.sinks = call.parameters[0].data;
  return p;
}

float sink_of(const Problem& p, int64_t head) {
  float value = 0;
  widen(p.precision,
        static_cast<const std::byte*>(p.sinks) + static_cast<uint64_t>(head) * dtype_bytes(p.precision),
        &value, 1);
  return value;
}

struct Block {
  const float* data;
  int64_t stride;
};

// Rows of one head as fp32: in place, or widened into `scratch` [rows, size].
Block load(const Problem& p, const Columns& c, int64_t row, int64_t column, int64_t rows, float* scratch) {
  const auto* data = static_cast<const std::byte*>(c.tensor.data);
  if (p.precision == DType::f32)
    return {reinterpret_cast<const float*>(data + offset(c, p.precision, row, column)), c.stride};
  for (int64_t r = 0; r < rows; ++r)
    widen(p.precision, data + offset(c, p.precision, row + r, column), scratch + r * p.size,
          static_cast<uint64_t>(p.size));
  return {scratch, p.size};
}

void store(const Problem& p, const float* from, const Columns& c, int64_t row, int64_t column, int64_t rows) {
  auto* data = static_cast<std::byte*>(c.tensor.data);
  const auto* addend = static_cast<const std::byte*>(c.tensor.addend);
  if (data == nullptr) return;
  for (int64_t r = 0; r < rows; ++r) {
    const uint64_t at = offset(c, p.precision, row + r, column);
    finish_row(p.precision, from + r * p.size, nullptr, addend == nullptr ? nullptr : addend + at, data + at,
               p.size);
  }
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
  float *q, *k, *v, *o, *d_o, *probabilities, *gradients, *slopes, *delta, *dq, *dk, *dv;
  BackwardScratch(const Problem& p, int64_t keys, Scratch& s)
      : q(s.floats(kQueries * p.size)),
        k(s.floats(kKeys * p.size)),
        v(s.floats(kKeys * p.size)),
        o(s.floats(kQueries * p.size)),
        d_o(s.floats(kQueries * p.size)),
        probabilities(s.floats(kQueries * kScoreStride)),
        gradients(s.floats(kQueries * kScoreStride)),
        slopes(s.floats(kKeys)),
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

// Some queries of one sequence and head, and the keys that they are multiplied with.
struct Area {
  int64_t sequence, first_query, queries, first_key, keys;
};

// The keys that query r of the area sees: [begin, end), counted from the area's first key.
struct Seen {
  int64_t begin, end;
  Seen(const Problem& p, const Area& a, int64_t r)
      : begin(std::clamp<int64_t>(p.first_key(a.sequence, a.first_query + r) - a.first_key, 0, a.keys)),
        end(std::clamp<int64_t>(a.first_query + r + 1 - a.first_key, 0, a.keys)) {}
  int64_t count() const { return end - begin; }
};

// Zeroes the elements of a row whose keys the query does not see.
void clear_unseen(float* row, const Seen& seen, int64_t keys) {
  std::fill(row, row + seen.begin, 0.0f);
  std::fill(row + seen.end, row + keys, 0.0f);
}

// Adds one block of keys: computes scores, turns them into probabilities in place, updates the running
// maximum and sum, and sets o = o * correction + probabilities * v. `first`: nothing is in o yet.
void add_keys(const Problem& p, const ForwardScratch& s, const Block& q, const Block& k, const Block& v,
              const Area& a, bool first, const Multiplier& multiplier) {
  multiplier.multiply({a.queries, a.keys, p.size, false, true, q.stride, k.stride, kScoreStride, false},
                      p.scale, q.data, k.data, s.scores);
  for (int64_t r = 0; r < a.queries; ++r) {
    float* const row = s.scores + r * kScoreStride;
    const Seen seen(p, a, r);
    clear_unseen(row, seen, a.keys);
    if (seen.count() == 0) continue;
    float* const scores = row + seen.begin;
    if (p.soft_cap > 0) soft_cap_row(scores, p.soft_cap, nullptr, seen.count());
    const float block_maximum = finite_maximum(scores, seen.count());
    // NaN must win, and std::max would drop it on one side.
    const float maximum =
        block_maximum > s.maximum[r] || std::isnan(block_maximum) ? block_maximum : s.maximum[r];
    const float correction = std::exp(s.maximum[r] - maximum);
    s.sum[r] = s.sum[r] * correction + static_cast<float>(exponential_row(scores, maximum, seen.count()));
    s.maximum[r] = maximum;
    if (!first) scale_row(s.o + r * p.size, correction, p.size);
  }
  multiplier.multiply({a.queries, p.size, a.keys, false, false, kScoreStride, v.stride, p.size, !first}, 1.0f,
                      s.scores, v.data, s.o);
}

void forward_block(const Problem& p, const Columns& o, float* lse, int64_t sequence, int64_t head,
                   int64_t first_query, std::byte* workspace, const Multiplier& multiplier) {
  Scratch scratch(workspace);
  const ForwardScratch s(p, scratch);
  const int64_t base = sequence * p.length, column = head * p.size, kv_column = head / p.group() * p.size;
  const int64_t queries = std::min(kQueries, p.length - first_query), keys_end = first_query + queries;
  const Block q = load(p, p.q, base + first_query, column, queries, s.q);
  std::fill(s.maximum, s.maximum + queries,
            p.has_sinks ? sink_of(p, head) : std::numeric_limits<float>::lowest());
  std::fill(s.sum, s.sum + queries, p.has_sinks ? 1.0f : 0.0f);
  const int64_t keys_begin = p.first_key(sequence, first_query);
  for (int64_t first_key = keys_begin; first_key < keys_end; first_key += kKeys) {
    const int64_t keys = std::min(kKeys, keys_end - first_key);
    const Block k = load(p, p.k, base + first_key, kv_column, keys, s.k);
    const Block v = load(p, p.v, base + first_key, kv_column, keys, s.v);
    add_keys(p, s, q, k, v, {sequence, first_query, queries, first_key, keys}, first_key == keys_begin,
             multiplier);
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
  double* sink_sums = nullptr;  // [sequences, heads, query_blocks]; nullptr: not wanted
};

// What one task computes: dq of some queries, or dk and dv of some keys, or all three of a pair.
struct Part {
  int64_t sequence, first_head, heads;  // the heads share one key/value head
  int64_t query_begin, query_end, key_begin, key_end;
  bool dq, dkv;
};

// Computes the probabilities and score gradients of one block. They are zero where a query does not see a
// key.
void block_gradients(const BackwardCall& c, const BackwardScratch& s, const Block& q, const Block& k,
                     const Block& v, const Block& d_o, const float* lse, const Area& a,
                     const Multiplier& multiplier) {
  const Problem& p = c.p;
  multiplier.multiply({a.queries, a.keys, p.size, false, true, q.stride, k.stride, kScoreStride, false},
                      p.scale, q.data, k.data, s.probabilities);
  multiplier.multiply({a.queries, a.keys, p.size, false, true, d_o.stride, v.stride, kScoreStride, false},
                      1.0f, d_o.data, v.data, s.gradients);
  for (int64_t r = 0; r < a.queries; ++r) {
    float *const probabilities = s.probabilities + r * kScoreStride, *const gradients =
                                                                         s.gradients + r * kScoreStride;
    const Seen seen(p, a, r);
    float *const probability = probabilities + seen.begin, *const gradient = gradients + seen.begin;
    if (p.soft_cap > 0) soft_cap_row(probability, p.soft_cap, s.slopes, seen.count());
    exponential_row(probability, lse[a.first_query + r], seen.count());
    softmax_gradient_row(probability, gradient, s.delta[r], p.scale, seen.count());
    if (p.soft_cap > 0) multiply_row(gradient, s.slopes, seen.count());
    clear_unseen(probabilities, seen, a.keys);
    clear_unseen(gradients, seen, a.keys);
  }
}

// A sink's score has the probability e^(sink - lse). Since a sink has no value, the score's gradient is
// -delta times that probability. Returns the sum over the block's queries, without the sign.
double sink_sum(float sink, const float* lse, const float* delta, int64_t queries) {
  double sum = 0;
  for (int64_t r = 0; r < queries; ++r)
    sum += std::exp(static_cast<double>(sink) - static_cast<double>(lse[r])) * static_cast<double>(delta[r]);
  return sum;
}

// Computes what one block of queries of one head and the part's keys add to the gradients.
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
  const int64_t pair = part.sequence * p.heads + head;
  const float* lse = c.lse + pair * p.length;
  if (part.dq && c.sink_sums != nullptr)
    c.sink_sums[pair * p.query_blocks() + first_query / kQueries] =
        sink_sum(sink_of(p, head), lse + first_query, s.delta, queries);
  const int64_t keys_begin = std::max(part.key_begin, p.first_key(part.sequence, first_query));
  for (int64_t first_key = keys_begin; first_key < keys_end; first_key += kKeys) {
    const int64_t keys = std::min(kKeys, keys_end - first_key);
    const Block k = load(p, p.k, base + first_key, kv_column, keys, s.k);
    const Block v = load(p, p.v, base + first_key, kv_column, keys, s.v);
    block_gradients(c, s, q, k, v, d_o, lse, {part.sequence, first_query, queries, first_key, keys},
                    multiplier);
    if (part.dq)
      multiplier.multiply(
          {queries, p.size, keys, false, false, kScoreStride, k.stride, p.size, first_key > keys_begin}, 1.0f,
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
    for (int64_t query = part.query_begin; query < part.query_end; query += kQueries) {
      if (p.first_key(part.sequence, query) >= part.key_end) break;  // nor do later queries see these keys
      backward_queries(c, s, part, head, query, multiplier);
    }
  if (!part.dkv) return;
  const int64_t row = part.sequence * p.length + part.key_begin,
                column = part.first_head / p.group() * p.size;
  store(p, s.dk, c.dk, row, column, keys);
  store(p, s.dv, c.dv, row, column, keys);
}

uint64_t sink_sums_count(const Problem& p) {
  return p.has_sinks ? static_cast<uint64_t>(p.sequences * p.heads * p.query_blocks()) : 0;
}

// Adds the sums of blocks: sequence by sequence, block by block.
void finish_sinks(const BackwardCall& c, float* gradient) {
  const Problem& p = c.p;
  const int64_t blocks = p.query_blocks();
  for (int64_t head = 0; head < p.heads; ++head) {
    double sum = 0;
    for (int64_t sequence = 0; sequence < p.sequences; ++sequence)
      for (int64_t block = 0; block < blocks; ++block)
        sum += c.sink_sums[(sequence * p.heads + head) * blocks + block];
    gradient[head] = static_cast<float>(static_cast<double>(gradient[head]) - sum);
  }
}

void compute_gradients(const BackwardCall& c, const OpCall& call, const Resources& resources) {
  const Problem& p = c.p;
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
  const int64_t query_blocks = p.query_blocks(), key_blocks = (p.length + kKeys - 1) / kKeys;
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

}  // namespace

// Each thread has a part of the workspace. In backward, the sums for sinks lie behind these parts.
uint64_t attention_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources) {
  const Problem p = problem_of(shapes);
  const uint64_t sums = pass == Pass::backward ? sink_sums_count(p) * sizeof(double) : 0;
  return thread_bytes(p, pass) * static_cast<uint64_t>(resources.workers.threads()) + sums;
}

void attention_forward(const OpCall& call, const Resources& resources) {
  const Problem p = problem_of(call);
  const Columns o{call.outputs[0], p.heads * p.size, 0};
  auto* lse = static_cast<float*>(call.outputs[1].data);
  const int64_t blocks = p.query_blocks();
  const uint64_t bytes = thread_bytes(p, Pass::forward);
  resources.workers.parallel_for(p.sequences * p.heads * blocks, [&](int64_t index, int thread) {
    const int64_t block = blocks - 1 - index % blocks, pair = index / blocks;  // the longest first
    forward_block(p, o, lse, pair / p.heads, pair % p.heads, block * kQueries,
                  call.workspace + static_cast<uint64_t>(thread) * bytes, resources.multiplier);
  });
}

void attention_backward(const OpCall& call, const Resources& resources) {
  BackwardCall c = {};
  const Problem& p = c.p = problem_of(call);
  bind_columns(p, call.input_gradients, c.dq, c.dk, c.dv);
  c.o = {call.outputs[0], p.heads * p.size, 0};
  c.d_o = {call.output_gradients[0], p.heads * p.size, 0};
  c.lse = static_cast<const float*>(call.outputs[1].data);
  auto* const d_sinks = static_cast<float*>(view_of(call.parameter_gradients, 0).data);
  if (d_sinks != nullptr)
    c.sink_sums =
        reinterpret_cast<double*>(call.workspace + thread_bytes(p, Pass::backward) *
                                                       static_cast<uint64_t>(resources.workers.threads()));
  compute_gradients(c, call, resources);
  if (d_sinks != nullptr) finish_sinks(c, d_sinks);
}

}  // namespace sluice::cpu
