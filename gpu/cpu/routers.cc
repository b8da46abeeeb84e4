// The ops of routers: logits, the choice of experts, and their losses.
//
// An expert has few numbers in a row, so what is done with logits is scalar and in double. Blocks of rows are
// tasks. Sums over rows are sums of blocks, which are then added in order.
#include <algorithm>
#include <cmath>

#include "engine/base/simd/convert.h"
#include "engine/graph/routing.h"
#include "gpu/cpu/column_sums.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matmul.h"
#include "gpu/cpu/rows.h"

namespace sluice::cpu {
namespace {

using Scores = Routing::Scores;

constexpr int64_t kRowBlock = 64;
// Of x, widened for the weight's gradient.
constexpr int64_t kPanelRows = 256, kPanelColumns = 256;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Of so many elements, a multiple of 64.
uint64_t aligned_bytes(int64_t elements, uint64_t size) {
  return (static_cast<uint64_t>(elements) * size + 63) / 64 * 64;
}

const std::byte* element(const void* data, int64_t i, DType type) {
  return static_cast<const std::byte*>(data) + static_cast<uint64_t>(i) * dtype_bytes(type);
}

// Calls body(begin, end, thread) for blocks of rows.
template <class Body>
void for_each_block(int64_t rows, Workers& workers, const Body& body) {
  workers.parallel_for(divide_up(rows, kRowBlock), [&](int64_t block, int thread) {
    body(block * kRowBlock, std::min(rows, (block + 1) * kRowBlock), thread);
  });
}

// ---- router ----

Product router_product(const OpShapes& s) {
  const int64_t rows = s.inputs[0][0], columns = s.inputs[0][1], experts = s.parameters[0][0];
  return {rows,    experts, columns,     false,      true,  columns,
          columns, experts, s.precision, DType::f32, false, s.parameters.size() == 2};
}

// The workspace of backward: the weight in fp32, then, for each thread, a panel of x or of x's gradient.
struct RouterMemory {
  explicit RouterMemory(const OpShapes& s)
      : weight_bytes(aligned_bytes(element_count(s.parameters[0]), sizeof(float))),
        thread_bytes(std::max(aligned_bytes(kPanelRows * kPanelColumns, sizeof(float)),
                              aligned_bytes(kRowBlock * s.inputs[0][1], sizeof(float)))) {}
  uint64_t bytes(int threads) const { return weight_bytes + thread_bytes * static_cast<uint64_t>(threads); }
  float* weight(const OpCall& call) const { return reinterpret_cast<float*>(call.workspace); }
  float* panel(const OpCall& call, int thread) const {
    return reinterpret_cast<float*>(call.workspace + weight_bytes +
                                    thread_bytes * static_cast<uint64_t>(thread));
  }

  uint64_t weight_bytes, thread_bytes;
};

void router_input_gradient(const OpCall& call, const TensorView& dx, const Resources& resources) {
  const OpShapes& s = *call.shapes;
  const int64_t columns = s.inputs[0][1], experts = s.parameters[0][0];
  const RouterMemory memory(s);
  float* const weight = memory.weight(call);
  resources.workers.parallel_for(experts, [&](int64_t e, int) {
    widen(s.precision, element(call.parameters[0].data, e * columns, s.precision), weight + e * columns,
          static_cast<uint64_t>(columns));
  });
  const auto* const dy = static_cast<const float*>(call.output_gradients[0].data);
  for_each_block(s.inputs[0][0], resources.workers, [&](int64_t begin, int64_t end, int thread) {
    float* const sums = memory.panel(call, thread);
    resources.multiplier.multiply(
        {end - begin, columns, experts, false, false, experts, columns, columns, false}, 1,
        dy + begin * experts, weight, sums);
    for (int64_t r = begin; r < end; ++r) {
      const auto offset = static_cast<uint64_t>(r * columns) * dtype_bytes(s.precision);
      const auto* const addend = static_cast<const std::byte*>(dx.addend);
      finish_row(s.precision, sums + (r - begin) * columns, nullptr,
                 addend == nullptr ? nullptr : addend + offset, static_cast<std::byte*>(dx.data) + offset,
                 columns);
    }
  });
}

void router_weight_gradient(const OpCall& call, float* dw, const Resources& resources) {
  const OpShapes& s = *call.shapes;
  const int64_t rows = s.inputs[0][0], columns = s.inputs[0][1], experts = s.parameters[0][0];
  const RouterMemory memory(s);
  const auto* const dy = static_cast<const float*>(call.output_gradients[0].data);
  resources.workers.parallel_for(divide_up(columns, kPanelColumns), [&](int64_t index, int thread) {
    const int64_t column = index * kPanelColumns, n = std::min(kPanelColumns, columns - column);
    float* const panel = memory.panel(call, thread);
    for (int64_t begin = 0; begin < rows; begin += kPanelRows) {
      const int64_t count = std::min(kPanelRows, rows - begin);
      for (int64_t r = 0; r < count; ++r)
        widen(s.precision, element(call.inputs[0].data, (begin + r) * columns + column, s.precision),
              panel + r * n, static_cast<uint64_t>(n));
      resources.multiplier.multiply({experts, n, count, true, false, experts, n, columns, true}, 1,
                                    dy + begin * experts, panel, dw + column);
    }
  });
}

// ---- route ----

// NaN is the largest, so that it shows.
bool is_better(double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct LogSum {
  double maximum, sum;  // of e^(logit - maximum)
  double value() const { return maximum + std::log(sum); }
  double probability(double logit) const { return std::exp(logit - maximum) / sum; }
};

template <class Logit>
LogSum log_sum(int64_t count, const Logit& logit) {
  LogSum l{logit(0), 0};
  for (int64_t i = 1; i < count; ++i)
    if (is_better(logit(i), l.maximum)) l.maximum = logit(i);
  for (int64_t i = 0; i < count; ++i) l.sum += std::exp(logit(i) - l.maximum);
  return l;
}
LogSum log_sum_of(const float* logits, int64_t count) {
  return log_sum(count, [&](int64_t e) { return static_cast<double>(logits[e]); });
}

// The indices of the largest keys that were offered, in descending order of these. Of equal keys, that which
// was offered first comes first.
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

// correction: by expert, added to the scores for the choice; nullptr: there is none.
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

// Writes what the weights of the chosen experts are before they are normalized and scaled; returns by what
// they are divided.
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
  double mean = 0;  // of gradients, by weight
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

// Entries by expert, from the experts by choice. Serial: it is done in a fraction of a millisecond.
void sort_choices(const RoutingLayout& layout, int32_t* routing) {
  int32_t* const entries = routing + layout.entries();
  const int32_t* const experts = routing + layout.experts_of();
  std::fill_n(routing, layout.experts + 1, 0);
  for (int64_t choice = 0; choice < layout.choices(); ++choice) ++routing[experts[choice] + 1];
  for (int64_t e = 0; e < layout.experts; ++e) routing[e + 1] += routing[e];
  // begins[e] runs through the expert's entries, and ends as what begins[e + 1] was.
  for (int64_t choice = 0; choice < layout.choices(); ++choice)
    entries[routing[experts[choice]]++] = static_cast<int32_t>(choice);
  for (int64_t e = layout.experts; e > 0; --e) routing[e] = routing[e - 1];
  routing[0] = 0;
}

RoutingLayout layout_of(const OpCall& call) {
  const Routing& r = call.shapes->attributes.routing;
  return {call.shapes->inputs[0][0], r.experts, r.chosen};
}

// ---- router_statistics ----

// The sums of a block of rows: as the op's output has them.
double* block_sums(const OpCall& call, int64_t block) {
  return reinterpret_cast<double*>(call.workspace) + block * call.shapes->outputs[0][1];
}

void sum_statistics(const Routing& routing, const float* logits, const int32_t* chosen, int64_t rows,
                    double* sums) {
  const int64_t experts = routing.experts;
  std::fill_n(sums, 2 * experts + 1, 0.0);
  for (int64_t r = 0; r < rows; ++r, logits += experts, chosen += routing.chosen) {
    const LogSum sum = log_sum_of(logits, experts);
    for (int64_t e = 0; e < experts; ++e) sums[e] += sum.probability(static_cast<double>(logits[e]));
    sums[experts] += sum.value() * sum.value();
    for (int64_t j = 0; j < routing.chosen; ++j) ++sums[experts + 1 + chosen[j]];
  }
}

// With g the gradient of the softmax's sums: d logit(e) = p(e) (g(e) - sum of g p + 2 lse dz).
void statistics_row_backward(int64_t experts, const float* logits, const float* d_sums, const TensorView& to,
                             int64_t first) {
  const LogSum sum = log_sum_of(logits, experts);
  const auto probability = [&](int64_t e) { return sum.probability(static_cast<double>(logits[e])); };
  double product = 0;
  for (int64_t e = 0; e < experts; ++e) product += static_cast<double>(d_sums[e]) * probability(e);
  const double of_all = 2 * sum.value() * static_cast<double>(d_sums[experts]) - product;
  const auto* const addend = static_cast<const float*>(to.addend);
  for (int64_t e = 0; e < experts; ++e) {
    const double d = probability(e) * (static_cast<double>(d_sums[e]) + of_all);
    static_cast<float*>(to.data)[first + e] =
        static_cast<float>((addend == nullptr ? 0 : static_cast<double>(addend[first + e])) + d);
  }
}

// ---- router_loss ----

struct RouterLoss {
  explicit RouterLoss(const OpCall& call)
      : routing(call.shapes->attributes.routing), statistics(static_cast<const float*>(call.inputs[0].data)) {
    const auto* const labels = static_cast<const int32_t*>(call.inputs[1].data);
    const int64_t count = call.shapes->inputs[1][0];
    const auto valid = static_cast<double>(count - std::count(labels, labels + count, kIgnoreLabel));
    const auto rows = static_cast<double>(count * routing.layers);
    balance_factor = valid * routing.balance_loss * static_cast<double>(routing.experts) / rows / rows;
    z_factor = valid * routing.z_loss / rows;
  }
  double choices(int64_t e) const { return static_cast<double>(statistics[routing.experts + 1 + e]); }
  double loss() const {
    double sum = 0;
    for (int64_t e = 0; e < routing.experts; ++e) sum += choices(e) * static_cast<double>(statistics[e]);
    return balance_factor * sum + z_factor * static_cast<double>(statistics[routing.experts]);
  }

  const Routing& routing;
  const float* statistics;
  double balance_factor, z_factor;
};

}  // namespace

uint64_t router_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources) {
  if (pass == Pass::backward) return RouterMemory(shapes).bytes(resources.workers.threads());
  const Product product = router_product(shapes);
  return resources.multiplier.prepare({&product, 1});
}

void router_forward(const OpCall& call, const Resources& resources) {
  resources.multiplier.run({.product = router_product(*call.shapes),
                            .a = call.inputs[0].data,
                            .b = call.parameters[0].data,
                            .c = call.outputs[0].data,
                            .bias = view_of(call.parameters, 1).data},
                           call.workspace, resources.workers);
}

void router_backward(const OpCall& call, const Resources& resources) {
  const OpShapes& s = *call.shapes;
  if (const TensorView dx = view_of(call.input_gradients, 0); dx.data != nullptr)
    router_input_gradient(call, dx, resources);
  if (void* dw = view_of(call.parameter_gradients, 0).data)
    router_weight_gradient(call, static_cast<float*>(dw), resources);
  if (void* db = view_of(call.parameter_gradients, 1).data)
    add_column_sums(
        DType::f32, call.output_gradients[0].data, s.inputs[0][0], s.parameters[0][0],
        static_cast<float*>(db), [](int64_t) { return 1.0f; }, resources.workers);
}

uint64_t route_workspace_bytes(const OpShapes& shapes, Pass, const Resources& resources) {
  const Routing& r = shapes.attributes.routing;
  return RowMemory::bytes(r) * static_cast<uint64_t>(resources.workers.threads()) +
         aligned_bytes(r.experts, sizeof(float));
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
  sort_choices(layout, out);
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

uint64_t router_statistics_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources&) {
  if (pass == Pass::backward) return 0;
  return aligned_bytes(divide_up(shapes.inputs[0][0], kRowBlock) * shapes.outputs[0][1], sizeof(double));
}

void router_statistics_forward(const OpCall& call, const Resources& resources) {
  const Routing& routing = call.shapes->attributes.routing;
  const RoutingLayout layout = layout_of(call);
  const auto* const logits = static_cast<const float*>(call.inputs[0].data);
  const auto* const chosen = static_cast<const int32_t*>(call.inputs[1].data) + layout.experts_of();
  for_each_block(layout.rows, resources.workers, [&](int64_t begin, int64_t end, int) {
    sum_statistics(routing, logits + begin * routing.experts, chosen + begin * routing.chosen, end - begin,
                   block_sums(call, begin / kRowBlock));
  });
  auto* const statistics = static_cast<float*>(call.outputs[0].data);
  for (int64_t i = 0; i < call.shapes->outputs[0][1]; ++i) {
    double sum = static_cast<double>(statistics[i]);
    for (int64_t block = 0; block < divide_up(layout.rows, kRowBlock); ++block)
      sum += block_sums(call, block)[i];
    statistics[i] = static_cast<float>(sum);
  }
}

void router_statistics_backward(const OpCall& call, const Resources& resources) {
  const TensorView to = view_of(call.input_gradients, 0);
  if (to.data == nullptr) return;
  const int64_t experts = call.shapes->attributes.routing.experts;
  const auto* const logits = static_cast<const float*>(call.inputs[0].data);
  const auto* const d_sums = static_cast<const float*>(call.output_gradients[0].data);
  for_each_block(call.shapes->inputs[0][0], resources.workers, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      statistics_row_backward(experts, logits + r * experts, d_sums, to, r * experts);
  });
}

void router_loss_forward(const OpCall& call, const Resources&) {
  *static_cast<double*>(call.outputs[0].data) += RouterLoss(call).loss();
}

void router_loss_backward(const OpCall& call, const Resources&) {
  const RouterLoss l(call);
  if (auto* const loss = static_cast<double*>(view_of(call.outputs, 0).data)) *loss += l.loss();
  const TensorView to = view_of(call.input_gradients, 0);
  if (to.data == nullptr) return;
  const auto seed = static_cast<double>(static_cast<float>(*call.loss_scale / *call.valid_tokens));
  const int64_t experts = l.routing.experts;
  const auto put = [&](int64_t i, double value) {
    if (to.addend != nullptr) value += static_cast<double>(static_cast<const float*>(to.addend)[i]);
    static_cast<float*>(to.data)[i] = static_cast<float>(value);
  };
  for (int64_t e = 0; e < experts; ++e) {
    put(e, seed * l.balance_factor * l.choices(e));
    put(experts + 1 + e, 0);
  }
  put(experts, seed * l.z_factor);
}

}  // namespace sluice::cpu
