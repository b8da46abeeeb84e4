#include <algorithm>
#include <cmath>

#include "engine/graph/attention_operands.h"
#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice::reference {
namespace {

// Where the vectors of heads lie in the operands.
struct CachedSizes {
  int64_t rows, length, context, heads, kv_heads, size;
  bool packed;

  explicit CachedSizes(const OpShapes& s)
      : rows(s.inputs[kCachedBegins][0]),
        length(s.attributes.sequence),
        context(s.attributes.context),
        heads(s.attributes.heads),
        kv_heads(s.attributes.kv_heads),
        size(s.attributes.head_size),
        packed(cached_attention_is_packed(s)) {}

  int64_t kv_columns() const { return kv_heads * size; }
  int64_t query(int64_t row, int64_t head) const {
    return row * (packed ? heads * size + 2 * kv_columns() : heads * size) + head * size;
  }
  // The input that has all key (0) or value (1) heads of a row.
  size_t input(int64_t part) const { return kCachedQuery + (packed ? 0 : static_cast<size_t>(part) + 1); }
  int64_t at(int64_t row, int64_t part) const {
    return packed ? row * (heads * size + 2 * kv_columns()) + heads * size + part * kv_columns()
                  : row * kv_columns();
  }
  int64_t cached(int64_t sequence, int64_t position, int64_t part) const {
    return ((sequence * context + position) * 2 + part) * kv_columns();
  }
};

int64_t position_of(const OpCall& call, int64_t row) {
  return row % call.shapes->attributes.sequence -
         static_cast<const int32_t*>(call.inputs[kCachedBegins].data)[row];
}

template <typename T>
void write_cache(const OpCall& call, const CachedSizes& n, int64_t row) {
  const Values<T> cache(call.inputs[kCache]);
  for (int64_t part = 0; part < 2; ++part) {
    const Values<T> from(call.inputs[n.input(part)]);
    const int64_t to = n.cached(row / n.length, position_of(call, row), part);
    for (int64_t c = 0; c < n.kv_columns(); ++c) cache.put(to + c, from[n.at(row, part) + c]);
  }
}

double capped(double soft_cap, double score) {
  if (soft_cap == 0) return score;
  return std::isinf(score) ? std::nan("") : soft_cap * std::tanh(score / soft_cap);
}

// Answers one query of one head. The workspace has a score for each token of the context, then o.
template <typename T>
void answer_query(const OpCall& call, const CachedSizes& n, int64_t row, int64_t head) {
  const OpAttributes& a = call.shapes->attributes;
  const Values<T> q(call.inputs[kCachedQuery]), cache(call.inputs[kCache]), o(call.outputs[0]);
  double *scores = workspace_of(call), *sums = scores + n.context;
  const int64_t position = position_of(call, row), group = head / (n.heads / n.kv_heads) * n.size;
  const int64_t from = a.window == 0 ? 0 : std::max<int64_t>(0, position - a.window + 1);
  std::fill(sums, sums + n.size, 0.0);
  double largest = -HUGE_VAL, sum = 0;
  if (attention_has_sinks(*call.shapes)) largest = Values<T>(call.parameters[0])[head], sum = 1;
  const double sink = largest;
  for (int64_t u = from; u <= position; ++u) {
    const int64_t key = n.cached(row / n.length, u, 0) + group;
    double product = 0;
    for (int64_t d = 0; d < n.size; ++d) product += q[n.query(row, head) + d] * cache[key + d];
    scores[u] = capped(a.soft_cap, attention_scale(a) * product);
    largest = std::max(largest, scores[u]);
  }
  sum *= std::exp(sink - largest);
  for (int64_t u = from; u <= position; ++u) {
    const int64_t value = n.cached(row / n.length, u, 1) + group;
    const double weight = std::exp(scores[u] - largest);
    sum += weight;
    for (int64_t d = 0; d < n.size; ++d) sums[d] += weight * cache[value + d];
  }
  for (int64_t d = 0; d < n.size; ++d)
    o.put((row * n.heads + head) * n.size + d, position < 0 ? 0 : sums[d] / sum);
}

}  // namespace

void cached_attention_forward(const OpCall& call) {
  const CachedSizes n(*call.shapes);
  with_precision(call.shapes->precision, [&](auto type) {
    for (int64_t row = 0; row < n.rows; ++row)
      if (position_of(call, row) >= 0) write_cache<decltype(type)>(call, n, row);
    for (int64_t row = 0; row < n.rows; ++row)
      for (int64_t head = 0; head < n.heads; ++head) answer_query<decltype(type)>(call, n, row, head);
  });
}

uint64_t cached_attention_workspace_bytes(const OpShapes& shapes, Pass) {
  return static_cast<uint64_t>(shapes.attributes.context + shapes.attributes.head_size) * sizeof(double);
}

}  // namespace sluice::reference
