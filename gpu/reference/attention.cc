#include <algorithm>
#include <cmath>

#include "engine/graph/attention_operands.h"
#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice::reference {
namespace {

enum Part { kQuery, kKey, kValue };

struct AttentionSizes {
  int64_t sequences, length, heads, kv_heads, size;
  double scale, soft_cap;
  int64_t window;
  bool packed;
  std::optional<size_t> documents;  // index of the input that says where documents begin
  bool sinks;

  explicit AttentionSizes(const OpShapes& s)
      : sequences(s.inputs[0][0] / s.attributes.sequence),
        length(s.attributes.sequence),
        heads(s.attributes.heads),
        kv_heads(s.attributes.kv_heads),
        size(s.attributes.head_size),
        scale(attention_scale(s.attributes)),
        soft_cap(s.attributes.soft_cap),
        window(s.attributes.window),
        packed(attention_is_packed(s)),
        documents(attention_documents(s)),
        sinks(attention_has_sinks(s)) {}

  // Which tensor holds a part, and where in it the vector of (row, head) begins.
  size_t tensor(Part part) const { return packed ? 0 : part; }
  int64_t at(Part part, int64_t row, int64_t head) const {
    if (!packed) return (row * (part == kQuery ? heads : kv_heads) + head) * size;
    const int64_t heads_before = part == kQuery ? 0 : part == kKey ? heads : heads + kv_heads;
    return (row * (heads + 2 * kv_heads) + heads_before + head) * size;
  }
  int64_t group(int64_t head) const { return head / (heads / kv_heads); }
};

// Workspace, in doubles: scores, which become probabilities; gradients of the scores; the slopes of the soft
// cap; a vector of one head; gradients of the heads' sinks; gradients of a head's keys and values.
struct Scratch {
  double *scores, *d_scores, *slopes, *vector, *d_sinks, *d_keys, *d_values;

  Scratch(const OpCall& call, const AttentionSizes& n)
      : scores(workspace_of(call)),
        d_scores(scores + n.length),
        slopes(d_scores + n.length),
        vector(slopes + n.length),
        d_sinks(vector + n.size),
        d_keys(d_sinks + n.heads),
        d_values(d_keys + n.length * n.size) {}
};

template <typename T>
double dot(const Values<T>& a, int64_t a_begin, const Values<T>& b, int64_t b_begin, int64_t size) {
  double sum = 0;
  for (int64_t d = 0; d < size; ++d) sum += a[a_begin + d] * b[b_begin + d];
  return sum;
}

// to += factor * vector
template <typename T>
void add_scaled(double* to, double factor, const Values<T>& vector, int64_t begin, int64_t size) {
  for (int64_t d = 0; d < size; ++d) to[d] += factor * vector[begin + d];
}

template <typename T>
struct Tensors {
  Values<T> q, k, v;

  Tensors(std::span<const TensorView> views, const AttentionSizes& n)
      : q(views[n.tensor(kQuery)]), k(views[n.tensor(kKey)]), v(views[n.tensor(kValue)]) {}
};

// The first key that the query at `t` sees; the last key that it sees is its own.
int64_t first_key(const OpCall& call, const AttentionSizes& n, int64_t first, int64_t t) {
  const int64_t of_window = n.window == 0 ? 0 : std::max<int64_t>(0, t - n.window + 1);
  if (!n.documents) return of_window;
  return std::max<int64_t>(of_window, static_cast<const int32_t*>(call.inputs[*n.documents].data)[first + t]);
}

double capped(const AttentionSizes& n, double score) {
  if (n.soft_cap == 0) return score;
  return std::isinf(score) ? std::nan("") : n.soft_cap * std::tanh(score / n.soft_cap);
}

// Computes one query of one head: position `t` of the sequence that begins at row `first`.
template <typename T>
void forward_query(const OpCall& call, const AttentionSizes& n, int64_t first, int64_t head, int64_t t) {
  const Tensors<T> in(call.inputs, n);
  const Values<T> o(call.outputs[0]);
  const Values<float> lse(call.outputs[1]);
  const Scratch scratch(call, n);
  const int64_t q_begin = n.at(kQuery, first + t, head), group = n.group(head);
  const int64_t from = first_key(call, n, first, t);
  for (int64_t u = from; u <= t; ++u)
    scratch.scores[u] = capped(n, n.scale * dot(in.q, q_begin, in.k, n.at(kKey, first + u, group), n.size));
  double largest = *std::max_element(scratch.scores + from, scratch.scores + t + 1), sum = 0;
  if (n.sinks) {
    const double sink = Values<T>(call.parameters[0])[head];
    largest = std::max(largest, sink);
    sum = std::exp(sink - largest);
  }
  std::fill(scratch.vector, scratch.vector + n.size, 0.0);
  for (int64_t u = from; u <= t; ++u) {
    const double weight = std::exp(scratch.scores[u] - largest);
    sum += weight;
    add_scaled(scratch.vector, weight, in.v, n.at(kValue, first + u, group), n.size);
  }
  const int64_t o_begin = ((first + t) * n.heads + head) * n.size;
  for (int64_t d = 0; d < n.size; ++d) o.put(o_begin + d, scratch.vector[d] / sum);
  lse.put((first / n.length * n.heads + head) * n.length + t, largest + std::log(sum));
}

// Computes one query's gradient, and adds the query's part to the gradients of its keys and values.
template <typename T>
void backward_query(const OpCall& call, const AttentionSizes& n, int64_t first, int64_t head, int64_t t) {
  const Tensors<T> in(call.inputs, n), d_in(call.input_gradients, n);
  const Values<T> d_o(call.output_gradients[0]);
  const Values<float> lse_values(call.outputs[1]);
  const Scratch scratch(call, n);
  const int64_t q_begin = n.at(kQuery, first + t, head), group = n.group(head);
  const int64_t o_begin = ((first + t) * n.heads + head) * n.size;
  const double lse = lse_values[(first / n.length * n.heads + head) * n.length + t];
  const int64_t from = first_key(call, n, first, t);
  double mean_gradient = 0;
  for (int64_t u = from; u <= t; ++u) {
    const double score = capped(n, n.scale * dot(in.q, q_begin, in.k, n.at(kKey, first + u, group), n.size));
    scratch.slopes[u] = n.soft_cap == 0 ? 1 : 1 - (score / n.soft_cap) * (score / n.soft_cap);
    scratch.scores[u] = std::exp(score - lse);
    scratch.d_scores[u] = dot(d_o, o_begin, in.v, n.at(kValue, first + u, group), n.size);
    mean_gradient += scratch.scores[u] * scratch.d_scores[u];
  }
  if (n.sinks) {
    const double probability = std::exp(Values<T>(call.parameters[0])[head] - lse);
    scratch.d_sinks[head] -= probability * mean_gradient;  // a sink has no value: its product with dO is 0
  }
  std::fill(scratch.vector, scratch.vector + n.size, 0.0);
  for (int64_t u = from; u <= t; ++u) {
    const double probability = scratch.scores[u];
    const double d_score = probability * (scratch.d_scores[u] - mean_gradient) * scratch.slopes[u] * n.scale;
    add_scaled(scratch.vector, d_score, in.k, n.at(kKey, first + u, group), n.size);
    add_scaled(scratch.d_keys + u * n.size, d_score, in.q, q_begin, n.size);
    add_scaled(scratch.d_values + u * n.size, probability, d_o, o_begin, n.size);
  }
  for (int64_t d = 0; d < n.size; ++d) d_in.q.put(q_begin + d, scratch.vector[d]);
}

template <typename T>
void backward_group(const OpCall& call, const AttentionSizes& n, int64_t first, int64_t group) {
  const Tensors<T> d_in(call.input_gradients, n);
  const Scratch scratch(call, n);
  const int64_t sharing = n.heads / n.kv_heads;
  std::fill(scratch.d_keys, scratch.d_keys + 2 * n.length * n.size, 0.0);
  for (int64_t head = group * sharing; head < (group + 1) * sharing; ++head)
    for (int64_t t = 0; t < n.length; ++t) backward_query<T>(call, n, first, head, t);
  for (int64_t t = 0; t < n.length; ++t) {
    const int64_t k_begin = n.at(kKey, first + t, group), v_begin = n.at(kValue, first + t, group);
    for (int64_t d = 0; d < n.size; ++d) {
      d_in.k.put(k_begin + d, scratch.d_keys[t * n.size + d]);
      d_in.v.put(v_begin + d, scratch.d_values[t * n.size + d]);
    }
  }
}

}  // namespace

void attention_forward(const OpCall& call) {
  const AttentionSizes n(*call.shapes);
  with_precision(call.shapes->precision, [&](auto type) {
    for (int64_t s = 0; s < n.sequences; ++s)
      for (int64_t head = 0; head < n.heads; ++head)
        for (int64_t t = 0; t < n.length; ++t) forward_query<decltype(type)>(call, n, s * n.length, head, t);
  });
}

void attention_backward(const OpCall& call) {
  const AttentionSizes n(*call.shapes);
  double* const d_sinks = Scratch(call, n).d_sinks;
  std::fill(d_sinks, d_sinks + n.heads, 0.0);
  with_precision(call.shapes->precision, [&](auto type) {
    for (int64_t s = 0; s < n.sequences; ++s)
      for (int64_t group = 0; group < n.kv_heads; ++group)
        backward_group<decltype(type)>(call, n, s * n.length, group);
  });
  if (!n.sinks) return;
  const Values<float> gradient = parameter_gradient(call, 0);
  for (int64_t head = 0; head < n.heads; ++head) gradient.put(head, d_sinks[head]);
}

// The bytes of a Scratch. Forward needs no gradients of sinks, keys and values.
uint64_t attention_workspace_bytes(const OpShapes& shapes, Pass pass) {
  const auto length = static_cast<uint64_t>(shapes.attributes.sequence);
  const auto size = static_cast<uint64_t>(shapes.attributes.head_size);
  const auto heads = static_cast<uint64_t>(shapes.attributes.heads);
  const uint64_t gradients = pass == Pass::backward ? heads + 2 * length * size : 0;
  return (3 * length + size + gradients) * sizeof(double);
}

}  // namespace sluice::reference
