// What the tests of I/O queues share: requests that are awaited, and system calls that fail.
#pragma once

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "offload/io/queue.h"

namespace sluice {

constexpr int64_t kSecond = 1'000'000;  // in microseconds, as poll() takes them

inline std::vector<IoCompletion> poll_all(IoQueue& queue) {
  std::vector<IoCompletion> all, some(queue.depth());
  while (queue.in_flight() > 0) {
    const uint32_t n = queue.poll(some, kSecond);
    all.insert(all.end(), some.begin(), some.begin() + n);
  }
  return all;
}

inline int64_t run_one(IoQueue& queue, const IoRequest& request) {
  queue.submit(request);
  const auto done = poll_all(queue);
  EXPECT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].tag, request.tag);
  return done[0].result;
}

// Makes a system call fail with `error`, as a container's seccomp profile does. The call fails in this thread
// and in threads that it starts later, for the rest of their lives. Ends the process with 77 if the filter
// cannot be installed.
inline void forbid(uint32_t system_call, uint32_t error) {
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

}  // namespace sluice
