// The ops of routers: logits and losses. route.cc chooses.
//
// A row has few logits, one for each expert, so they are processed as scalars, in double. Blocks of rows are
// tasks. Sums over rows are sums of blocks, which are then added in order.
#include "engine/base/simd/convert.h"
#include "gpu/cpu/column_sums.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matmul.h"
#include "gpu/cpu/router_rows.h"
#include "gpu/cpu/rows.h"

namespace sluice::cpu {
namespace {

// The part of x that is widened at a time for the weight's gradient.
constexpr int64_t kPanelRows = 256, kPanelColumns = 256;

const std::byte* element(const void* data, int64_t i, DType type) {
  return static_cast<const std::byte*>(data) + static_cast<uint64_t>(i) * dtype_bytes(type);
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

// ---- router_statistics ----

// The sums of a block of rows: all sums of the op's output but the last.
double* block_sums(const OpCall& call, int64_t block) {
  return reinterpret_cast<double*>(call.workspace) + block * call.shapes->outputs[0][1];
}

// The labels of the rows from `row` on; nullptr: there are no labels, so no row is padding.
const int32_t* labels_from(const OpCall& call, int64_t row) {
  return call.inputs.size() < 3 ? nullptr : static_cast<const int32_t*>(call.inputs[2].data) + row;
}

bool is_padding(const int32_t* labels, int64_t row) {
  return labels != nullptr && labels[row] == kPaddingLabel;
}

void sum_statistics(const Routing& routing, const float* logits, const int32_t* chosen, const int32_t* labels,
                    int64_t rows, double* sums) {
  const int64_t experts = routing.experts;
  std::fill_n(sums, 2 * experts + 1, 0.0);
  for (int64_t r = 0; r < rows; ++r, logits += experts, chosen += routing.chosen) {
    if (is_padding(labels, r)) continue;
    const LogSum sum = log_sum_of(logits, experts);
    for (int64_t e = 0; e < experts; ++e) sums[e] += sum.probability(static_cast<double>(logits[e]));
    sums[experts] += sum.value() * sum.value();
    for (int64_t j = 0; j < routing.counted_choices(); ++j) ++sums[experts + 1 + chosen[j]];
  }
}

// With g the gradient of the softmax's sums: d logit(e) = p(e) (g(e) - sum of g p + 2 lse dz).
void statistics_row_backward(int64_t experts, const float* logits, const float* d_sums, bool counts,
                             const TensorView& to, int64_t first) {
  const LogSum sum = log_sum_of(logits, experts);
  const auto probability = [&](int64_t e) { return sum.probability(static_cast<double>(logits[e])); };
  double product = 0;
  for (int64_t e = 0; e < experts; ++e) product += static_cast<double>(d_sums[e]) * probability(e);
  const double of_all = 2 * sum.value() * static_cast<double>(d_sums[experts]) - product;
  const auto* const addend = static_cast<const float*>(to.addend);
  for (int64_t e = 0; e < experts; ++e) {
    const double d = counts ? probability(e) * (static_cast<double>(d_sums[e]) + of_all) : 0;
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
    const auto valid = static_cast<double>(count - std::count_if(labels, labels + count, is_ignored));
    const int64_t counted = count - std::count(labels, labels + count, kPaddingLabel);
    const auto rows = static_cast<double>(std::max<int64_t>(counted, 1) * routing.layers);
    balance_factor = valid * routing.balance_loss * static_cast<double>(routing.experts) / rows / rows;
    z_factor = valid * routing.z_loss / rows;
  }
  double choices(int64_t e) const { return static_cast<double>(statistics[routing.experts + 1 + e]); }
  double loss() const {
    double sum = 0;
    for (int64_t e = 0; e < routing.experts; ++e) sum += choices(e) * static_cast<double>(statistics[e]);
    return balance_factor * sum + z_factor * static_cast<double>(statistics[routing.experts]);
  }
  void add_to(const TensorView& view) const {
    auto* const losses = static_cast<double*>(view.data);
    const double mine = loss();
    losses[0] += mine;
    losses[2] += mine;
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

uint64_t router_statistics_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources&) {
  if (pass == Pass::backward) return 0;
  return aligned_bytes(divide_up(shapes.inputs[0][0], kRowBlock) * shapes.outputs[0][1], sizeof(double));
}

void router_statistics_forward(const OpCall& call, const Resources& resources) {
  const Routing& routing = call.shapes->attributes.routing;
  const RoutingLayout layout = layout_of(call);
  const auto* const logits = static_cast<const float*>(call.inputs[0].data);
  const auto* const routed = static_cast<const int32_t*>(call.inputs[1].data);
  const int32_t* const chosen = routed + layout.experts_of();
  for_each_block(layout.rows, resources.workers, [&](int64_t begin, int64_t end, int) {
    sum_statistics(routing, logits + begin * routing.experts, chosen + begin * routing.chosen,
                   labels_from(call, begin), end - begin, block_sums(call, begin / kRowBlock));
  });
  auto* const statistics = static_cast<float*>(call.outputs[0].data);
  const int64_t of_rows = 2 * routing.experts + 1;
  statistics[of_rows] += static_cast<float>(routed[routing.experts]);
  for (int64_t i = 0; i < of_rows; ++i) {
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
  const int32_t* const labels = labels_from(call, 0);
  for_each_block(call.shapes->inputs[0][0], resources.workers, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      statistics_row_backward(experts, logits + r * experts, d_sums, !is_padding(labels, r), to, r * experts);
  });
}

void router_loss_forward(const OpCall& call, const Resources&) { RouterLoss(call).add_to(call.outputs[0]); }

void router_loss_backward(const OpCall& call, const Resources&) {
  const RouterLoss l(call);
  if (const TensorView loss = view_of(call.outputs, 0); loss.data != nullptr) l.add_to(loss);
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
  put(2 * experts + 1, 0);
}

}  // namespace sluice::cpu
