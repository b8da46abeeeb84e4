// Rotary position embedding (Su et al. 2021, arXiv:2104.09864), rotate-half form.
//
// A table of (cosine, sine) is made first, for every (position, pair) or, where rows are a part of a longer
// sequence, for every (row, pair). Its angles are in double: at position 10^5 an fp32 angle would be off by
// 0.004. Backward rotates the other way.
#include "gpu/cuda/base.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

struct alignas(8) Turn {
  float cosine, sine;
};
static_assert(sizeof(Turn) == kTurnBytes);

// Frequencies reach the GPU as arguments of launches. A launch has at most this many frequencies.
constexpr int kFrequencies = 64;
struct Frequencies {
  double of[kFrequencies];
  int64_t first, count;  // which pairs these are
};

struct TableSize {
  int64_t entries, pairs;
  double factor;  // of sines and cosines
  // If entries are rows: the number of rows of a sequence, and where documents begin. `begins` is nullptr if
  // entries are positions.
  int64_t sequence;
  const int32_t* begins;

  __device__ int64_t position_of(int64_t entry) const {
    if (begins == nullptr) return entry;
    const int64_t position = entry % sequence - begins[entry];
    return position < 0 ? 0 : position;  // of an idle row
  }
};

// A thread has one pair and kEntries entries.
constexpr int kEntries = 8;
__global__ void __launch_bounds__(kThreads) table_kernel(Frequencies some, TableSize a, Turn* table) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t first = index / some.count * kEntries, pair = index % some.count;
  if (first >= a.entries) return;
  const double frequency = some.of[pair];
  for (int64_t entry = first; entry < first + kEntries && entry < a.entries; ++entry) {
    double sine, cosine;
    sincos(static_cast<double>(a.position_of(entry)) * frequency, &sine, &cosine);
    table[entry * a.pairs + some.first + pair] = {static_cast<float>(cosine * a.factor),
                                                  static_cast<float>(sine * a.factor)};
  }
}

// `begins`: nullptr unless entries are rows.
void make_table(const Queue& queue, const OpAttributes& a, int64_t rows, const int32_t* begins, Turn* table) {
  const auto pairs = static_cast<int64_t>(a.frequencies.size());
  const int64_t entries = begins == nullptr ? a.sequence : rows;
  for (int64_t first = 0; first < pairs; first += kFrequencies) {
    Frequencies some{{}, first, std::min<int64_t>(kFrequencies, pairs - first)};
    std::copy_n(a.frequencies.begin() + first, some.count, some.of);
    launch(queue, table_kernel, div_up(div_up(entries, kEntries) * some.count, kThreads), kThreads, 0, some,
           TableSize{entries, pairs, a.factor(), a.sequence, begins}, table);
  }
}

// Columns of a row: for each of `heads`, the first columns of `pairs` pairs, their second columns, and `rest`
// others; after all heads, `tail` others.
template <typename T>
struct Rotation {
  const T* from;
  Gradient<T> to;
  const Turn* table;
  const int32_t* begins;  // of documents; nullptr: every sequence is one
  uint32_t rows, heads, pairs, rest, tail, sequence;
  float direction;  // 1, or -1 for backward
  bool by_row;      // the table's entries are rows
  bool wide;        // each of these ranges of columns begins at a multiple of 16 bytes

  // The row's entry in the table.
  __device__ int64_t entry_of(uint32_t row) const {
    if (by_row) return row;
    const uint32_t place = row % sequence, begin = begins == nullptr ? 0 : static_cast<uint32_t>(begins[row]);
    require(begin <= place);
    return place - begin;
  }
  __device__ uint32_t head_columns() const { return 2 * pairs + rest; }
  __device__ int64_t columns() const { return static_cast<int64_t>(heads) * head_columns() + tail; }
};

// Loads the turns of kWide pairs.
__device__ inline void load_turns(const Turn* turns, Whole, float (&cosines)[kWide], float (&sines)[kWide]) {
#pragma unroll
  for (int i = 0; i < kWide; i += 2) {
    const Words two = *reinterpret_cast<const Words*>(turns + i);
    cosines[i] = __uint_as_float(two.word[0]);
    sines[i] = __uint_as_float(two.word[1]);
    cosines[i + 1] = __uint_as_float(two.word[2]);
    sines[i + 1] = __uint_as_float(two.word[3]);
  }
}
__device__ inline void load_turns(const Turn* turns, Part part, float (&cosines)[kWide],
                                  float (&sines)[kWide]) {
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    cosines[i] = i < part.count ? turns[i].cosine : 0.0f;
    sines[i] = i < part.count ? turns[i].sine : 0.0f;
  }
}

// Rotates up to kWide pairs of one head of a row.
template <typename T>
__device__ void turn(const Rotation<T>& a, uint32_t row, uint32_t head, uint32_t pair) {
  const int64_t first = row * a.columns() + static_cast<int64_t>(head) * a.head_columns() + pair;
  const int64_t second = first + a.pairs;
  const Turn* turns = a.table + a.entry_of(row) * a.pairs + pair;
  with_part(a.wide, a.pairs - pair, [&](auto part) {
    float x1[kWide], x2[kWide], before1[kWide], before2[kWide], cosines[kWide], sines[kWide];
    load(a.from + first, part, x1);
    load(a.from + second, part, x2);
    load_before(a.to, first, part, before1);
    load_before(a.to, second, part, before2);
    load_turns(turns, part, cosines, sines);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      const float cosine = cosines[e], sine = sines[e] * a.direction, from = x1[e];
      x1[e] = from * cosine - x2[e] * sine;
      x2[e] = x2[e] * cosine + from * sine;
    }
    store_after(a.to, first, part, before1, x1);
    store_after(a.to, second, part, before2, x2);
  });
}

// Copies up to kWide of the `count` columns from `at` on.
template <typename T>
__device__ void copy(const Rotation<T>& a, int64_t at, uint32_t count) {
  with_part(a.wide, count, [&](auto part) {
    float value[kWide], before[kWide];
    load(a.from + at, part, value);
    load_before(a.to, at, part, before);
    store_after(a.to, at, part, before, value);
  });
}

__host__ __device__ constexpr uint32_t parts_of(uint32_t columns) { return (columns + kWide - 1) / kWide; }
__host__ __device__ constexpr uint32_t items_of_row(uint32_t heads, uint32_t pairs, uint32_t rest,
                                                    uint32_t tail) {
  return heads * (parts_of(pairs) + parts_of(rest)) + parts_of(tail);
}

// A thread has one item of a row at a time: pairs of a head, or columns that are copied.
template <typename T>
__global__ void __launch_bounds__(kThreads) rotate_kernel(Rotation<T> a) {
  const uint32_t turns = parts_of(a.pairs), rests = parts_of(a.rest);
  const uint32_t of_row = items_of_row(a.heads, a.pairs, a.rest, a.tail), items = a.rows * of_row;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < items; i += gridDim.x * kThreads) {
    const uint32_t row = i / of_row, item = i % of_row;
    const uint32_t head = item / (turns + rests), part = item % (turns + rests);
    if (head < a.heads && part < turns) {
      turn(a, row, head, part * kWide);
      continue;
    }
    const bool in_head = head < a.heads;
    const uint32_t at = (in_head ? part - turns : item - a.heads * (turns + rests)) * kWide;
    const int64_t first = in_head ? static_cast<int64_t>(head) * a.head_columns() + 2 * a.pairs
                                  : static_cast<int64_t>(a.heads) * a.head_columns();
    copy(a, row * a.columns() + first + at, (in_head ? a.rest : a.tail) - at);
  }
}

void rotate(const Queue& queue, const OpCall& call, const TensorView& from, const TensorView& to,
            float direction) {
  if (to.data == nullptr) return;
  const OpAttributes& a = call.shapes->attributes;
  const int64_t rows = call.shapes->inputs[0][0], columns = call.shapes->inputs[0][1];
  const auto pairs = static_cast<int64_t>(a.frequencies.size());
  const int64_t rest = a.head_size - 2 * pairs, tail = columns - a.heads * a.head_size;
  const auto narrow = [](int64_t n) { return static_cast<uint32_t>(n); };
  const int64_t items = rows * items_of_row(narrow(a.heads), narrow(pairs), narrow(rest), narrow(tail));
  auto* table = reinterpret_cast<Turn*>(call.workspace);
  const auto* const begins = data_of<const int32_t>(call.inputs, 1);
  const bool by_row = a.context > 0 && begins != nullptr;
  make_table(queue, a, rows, by_row ? begins : nullptr, table);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Rotation<T> rotation{static_cast<const T*>(from.data),
                               {static_cast<T*>(to.data), static_cast<const T*>(to.addend)},
                               table,
                               begins,
                               narrow(rows),
                               narrow(a.heads),
                               narrow(pairs),
                               narrow(rest),
                               narrow(tail),
                               narrow(a.sequence),
                               direction,
                               by_row,
                               pairs % kWide == 0 && rest % kWide == 0 && tail % kWide == 0};
    launch(queue, rotate_kernel<T>, striding_blocks(queue, items, kThreads), kThreads, 0, rotation);
  });
}

}  // namespace

void load_rope_kernels() {
  load(table_kernel);
  for_each_precision([]<typename T>(T) { load(rotate_kernel<T>); });
}

void rope_forward(const Queue& queue, const OpCall& call) {
  rotate(queue, call, view_of(call.inputs, 0), {call.outputs[0].data}, 1);
}

void rope_backward(const Queue& queue, const OpCall& call) {
  rotate(queue, call, view_of(call.output_gradients, 0), view_of(call.input_gradients, 0), -1);
}

}  // namespace sluice::cuda
