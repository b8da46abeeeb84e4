// The contract of the I/O queue on every back end, and the choice between back ends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "offload/arena.h"
#include "offload/io/backends.h"
#include "offload/nvme_files.h"
#include "tests/support/io_queue_support.h"
#include "tests/support/offload_test_support.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

class IoQueueContract : public ::testing::TestWithParam<const IoBackend*> {
 protected:
  void SetUp() override {
    if (!works_here(GetParam())) GTEST_SKIP() << "this system has no usable " << GetParam()->title;
  }
  std::unique_ptr<IoQueue> queue(uint32_t depth, std::span<std::byte> registered = {}) {
    return make_io_queue(GetParam(), depth, registered, nullptr);
  }
  NvmeFiles files_{{{drive_directory()}}, 32 * kMiB};
  const int fd_ = files_.files()[0].fd;
  Arena memory_{64 * kMiB};
  std::byte* const data_ = memory_.data();
};

TEST_P(IoQueueContract, ReadsWhatWasWritten) {
  const auto q = queue(4, memory_.span());
  uint64_t tag = 100;
  for (const uint32_t bytes : {4096u, 8192u, 135168u, 1u << 20}) {
    fill_pattern({data_, bytes}, bytes);
    EXPECT_EQ(run_one(*q, {IoDirection::write, fd_, 5 * 4096, data_, bytes, ++tag}), bytes);
    EXPECT_EQ(run_one(*q, {IoDirection::read, fd_, 5 * 4096, data_ + 32 * kMiB, bytes, ++tag}), bytes);
    EXPECT_EQ(pattern_end({data_ + 32 * kMiB, bytes}, bytes), bytes);
  }
}

TEST_P(IoQueueContract, MemoryOutsideTheRegisteredPartWorks) {
  const auto q = queue(4, memory_.span().first(kMiB));
  std::byte* const across = data_ + kMiB - 4096;
  fill_pattern({across, 8192}, 1);
  fill_pattern({data_ + 8 * kMiB, kMiB}, 2);
  EXPECT_EQ(run_one(*q, {IoDirection::write, fd_, 0, across, 8192, 1}), 8192);
  EXPECT_EQ(run_one(*q, {IoDirection::write, fd_, kMiB, data_ + 8 * kMiB, kMiB, 2}),
            static_cast<int64_t>(kMiB));
  EXPECT_EQ(run_one(*q, {IoDirection::read, fd_, 0, data_ + 16 * kMiB, 8192, 3}), 8192);
  EXPECT_EQ(run_one(*q, {IoDirection::read, fd_, kMiB, data_ + 4096, 8192, 4}), 8192);
  EXPECT_EQ(pattern_end({data_ + 16 * kMiB, 8192}, 1), 8192u);
  EXPECT_EQ(pattern_end({data_ + 4096, 8192}, 2), 8192u);
}

TEST_P(IoQueueContract, EveryTagReturnsOnceWithTheQueueFull) {
  constexpr uint32_t kDepth = 16, kRequests = 200;
  const auto q = queue(kDepth);
  fill_pattern({data_, 32 * kMiB}, 7);
  std::vector<IoCompletion> done(kDepth);
  for (const IoDirection direction : {IoDirection::write, IoDirection::read}) {
    std::byte* const memory = direction == IoDirection::write ? data_ : data_ + 32 * kMiB;
    std::set<uint64_t> tags;
    for (uint64_t next = 0; tags.size() < kRequests;) {
      while (next < kRequests && q->in_flight() < q->depth()) {
        const uint64_t offset = next * 131072;  // 200 of 128 KiB: 25 MiB
        q->submit({direction, fd_, offset, memory + offset, 131072, next++});
      }
      const uint32_t n = q->poll(done, kSecond);
      for (uint32_t i = 0; i < n; ++i) {
        EXPECT_EQ(done[i].result, 131072);
        EXPECT_LT(done[i].tag, next);
        EXPECT_TRUE(tags.insert(done[i].tag).second) << "tag " << done[i].tag << " came twice";
      }
    }
    EXPECT_EQ(q->in_flight(), 0u);
  }
  EXPECT_EQ(pattern_end({data_ + 32 * kMiB, kRequests * 131072}, 7), kRequests * 131072);
}

TEST_P(IoQueueContract, PollHandsOutNoMoreThanAskedFor) {
  const auto q = queue(8);
  for (uint64_t i = 0; i < 8; ++i) q->submit({IoDirection::read, fd_, i * 4096, data_ + i * 4096, 4096, i});
  IoCompletion one;
  std::set<uint64_t> tags;
  for (int i = 0; i < 1000 && tags.size() < 8; ++i)
    if (q->poll({&one, 1}, kSecond) == 1) {
      tags.insert(one.tag);
      EXPECT_EQ(q->in_flight(), 8 - tags.size());
    }
  EXPECT_EQ(tags.size(), 8u);
}

TEST_P(IoQueueContract, NothingInFlightDoesNotWait) {
  const auto q = queue(2);
  IoCompletion done;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(q->poll({&done, 1}, 30 * kSecond), 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_P(IoQueueContract, ResultsAreTheSystems) {
  const auto q = queue(2);
  EXPECT_EQ(run_one(*q, {IoDirection::read, -1, 0, data_, 4096, 1}), -EBADF);
  EXPECT_EQ(run_one(*q, {IoDirection::read, fd_, 64 * kMiB, data_, 4096, 2}), 0);            // past the end
  EXPECT_EQ(run_one(*q, {IoDirection::read, fd_, 32 * kMiB - 4096, data_, 8192, 3}), 4096);  // up to the end
  const int read_only = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(run_one(*q, {IoDirection::write, read_only, 0, data_, 4096, 4}), -EBADF);
  close(read_only);
  const int sealed = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(fcntl(sealed, F_ADD_SEALS, F_SEAL_GROW), 0);  // a write then finds no room
  EXPECT_EQ(run_one(*q, {IoDirection::write, sealed, 0, data_, 4096, 5}), -EPERM);
  close(sealed);
}

TEST_P(IoQueueContract, OwnerMayBeAnotherThreadThanTheMaker) {
  const auto q = queue(4, memory_.span());
  int64_t result = 0;
  std::thread([&] { result = run_one(*q, {IoDirection::write, fd_, 0, data_, 65536, 1}); }).join();
  EXPECT_EQ(result, 65536);
}

TEST_P(IoQueueContract, DestructionWaitsForWhatIsInFlight) {
  fill_pattern({data_, 8 * kMiB}, 9);
  {
    const auto q = queue(8);
    for (uint64_t i = 0; i < 8; ++i)
      q->submit({IoDirection::write, fd_, i * kMiB, data_ + i * kMiB, kMiB, i});
  }
  ASSERT_EQ(pread(fd_, data_ + 16 * kMiB, 8 * kMiB, 0), static_cast<ssize_t>(8 * kMiB));
  EXPECT_EQ(pattern_end({data_ + 16 * kMiB, 8 * kMiB}, 9), 8 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(BackEnds, IoQueueContract, ::testing::ValuesIn(kIoBackends), name_of_backend);

TEST(IoChoice, DescriptionsSayWhatWasChosen) {
  for (const IoBackend* backend : working_io_backends()) {
    std::string description;
    make_io_queue(backend, 3, {}, &description);
    EXPECT_EQ(description.ends_with(" (as asked)"), backend != kIoBackends[0]) << description;
  }
}

TEST(IoChoice, ThreadsAreCounted) {
  std::string description;
  make_io_queue(&kThreadBackend, 3, {}, &description);
  EXPECT_EQ(description, "3 I/O threads (as asked)");
}

}  // namespace
}  // namespace sluice
