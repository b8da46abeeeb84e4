// The cuda device's kernels and its calls of cuBLASLt on the emulated GPU against the reference device: in
// order and with threads and blocks shuffled.
#include "tests/support/op_conformance.h"

#include "gpu/cuda/matmul.h"
#include "gpu/cuda/ops.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/support/cuda_host_operands.h"

namespace sluice {
namespace {

// `threads` decides the number of multiprocessors, the order of threads and blocks, and how much shared
// memory a block may have. So the suite's check that `threads` changes no bits covers all of these.
class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(int threads, bool bias_epilogue = true)
      : gpu_(gpu_of(threads, bias_epilogue)),
        multiplier_(cuda::make_multiplier({nullptr, threads})),
        device_(cuda::make_ops_device({nullptr, threads}, *multiplier_)) {}
  void forward(const OpCall& call) override { ordered().forward(call); }
  void backward(const OpCall& call) override { ordered().backward(call); }
  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    return device_.workspace_bytes(shapes, pass);
  }
  void prepare(const OpShapes& shapes, Pass pass) override { device_.prepare(shapes, pass); }
  void warm_up(std::span<std::byte> arena) override { ordered().warm_up(arena); }
  void round(const Accumulators& accumulators, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    ordered().round(accumulators, gradient, precision, elements, block_sums);
  }
  void sum(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
           double* block_sums) override {
    ordered().sum(from, parts, ranks, elements, to, out, block_sums);
  }
  void update(OptimizerKind optimizer, UpdateForm form, const UpdateRange& range,
              const UpdateScalars& scalars) override {
    ordered().update(optimizer, form, range, scalars);
  }
  void zero(void* data, uint64_t bytes) override { ordered().zero(data, bytes); }

 private:
  static emulation::EmulatedGpu gpu_of(int threads, bool bias_epilogue) {
    emulation::EmulatedGpu gpu{.seed = static_cast<uint32_t>(threads - 1),
                               .multiprocessors = threads,
                               .bias_epilogue = bias_epilogue};
    // The shared memory of a T4, a 4090 and an H100.
    if (threads == 1) gpu.shared_bytes_together = 64 << 10, gpu.shared_bytes_reserved = 0;
    if (threads == 2) gpu.shared_bytes_together = 100 << 10;
    if (threads == 3) gpu.shared_bytes_together = 228 << 10;
    gpu.shared_bytes_max = gpu.shared_bytes_together - gpu.shared_bytes_reserved;
    emulation::set_up(gpu);
    return gpu;
  }
  Device& ordered() {
    emulation::set_up(gpu_);
    return device_;
  }

  emulation::EmulatedGpu gpu_;
  std::unique_ptr<cuda::Multiplier> multiplier_;
  HostOperands device_;
};

TEST(EmulatedOps, GiveBackWhatTheyTake) {
  Operands operands(op_cases().front(), DType::bf16);
  run_forward(*std::make_unique<EmulatedDevice>(1), operands);
  EXPECT_GT(emulation::counts().allocations, 0u);
  EXPECT_EQ(emulation::counts().allocated_bytes, 0u);
}

// Where cuBLASLt has no algorithm that adds a bias, a kernel of Sluice writes it first. The bits are the
// same, since the bias is added before the only rounding.
class EmulatedBias : public ::testing::TestWithParam<OpCase> {};

TEST_P(EmulatedBias, IsWrittenByOurKernelWhereTheLibraryHasNoEpilogue) {
  const auto oracle = make_reference_device();
  for (const DType precision : precisions(GetParam())) {
    SCOPED_TRACE(dtype_name(precision));
    Operands operands(GetParam(), precision);
    const auto wanted = results_of(operands, run_forward(*oracle, operands));
    const auto results = [&](bool bias_epilogue) {
      EmulatedDevice device(2, bias_epilogue);
      return results_of(operands, run_forward(device, operands));
    };
    const auto fused = results(true), found = results(false);
    expect_close(found, wanted, rounded_inside(GetParam(), precision));
    expect_equal(found, fused);
  }
}

std::vector<OpCase> cases_with_a_bias() {
  std::vector<OpCase> out = op_cases();
  std::erase_if(out, [](const OpCase& c) { return c.kind != OpKind::linear || c.parameters.size() < 2; });
  return out;
}

INSTANTIATE_TEST_SUITE_P(Ops, EmulatedBias, ::testing::ValuesIn(cases_with_a_bias()),
                         [](const auto& test) { return test.param.name; });

// The first rows of an expert's product must be the same with all of the expert's rows and with only these.
void expect_rows_apart(const OpCase& c, DType precision, int multiprocessors) {
  constexpr int64_t kFewer = 10;
  EmulatedDevice device(multiprocessors);
  Operands operands(c, precision);
  const auto first_rows = [&] {
    std::vector<double> values = results_of(operands, run_forward(device, operands)).front().values;
    values.resize(static_cast<size_t>(kFewer * operands.shapes.outputs[0][1]));
    return values;
  };
  const std::vector<double> of_all = first_rows();
  ASSERT_EQ(operands.routing.expert, 0);
  ASSERT_GT(operands.routing.rows, 2 * kFewer);
  static_cast<int32_t*>(operands.inputs[0].data())[1] = kFewer;  // the expert's entries end earlier
  operands.routing.rows = kFewer;
  operands.settle(operands.inputs[1], c.inputs[1]);
  operands.freeze();
  EXPECT_EQ(first_rows(), of_all) << c.name << ", " << dtype_name(precision);
}

// With one multiprocessor large tiles are in use, with 64 small ones.
TEST(EmulatedExperts, ARowOfAProductDependsOnNoOthers) {
  const std::vector<OpCase> cases = op_cases();
  const auto c = std::ranges::find(cases, "expert_linear_all", &OpCase::name);
  ASSERT_NE(c, cases.end());
  for (const DType precision : precisions(*c))
    for (const int multiprocessors : {1, 64}) expect_rows_apart(*c, precision, multiprocessors);
}

std::vector<DeviceEntry> devices_to_judge() {
  return {{"cuda, emulated", [](int threads) { return std::make_unique<EmulatedDevice>(threads); }}};
}

bool judged(const OpCase&) { return true; }
std::string skip_reason() { return ""; }

}  // namespace
}  // namespace sluice
