// The cuda device on a GPU against the reference device.
#include "tests/support/op_conformance.h"

#include "gpu/cuda/cublaslt.h"
#include "gpu/cuda/device.h"
#include "tests/support/cuda_host_operands.h"

namespace sluice {
namespace {

const CudaStatus& gpu() {
  static const CudaStatus status = cuda_status(0);
  return status;
}

// One device for all tests, since making one takes longer than a test. It ends before CUDA does.
class SharedDevice : public ::testing::Environment {
 public:
  void TearDown() override { device_.reset(); }
  std::shared_ptr<Device> get() {
    if (!device_) device_ = make_cuda_device(0);
    return device_;
  }

 private:
  std::shared_ptr<Device> device_;
};
SharedDevice& shared_device =
    *static_cast<SharedDevice*>(::testing::AddGlobalTestEnvironment(new SharedDevice));

std::vector<DeviceEntry> devices_to_judge() {
  return {{"cuda", [](int) { return std::make_unique<HostOperands>(shared_device.get()); }}};
}
bool judged(const OpCase&) { return true; }
std::string skip_reason() { return gpu().reason; }

TEST(CudaDevice, IsRefusedWithAReasonWhereThereIsNone) {
  const CudaStatus none = cuda_status(1000);
  EXPECT_TRUE(none.built);
  EXPECT_FALSE(none.available);
  try {
    make_cuda_device(1000);
    FAIL() << "there is no GPU 1000";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    EXPECT_EQ(error.what(), none.reason);
    EXPECT_EQ(error.remedy(), none.remedy);
  }
}

// Holds with and without a GPU. Where the library is missing, the sentences say what to install.
TEST(CudaDevice, CublasLtIsOpenedAtRunTime) {
  try {
    const cuda::CublasLt lt = cuda::open_cublaslt();
    EXPECT_NE(lt.create, nullptr);
    EXPECT_NE(lt.matmul, nullptr);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    EXPECT_NE(error.remedy().find("libcublas"), std::string::npos) << error.remedy();
    GTEST_SKIP() << error.what();
  }
}

// Products of op_cases() have too few tiles for the large ones, which occupy all multiprocessors. These have
// 144, forward and backward.
TEST(CudaDevice, LargeTilesAgreeWithTheCpu) {
  if (!gpu().available) GTEST_SKIP() << gpu().reason;
  const Routing one{.experts = 1, .chosen = 1};
  const OpCase c{"expert_linear_large",
                 OpKind::expert_linear,
                 {.weight_out_in = true, .routing = one},
                 {{RoutingLayout{1500, 1, 1}.size()}, {expert_rows_most(1500), 1500}},
                 {{1500, 1500}},
                 2};
  const auto oracle = make_cpu_device(2);
  for (const DType precision : {DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(dtype_name(precision));
    HostOperands device(shared_device.get());
    Operands operands(c, precision);
    std::vector<Guarded> saved = run_forward(*oracle, operands);
    expect_close(results_of(operands, run_forward(device, operands)), results_of(operands, saved),
                 rounded_inside(c, precision));
    const auto wanted = run_backward(*oracle, operands, saved);
    expect_close(run_backward(device, operands, saved), wanted, rounded_inside(c, precision));
  }
}

TEST(CudaDevice, WorkspacesNeedNoGpu) {
  for (const OpCase& c : op_cases())
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const Operands operands(c, DType::bf16);
      EXPECT_LT(cuda_workspace_bytes(operands.shapes, pass), 1ull << 30) << c.name;
    }
}

}  // namespace
}  // namespace sluice
