#include "tests/emulation/op_traffic.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "engine/base/error.h"
#include "engine/base/pack.h"
#include "engine/graph/attention_operands.h"
#include "engine/graph/segment.h"
#include "gpu/cuda/device.h"
#include "gpu/cuda/error.h"
#include "gpu/cuda/matmul.h"
#include "gpu/cuda/ops.h"

namespace sluice::emulation {
namespace {

uint64_t bytes_of(const Shape& shape, DType type) {
  return static_cast<uint64_t>(element_count(shape)) * dtype_bytes(type);
}

// The device, and one piece of its memory from which operands are taken. All bytes are zero.
class CountingDevice {
 public:
  CountingDevice(EmulatedGpu gpu, uint64_t bytes) : bytes_(bytes) {
    gpu.memory_bytes = bytes + (uint64_t{1} << 30);
    set_up(gpu);
    cuda::check_setup(cudaMalloc(&memory_, bytes), "Allocating");
    cuda::check_setup(cudaMemsetAsync(memory_, 0, bytes, nullptr), "Zeroing");
    traffic_ = std::make_unique<Traffic>(memory_, bytes);
    cuda::check_setup(cudaDeviceSynchronize(), "Waiting");
    gpu.traffic = traffic_.get();
    set_up(gpu);
    multiplier_ = cuda::make_multiplier({nullptr, gpu.multiprocessors});
    device_ = cuda::make_ops_device({nullptr, gpu.multiprocessors}, *multiplier_);
  }
  ~CountingDevice() {
    device_.reset();
    multiplier_.reset();
    (void)cudaFree(memory_);
    set_up({});
  }
  CountingDevice(const CountingDevice&) = delete;

  Device& device() { return *device_; }
  void* take(uint64_t bytes) {
    std::byte* const at = static_cast<std::byte*>(memory_) + taken_;
    taken_ = round_up(taken_ + bytes, kTensorAlignment);
    CHECK(taken_ <= bytes_, "operands need more memory than was allocated");
    return at;
  }
  // Takes memory for `count` integers and fills it with 0 to limit - 1, again and again.
  void* take_integers(int64_t count, int64_t limit) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = static_cast<int32_t>(i % limit);
    void* const at = take(values.size() * sizeof(int32_t));
    cuda::check_setup(cudaMemcpy(at, values.data(), values.size() * sizeof(int32_t), cudaMemcpyHostToDevice),
                      "Copying");
    return at;
  }
  void give_back() { taken_ = 0; }
  std::vector<LaunchTraffic> launches() {
    cuda::check_setup(cudaDeviceSynchronize(), "Waiting");
    return traffic_->take();
  }

 private:
  std::unique_ptr<Traffic> traffic_;
  std::unique_ptr<cuda::Multiplier> multiplier_;
  std::unique_ptr<Device> device_;
  void* memory_ = nullptr;
  uint64_t bytes_, taken_ = 0;
};

// ---- Ops.

// A pass of an op, as a segment's plan has it.
struct Work {
  OpShapes shapes;
  Pass pass;
  std::vector<bool> adds, wants_gradient;  // backward, by input

  std::string name() const {
    std::string name = op_text(shapes, pass);
    for (size_t i = 0; i < adds.size(); ++i)
      if (wants_gradient[i] && adds[i]) name += fmt::format(", adds to gradient {}", i);
    return name;
  }
};

// One head is enough: heads are alike and independent, and tensor cores are slow to emulate.
OpShapes with_one_head(OpShapes s) {
  if (s.kind != OpKind::attention) return s;
  for (Shape& input : s.inputs)
    if (input.size() == 2) input[1] = (attention_is_packed(s) ? 3 : 1) * s.attributes.head_size;
  s.attributes.heads = s.attributes.kv_heads = 1;
  s.outputs.clear();
  std::vector<DType> types;
  op_rule(s.kind).infer(s, s.outputs, types);
  return s;
}

std::vector<Work> works_of(const Model& model) {
  std::vector<Work> works;
  std::set<std::string> names;
  const auto add = [&](const SegmentPlan& plan, const OpStep& step) {
    Work work{with_one_head(plan.shapes[step.op]), step.pass, {}, step.wants_gradient};
    for (const uint32_t addend : step.addends) work.adds.push_back(addend != kNone);
    if (names.insert(work.name()).second) works.push_back(std::move(work));
  };
  for (uint32_t i = 0; i < model.segments.size(); ++i) {
    const Segment& segment = model.segments[i];
    WantedGradients wanted;
    wanted.added.resize(segment.inputs.size());
    for (const uint32_t input : segment.inputs)
      wanted.inputs.push_back(segment.tensors[input].dtype != DType::i32);
    for (const SegmentParameter& parameter : segment.parameters)
      wanted.trainable.resize(std::max<size_t>(wanted.trainable.size(), parameter.slot + 1), true);
    const SegmentPlan plan = plan_segment(model, i, wanted, cuda_workspace_bytes);
    for (const OpStep& step : plan.at(Recompute::none).forward.steps) add(plan, step);
    for (const OpStep& step : plan.at(Recompute::none).backward.steps) add(plan, step);
  }
  return works;
}

// Bytes of all that a call may have, each operand with its gradient.
uint64_t memory_of(const Work& work) {
  const OpShapes& s = work.shapes;
  uint64_t bytes = cuda_workspace_bytes(s, work.pass) + 4096;
  for (const std::vector<Shape>* shapes : {&s.inputs, &s.outputs, &s.parameters})
    for (const Shape& shape : *shapes) bytes += 2 * round_up(bytes_of(shape, DType::f32), kTensorAlignment);
  return bytes;
}

std::vector<LaunchTraffic> run(CountingDevice& counting, const Work& work) {
  const OpShapes& s = work.shapes;
  const OpRule& rule = op_rule(s.kind);
  const int64_t integers = s.parameters.empty() ? 1 : s.parameters[0][0];  // tokens and labels
  std::vector<Shape> shapes;
  std::vector<DType> types;
  rule.infer(s, shapes, types);
  std::vector<TensorView> inputs, outputs, parameters, output_gradients, input_gradients, parameter_gradients;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    const DType type = input_type(s, i);
    inputs.push_back({type == DType::i32 ? counting.take_integers(element_count(s.inputs[i]), integers)
                                         : counting.take(bytes_of(s.inputs[i], type))});
  }
  for (size_t i = 0; i < shapes.size(); ++i)
    outputs.push_back({counting.take(bytes_of(shapes[i], types[i]))});
  for (const Shape& shape : s.parameters) parameters.push_back({counting.take(bytes_of(shape, s.precision))});
  double* const scalars = static_cast<double*>(counting.take(2 * sizeof(double)));
  if (work.pass == Pass::backward) {
    for (size_t i = 0; i < shapes.size(); ++i)
      output_gradients.push_back({(rule.gradient_outputs >> i & 1) != 0
                                      ? counting.take(bytes_of(shapes[i], s.precision))
                                      : nullptr});
    for (size_t i = 0; i < s.inputs.size(); ++i) {
      const uint64_t bytes = bytes_of(s.inputs[i], s.precision);
      void* const gradient = work.wants_gradient[i] ? counting.take(bytes) : nullptr;
      input_gradients.push_back({gradient, gradient && work.adds[i] ? counting.take(bytes) : nullptr});
    }
    for (const Shape& shape : s.parameters)
      parameter_gradients.push_back({counting.take(bytes_of(shape, DType::f32))});
  }
  OpCall call{&s, inputs, outputs, parameters, output_gradients, input_gradients, parameter_gradients};
  call.loss_scale = scalars;
  call.valid_tokens = scalars + 1;
  Device& device = counting.device();
  call.workspace = static_cast<std::byte*>(counting.take(cuda_workspace_bytes(s, work.pass)));
  device.prepare(s, work.pass);
  if (work.pass == Pass::forward)
    device.forward(call);
  else
    device.backward(call);
  std::vector<LaunchTraffic> launches = counting.launches();
  counting.give_back();
  return launches;
}

// op_bytes counts every operand once. Gradients of inputs that are added to are read too, and those that
// nobody wants are not written. Gradients of parameters stay as they are: the first micro-batch of a step has
// nothing to add to. The loss's logits, in fp32, are written once and read once.
uint64_t least_bytes(const Work& work) {
  const OpShapes& s = work.shapes;
  uint64_t bytes = op_bytes(s, work.pass);
  for (size_t i = 0; i < work.adds.size(); ++i) {
    const uint64_t gradient = has_gradient(s, i) ? bytes_of(s.inputs[i], s.precision) : 0;
    if (!work.wants_gradient[i]) bytes -= gradient;
    if (work.wants_gradient[i] && work.adds[i]) bytes += gradient;
  }
  if (s.kind == OpKind::linear_cross_entropy)
    bytes += 2 * bytes_of({s.inputs[0][0], s.parameters[0][0]}, DType::f32);
  return bytes;
}

// The least bytes of what an op with products does beside its products. The gradient of a bias is a sum over
// the rows of dy. The loss reads logits, and in backward writes their gradients.
uint64_t least_bytes_beside_products(const Work& work) {
  const OpShapes& s = work.shapes;
  const bool forward = work.pass == Pass::forward;
  const uint64_t dy = bytes_of(s.outputs[0], s.precision);
  const uint64_t db = s.parameters.size() < 2 ? 0 : bytes_of(s.parameters[1], DType::f32);
  switch (s.kind) {
    case OpKind::linear:
      return forward || db == 0 ? 0 : dy + db;
    case OpKind::linear_cross_entropy: {
      const Shape logits = {s.inputs[0][0], s.parameters[0][0]};
      return bytes_of(logits, DType::f32) + bytes_of(s.inputs[1], DType::i32) + sizeof(double) +
             (forward ? 0 : bytes_of(logits, s.precision));
    }
    default:
      return least_bytes(work);
  }
}

void add(Moved& sum, const LaunchTraffic& launch) {
  sum.read += launch.read.distinct * kSectorBytes;
  sum.written += launch.written.distinct * kSectorBytes;
  sum.visited += launch.visited_bytes();
}

CountedOp counted(std::string name, double flops, uint64_t least, uint64_t least_of_kernels,
                  std::vector<LaunchTraffic> launches) {
  CountedOp op{std::move(name), flops, {least}, {least_of_kernels}, std::move(launches)};
  for (const LaunchTraffic& launch : op.launches) {
    add(op.all, launch);
    if (!launch.product) add(op.kernels, launch);
  }
  return op;
}

std::vector<CountedOp> count(const std::vector<Work>& works, const EmulatedGpu& gpu) {
  uint64_t bytes = 0;
  for (const Work& work : works) bytes = std::max(bytes, memory_of(work));
  CountingDevice counting(gpu, bytes);
  std::vector<CountedOp> out;
  for (const Work& work : works)
    out.push_back(counted(work.name(), op_rule(work.shapes.kind).flops(work.shapes, work.pass),
                          least_bytes(work), least_bytes_beside_products(work), run(counting, work)));
  return out;
}

}  // namespace

EmulatedGpu h100() {
  return {.multiprocessors = 132, .shared_bytes_max = 227 << 10, .shared_bytes_together = 228 << 10};
}

EmulatedGpu rtx_4090() {
  return {.multiprocessors = 128, .shared_bytes_max = 99 << 10, .shared_bytes_together = 100 << 10};
}

std::vector<CountedOp> count_ops(const Model& model) { return count(works_of(model), h100()); }

std::vector<CountedOp> count_loss(int64_t rows, int64_t columns, int64_t vocabulary, const EmulatedGpu& gpu) {
  OpShapes s{OpKind::linear_cross_entropy, {}, DType::bf16, {{rows, columns}, {rows}}, {}, {}};
  s.parameters = {{vocabulary, columns}};
  std::vector<DType> types;
  op_rule(s.kind).infer(s, s.outputs, types);
  return count({{s, Pass::forward, {}, {}}, {s, Pass::backward, {false, false}, {true, false}}}, gpu);
}

std::vector<CountedOp> count_updates(uint64_t elements) {
  constexpr uint32_t kRanks = 4;
  constexpr uint64_t kShort = sizeof(uint16_t), kFloat = sizeof(float);
  const uint64_t norm_sums = (elements + kNormBlock - 1) / kNormBlock * sizeof(double);
  const auto count = static_cast<double>(elements);
  constexpr uint64_t kBytes = 3 * kFloat + (2 + kRanks) * kShort, kMore = 1 << 20;
  CountingDevice counting(h100(), elements * kBytes + kMore);
  auto* const floats = static_cast<float*>(counting.take(elements * kFloat));
  float* const moments[] = {static_cast<float*>(counting.take(elements * kFloat)),
                            static_cast<float*>(counting.take(elements * kFloat))};
  void* const gradient = counting.take(elements * kShort);
  void* const weights = counting.take(elements * kShort);
  void* const parts = counting.take(elements * kRanks * kShort);
  auto* const sums = static_cast<double*>(counting.take(norm_sums));
  const auto* const update = static_cast<StepScalars::Update*>(counting.take(sizeof(StepScalars::Update)));
  Device& device = counting.device();
  std::vector<CountedOp> out;
  // `bytes` are read or written of each element. Flops are as in op_table.cc.
  const auto add = [&](const std::string& name, double flops, uint64_t bytes, uint64_t more) {
    out.push_back(counted(fmt::format("{} of bf16 [{}]", name, elements), flops * count,
                          bytes * elements + more, bytes * elements + more, counting.launches()));
  };
  device.round(floats, gradient, DType::bf16, elements, sums);
  add("round", 2, kFloat + kShort, norm_sums);
  device.sum(DType::bf16, parts, kRanks, elements, DType::bf16, gradient, sums);
  add(fmt::format("sum over {} ranks", kRanks), kRanks - 1 + 2, (kRanks + 1) * kShort, norm_sums);
  device.update(OptimizerKind::adamw, UpdateForm::optimize,
                {floats, {moments[0], moments[1]}, gradient, weights, DType::bf16, elements, true}, {update});
  add("adamw", 14, 6 * kFloat + 2 * kShort, sizeof(UpdateConstants));
  return out;
}

}  // namespace sluice::emulation
