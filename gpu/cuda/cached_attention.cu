// cached_attention and pick_rows.
//
// 1. Keys and values of the rows are written into the cache.
// 2. A block answers one query of one head. Its lanes form groups; a group has as many lanes as the columns
//    of a head need. A group takes one key at a time, and keeps a running maximum and sum. Which keys a group
//    takes is a function of the query's position alone.
// 3. The groups' sums are added in order, with the sink, if there is one.
#include "engine/graph/attention_operands.h"
#include "gpu/cuda/base.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;
static_assert(kHeadSizeMax == kWarp * kWide);

struct CachedShape {
  int rows, length, context, heads, kv_heads, size;
  int window;               // `context` where the model has none
  float scale, cap;         // cap 0: none
  int q_stride, kv_stride;  // from row to row
  bool wide;                // all heads begin at multiples of 16 bytes
  const int32_t* begins;

  __device__ int kv_columns() const { return kv_heads * size; }
  // The row's position in its document. Below 0, the row is idle.
  __device__ int position_of(int row) const { return row % length - begins[row]; }
  // Where in the cache the keys (`part` 0) or values (1) of all heads begin, at a position of the row's
  // sequence.
  __device__ int64_t cached(int row, int position, int part) const {
    const int64_t token = static_cast<int64_t>(row / length) * context + position;
    return (2 * token + part) * kv_columns();
  }
};

CachedShape cached_shape(const OpCall& call) {
  const OpShapes& s = *call.shapes;
  const OpAttributes& a = s.attributes;
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  const int q = narrow(a.heads * a.head_size), kv = narrow(a.kv_heads * a.head_size);
  const bool packed = cached_attention_is_packed(s);
  return {narrow(s.inputs[kCachedBegins][0]),
          narrow(a.sequence),
          narrow(a.context),
          narrow(a.heads),
          narrow(a.kv_heads),
          narrow(a.head_size),
          narrow(a.window == 0 ? a.context : std::min(a.window, a.context)),
          static_cast<float>(attention_scale(a)),
          static_cast<float>(a.soft_cap),
          packed ? q + 2 * kv : q,
          packed ? q + 2 * kv : kv,
          a.head_size % kWide == 0,
          data_of<const int32_t>(call.inputs, kCachedBegins)};
}

template <typename T>
struct CachedTensors {
  const T *q, *k, *v, *sinks;  // sinks: [heads]; nullptr: none
  T *cache, *o;
};

template <typename T>
CachedTensors<T> cached_tensors(const OpCall& call) {
  const OpShapes& s = *call.shapes;
  const OpAttributes& a = s.attributes;
  const T* const q = data_of<const T>(call.inputs, kCachedQuery);
  CachedTensors<T> t{q,
                     nullptr,
                     nullptr,
                     data_of<const T>(call.parameters, 0),
                     data_of<T>(call.inputs, kCache),
                     data_of<T>(call.outputs, 0)};
  if (cached_attention_is_packed(s)) {
    t.k = q + a.heads * a.head_size;
    t.v = t.k + a.kv_heads * a.head_size;
  } else {
    t.k = data_of<const T>(call.inputs, kCachedQuery + 1);
    t.v = data_of<const T>(call.inputs, kCachedQuery + 2);
  }
  return t;
}

// A thread has kWide columns of a row's keys or values at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads) write_kernel(CachedShape s, CachedTensors<T> t) {
  const int parts = (s.kv_columns() + kWide - 1) / kWide, items = s.rows * 2 * parts;
  for (int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); i < items;
       i += static_cast<int>(gridDim.x) * kThreads) {
    const int row = i / (2 * parts), part = i / parts % 2, column = i % parts * kWide;
    const int position = s.position_of(row);
    if (position < 0) continue;
    require(position < s.context);
    const T* const from = (part == 0 ? t.k : t.v) + static_cast<int64_t>(row) * s.kv_stride + column;
    T* const to = t.cache + s.cached(row, position, part) + column;
    with_part(s.wide, s.kv_columns() - column, [&](auto some) {
      float value[kWide];
      load(from, some, value);
      store(to, some, value);
    });
  }
}

// The number of lanes that have one key together: the least power of two whose columns suffice for a head.
__device__ inline int lanes_of_key(int size) {
  int lanes = 1;
  while (lanes * kWide < size) lanes *= 2;
  return lanes;
}

// A group's part of a query's answer.
struct Running {
  float maximum, sum;
};
// Bytes of a block's shared memory. For each thread there is at most one group's Running, and at most kWide
// columns of o.
constexpr uint64_t kSharedBytes = kThreads * (sizeof(Running) + kWide * sizeof(float));

template <typename T>
__global__ void __launch_bounds__(kThreads) answer_kernel(CachedShape s, CachedTensors<T> t) {
  const int row = static_cast<int>(blockIdx.x) / s.heads, head = static_cast<int>(blockIdx.x) % s.heads;
  const int thread = static_cast<int>(threadIdx.x), lanes = lanes_of_key(s.size), groups = kThreads / lanes;
  const int group = thread / lanes, column = thread % lanes * kWide;
  const int position = s.position_of(row), kv_column = head / (s.heads / s.kv_heads) * s.size + column;
  const int columns = s.size - column;  // of this lane; may be below 1
  float q[kWide] = {}, o[kWide] = {};
  if (columns > 0)
    with_part(s.wide, columns, [&](auto part) {
      load(t.q + static_cast<int64_t>(row) * s.q_stride + head * s.size + column, part, q);
    });
  Running running{-FLT_MAX, 0};
  const int begin = position - s.window + 1 > 0 ? position - s.window + 1 : 0;
  for (int first = begin; first <= position; first += groups) {
    const int key = first + group;
    const bool there = key <= position;
    float k[kWide] = {}, v[kWide] = {};
    if (there && columns > 0)
      with_part(s.wide, columns, [&](auto part) {
        load(t.cache + s.cached(row, key, 0) + kv_column, part, k);
        load(t.cache + s.cached(row, key, 1) + kv_column, part, v);
      });
    float score = 0;
#pragma unroll
    for (int e = 0; e < kWide; ++e) score += q[e] * k[e];
    for (int lane = lanes / 2; lane > 0; lane /= 2) score += __shfl_xor_sync(kAllLanes, score, lane);
    if (!there) continue;
    score *= s.scale;
    if (s.cap > 0) score = s.cap * tanhf(score / s.cap) + score * 0.0f;  // NaN where it is infinite
    const float maximum = fmaxf(running.maximum, score);
    const float correction = expf(running.maximum - maximum), weight = expf(score - maximum);
    running = {maximum, running.sum * correction + weight};
#pragma unroll
    for (int e = 0; e < kWide; ++e) o[e] = o[e] * correction + weight * v[e];
  }
  // In shared memory: for each group its maximum and sum, then its o.
  auto* const all = reinterpret_cast<Running*>(shared_memory());
  auto* const sums = reinterpret_cast<float*>(all + groups);
  if (column == 0) all[group] = running;
  for (int e = 0; e < kWide && e < columns; ++e) sums[group * s.size + column + e] = o[e];
  __syncthreads();
  float maximum = t.sinks == nullptr ? -FLT_MAX : widen(t.sinks[head]);
  float total = t.sinks == nullptr ? 0.0f : 1.0f;
  const float sink = maximum;
  for (int g = 0; g < groups; ++g) maximum = fmaxf(maximum, all[g].maximum);
  total *= expf(sink - maximum);
  for (int g = 0; g < groups; ++g) total += all[g].sum * expf(all[g].maximum - maximum);
  for (int c = thread; c < s.size; c += kThreads) {
    float sum = 0;
    for (int g = 0; g < groups; ++g) sum += sums[g * s.size + c] * expf(all[g].maximum - maximum);
    t.o[(static_cast<int64_t>(row) * s.heads + head) * s.size + c] =
        narrow<T>(position < 0 ? 0.0f : sum / total);
  }
}

template <typename T>
struct Pick {
  const T* x;
  const int32_t* rows;
  T* y;
  int count, columns, all;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) pick_kernel(Pick<T> a) {
  const int parts = (a.columns + kWide - 1) / kWide, items = a.count * parts;
  for (int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); i < items;
       i += static_cast<int>(gridDim.x) * kThreads) {
    const int to = i / parts, column = i % parts * kWide, from = a.rows[to];
    require(from >= 0 && from < a.all);
    with_part(a.columns % kWide == 0, a.columns - column, [&](auto part) {
      float value[kWide];
      load(a.x + static_cast<int64_t>(from) * a.columns + column, part, value);
      store(a.y + static_cast<int64_t>(to) * a.columns + column, part, value);
    });
  }
}

}  // namespace

void load_cached_attention_kernels() {
  for_each_precision([]<typename T>(T) {
    load(write_kernel<T>);
    load(answer_kernel<T>, kSharedBytes);
    load(pick_kernel<T>);
  });
}

void cached_attention_forward(const Queue& queue, const OpCall& call) {
  const CachedShape s = cached_shape(call);
  const int64_t parts = div_up(int64_t{s.kv_heads} * s.size, kWide);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const CachedTensors<T> t = cached_tensors<T>(call);
    launch(queue, write_kernel<T>, striding_blocks(queue, 2 * s.rows * parts, kThreads), kThreads, 0, s, t);
    launch(queue, answer_kernel<T>, int64_t{s.rows} * s.heads, kThreads, kSharedBytes, s, t);
  });
}

void pick_rows_forward(const Queue& queue, const OpCall& call) {
  const auto count = static_cast<int>(call.shapes->inputs[1][0]);
  const auto all = static_cast<int>(call.shapes->inputs[0][0]);
  const auto columns = static_cast<int>(call.shapes->inputs[0][1]);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Pick<T> pick{data_of<const T>(call.inputs, 0),
                       data_of<const int32_t>(call.inputs, 1),
                       data_of<T>(call.outputs, 0),
                       count,
                       columns,
                       all};
    launch(queue, pick_kernel<T>, striding_blocks(queue, count * div_up(columns, kWide), kThreads), kThreads,
           0, pick);
  });
}

}  // namespace sluice::cuda
