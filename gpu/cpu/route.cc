// route: which experts rows choose, with what weights, and the order in which experts find their rows; and
// the noise of logits. As in routers.cc, blocks of rows are tasks, and logits are scalars in double.
#include <array>

#include "engine/base/simd/convert.h"
#include "engine/graph/draws.h"
#include "gpu/cpu/router_rows.h"

namespace sluice::cpu {
namespace {

using Scores = Routing::Scores;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The indices of the largest keys that were offered, in descending order of the keys. Of equal keys, the one
// that was offered first comes first.
struct Largest {
  const double* keys;
  int32_t* indices;
  int64_t most;
  int64_t count = 0;

  void offer(int64_t index) {
    const double key = keys[index];
    if (count == most && !is_better(key, keys[indices[most - 1]])) return;
    int64_t place = count < most ? count++ : most - 1;
    for (; place > 0 && is_better(key, keys[indices[place - 1]]); --place)
      indices[place] = indices[place - 1];
    indices[place] = static_cast<int32_t>(index);
  }
};

// The numbers of one row, in a thread's memory.
struct RowMemory {
  static uint64_t bytes(const Routing& r) {
    return aligned_bytes(r.experts + r.groups + 2 * r.chosen, sizeof(double)) +
           aligned_bytes(r.best_groups + r.group_scores, sizeof(int32_t));
  }
  RowMemory(const OpCall& call, int thread) {
    const Routing& r = call.shapes->attributes.routing;
    keys = reinterpret_cast<double*>(call.workspace + bytes(r) * static_cast<uint64_t>(thread));
    group_keys = keys + r.experts;
    parts = group_keys + r.groups;
    part_gradients = parts + r.chosen;
    best_groups = reinterpret_cast<int32_t*>(part_gradients + r.chosen);
    of_group = best_groups + r.best_groups;
  }
  double *keys, *group_keys;        // by expert, by group
  double *parts, *part_gradients;   // by choice
  int32_t *best_groups, *of_group;  // the best groups, the best experts of a group
};

// Writes the experts that a row chooses. `correction` has a number for each expert, which is added to its
// score for the choice; nullptr: there is none.
void choose(const Routing& routing, const float* logits, const float* correction, const RowMemory& memory,
            int32_t* experts) {
  for (int64_t e = 0; e < routing.experts; ++e) {
    const auto logit = static_cast<double>(logits[e]);
    memory.keys[e] = routing.scores == Scores::sigmoid ? sigmoid(logit) : logit;
    if (correction != nullptr) memory.keys[e] += static_cast<double>(correction[e]);
  }
  Largest best{memory.keys, experts, routing.chosen};
  if (routing.groups == 0) {
    for (int64_t e = 0; e < routing.experts; ++e) best.offer(e);
    return;
  }
  const int64_t size = routing.experts / routing.groups;
  Largest groups{memory.group_keys, memory.best_groups, routing.best_groups};
  for (int64_t g = 0; g < routing.groups; ++g) {
    Largest of_group{memory.keys, memory.of_group, routing.group_scores};
    for (int64_t e = g * size; e < (g + 1) * size; ++e) of_group.offer(e);
    memory.group_keys[g] = 0;
    for (int64_t i = 0; i < of_group.count; ++i) memory.group_keys[g] += memory.keys[memory.of_group[i]];
    groups.offer(g);
  }
  std::sort(memory.best_groups, memory.best_groups + groups.count);
  for (int64_t i = 0; i < groups.count; ++i)
    for (int64_t e = memory.best_groups[i] * size; e < (memory.best_groups[i] + 1) * size; ++e) best.offer(e);
}

// Writes the weights of the chosen experts before normalization and scaling. Returns the divisor of the
// normalization.
double weight_parts(const Routing& routing, const float* logits, const int32_t* chosen, double* parts) {
  const auto logit = [&](int64_t j) { return static_cast<double>(logits[chosen[j]]); };
  LogSum sum{};
  if (routing.scores == Scores::softmax) sum = log_sum_of(logits, routing.experts);
  if (routing.scores == Scores::softmax_chosen) sum = log_sum(routing.chosen, logit);
  double total = routing.scores == Scores::sigmoid ? 1e-20 : 0;
  for (int64_t j = 0; j < routing.chosen; ++j) {
    parts[j] = routing.scores == Scores::sigmoid ? sigmoid(logit(j)) : sum.probability(logit(j));
    total += parts[j];
  }
  return routing.normalized ? total : 1;
}

// A row's d_logits from its d_weights. With parts a of sum S, w = scale a / S.
void route_row_backward(const Routing& routing, const float* logits, const int32_t* chosen,
                        const float* d_weights, const RowMemory& memory, const TensorView& to,
                        int64_t first) {
  double *a = memory.parts, *da = memory.part_gradients;
  const double divisor = weight_parts(routing, logits, chosen, a);
  const auto d_weight = [&](int64_t j) { return routing.factor() * static_cast<double>(d_weights[j]); };
  double mean = 0;  // the weighted average of the gradients
  for (int64_t j = 0; routing.normalized && j < routing.chosen; ++j) mean += d_weight(j) * a[j] / divisor;
  double product = 0;
  for (int64_t j = 0; j < routing.chosen; ++j) {
    da[j] = (d_weight(j) - mean) / divisor;
    product += da[j] * a[j];
  }
  double* const d = memory.keys;
  std::fill_n(d, routing.experts, 0.0);
  if (routing.scores == Scores::softmax) {
    const LogSum sum = log_sum_of(logits, routing.experts);
    for (int64_t e = 0; e < routing.experts; ++e)
      d[e] = -sum.probability(static_cast<double>(logits[e])) * product;
  }
  for (int64_t j = 0; j < routing.chosen; ++j) {
    if (routing.scores == Scores::softmax)
      d[chosen[j]] += a[j] * da[j];
    else if (routing.scores == Scores::softmax_chosen)
      d[chosen[j]] = a[j] * (da[j] - product);
    else
      d[chosen[j]] = da[j] * a[j] * (1 - a[j]);
  }
  const auto* const addend = static_cast<const float*>(to.addend);
  for (int64_t e = 0; e < routing.experts; ++e)
    static_cast<float*>(to.data)[first + e] =
        static_cast<float>((addend == nullptr ? 0 : static_cast<double>(addend[first + e])) + d[e]);
}

// Lies in route's workspace, behind the memory of threads and of the correction. takers[choice] is the expert
// that takes the choice. counts[expert] is how many choices of a group the expert takes.
struct DropMemory {
  static uint64_t bytes(const RoutingLayout& layout, const Routing& r) {
    return r.drops() ? aligned_bytes(layout.choices() + layout.experts, sizeof(int32_t)) : 0;
  }
  DropMemory(const RoutingLayout& layout, std::byte* workspace)
      : takers(reinterpret_cast<int32_t*>(workspace)), counts(takers + layout.choices()) {}
  int32_t *takers, *counts;  // a taker of -1: the choice is dropped
};

// Finds the taker of each choice. Runs on one thread, as sort_choices() does.
void drop_choices(const OpCall& call, const RoutingLayout& layout, const int32_t* experts,
                  const DropMemory& memory) {
  const Routing& r = call.shapes->attributes.routing;
  const int64_t capacity = expert_capacity(r);
  const Draws draws = r.random_second ? draws_of(static_cast<const int32_t*>(call.inputs[1].data)) : Draws();
  const auto* const weights = static_cast<const float*>(call.outputs[0].data);
  const auto is_tried = [&](int64_t row, int64_t j) {
    if (j == 0 || draws.step == 0) return true;
    return draw_second(draws, call.layer, static_cast<uint64_t>(row)) < 2 * weights[row * r.chosen + j];
  };
  for (int64_t group = 0; group < layout.rows; group += r.group_rows) {
    std::fill_n(memory.counts, layout.experts, 0);
    for (int64_t j = 0; j < r.chosen; ++j)
      for (int64_t row = group; row < group + r.group_rows; ++row) {
        const int64_t choice = row * r.chosen + j;
        const int32_t expert = experts[choice];
        const bool taken = memory.counts[expert] < capacity && is_tried(row, j);
        memory.takers[choice] = taken ? expert : -1;
        memory.counts[expert] += taken;
      }
  }
}

// Writes the choices that each expert takes, from the taker of each choice; -1: no expert takes it. Runs on
// one thread, since it takes a fraction of a millisecond.
void sort_choices(const RoutingLayout& layout, const int32_t* takers, int32_t* routing) {
  int32_t* const entries = routing + layout.entries();
  std::fill_n(routing, layout.experts + 1, 0);
  for (int64_t choice = 0; choice < layout.choices(); ++choice)
    if (takers[choice] >= 0) ++routing[takers[choice] + 1];
  for (int64_t e = 0; e < layout.experts; ++e) routing[e + 1] += routing[e];
  std::fill(entries + routing[layout.experts], entries + layout.choices(), -1);
  // routing[e] runs through the entries of expert e, and ends at the value that routing[e + 1] had.
  for (int64_t choice = 0; choice < layout.choices(); ++choice)
    if (takers[choice] >= 0) entries[routing[takers[choice]]++] = static_cast<int32_t>(choice);
  for (int64_t e = layout.experts; e > 0; --e) routing[e] = routing[e - 1];
  routing[0] = 0;
}

// The offset of DropMemory in route's workspace.
uint64_t dropping_begins(const Routing& r, const Resources& resources) {
  return RowMemory::bytes(r) * static_cast<uint64_t>(resources.workers.threads()) +
         aligned_bytes(r.experts, sizeof(float));
}

}  // namespace

uint64_t route_workspace_bytes(const OpShapes& shapes, Pass, const Resources& resources) {
  const Routing& r = shapes.attributes.routing;
  return dropping_begins(r, resources) + DropMemory::bytes({shapes.inputs[0][0], r.experts, r.chosen}, r);
}

void route_forward(const OpCall& call, const Resources& resources) {
  const Routing& routing = call.shapes->attributes.routing;
  const RoutingLayout layout = layout_of(call);
  const float* correction = nullptr;
  if (!call.parameters.empty()) {
    auto* const widened = reinterpret_cast<float*>(
        call.workspace + RowMemory::bytes(routing) * static_cast<uint64_t>(resources.workers.threads()));
    widen(call.shapes->precision, call.parameters[0].data, widened, static_cast<uint64_t>(routing.experts));
    correction = widened;
  }
  const auto* const logits = static_cast<const float*>(call.inputs[0].data);
  auto* const weights = static_cast<float*>(call.outputs[0].data);
  auto* const out = static_cast<int32_t*>(call.outputs[1].data);
  for_each_block(layout.rows, resources.workers, [&](int64_t begin, int64_t end, int thread) {
    const RowMemory memory(call, thread);
    for (int64_t r = begin; r < end; ++r) {
      const float* const of_row = logits + r * routing.experts;
      int32_t* const chosen = out + layout.experts_of() + r * routing.chosen;
      choose(routing, of_row, correction, memory, chosen);
      const double divisor = weight_parts(routing, of_row, chosen, memory.parts);
      for (int64_t j = 0; j < routing.chosen; ++j) {
        double weight = routing.factor() * memory.parts[j] / divisor;
        if (correction != nullptr) weight += 0 * static_cast<double>(correction[chosen[j]]);  // NaN stays
        weights[r * routing.chosen + j] = static_cast<float>(weight);
      }
    }
  });
  const int32_t* takers = out + layout.experts_of();
  if (routing.drops()) {
    const DropMemory memory(layout, call.workspace + dropping_begins(routing, resources));
    drop_choices(call, layout, takers, memory);
    takers = memory.takers;
  }
  sort_choices(layout, takers, out);
}

void route_backward(const OpCall& call, const Resources& resources) {
  const TensorView to = view_of(call.input_gradients, 0);
  if (to.data == nullptr) return;
  const Routing& routing = call.shapes->attributes.routing;
  const RoutingLayout layout = layout_of(call);
  const auto* const logits = static_cast<const float*>(call.inputs[0].data);
  const auto* const chosen = static_cast<const int32_t*>(call.outputs[1].data) + layout.experts_of();
  const auto* const d_weights = static_cast<const float*>(call.output_gradients[0].data);
  for_each_block(layout.rows, resources.workers, [&](int64_t begin, int64_t end, int thread) {
    const RowMemory memory(call, thread);
    for (int64_t r = begin; r < end; ++r)
      route_row_backward(routing, logits + r * routing.experts, chosen + r * routing.chosen,
                         d_weights + r * routing.chosen, memory, to, r * routing.experts);
  });
}

// ---- add_noise ----

namespace {

// Calls body(i, normal number) for the elements of the logits.
template <class Body>
void for_each_noise(const OpCall& call, const Resources& resources, const Body& body) {
  const Draws draws = draws_of(static_cast<const int32_t*>(call.inputs[2].data));
  const int64_t experts = call.shapes->inputs[0][1];
  for_each_block(call.shapes->inputs[0][0], resources.workers, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t first = 0; first < experts; first += 4) {
        std::array<double, 4> normal{};
        if (draws.step != 0)
          normal = draw_noise(draws, call.layer, static_cast<uint64_t>(r), static_cast<uint32_t>(first / 4));
        for (int64_t e = first; e < std::min(experts, first + 4); ++e)
          body(r * experts + e, normal[static_cast<size_t>(e - first)]);
      }
  });
}

// log(1 + e^x), without overflow. A comparison with NaN is false, so NaN stays.
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

void put(const TensorView& to, int64_t i, double value) {
  if (to.addend != nullptr) value += static_cast<double>(static_cast<const float*>(to.addend)[i]);
  if (to.data != nullptr) static_cast<float*>(to.data)[i] = static_cast<float>(value);
}

}  // namespace

void add_noise_forward(const OpCall& call, const Resources& resources) {
  const auto* const logits = static_cast<const float*>(call.inputs[0].data);
  const auto* const deviations = static_cast<const float*>(call.inputs[1].data);
  for_each_noise(call, resources, [&](int64_t i, double normal) {
    put(call.outputs[0], i,
        static_cast<double>(logits[i]) + normal * softplus(static_cast<double>(deviations[i])));
  });
}

void add_noise_backward(const OpCall& call, const Resources& resources) {
  const auto* const deviations = static_cast<const float*>(call.inputs[1].data);
  const auto* const dy = static_cast<const float*>(call.output_gradients[0].data);
  for_each_noise(call, resources, [&](int64_t i, double normal) {
    const auto d = static_cast<double>(dy[i]);
    put(call.input_gradients[0], i, d);
    put(call.input_gradients[1], i, d * normal * sigmoid(static_cast<double>(deviations[i])));
  });
}

}  // namespace sluice::cpu
