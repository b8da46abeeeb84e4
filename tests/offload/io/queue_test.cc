// The contract of the I/O queue on every back end, and the choice between back ends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "offload/arena.h"
#include "offload/io/uring_queue.h"
#include "offload/nvme_files.h"
#include "tests/support/offload_test_support.h"

namespace sluice {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr int64_t kSecond = 1'000'000;

std::vector<IoCompletion> poll_all(IoQueue& queue) {
  std::vector<IoCompletion> all, some(queue.depth());
  while (queue.in_flight() > 0) {
    const uint32_t n = queue.poll(some, kSecond);
    all.insert(all.end(), some.begin(), some.begin() + n);
  }
  return all;
}

int64_t run_one(IoQueue& queue, const IoRequest& request) {
  queue.submit(request);
  const auto done = poll_all(queue);
  EXPECT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].tag, request.tag);
  return done[0].result;
}

class IoQueueContract : public testing::TestWithParam<const IoBackend*> {
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

INSTANTIATE_TEST_SUITE_P(BackEnds, IoQueueContract, testing::ValuesIn(kIoBackends), name_of_backend);

TEST(UringQueue, PollEndsAfterItsTimeout) {
  if (!works_here(&kUringBackend)) GTEST_SKIP() << "this system has no usable io_uring";
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const auto q = make_io_queue(&kUringBackend, 2, {}, nullptr);
  std::byte byte{};
  q->submit({IoDirection::read, ends[0], 0, &byte, 1, 5});
  IoCompletion done;
  EXPECT_EQ(q->poll({&done, 1}, 0), 0u);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(q->poll({&done, 1}, 20'000), 0u);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(19));
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  EXPECT_EQ(q->poll({&done, 1}, kSecond), 1u);
  EXPECT_EQ(done.result, 1);
  EXPECT_EQ(byte, std::byte{'x'});
  close(ends[0]);
  close(ends[1]);
}

// Makes a system call fail with `error` for the rest of this process, as a container's seccomp profile does.
void forbid(uint32_t system_call, uint32_t error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    std::_Exit(77);
}

// Runs in a child process. Ends with 0 if the fallback names `reason` and works, and `uring` alone is
// refused.
[[noreturn]] void expect_fallback(uint32_t error, IoObstacle obstacle, const std::string& reason) {
  forbid(__NR_io_uring_setup, error);
  if (kUringBackend.make(1, {}).status.obstacle != obstacle) std::_Exit(6);
  std::string description;
  const auto q = make_io_queue(nullptr, 2, {}, &description);
  if (description.find("(io_uring cannot be used: ") == std::string::npos) std::_Exit(1);
  if (description.find(reason) == std::string::npos) std::_Exit(2);
  std::byte byte{1};
  const int zero = open("/dev/zero", O_RDONLY);
  if (run_one(*q, {IoDirection::read, zero, 0, &byte, 1, 1}) != 1 || byte != std::byte{0}) std::_Exit(3);
  try {
    make_io_queue(&kUringBackend, 2, {}, nullptr);
  } catch (const Error& e) {
    if (!std::string(e.what()).starts_with("io_uring was asked for and cannot be used: ")) std::_Exit(7);
    if (e.remedy() != "Choose --io auto or --io threads, or allow io_uring.") std::_Exit(8);
    std::_Exit(e.code() == ExitCode::environment ? 0 : 4);
  }
  std::_Exit(5);
}

TEST(IoChoice, ObstaclesAreToldApart) {
  EXPECT_EQ(explain_uring_error(0, 2).obstacle, IoObstacle::none);
  EXPECT_EQ(explain_uring_error(0, 0).reason, "");
  EXPECT_EQ(explain_uring_error(EPERM, -1).obstacle, IoObstacle::seccomp);
  EXPECT_EQ(explain_uring_error(EPERM, 0).obstacle, IoObstacle::seccomp);
  EXPECT_EQ(explain_uring_error(EPERM, 1).obstacle, IoObstacle::setting);
  EXPECT_EQ(explain_uring_error(EPERM, 2).reason, "kernel.io_uring_disabled is 2 (EPERM)");
  EXPECT_EQ(explain_uring_error(ENOSYS, -1).obstacle, IoObstacle::kernel);
  EXPECT_EQ(explain_uring_error(ENOMEM, 0).obstacle, IoObstacle::memory);
  EXPECT_EQ(explain_uring_error(EMFILE, 0).obstacle, IoObstacle::other);
  EXPECT_EQ(explain_uring_error(EMFILE, 0).reason, "io_uring_setup says: Too many open files");
}

TEST(IoChoiceDeathTest, FallsBackWithTheReason) {
  EXPECT_EXIT(expect_fallback(EPERM, IoObstacle::seccomp, "EPERM"), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(expect_fallback(ENOSYS, IoObstacle::kernel, "ENOSYS"), testing::ExitedWithCode(0), "");
}

// Runs in a child process, where entering the ring fails from the second request on. That request and those
// after it complete with the errno. The first, which the kernel has, stays in flight until it really
// completes.
[[noreturn]] void expect_refused_requests() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::_Exit(77);
  const auto q = make_io_queue(&kUringBackend, 4, {}, nullptr);
  std::byte bytes[3]{};
  q->submit({IoDirection::read, ends[0], 0, &bytes[0], 1, 10});
  forbid(__NR_io_uring_enter, ENXIO);
  q->submit({IoDirection::read, ends[0], 0, &bytes[1], 1, 11});
  q->submit({IoDirection::read, ends[0], 0, &bytes[2], 1, 12});
  std::set<uint64_t> refused;
  IoCompletion done[4];
  for (int i = 0; i < 100 && refused.size() < 2; ++i) {
    const uint32_t count = q->poll(done, 1000);
    for (uint32_t k = 0; k < count; ++k)
      if (done[k].result != -ENXIO || !refused.insert(done[k].tag).second) std::_Exit(1);
  }
  if (refused != std::set<uint64_t>{11, 12} || q->in_flight() != 1) std::_Exit(2);
  if (q->poll(done, 2000) != 0 || q->in_flight() != 1) std::_Exit(3);
  if (write(ends[1], "x", 1) != 1) std::_Exit(77);
  for (int i = 0; i < 1000 && q->in_flight() == 1; ++i)
    if (q->poll(done, 10'000) == 1 && (done[0].tag != 10 || done[0].result != 1)) std::_Exit(4);
  std::_Exit(q->in_flight() == 0 && bytes[0] == std::byte{'x'} ? 0 : 5);
}

TEST(UringQueueDeathTest, WhatTheSystemRefusesCompletesWithItsErrno) {
  if (!works_here(&kUringBackend)) GTEST_SKIP() << "this system has no usable io_uring";
  EXPECT_EXIT(expect_refused_requests(), testing::ExitedWithCode(0), "");
}

// Runs in a child process: an ordinary user who may lock little memory registers no buffers, and I/O still
// works.
[[noreturn]] void expect_no_registration() {
  Arena memory(8 * kMiB);
  const rlimit limit{64 << 10, 64 << 10};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0))
    std::_Exit(77);
  std::string description;
  const auto q = make_io_queue(nullptr, 2, memory.span(), &description);
  if (description.find("io_uring (0 of 8 MiB of buffers registered; the rest goes without") != 0)
    std::_Exit(1);
  if (description.find("ulimit -l") == std::string::npos) std::_Exit(2);
  const int zero = open("/dev/zero", O_RDONLY);
  std::_Exit(run_one(*q, {IoDirection::read, zero, 0, memory.data(), 4096, 1}) == 4096 ? 0 : 3);
}

TEST(IoChoiceDeathTest, LittleLockableMemoryIsEnough) {
  if (!works_here(&kUringBackend)) GTEST_SKIP() << "this system has no usable io_uring";
  EXPECT_EXIT(expect_no_registration(), testing::ExitedWithCode(0), "");
}

TEST(IoChoice, DescriptionsSayWhatWasChosen) {
  Arena memory(4 * kMiB);
  std::string description;
  make_io_queue(&kThreadBackend, 3, memory.span(), &description);
  EXPECT_EQ(description, "3 I/O threads (as asked)");
  for (const IoBackend* backend : working_io_backends()) {
    make_io_queue(backend, 3, {}, &description);
    EXPECT_EQ(description.ends_with(" (as asked)"), backend != kIoBackends[0]) << description;
  }
  if (!works_here(&kUringBackend)) GTEST_SKIP() << "this system has no usable io_uring";
  make_io_queue(nullptr, 3, {}, &description);
  EXPECT_EQ(description, "io_uring (no buffers to register)");
  make_io_queue(nullptr, 3, memory.span(), &description);
  EXPECT_EQ(description.find("io_uring ("), 0u);
  EXPECT_NE(description.find(" of 4 MiB of buffers registered"), std::string::npos);
}

}  // namespace
}  // namespace sluice
