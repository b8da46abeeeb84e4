// After the arenas freeze, a step allocates nothing: neither the lanes and their rings of records, nor the
// training loop, nor the recorder of a profile. Two things are not counted: what callers of the loop do with
// its events (the metrics line, the progress line), and what oneDNN allocates inside each bf16 product, since
// its interface copies the arguments into tables of its own.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "offload/io/backends.h"
#include "tests/support/training_support.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<uint64_t> allocations{0};

bool in_onednn(const void* caller) {
  Dl_info info;
  return dladdr(caller, &info) != 0 && std::strstr(info.dli_fname, "libdnnl") != nullptr;
}

void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) {
  if (counting && !in_onednn(caller)) ++allocations;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The standard library's other forms of new and delete call these.
void* operator new(std::size_t bytes) {
  return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__, __builtin_return_address(0));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
// Not inlined: GCC would take std::free for the wrong counterpart of an operator new that is not inlined.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace sluice {
namespace {

// Before the first counted step, vectors and pools of threads reach their size. The lanes' rings of records
// hold five bodies, so they wrap around several times.
constexpr int64_t kFirstCounted = 4, kLastCounted = 24;

uint64_t allocations_in_steps(DType precision, IoChoice io) {
  const DriveDirectory directory;
  write_bytes(directory / "train.txt", sample_text(6000));
  TestRun run;
  const std::string model = "llama-1b:layers=3,width=64,heads=4,kv_heads=2,ffn=96,vocab=256,context=64";
  run.options = short_run(directory, model, directory / "train.txt");
  run.options.batch.steps = kLastCounted + 3;  // the loop reads losses two steps late
  run.options.numbers.precision = precision;
  run.options.memory.io = io;
  run.arenas = {0, 0, 0};
  const auto least = std::get<Infeasible>(plan_of(run)).least_together;
  run.arenas = {least[0], least[1], kRoomy};  // every kind of transfer, in every step
  run.keep_steps = false;
  std::optional<Recorder> recorder;
  run.recorder = &recorder;
  uint64_t recorder_bytes = 0;
  run.on_step = [&](const StepMetrics& m) {
    if (m.step == kFirstCounted) allocations = 0, recorder_bytes = recorder->bytes();
    if (m.step == kFirstCounted || m.step == kLastCounted) counting = m.step == kFirstCounted;
  };
  const TestResult result = train(run);
  EXPECT_EQ(recorder->bytes(), recorder_bytes);
  for (const Recorder::Recorded& body : recorder->bodies())
    EXPECT_EQ(body.count, result.plan.program.bodies[body.body].instructions.size());
  EXPECT_EQ(recorder->bodies().size(), static_cast<size_t>(run.options.batch.steps) + 1);  // and the drain
  return allocations;
}

TEST(Steps, AllocateNothing) {
  for (const DType precision : {DType::bf16, DType::f16, DType::f32})
    for (const IoBackend* io : working_io_backends())
      EXPECT_EQ(allocations_in_steps(precision, io), 0u) << dtype_name(precision) << ", " << io->title;
}

}  // namespace
}  // namespace sluice
