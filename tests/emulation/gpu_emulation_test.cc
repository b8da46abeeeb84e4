// The emulated GPU's streams, events and memory: every promise of CUDA is kept, and where CUDA promises no
// order, tests can observe every order.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulation/emulated_gpu.h"
#include "tests/emulation/gpu_model.h"
#include "tests/support/units.h"

namespace sluice::emulation {
namespace {

// With the odd half of the seeds, the GPU chooses at random which stream goes on. Each of the 6 orders of two
// streams with two steps then has a probability of at least 1/8, and is missed with (7/8)^50, about 0.1 %.
constexpr uint32_t kSeeds = 100;

struct Stream {
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { cudaStreamDestroy(handle); }
  void wait(cudaEvent_t event) const { EXPECT_EQ(cudaStreamWaitEvent(handle, event), cudaSuccess); }
  void synchronize() const { EXPECT_EQ(cudaStreamSynchronize(handle), cudaSuccess); }
  cudaStream_t handle = nullptr;
};

struct Event {
  Event() { EXPECT_EQ(cudaEventCreateWithFlags(&handle, cudaEventDefault), cudaSuccess); }
  ~Event() { cudaEventDestroy(handle); }
  void record(const Stream& stream) const { EXPECT_EQ(cudaEventRecord(handle, stream.handle), cudaSuccess); }
  cudaEvent_t handle = nullptr;
};

// Pinned host memory and memory of the GPU, of a page each.
struct Memory {
  Memory() {
    EXPECT_EQ(cudaHostRegister(host.data(), host.size(), cudaHostRegisterDefault), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&gpu, host.size()), cudaSuccess);
  }
  ~Memory() {
    EXPECT_EQ(cudaFree(gpu), cudaSuccess);
    EXPECT_EQ(cudaHostUnregister(host.data()), cudaSuccess);
  }
  void set(char value, const Stream& stream) const {
    EXPECT_EQ(cudaMemsetAsync(gpu, value, host.size(), stream.handle), cudaSuccess);
  }
  void fetch(const Stream& stream) {
    EXPECT_EQ(cudaMemcpyAsync(host.data(), gpu, host.size(), cudaMemcpyDeviceToHost, stream.handle),
              cudaSuccess);
  }
  std::vector<char> host = std::vector<char>(4096);
  void* gpu = nullptr;
};

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // the GPU has a thread
    set_up({});
  }
};
using GpuDeathTest = GpuTest;

// The values that were fetched from the GPU's memory after `enqueue`, over the orders of all seeds.
template <typename Enqueue>
std::set<char> fetched(Enqueue enqueue) {
  std::set<char> values;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    set_up({.seed = seed});
    const Stream writer, reader;
    Memory memory;
    memory.set(0, writer);
    writer.synchronize();
    pause();
    enqueue(memory, writer, reader);
    resume();
    writer.synchronize();
    reader.synchronize();
    values.insert(memory.host[0]);
  }
  return values;
}

// ---- Order.

TEST_F(GpuTest, StreamsAreInOrderAndFreeOfEachOther) {
  std::set<std::string> orders;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    set_up({.seed = seed});
    const Stream a, b;
    std::string order;
    pause();
    for (const char c : {'a', 'b'})
      for (const char d : {'0', '1'})
        EXPECT_EQ(enqueue((c == 'a' ? a : b).handle, [&, c, d] { order += {c, d}; }), cudaSuccess);
    resume();
    a.synchronize();
    b.synchronize();
    orders.insert(order);
  }
  EXPECT_EQ(orders,
            (std::set<std::string>{"a0a1b0b1", "a0b0a1b1", "a0b0b1a1", "b0a0a1b1", "b0a0b1a1", "b0b1a0a1"}));
}

TEST_F(GpuTest, TheNullStreamIsLikeAnyOther) {
  std::set<std::string> orders;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    set_up({.seed = seed});
    const Stream a;
    std::string order;
    pause();
    EXPECT_EQ(enqueue(a.handle, [&] { order += 'a'; }), cudaSuccess);
    EXPECT_EQ(enqueue(nullptr, [&] { order += '0'; }), cudaSuccess);
    resume();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    orders.insert(order);
  }
  EXPECT_EQ(orders, (std::set<std::string>{"a0", "0a"}));
}

TEST_F(GpuTest, AStreamWaitsForARecordedEvent) {
  EXPECT_EQ(fetched([](Memory& memory, const Stream& writer, const Stream& reader) {
              const Event written;
              memory.set(1, writer);
              written.record(writer);
              reader.wait(written.handle);
              memory.fetch(reader);
            }),
            std::set<char>{1});
}

// The first hazard: a wait that is called before the record is no wait.
TEST_F(GpuTest, AnEventThatIsNotYetRecordedHoldsNobodyBack) {
  EXPECT_EQ(fetched([](Memory& memory, const Stream& writer, const Stream& reader) {
              const Event written;
              reader.wait(written.handle);
              memory.fetch(reader);
              memory.set(1, writer);
              written.record(writer);
            }),
            (std::set<char>{0, 1}));
}

// The second hazard: step 2 has recorded the event before the reader of step 1 waits for it. So the reader of
// step 1 sees step 2 in every order. With an event for each step it sees step 1.
TEST_F(GpuTest, AnEventThatIsRecordedAgainIsTheWrongStep) {
  EXPECT_EQ(fetched([](Memory& memory, const Stream& writer, const Stream& reader) {
              const Event written, read;
              memory.set(1, writer);
              written.record(writer);
              writer.wait(read.handle);  // meant to wait until step 1 has been read
              memory.set(2, writer);
              written.record(writer);
              reader.wait(written.handle);
              memory.fetch(reader);
              read.record(reader);
            }),
            std::set<char>{2});
  EXPECT_EQ(fetched([](Memory& memory, const Stream& writer, const Stream& reader) {
              const Event written[2], read;
              memory.set(1, writer);
              written[0].record(writer);
              reader.wait(written[0].handle);
              memory.fetch(reader);
              read.record(reader);
              writer.wait(read.handle);
              memory.set(2, writer);
              written[1].record(writer);
            }),
            std::set<char>{1});
}

// A host thread waits for step 1 by an event. If step 2 records that event again, the thread waits for step 2
// as well; if step 2 waits for the thread, both wait for ever.
TEST_F(GpuTest, TheHostTooWaitsForTheLastRecord) {
  const Stream stream;
  const Event done;
  bool first = false, second = false;
  EXPECT_EQ(cudaEventSynchronize(done.handle), cudaSuccess) << "an event that was never recorded";
  EXPECT_EQ(cudaEventQuery(done.handle), cudaSuccess);
  EXPECT_EQ(enqueue(stream.handle, [&] { first = true; }), cudaSuccess);
  done.record(stream);
  EXPECT_EQ(cudaEventSynchronize(done.handle), cudaSuccess);
  EXPECT_TRUE(first);
  pause();
  EXPECT_EQ(enqueue(stream.handle, [&] { second = true; }), cudaSuccess);
  done.record(stream);
  EXPECT_EQ(cudaEventQuery(done.handle), cudaErrorNotReady);
  resume();
  EXPECT_EQ(cudaEventSynchronize(done.handle), cudaSuccess);
  EXPECT_TRUE(second);
}

TEST_F(GpuTest, TimesAreOrdered) {
  const Stream stream;
  const Event begin, end, never;
  cudaEvent_t untimed = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(untimed, stream.handle), cudaSuccess);
  pause();
  begin.record(stream);
  EXPECT_EQ(enqueue(stream.handle, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }),
            cudaSuccess);
  end.record(stream);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle), cudaErrorNotReady);
  resume();
  stream.synchronize();
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle), cudaSuccess);
  EXPECT_GE(milliseconds, 2);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, end.handle, begin.handle), cudaSuccess);
  EXPECT_LE(milliseconds, -2);
  for (const cudaEvent_t none : {untimed, never.handle})
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin.handle, none), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(untimed), cudaSuccess);
}

TEST_F(GpuTest, ManyThreadsMayCallAtOnce) {
  constexpr int kThreads = 4, kWorks = 200;
  set_up({.seed = 1, .delay_microseconds_max = 20});
  std::vector<int> done(kThreads);
  std::vector<std::thread> threads;
  for (int& count : done)
    threads.emplace_back([&count] {
      const Stream stream;
      for (int i = 1; i <= kWorks; ++i) {
        const Event event;
        EXPECT_EQ(enqueue(stream.handle, [&count] { ++count; }), cudaSuccess);
        event.record(stream);
        if (i % 7 != 0) continue;
        EXPECT_EQ(cudaEventSynchronize(event.handle), cudaSuccess);
        EXPECT_EQ(count, i);
      }
      stream.synchronize();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, std::vector<int>(kThreads, kWorks));
  EXPECT_EQ(counts().works, static_cast<uint64_t>(kThreads * kWorks));
  EXPECT_EQ(counts().streams, static_cast<uint64_t>(kThreads));
  EXPECT_EQ(counts().streams_there, 0u);
}

// ---- Several GPUs.

// A thread that has chosen no GPU uses the first one.
TEST_F(GpuTest, EveryThreadChoosesItsGpu) {
  set_up({.count = 2, .memory_bytes = uint64_t{1} << 30, .context_bytes = 1 << 20});
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(counts().contexts, std::vector<int>{});
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const Stream stream;
  const Event event;
  Memory memory;
  event.record(stream);
  memory.set(1, stream);
  memory.fetch(stream);
  stream.synchronize();
  EXPECT_EQ(memory.host[0], 1);
  EXPECT_EQ(counts().contexts, std::vector<int>{1});
  std::thread([&] {
    int ordinal = -1;
    EXPECT_EQ(cudaGetDevice(&ordinal), cudaSuccess);
    EXPECT_EQ(ordinal, 0);
    EXPECT_EQ(enqueue(stream.handle, [] {}), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(counts().contexts, (std::vector<int>{0, 1}));
    const Stream other;
    const Event others;
    EXPECT_EQ(cudaEventRecord(event.handle, other.handle), cudaErrorInvalidResourceHandle);
    others.record(other);
    stream.wait(others.handle);  // streams may wait for another GPU's
    other.synchronize();
    float milliseconds = 0;
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, others.handle, event.handle),
              cudaErrorInvalidResourceHandle);
    size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    EXPECT_EQ(total - free, (uint64_t{1} << 20) + 4096) << "the first GPU's context, and page tables";
  }).join();
  stream.synchronize();
}

// ---- Memory.

TEST_F(GpuTest, FreshMemoryIsNotANumber) {
  const Stream stream;
  Memory memory;
  memory.fetch(stream);
  stream.synchronize();
  float value = 0;
  std::memcpy(&value, memory.host.data(), sizeof(value));
  EXPECT_TRUE(std::isnan(value));
}

TEST_F(GpuDeathTest, AsynchronousCopiesNeedPinnedMemory) {
  const Stream stream;
  Memory memory;
  std::vector<char> pageable(memory.host.size());
  const auto copy = [&](void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, stream.handle);
  };
  const size_t bytes = pageable.size();
  EXPECT_EQ(copy(memory.gpu, memory.host.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_DEATH(copy(memory.gpu, pageable.data(), bytes, cudaMemcpyHostToDevice), "not pinned");
  EXPECT_DEATH(copy(pageable.data(), memory.gpu, bytes, cudaMemcpyDeviceToHost), "not pinned");
  EXPECT_DEATH(copy(memory.gpu, memory.host.data() + 1, bytes, cudaMemcpyHostToDevice), "not pinned");
  EXPECT_DEATH(copy(static_cast<char*>(memory.gpu) + 1, memory.host.data(), bytes, cudaMemcpyHostToDevice),
               "beyond an allocation");
  EXPECT_DEATH(copy(memory.host.data(), memory.gpu, bytes, cudaMemcpyHostToDevice), "beyond an allocation");
  EXPECT_EQ(cudaMemcpy(memory.gpu, pageable.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
}

TEST_F(GpuDeathTest, ACopyLiesWithinOneRegistration) {
  const Stream stream;
  Memory memory;
  std::vector<char> host(memory.host.size());
  const size_t half = host.size() / 2;
  for (const size_t at : {size_t{0}, half}) EXPECT_EQ(cudaHostRegister(&host[at], half, 0), cudaSuccess);
  const auto copy = [&](size_t at, size_t bytes) {
    return cudaMemcpyAsync(memory.gpu, &host[at], bytes, cudaMemcpyHostToDevice, stream.handle);
  };
  EXPECT_EQ(copy(0, half), cudaSuccess);
  EXPECT_EQ(copy(half, half), cudaSuccess);
  EXPECT_DEATH(copy(half - 1, 2), "not pinned");
  stream.synchronize();
  for (const size_t at : {size_t{0}, half}) EXPECT_EQ(cudaHostUnregister(&host[at]), cudaSuccess);
}

TEST_F(GpuDeathTest, MemoryStaysPinnedUntilItsCopiesAreDone) {
  const auto unpin_early = [] {
    const Stream stream;
    Memory memory;
    pause();
    memory.fetch(stream);
    cudaHostUnregister(memory.host.data());
    resume();
    stream.synchronize();
  };
  EXPECT_DEATH(unpin_early(), "not pinned");
}

TEST_F(GpuDeathTest, TheHostCannotTouchDeviceMemory) {
  const Stream stream;
  Memory memory;
  auto* gpu = static_cast<volatile char*>(memory.gpu);
  EXPECT_DEATH(gpu[0] = 1, "");
  memory.set(0, stream);
  stream.synchronize();
  EXPECT_DEATH(std::exit(gpu[1]), "");  // readable memory would exit with 0, which is no death
}

TEST_F(GpuTest, AllocationsAreCounted) {
  Memory first;
  EXPECT_EQ(counts().allocations, 1u);
  EXPECT_EQ(counts().registrations, 1u);
  EXPECT_EQ(counts().allocated_bytes, first.host.size());
  EXPECT_EQ(counts().registered_bytes, first.host.size());
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total, EmulatedGpu().memory_bytes);
  constexpr uint64_t kGranule = 2 << 20, kPageTables = 4096;
  EXPECT_EQ(free, total - kGranule - kPageTables);
  EXPECT_EQ(counts().held, kGranule + kPageTables);
  EXPECT_EQ(cudaHostRegister(first.host.data(), 1, 0), cudaErrorHostMemoryAlreadyRegistered);
}

TEST_F(GpuTest, FirstCopiesTakeMemoryThatStays) {
  set_up({.copy_bytes = 1 << 20});
  const uint64_t before = counts().held;
  {
    const Stream stream, other;
    Memory memory;
    for (int i = 0; i < 2; ++i) memory.fetch(stream);
    memory.fetch(other);
    stream.synchronize(), other.synchronize();
  }
  EXPECT_EQ(counts().held - before, 2u << 20);
}

TEST_F(GpuTest, MemoryThatNobodyHasTouchedIsCountedWhenItIsPinned) {
  constexpr size_t kBytes = 16 << 20;
  void* const pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  std::memset(pages, 1, kBytes / 2);
  EXPECT_EQ(cudaHostRegister(pages, kBytes, 0), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(pages), cudaSuccess);
  EXPECT_EQ(munmap(pages, kBytes), 0);
  // The system may fill more than was touched, with large pages.
  EXPECT_GE(counts().untouched_bytes, kBytes / 4);
  EXPECT_LE(counts().untouched_bytes, kBytes / 2);
}

// ---- Failures.

TEST_F(GpuTest, FailsWhereItIsTold) {
  set_up({.used_by_others = (uint64_t{8} << 30) - 5 * kMiB,
          .pinned_bytes_max = 4096,
          .allocation_that_fails = 1,
          .registration_that_fails = 1,
          .stream_that_fails = 1,
          .event_that_fails = 1});
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 4 * kMiB + 1), cudaErrorMemoryAllocation) << "more than is free";
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  const Memory memory;
  EXPECT_EQ(cudaMalloc(&data, 1), cudaErrorMemoryAllocation);
  char page[4096];
  EXPECT_EQ(cudaHostRegister(page, 1, 0), cudaErrorMemoryAllocation);
  const Stream stream;
  const Event event;
  cudaStream_t other_stream = nullptr;
  cudaEvent_t other_event = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaEventCreateWithFlags(&other_event, 0), cudaErrorMemoryAllocation);
  set_up({.pinned_bytes_max = 4096});
  EXPECT_EQ(cudaHostRegister(page, 1, 0), cudaErrorMemoryAllocation) << "more than may be pinned";
  set_up({.registration_bytes_max = 4095});
  EXPECT_EQ(cudaHostRegister(page, 4096, 0), cudaErrorMemoryAllocation) << "more than may be pinned at once";
}

TEST_F(GpuTest, HandlesThatAreGoneAreRefused) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  {
    const Stream gone;
    const Event gone_too;
    stream = gone.handle;
    event = gone_too.handle;
  }
  const Stream there;
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, there.handle), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamWaitEvent(there.handle, event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
}

TEST_F(GpuTest, ALostDeviceDropsItsWorkAndSaysSo) {
  set_up({.work_that_is_lost = 2, .lost_with = cudaErrorECCUncorrectable});
  int done = 0;
  {
    const Stream stream;
    const Event event;
    pause();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(enqueue(stream.handle, [&] { ++done; }), cudaSuccess);
    event.record(stream);
    resume();
    EXPECT_EQ(cudaStreamSynchronize(stream.handle), cudaErrorECCUncorrectable);
    EXPECT_EQ(done, 2);
    EXPECT_EQ(cudaEventSynchronize(event.handle), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaEventQuery(event.handle), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaEventRecord(event.handle, stream.handle), cudaErrorECCUncorrectable);
    EXPECT_EQ(enqueue(stream.handle, [&] { ++done; }), cudaErrorECCUncorrectable);
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, 1), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
    EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
    EXPECT_EQ(done, 2);
  }
  EXPECT_EQ(counts().streams_there + counts().events_there, 0u);
  set_up({});
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace sluice::emulation
