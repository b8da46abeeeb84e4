#include "gpu/cpu/tile_matmul.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/simd/convert.h"

namespace sluice::cpu {
namespace {

// Panels of up to 256 columns and 1 MiB stay in the second-level cache while tiles pass by. The library's
// layouts have multiples of 64 columns. With AMX, 128 columns were measured to be faster than 64 by a fifth,
// and panels of 2 MiB slower by a third.
constexpr int64_t kColumnsMin = 128, kColumnsMax = 256, kColumnsStep = 64;
constexpr int64_t kPanelBytes = int64_t{1} << 20;
constexpr int64_t kWidenedDepth = 1024;  // k of a widened panel
constexpr int64_t kGroup = 4;            // tiles that are multiplied before their sums are finished
constexpr int64_t kTasksOfAThread = 3;   // the fewest tasks of a thread, if there are enough groups
constexpr int64_t kPad = 16;             // floats that keep strides of widened panels off powers of two

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
uint64_t float_bytes(int64_t floats) { return aligned(static_cast<uint64_t>(floats) * sizeof(float)); }

const void* element(const void* base, int64_t index, DType type) {
  return static_cast<const std::byte*>(base) + static_cast<uint64_t>(index) * dtype_bytes(type);
}

// Which part of B a thread's memory has. Lies at the beginning of that memory.
struct Held {
  int64_t panel, chunk;
};
constexpr uint64_t kHeldBytes = 64;

}  // namespace

uint64_t TileMultiplier::Method::thread_bytes() const {
  return kHeldBytes + packed_bytes + scratch_bytes + sum_bytes + widened_a_bytes + widened_b_bytes;
}

// A task's part of C, and the memory of the thread that runs the task.
struct TileMultiplier::Task {
  Task(const TiledCall& call, const Method& of, Place place, int of_thread)
      : method(of), thread(of_thread), panel(place.panel) {
    column = panel * method.columns;
    columns = std::min(method.columns, call.product.n - column);
    first_tile = place.group * kGroup;
    tiles = std::min(kGroup, call.tiles - first_tile);
    std::byte* memory = call.workspace + static_cast<uint64_t>(thread) * method.thread_bytes();
    const auto take = [&memory](uint64_t bytes) {
      std::byte* const taken = memory;
      memory += bytes;
      return taken;
    };
    held = reinterpret_cast<Held*>(take(kHeldBytes));
    packed = take(method.packed_bytes);
    scratch = take(method.scratch_bytes);
    sums = reinterpret_cast<float*>(take(method.sum_bytes));
    widened_a = reinterpret_cast<float*>(take(method.widened_a_bytes));
    widened_b = reinterpret_cast<float*>(take(method.widened_b_bytes));
  }

  const Method& method;
  int thread;
  int64_t panel, column, columns, first_tile, tiles;
  Held* held;
  std::byte *packed, *scratch;
  float *sums, *widened_a, *widened_b;
};

const PackedTile& TileMultiplier::tile(const PackedShape& shape) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<const PackedTile>& made = tiles_[shape];
  if (made == nullptr) made = std::make_unique<const PackedTile>(shape, threads_);
  return *made;
}

TileMultiplier::Method TileMultiplier::method_of(const TiledProduct& p) {
  CHECK(p.height > 0 && p.n > 0 && p.k > 0, "an empty product of tiles");
  Method m;
  const bool bf16 = p.precision == DType::bf16 && support_.bf16;
  m.native = p.precision == DType::f32 || bf16;
  m.packed = bf16 || support_.f32 == Library::onednn;
  m.depth = m.native ? p.k : std::min(p.k, kWidenedDepth);
  m.chunks = divide_up(p.k, m.depth);
  const int64_t size = bf16 ? 2 : 4;
  const int64_t fit = kPanelBytes / (m.depth * size) / kColumnsStep * kColumnsStep;
  m.columns = std::min(p.n, std::clamp(fit, kColumnsMin, kColumnsMax));
  m.panels = divide_up(p.n, m.columns);
  m.sum_bytes = float_bytes(kGroup * p.height * m.columns);
  if (!m.native) {
    // A panel is stored as B is.
    m.widened_a_bytes = float_bytes(p.height * (m.depth + kPad));
    m.widened_b_bytes =
        float_bytes(p.transpose_b ? m.columns * (m.depth + kPad) : m.depth * (m.columns + kPad));
  }
  if (!m.packed) return m;
  for (const bool last_panel : {false, true})
    for (const int64_t place : {0, 1, 2}) {
      if (place > 0 && m.chunks == 1) continue;
      const int64_t n = last_panel ? p.n - (m.panels - 1) * m.columns : m.columns;
      const int64_t k = place == 2 ? p.k - (m.chunks - 1) * m.depth : m.depth;
      const PackedTile& made =
          tile({p.height, n, k, p.transpose_b, m.native ? p.k : m.depth + kPad,
                m.native ? p.stride_b : (p.transpose_b ? m.depth : m.columns) + kPad, bf16, place > 0});
      m.tiles[last_panel][place] = &made;
      m.packed_bytes = std::max(m.packed_bytes, aligned(made.packed_bytes()));
      m.scratch_bytes = std::max(m.scratch_bytes, aligned(made.scratch_bytes()));
    }
  return m;
}

uint64_t TileMultiplier::prepare(const TiledProduct& p) {
  return method_of(p).thread_bytes() * static_cast<uint64_t>(threads_);
}

void TileMultiplier::begin(const TiledCall& call, const Method& method, const Workers& workers) const {
  CHECK(workers.threads() <= threads_, "more threads than the workspace was sized for");
  if (call.tiles == 0) return;
  for (int thread = 0; thread < workers.threads(); ++thread)
    *Task(call, method, {0, 0}, thread).held = {-1, -1};
}

// Each task packs its panel, so there are only as many tasks as keep all threads at work to the end.
TileMultiplier::Division TileMultiplier::division_of(const TiledCall& call, const Method& method,
                                                     int threads) {
  const int64_t groups = divide_up(call.tiles, kGroup);
  const int64_t ranges = divide_up(kTasksOfAThread * threads, method.panels);
  return {groups, std::min(groups, ranges)};
}

TileMultiplier::Part TileMultiplier::multiply(const TiledCall& call, const Method& method, Place place,
                                              int thread) const {
  const Task task(call, method, place, thread);
  for (int64_t chunk = 0; chunk < method.chunks; ++chunk) multiply_chunk(call, task, chunk);
  const int64_t height = call.product.height;
  return {task.first_tile * height, task.tiles * height, task.column, task.columns, task.sums};
}

void TileMultiplier::multiply_chunk(const TiledCall& call, const Task& task, int64_t chunk) const {
  const TiledProduct& p = call.product;
  const Method& m = task.method;
  const int64_t begin = chunk * m.depth, depth = std::min(m.depth, p.k - begin);
  const bool last_panel = task.panel + 1 == m.panels;
  const int64_t place = chunk == 0 ? 0 : chunk + 1 == m.chunks ? 2 : 1;
  const PackedTile* const tile = m.tiles[last_panel][place];
  const void* b =
      element(call.b, p.transpose_b ? task.column * p.stride_b + begin : begin * p.stride_b + task.column,
              p.precision);
  int64_t stride_b = p.stride_b;
  if (!m.native) stride_b = (p.transpose_b ? m.depth : m.columns) + kPad;
  if (task.held->panel != task.panel || task.held->chunk != chunk) {
    if (!m.native)
      for (int64_t r = 0; r < (p.transpose_b ? task.columns : depth); ++r)
        widen(p.precision, element(b, r * p.stride_b, p.precision), task.widened_b + r * stride_b,
              static_cast<uint64_t>(p.transpose_b ? depth : task.columns));
    if (m.packed) tile->pack(task.thread, m.native ? b : task.widened_b, task.packed, task.scratch);
    *task.held = {task.panel, chunk};
  }
  for (int64_t t = 0; t < task.tiles; ++t) {
    const int64_t row = (task.first_tile + t) * p.height;
    const void* a = element(call.a, row * p.k + begin, p.precision);
    float* const sums = task.sums + t * p.height * task.columns;
    if (!m.native)
      for (int64_t r = 0; r < p.height; ++r)
        widen(p.precision, element(a, r * p.k, p.precision), task.widened_a + r * (m.depth + kPad),
              static_cast<uint64_t>(depth));
    if (!m.native) a = task.widened_a;
    if (m.packed)
      tile->run(task.thread, a, task.packed, sums, task.scratch);
    else
      multiply_f32(support_.f32,
                   {p.height, task.columns, depth, false, p.transpose_b, m.native ? p.k : m.depth + kPad,
                    stride_b, task.columns, chunk > 0},
                   1, static_cast<const float*>(a), static_cast<const float*>(m.native ? b : task.widened_b),
                   sums);
  }
}

}  // namespace sluice::cpu
