// What the cuda device does before the first step, on the emulated GPU: it chooses how to run products, loads
// the library's kernels, and refuses ops that it does not take.
#include "gpu/cuda/device.h"
#include "gpu/cuda/error.h"
#include "gpu/cuda/matmul.h"
#include "gpu/cuda/ops.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/support/op_runs.h"

namespace sluice {
namespace {

struct EmulatedCuda {
  std::unique_ptr<cuda::Multiplier> multiplier = cuda::make_multiplier({nullptr, 2});
  std::unique_ptr<Device> device = cuda::make_ops_device({nullptr, 2}, *multiplier);
};

// One allocation of GPU memory, as an arena is.
class Arena {
 public:
  explicit Arena(uint64_t bytes) : bytes_(bytes) { EXPECT_EQ(cudaMalloc(&data_, bytes), cudaSuccess); }
  ~Arena() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  Arena(const Arena&) = delete;
  std::span<std::byte> all() const { return {static_cast<std::byte*>(data_), bytes_}; }
  std::vector<uint8_t> contents() const {
    std::vector<uint8_t> out(bytes_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(out.data(), data_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

 private:
  uint64_t bytes_;
  void* data_ = nullptr;
};

OpShapes shapes_of(const std::string& name, DType precision) {
  for (const OpCase& c : op_cases())
    if (c.name == name) return Operands(c, precision).shapes;
  CHECK(false, "no such case");
  return {};
}

// Bytes of the largest operand of linear_bias in fp32, which is W or dW: x is [37,160], W [160,48].
constexpr uint64_t kLargest = 160 * 48 * sizeof(float);

// Pieces of work that warming up for both passes of an op takes, the zeroing included.
uint64_t works_of_warm_up(const std::string& name, DType precision, const emulation::EmulatedGpu& gpu) {
  emulation::set_up(gpu);
  EmulatedCuda made;
  const OpShapes shapes = shapes_of(name, precision);
  for (int again = 0; again < 2; ++again)  // preparing a shape again changes nothing
    for (const Pass pass : {Pass::forward, Pass::backward}) made.device->prepare(shapes, pass);
  const Arena arena(kLargest + cuda::kMatmulWorkspaceBytes);
  const uint64_t works = emulation::counts().works;
  made.device->warm_up(arena.all());
  const std::vector<uint8_t> contents = arena.contents();
  EXPECT_TRUE(std::all_of(contents.begin(), contents.end(), [](uint8_t byte) { return byte == 0; }));
  constexpr uint64_t kCopy = 1;  // of the contents
  return emulation::counts().works - works - kCopy;
}

TEST(CudaSetUp, WarmUpRunsEveryProductAsItWillBeCalledAndLeavesZeros) {
  const uint64_t products = 1 + 2 + 2, zeroing = 1;  // y with its epilogue; dx and dW, overwriting and adding
  for (const DType precision : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(dtype_name(precision));
    EXPECT_EQ(works_of_warm_up("linear_bias", precision, {}), products + zeroing);
    // Without an epilogue for a bias, a kernel of Sluice writes the bias first.
    EXPECT_EQ(works_of_warm_up("linear_bias", precision, {.bias_epilogue = false}), products + 1 + zeroing);
  }
}

TEST(CudaSetUp, AProductWithoutAnAlgorithmIsRefusedBeforeTheFirstStep) {
  emulation::set_up({.products = false});
  EmulatedCuda made;
  try {
    made.device->prepare(shapes_of("linear_bias", DType::bf16), Pass::forward);
    FAIL() << "a product that cuBLASLt does not have is prepared";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    EXPECT_STREQ(error.what(),
                 "cuBLASLt knows no algorithm for the product 37 x 48 x 160 bf16 a=160 b=48 c=48 bias, in "
                 "linear forward of bf16 [37 160] [160 48] [48].");
    EXPECT_NE(error.remedy().find("multiples of 8"), std::string::npos);
  }
}

class CudaSetUpDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaSetUpDeathTest, ProductsThatWereNotPreparedShow) {
  emulation::set_up({});
  EmulatedCuda made;
  const OpShapes shapes = shapes_of("linear_bias", DType::f32);
  made.device->prepare(shapes, Pass::forward);
  const Product dx = products_of(shapes, Pass::backward).front();
  std::byte operand;
  EXPECT_DEATH(made.multiplier->run({dx, &operand, &operand, &operand}, &operand), "was not prepared");
}

TEST_F(CudaSetUpDeathTest, ArenasThatHoldNoProductShow) {
  emulation::set_up({});
  EmulatedCuda made;
  made.device->prepare(shapes_of("linear_bias", DType::f32), Pass::forward);
  const Arena arena(kLargest + cuda::kMatmulWorkspaceBytes - 64);
  EXPECT_DEATH(made.device->warm_up(arena.all()), "smaller than");
}

TEST(CudaSetUp, AProductThatTheGpuHasNotIsNamed) {
  try {
    cuda::check_setup(CUBLAS_STATUS_ARCH_MISMATCH, "Choosing");
    FAIL() << "taken for a success";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "Choosing failed: not for the GPU's compute capability.");
  }
}

TEST(CudaSetUp, LargeHeadsAreRefusedBeforeTheFirstStep) {
  OpShapes shapes = shapes_of("attention_widest_heads", DType::bf16);
  EXPECT_GT(cuda_workspace_bytes(shapes, Pass::backward), 0u);  // heads of 256 columns
  shapes.attributes.head_size = 264;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    try {
      cuda_workspace_bytes(shapes, pass);
      FAIL() << "heads of 264 columns are taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find("up to 256 columns, the model's have 264"), std::string::npos);
      EXPECT_NE(error.remedy().find("--device cpu"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace sluice
