// The products of a layer's experts, one after the other, against one product of as many rows.
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/graph/routing.h"
#include "engine/run/start/devices.h"
#include "tools/bench/op_timer.h"
#include "tools/benchmarks/gpu/measure.h"

namespace sluice {

using nlohmann::ordered_json;

namespace {

// The sizes of the first products of a layer's experts: the product with gate and up together.
struct ExpertLayer {
  int64_t experts, chosen, width, columns;
};

OpShapes with_outputs(OpShapes s) {
  std::vector<DType> types;
  op_rule(s.kind).infer(s, s.outputs, types);
  return s;
}

// Times the products of all experts. Each expert has a weight and a gradient of its own, so that none stays
// in a cache.
struct Experts {
  Experts(Device& the_device, const ExpertLayer& the_layer, int64_t tokens, DType precision)
      : device(the_device), layer(the_layer), layout{tokens, layer.experts, layer.chosen} {
    const Routing routing{.experts = layer.experts, .chosen = layer.chosen};
    shapes = with_outputs({OpKind::expert_linear,
                           {.weight_out_in = true, .routing = routing},
                           precision,
                           {{layout.size()}, {expert_rows_most(tokens), layer.width}},
                           {},
                           {{layer.columns, layer.width}}});
  }

  double seconds(Pass pass, const Repeats& repeats) const {
    const uint64_t element = dtype_bytes(shapes.precision);
    const auto rows = static_cast<uint64_t>(shapes.inputs[1][0]);
    const auto width = static_cast<uint64_t>(layer.width), columns = static_cast<uint64_t>(layer.columns);
    const auto experts = static_cast<uint64_t>(layer.experts);
    const uint64_t x = rows * width * element, y = rows * columns * element, weight = width * columns;
    const uint64_t routing = static_cast<uint64_t>(layout.size()) * sizeof(int32_t);
    const uint64_t sizes[] = {routing,
                              x,
                              experts * weight * element,
                              y,
                              x,
                              experts * weight * sizeof(float),
                              device.workspace_bytes(shapes, pass)};
    constexpr uint64_t kAlignment = 256;
    uint64_t all = 0;
    for (const uint64_t bytes : sizes) all += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    BenchMemory memory(device, all);
    std::vector<std::byte*> at;
    std::byte* next = memory.span().data();
    for (const uint64_t bytes : sizes) {
      at.push_back(next);
      next += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    memory.fill(memory.span().data(), all, spread_numbers(shapes.precision));
    std::vector<int32_t> choices(static_cast<size_t>(layout.choices()));
    for (size_t i = 0; i < choices.size(); ++i) choices[i] = static_cast<int32_t>(i % experts);
    const std::vector<int32_t> made = make_routing(layout, choices);
    memory.write(at[0], std::as_bytes(std::span(made)));
    device.prepare(shapes, pass);
    const auto run = [&] {
      for (uint64_t e = 0; e < experts; ++e) {
        const std::vector<TensorView> inputs{{at[0]}, {at[1]}}, outputs{{at[3]}};
        const std::vector<TensorView> weights{{at[2] + e * weight * element}}, dx{{}, {at[4]}};
        std::byte* const gradient = at[5] + e * weight * sizeof(float);
        const std::vector<TensorView> d_weights{{gradient, gradient}};
        OpCall call{.shapes = &shapes, .inputs = inputs, .parameters = weights, .workspace = at[6]};
        call.expert = static_cast<int64_t>(e);
        if (pass == Pass::forward) {
          call.outputs = outputs;
          device.forward(call);
        } else {
          call.output_gradients = outputs, call.input_gradients = dx, call.parameter_gradients = d_weights;
          device.backward(call);
        }
      }
    };
    return memory.rounds_of_call(run, repeats).median;
  }

  Device& device;
  ExpertLayer layer;
  RoutingLayout layout;
  OpShapes shapes;
};

}  // namespace

ordered_json measure_experts(DeviceKind kind, bool small) {
  // Mixtral 8x7B and Qwen3 30B A3B: 1024 and 256 rows an expert.
  const std::vector<ExpertLayer> layers =
      small ? std::vector<ExpertLayer>{{4, 2, 64, 128}}
            : std::vector<ExpertLayer>{{8, 2, 4096, 28672}, {128, 8, 2048, 1536}};
  const int64_t tokens = small ? 128 : 4096;
  Options options;
  options.memory.device.kind = kind;
  settle_device(options, false);
  const DType precision = options.numbers.precision;
  const std::unique_ptr<Device> device = make_device(options.memory, threads_of_machine());
  const Repeats repeats{.seconds_at_least = small ? 0 : 0.3, .seconds_at_most = small ? 0 : 1.5};
  ordered_json row{{"state", "measured"},
                   {"precision", dtype_name(precision)},
                   {"tokens", tokens},
                   {"layers", ordered_json::array()}};
  for (const ExpertLayer& layer : layers) {
    const Experts experts(*device, layer, tokens, precision);
    const int64_t rows = experts.layout.choices();
    const OpShapes one = with_outputs({OpKind::linear,
                                       {.weight_out_in = true},
                                       precision,
                                       {{rows, layer.width}},
                                       {},
                                       {{layer.columns, layer.width}}});
    const auto flops = static_cast<double>(2 * rows * layer.width * layer.columns);
    ordered_json values{{"experts", layer.experts},
                        {"chosen", layer.chosen},
                        {"width", layer.width},
                        {"columns", layer.columns}};
    for (const auto& [name, pass] : {std::pair{"forward", Pass::forward}, {"backward", Pass::backward}}) {
      const double times = pass == Pass::forward ? 1 : 2;
      BenchMemory memory(*device, OpTimer::bytes_needed(*device, one));
      const double of_one = OpTimer(*device, memory).seconds(one, pass, repeats);
      values[name] = {{"experts", times * flops / experts.seconds(pass, repeats)},
                      {"one", times * flops / of_one}};
    }
    row["layers"].push_back(values);
  }
  return row;
}

}  // namespace sluice
