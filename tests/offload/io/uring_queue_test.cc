// What the io_uring back end alone has: obstacles to its use, the fallback, and registered buffers.
// queue_test.cc tests what all back ends share.
#include "offload/io/uring_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <set>
#include <string>

#include "engine/base/error.h"
#include "offload/arena.h"
#include "tests/support/io_queue_support.h"
#include "tests/support/offload_test_support.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

// A read of an empty pipe stays in flight. Other back ends may have no such read: pread() refuses pipes.
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

// Runs in a child process. Ends with 0 if the fallback names `reason` and works, and io_uring, asked for
// by name, is refused.
[[noreturn]] void expect_fallback(uint32_t error, IoObstacle obstacle, const std::string& reason) {
  forbid(__NR_io_uring_setup, error);
  if (kUringBackend.make(1, {}).status.obstacle != obstacle) std::_Exit(6);
  std::string description;
  const auto q = make_io_queue(nullptr, 2, {}, &description);
  if (kIoBackends[0] == &kUringBackend) {
    if (description.find("(io_uring cannot be used: ") == std::string::npos) std::_Exit(1);
    if (description.find(reason) == std::string::npos) std::_Exit(2);
  }
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

TEST(UringStatus, ObstaclesAreToldApart) {
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

TEST(UringQueueDeathTest, FallsBackWithTheReason) {
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
  const MadeIoQueue made = kUringBackend.make(2, memory.span());
  if (!made.text.starts_with("io_uring (0 of 8 MiB of buffers registered; the rest cannot be registered"))
    std::_Exit(1);
  if (made.text.find("ulimit -l") == std::string::npos) std::_Exit(2);
  const int zero = open("/dev/zero", O_RDONLY);
  std::_Exit(run_one(*made.queue, {IoDirection::read, zero, 0, memory.data(), 4096, 1}) == 4096 ? 0 : 3);
}

TEST(UringQueueDeathTest, LittleLockableMemoryIsEnough) {
  if (!works_here(&kUringBackend)) GTEST_SKIP() << "this system has no usable io_uring";
  EXPECT_EXIT(expect_no_registration(), testing::ExitedWithCode(0), "");
}

TEST(UringQueue, DescriptionsCountRegisteredBuffers) {
  if (!works_here(&kUringBackend)) GTEST_SKIP() << "this system has no usable io_uring";
  Arena memory(4 * kMiB);
  EXPECT_EQ(kUringBackend.make(3, {}).text, "io_uring (no buffers to register)");
  const std::string text = kUringBackend.make(3, memory.span()).text;
  EXPECT_TRUE(text.starts_with("io_uring (")) << text;
  EXPECT_NE(text.find(" of 4 MiB of buffers registered"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice
