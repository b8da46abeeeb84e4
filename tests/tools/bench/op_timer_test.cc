// What OpTimer gives a device to work on.
#include "tools/bench/op_timer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/graph/routing.h"

namespace sluice {
namespace {

// The reference device, which also looks at the integers among the inputs and at the wanted gradients.
class Looking final : public Device {
 public:
  void forward(const OpCall& call) override { look(call), device_->forward(call); }
  void backward(const OpCall& call) override {
    look(call), device_->backward(call);
    for (size_t i = 0; i < call.input_gradients.size(); ++i)
      EXPECT_EQ(call.input_gradients[i].data != nullptr, has_gradient(*call.shapes, i)) << "input " << i;
  }
  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    return device_->workspace_bytes(shapes, pass);
  }
  void round(const Accumulators&, void*, DType, uint64_t, double*) override {}
  void sum(DType, const void*, uint32_t, uint64_t, DType, void*, double*) override {}
  void update(OptimizerKind, UpdateForm, const UpdateRange&, const UpdateScalars&) override {}
  void zero(void*, uint64_t) override {}

  int32_t largest = -1;  // of the integers

 private:
  void look(const OpCall& call) {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (input_type(*call.shapes, i) != DType::i32) continue;
      const auto* const integers = static_cast<const int32_t*>(call.inputs[i].data);
      const auto count = static_cast<size_t>(element_count(call.shapes->inputs[i]));
      for (const int32_t value : std::span(integers, count)) {
        EXPECT_GE(value, 0);
        largest = std::max(largest, value);
      }
    }
  }
  std::unique_ptr<Device> device_ = make_reference_device();
};

// The largest integer among the inputs with which the op was timed; -1 if it has no integers.
int32_t largest_of(OpKind kind, const OpAttributes& attributes, std::vector<Shape> inputs,
                   std::vector<Shape> parameters) {
  OpShapes shapes{kind, attributes, DType::f32, std::move(inputs), {}, std::move(parameters)};
  std::vector<DType> types;
  op_rule(kind).infer(shapes, shapes.outputs, types);
  Looking device;
  BenchMemory memory(device, OpTimer::bytes_needed(device, shapes));
  OpTimer timer(device, memory);
  for (const Pass pass : {Pass::forward, Pass::backward}) EXPECT_GT(timer.seconds(shapes, pass, {}), 0);
  return device.largest;
}

TEST(OpTimer, IntegersAreValid) {
  const OpAttributes heads{.sequence = 8, .heads = 2, .kv_heads = 2, .head_size = 4};
  const int32_t of_tokens = largest_of(OpKind::embedding, {}, {{64}}, {{5, 4}});
  EXPECT_TRUE(of_tokens > 0 && of_tokens < 5) << of_tokens;
  const int32_t of_labels = largest_of(OpKind::linear_cross_entropy, {}, {{64, 4}, {64}}, {{5, 4}});
  EXPECT_TRUE(of_labels > 0 && of_labels < 5) << of_labels;
  EXPECT_EQ(largest_of(OpKind::attention, heads, {{16, 24}}, {}), -1);
  EXPECT_EQ(largest_of(OpKind::attention, heads, {{16, 24}, {16}}, {}), 0);  // all documents begin at 0
  EXPECT_EQ(largest_of(OpKind::attention, heads, {{16, 24}, {16}}, {{2}}), 0);
}

TEST(OpTimer, RoutingGivesAllExpertsEquallyManyRows) {
  const Routing r{.experts = 4, .chosen = 2, .layers = 1, .weighted = true};
  const int64_t rows = 64, routing = RoutingLayout{rows, r.experts, r.chosen}.size();
  const OpAttributes routed{.routing = r};
  EXPECT_EQ(largest_of(OpKind::route, routed, {{rows, 4}}, {}), -1);  // route writes the routing it reads
  EXPECT_EQ(largest_of(OpKind::router_statistics, routed, {{rows, 4}, {routing}}, {}), 128);
  EXPECT_EQ(largest_of(OpKind::router_loss, routed, {{1, router_statistics_count(4)}, {rows}}, {}), 0);
  EXPECT_EQ(largest_of(OpKind::expert_linear, routed, {{routing}, {rows, 8}, {rows, 2}}, {{8, 6}, {6}}), 128);
}

}  // namespace
}  // namespace sluice
