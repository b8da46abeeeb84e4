// route: which experts rows choose, with what weights, and the order in which experts find their rows; and
// add_noise.
//
// 1. A warp takes a row, and looks for the best expert, then for the next best, and so on. Keys are
//    totally ordered, so the warp need not remember which experts it has chosen.
// 2. Choices are sorted by expert, then by row, without atomics: chunks of choices are counted by expert,
//    places of chunks are sums of these counts, and each choice counts the choices of its expert that precede
//    it in its chunk.
// 3. Between 1 and 2, where experts do not take all choices, a warp goes through the choices of a group of
//    rows for one expert, in the order in which the expert takes them.
#include "engine/graph/routing.h"
#include "gpu/cuda/draws.h"
#include "gpu/cuda/gates.h"
#include "gpu/cuda/router_rows.h"

namespace sluice::cuda {
namespace {

using Scores = Routing::Scores;
constexpr int kThreads = kRouterThreads;
static_assert(kThreads == kRouteChunk, "a thread has a choice");

struct RouteShape {
  int rows, experts, chosen;
  Scores scores;
  bool normalized;
  int groups, best_groups, group_scores;
  float factor;

  __host__ __device__ int64_t choices() const { return static_cast<int64_t>(rows) * chosen; }
  __device__ int of_group() const { return experts / groups; }
};
RouteShape route_shape(const OpShapes& s) {
  const Routing& r = s.attributes.routing;
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };  // the op's rule bounds all of these
  return {narrow(s.inputs[0][0]),
          narrow(r.experts),
          narrow(r.chosen),
          r.scores,
          r.normalized,
          narrow(r.groups),
          narrow(r.best_groups),
          narrow(r.group_scores),
          static_cast<float>(r.factor())};
}

// A key and the index that has it. Larger keys come first, and NaN before all other keys. Of equal keys, the
// one with the lower index comes first.
struct Key {
  float value;
  int index;  // INT_MAX: nobody's

  __device__ bool comes_before(const Key& other) const {
    const bool nan = value != value, other_nan = other.value != other.value;
    if (index == INT_MAX || other.index == INT_MAX) return index < other.index;
    if (nan != other_nan) return nan;
    if (!nan && value != other.value) return value > other.value;
    return index < other.index;
  }
};

// Returns the first key behind `last`, in the order of Key, among indices begin, begin + step, ... below
// `end`. If `last` is nobody's, returns the first of all these keys.
template <typename F>
__device__ Key first_behind(const Key& last, int begin, int end, int step, F key) {
  Key best{0, INT_MAX};
  for (int i = begin; i < end; i += step) {
    const Key candidate{key(i), i};
    if (last.index != INT_MAX && !last.comes_before(candidate)) continue;
    if (candidate.comes_before(best)) best = candidate;
  }
  return best;
}
__device__ inline Key first_of_warp(Key mine) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Key other{__shfl_xor_sync(kAllLanes, mine.value, step),
                    __shfl_xor_sync(kAllLanes, mine.index, step)};
    if (other.comes_before(mine)) mine = other;
  }
  return mine;
}

// In the workspace: for each group of a row its key, and whether the group is among the best.
struct Groups {
  float* keys;
  int32_t* open;

  // A whole warp calls.
  template <typename F>
  __device__ void find(const RouteShape& s, F key) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int g = lane; g < s.groups; g += kWarp) {
      Key last{0, INT_MAX};
      float sum = 0;
      for (int i = 0; i < s.group_scores; ++i) {
        last = first_behind(last, g * s.of_group(), (g + 1) * s.of_group(), 1, key);
        sum += last.value;
      }
      keys[g] = sum;
    }
    __syncwarp();
    for (int g = lane; g < s.groups; g += kWarp) {
      const Key mine{keys[g], g};
      int better = 0;
      for (int other = 0; other < s.groups; ++other)
        if (Key{keys[other], other}.comes_before(mine)) ++better;
      open[g] = better < s.best_groups ? 1 : 0;
    }
    __syncwarp();
  }
};

// The weights of a row's chosen experts before normalization and scaling.
struct Parts {
  Scores scores;
  LogitSum sum;  // of all logits, or of the chosen experts'
  float divisor;

  // A whole warp calls.
  __device__ Parts(const RouteShape& s, const float* logits, const int32_t* chosen)
      : scores(s.scores), sum{0, 1}, divisor(1) {
    if (scores == Scores::softmax) sum = log_sum(s.experts, [&](int e) { return logits[e]; });
    if (scores == Scores::softmax_chosen) sum = log_sum(s.chosen, [&](int j) { return logits[chosen[j]]; });
    if (!s.normalized) return;
    float all = 0;
    for (int j = static_cast<int>(threadIdx.x) % kWarp; j < s.chosen; j += kWarp)
      all += of(logits[chosen[j]]);
    divisor = warp_sum(all) + (scores == Scores::sigmoid ? 1e-20f : 0.0f);
  }
  __device__ float of(float logit) const {
    return scores == Scores::sigmoid ? sigmoid(logit) : sum.probability(logit);
  }
};

// `experts`: by row and choice.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    choose_kernel(RouteShape s, const float* logits, const T* correction, float* group_keys,
                  int32_t* open_groups, float* weights, int32_t* experts) {
  const int row = router_row(), lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= s.rows) return;
  const float* const of_row = logits + static_cast<int64_t>(row) * s.experts;
  int32_t* const chosen = experts + static_cast<int64_t>(row) * s.chosen;
  const auto correct = [&](int e) { return correction == nullptr ? 0.0f : widen(correction[e]); };
  const auto key = [&](int e) {
    return (s.scores == Scores::sigmoid ? sigmoid(of_row[e]) : of_row[e]) + correct(e);
  };
  const Groups groups{group_keys + static_cast<int64_t>(row) * s.groups,
                      open_groups + static_cast<int64_t>(row) * s.groups};
  groups.find(s, key);
  Key last{0, INT_MAX};
  for (int j = 0; j < s.chosen; ++j) {
    Key mine{0, INT_MAX};
    for (int e = lane; e < s.experts; e += kWarp) {
      if (s.groups > 0 && groups.open[e / s.of_group()] == 0) continue;
      const Key candidate{key(e), e};
      if ((last.index == INT_MAX || last.comes_before(candidate)) && candidate.comes_before(mine))
        mine = candidate;
    }
    last = first_of_warp(mine);
    if (lane == 0) chosen[j] = last.index;
  }
  __syncwarp();
  const Parts parts(s, of_row, chosen);
  for (int j = lane; j < s.chosen; j += kWarp) {
    const float nothing = correct(chosen[j]) * 0.0f;  // NaN if the correction is NaN, else 0
    weights[static_cast<int64_t>(row) * s.chosen + j] =
        s.factor * (parts.of(of_row[chosen[j]]) + nothing) / parts.divisor;
  }
}

struct DropShape {
  int groups, group_rows, capacity, experts, chosen;
  uint32_t layer;
};
DropShape drop_shape(const OpCall& call) {
  const Routing& r = call.shapes->attributes.routing;
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };  // the op's rule bounds all of these
  return {narrow(call.shapes->inputs[0][0] / r.group_rows),
          narrow(r.group_rows),
          narrow(expert_capacity(r)),
          narrow(r.experts),
          narrow(r.chosen),
          call.layer};
}

// There is one warp for each group and expert. takers: for each choice the expert that takes it, or -1.
__global__ void __launch_bounds__(kThreads)
    drop_kernel(DropShape s, const int32_t* choices, const float* weights, DeviceDraws draws,
                int32_t* takers) {
  const int index = router_row(), lane = static_cast<int>(threadIdx.x) % kWarp;
  if (index >= s.groups * s.experts) return;
  const int first_row = index / s.experts * s.group_rows, expert = index % s.experts;
  int before = 0;  // choices that were tried
  for (int j = 0; j < s.chosen; ++j)
    for (int place = lane; place - lane < s.group_rows; place += kWarp) {
      const int row = first_row + place;
      const int64_t choice = static_cast<int64_t>(row) * s.chosen + j;
      const bool own = place < s.group_rows && choices[choice] == expert;
      const bool tried = own && (j == 0 || !draws.any() || draws.second(row, s.layer) < 2 * weights[choice]);
      int sum = tried ? 1 : 0;  // of the lanes up to this one
      for (int step = 1; step < kWarp; step *= 2) {
        const int other = __shfl_sync(kAllLanes, sum, lane >= step ? lane - step : lane);
        if (lane >= step) sum += other;
      }
      if (own) takers[choice] = tried && before + sum <= s.capacity ? expert : -1;
      before += __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
}

// There is one thread for each expert and chunk. It counts the choices of the chunk that are the expert's.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const int32_t* choices, int64_t count, int experts, int32_t* counts) {
  __shared__ int32_t shared[kRouteChunk];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRouteChunk + thread;
  shared[thread] = i < count ? choices[i] : -1;
  __syncthreads();
  for (int e = thread; e < experts; e += kThreads) {
    int32_t mine = 0;
    for (int j = 0; j < kRouteChunk; ++j) mine += shared[j] == e ? 1 : 0;
    counts[static_cast<int64_t>(blockIdx.x) * experts + e] = mine;
  }
}

// One block. Counts become places within the expert's entries, and sums of totals become begins [experts +
// 1].
__global__ void __launch_bounds__(kThreads)
    begins_kernel(int32_t* counts, int chunks, int experts, int32_t* begins) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < experts; e += kThreads) {
    int32_t total = 0;
#pragma unroll 4
    for (int chunk = 0; chunk < chunks; ++chunk) {
      int32_t& count = counts[static_cast<int64_t>(chunk) * experts + e];
      const int32_t before = total;
      total += count;
      count = before;
    }
    begins[e + 1] = total;
  }
  __syncthreads();
  if (thread >= kWarp) return;
  int32_t before = 0;  // entries of the experts before `first`
  if (thread == 0) begins[0] = 0;
  for (int first = 0; first < experts; first += kWarp) {
    const int e = first + thread;
    int32_t sum = e < experts ? begins[e + 1] : 0;
    for (int step = 1; step < kWarp; step *= 2) {
      const int32_t other = __shfl_sync(kAllLanes, sum, thread >= step ? thread - step : thread);
      if (thread >= step) sum += other;
    }
    if (e < experts) begins[e + 1] = before + sum;
    before += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
}

// A choice of -1 has no place. The entries behind the last expert's become -1.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const int32_t* choices, int64_t count, int experts, const int32_t* places,
                 const int32_t* begins, int32_t* entries) {
  __shared__ int32_t shared[kRouteChunk];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRouteChunk + thread;
  const int32_t expert = i < count ? choices[i] : -1;
  shared[thread] = expert;
  __syncthreads();
  if (i >= count) return;
  if (i >= begins[experts]) entries[i] = -1;
  if (expert < 0) return;
  int32_t place = begins[expert] + places[static_cast<int64_t>(blockIdx.x) * experts + expert];
  for (int j = 0; j < thread; ++j) place += shared[j] == expert ? 1 : 0;
  entries[place] = static_cast<int32_t>(i);
}

// ---- add_noise: a thread has four logits of a row.

// log(1 + e^x), without overflow.
__device__ inline float softplus(float x) { return (x > 0 ? x : 0.0f) + log1pf(expf(x > 0 ? -x : x)); }

// Calls f(element, normal number) for the thread's elements.
template <typename F>
__device__ void for_each_noise(int rows, int experts, const DeviceDraws& draws, uint32_t layer, F f) {
  const int blocks = (experts + 3) / 4;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(rows) * blocks) return;
  const int row = static_cast<int>(i / blocks), first = static_cast<int>(i % blocks) * 4;
  float normal[4] = {};
  if (draws.any()) draws.noise(row, layer, static_cast<uint32_t>(first / 4), normal);
#pragma unroll
  for (int e = 0; e < 4; ++e)
    if (first + e < experts) f(static_cast<int64_t>(row) * experts + first + e, normal[e]);
}

__global__ void __launch_bounds__(kThreads)
    noise_kernel(int rows, int experts, const float* logits, const float* deviations, DeviceDraws draws,
                 uint32_t layer, float* y) {
  for_each_noise(rows, experts, draws, layer,
                 [&](int64_t i, float normal) { y[i] = logits[i] + normal * softplus(deviations[i]); });
}

__global__ void __launch_bounds__(kThreads)
    noise_gradient_kernel(int rows, int experts, const float* deviations, DeviceDraws draws, uint32_t layer,
                          const float* dy, Gradient<float> d_logits, Gradient<float> d_deviations) {
  const auto put = [](const Gradient<float>& to, int64_t i, float value) {
    if (to.data != nullptr) to.data[i] = (to.addend == nullptr ? 0.0f : to.addend[i]) + value;
  };
  for_each_noise(rows, experts, draws, layer, [&](int64_t i, float normal) {
    const float d = dy[i];
    put(d_logits, i, d);
    put(d_deviations, i, d * normal * sigmoid(deviations[i]));
  });
}

struct NoiseShape {
  int rows, experts;
  int64_t blocks() const { return div_up(int64_t{rows} * div_up(experts, 4), kThreads); }
};
NoiseShape noise_shape(const OpCall& call) {
  const Shape& logits = call.shapes->inputs[0];
  CHECK(element_count(logits) <= INT_MAX, "noise counts in 32 bits");
  return {static_cast<int>(logits[0]), static_cast<int>(logits[1])};
}

// Gradients of logits, with parts a and weights w = factor * a / divisor.
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(RouteShape s, const float* logits, const int32_t* experts, const float* d_weights,
                    Gradient<float> to) {
  const int row = router_row(), lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= s.rows) return;
  const int64_t first = static_cast<int64_t>(row) * s.experts,
                first_choice = static_cast<int64_t>(row) * s.chosen;
  const float* const of_row = logits + first;
  const int32_t* const chosen = experts + first_choice;
  const Parts parts(s, of_row, chosen);
  const auto part = [&](int j) { return parts.of(of_row[chosen[j]]); };
  const auto dw = [&](int j) { return s.factor * d_weights[first_choice + j]; };
  float mean = 0, product = 0;  // mean: the weighted average of gradients
  if (s.normalized) {
    for (int j = lane; j < s.chosen; j += kWarp) mean += dw(j) * part(j) / parts.divisor;
    mean = warp_sum(mean);
  }
  const auto da = [&](int j) { return (dw(j) - mean) / parts.divisor; };
  for (int j = lane; j < s.chosen; j += kWarp) product += da(j) * part(j);
  product = warp_sum(product);
  for (int e = lane; e < s.experts; e += kWarp) {
    float d = s.scores == Scores::softmax ? -parts.of(of_row[e]) * product : 0.0f;
    for (int j = 0; j < s.chosen; ++j) {
      if (chosen[j] != e) continue;
      const float a = part(j);
      if (s.scores == Scores::softmax)
        d += a * da(j);
      else if (s.scores == Scores::softmax_chosen)
        d = a * (da(j) - product);
      else
        d = da(j) * a * (1 - a);
    }
    to.data[first + e] = to.addend == nullptr ? d : to.addend[first + e] + d;
  }
}

}  // namespace

void load_route_kernels() {
  for_each_precision([]<typename T>(T) { load(choose_kernel<T>); });
  load(drop_kernel);
  load(count_kernel);
  load(begins_kernel);
  load(place_kernel);
  load(gradient_kernel);
  load(noise_kernel);
  load(noise_gradient_kernel);
}

void route_forward(const Queue& queue, const OpCall& call) {
  const RouteShape s = route_shape(*call.shapes);
  const RoutingLayout layout{s.rows, s.experts, s.chosen};
  auto* const begins = data_of<int32_t>(call.outputs, 1);
  int32_t *const entries = begins + layout.entries(), *const experts = begins + layout.experts_of();
  const int64_t chunks = route_chunks(s.choices());
  auto* const counts = reinterpret_cast<int32_t*>(call.workspace);
  auto* const open_groups = counts + chunks * s.experts;
  auto* const group_keys = reinterpret_cast<float*>(open_groups + int64_t{s.rows} * s.groups);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    launch(queue, choose_kernel<T>, div_up(s.rows, kRouterWarps), kThreads, 0, s,
           data_of<const float>(call.inputs, 0), data_of<const T>(call.parameters, 0), group_keys,
           open_groups, data_of<float>(call.outputs, 0), experts);
  });
  const int32_t* takers = experts;
  if (call.shapes->attributes.routing.drops()) {
    const DropShape drop = drop_shape(call);
    auto* const kept = reinterpret_cast<int32_t*>(group_keys + int64_t{s.rows} * s.groups);
    launch(queue, drop_kernel, div_up(int64_t{drop.groups} * drop.experts, kRouterWarps), kThreads, 0, drop,
           experts, data_of<float>(call.outputs, 0), DeviceDraws{data_of<const int32_t>(call.inputs, 1)},
           kept);
    takers = kept;
  }
  launch(queue, count_kernel, chunks, kThreads, 0, takers, s.choices(), s.experts, counts);
  launch(queue, begins_kernel, 1, kThreads, 0, counts, static_cast<int>(chunks), s.experts, begins);
  launch(queue, place_kernel, chunks, kThreads, 0, takers, s.choices(), s.experts, counts, begins, entries);
}

void route_backward(const Queue& queue, const OpCall& call) {
  const RouteShape s = route_shape(*call.shapes);
  const Gradient<float> to = gradient_of<float>(call.input_gradients, 0);
  if (to.data == nullptr) return;
  const int64_t experts = RoutingLayout{s.rows, s.experts, s.chosen}.experts_of();
  launch(queue, gradient_kernel, div_up(s.rows, kRouterWarps), kThreads, 0, s,
         data_of<const float>(call.inputs, 0), data_of<const int32_t>(call.outputs, 1) + experts,
         data_of<const float>(call.output_gradients, 0), to);
}

void add_noise_forward(const Queue& queue, const OpCall& call) {
  const NoiseShape s = noise_shape(call);
  launch(queue, noise_kernel, s.blocks(), kThreads, 0, s.rows, s.experts,
         data_of<const float>(call.inputs, 0), data_of<const float>(call.inputs, 1),
         DeviceDraws{data_of<const int32_t>(call.inputs, 2)}, call.layer, data_of<float>(call.outputs, 0));
}

void add_noise_backward(const Queue& queue, const OpCall& call) {
  const NoiseShape s = noise_shape(call);
  launch(queue, noise_gradient_kernel, s.blocks(), kThreads, 0, s.rows, s.experts,
         data_of<const float>(call.inputs, 1), DeviceDraws{data_of<const int32_t>(call.inputs, 2)},
         call.layer, data_of<const float>(call.output_gradients, 0),
         gradient_of<float>(call.input_gradients, 0), gradient_of<float>(call.input_gradients, 1));
}

}  // namespace sluice::cuda
