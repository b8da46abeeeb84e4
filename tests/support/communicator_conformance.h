// What every communicator must do, whatever moves its bytes. The tests of each implementation call this.
//
// Ranks are threads. `on_all_ranks(count, work)` starts `count` of them, calls work(communicator) on each,
// and returns when all have ended.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/error.h"
#include "gpu/ranks/communicator.h"

namespace sluice {

using OnAllRanks = void(int count, const std::function<void(Communicator&)>& work);

inline uint32_t told_value(int from, int to, int round, uint64_t i) {
  return static_cast<uint32_t>(from * 1'000'003 + to * 10'007 + round * 101) + static_cast<uint32_t>(i);
}

inline void expect_collectives_move(Communicator& c, int round) {
  constexpr uint64_t kCount = 257;
  constexpr uint64_t kBytes = kCount * sizeof(uint32_t);
  const int n = c.size();
  const auto all = static_cast<size_t>(n);
  std::vector<uint32_t> out(kCount * all), in(kCount * all);
  for (uint64_t i = 0; i < kCount; ++i) out[i] = told_value(c.rank(), 0, round, i);
  c.all_gather(c.everyone(), out.data(), kBytes, in.data());
  for (int r = 0; r < n; ++r)
    for (uint64_t i = 0; i < kCount; ++i)
      ASSERT_EQ(in[static_cast<size_t>(r) * kCount + i], told_value(r, 0, round, i));

  for (int to = 0; to < n; ++to)
    for (uint64_t i = 0; i < kCount; ++i)
      out[static_cast<size_t>(to) * kCount + i] = told_value(c.rank(), to, round, i);
  c.all_to_all(c.everyone(), out.data(), kBytes, in.data());
  for (int r = 0; r < n; ++r)
    for (uint64_t i = 0; i < kCount; ++i)
      ASSERT_EQ(in[static_cast<size_t>(r) * kCount + i], told_value(r, c.rank(), round, i));

  const int root = round % n;
  std::vector<uint32_t> shared(kCount, static_cast<uint32_t>(c.rank() + round));
  c.broadcast(shared.data(), kBytes, root);
  ASSERT_EQ(shared, std::vector<uint32_t>(kCount, static_cast<uint32_t>(root + round)));
  c.barrier();

  const int next = (c.rank() + 1) % n, before = (c.rank() + n - 1) % n;
  if (n == 1) return;
  uint32_t mine = told_value(c.rank(), next, round, 0), got = 0;
  if (c.rank() % 2 == 0) {
    c.send(&mine, sizeof mine, next);
    c.receive(&got, sizeof got, before);
  } else {
    c.receive(&got, sizeof got, before);
    c.send(&mine, sizeof mine, next);
  }
  ASSERT_EQ(got, told_value(before, c.rank(), round, 0));
}

inline void expect_collectives_move(OnAllRanks& on_all_ranks, int ranks) {
  on_all_ranks(ranks, [ranks](Communicator& c) {
    ASSERT_EQ(c.size(), ranks);
    for (int round = 0; round < 20; ++round) expect_collectives_move(c, round);
  });
}

inline void expect_own_part_kept_in_place(OnAllRanks& on_all_ranks) {
  on_all_ranks(4, [](Communicator& c) {
    std::vector<int> all(4, -1);
    int* const own = &all[static_cast<size_t>(c.rank())];
    *own = c.rank() * 10;
    c.all_gather(c.everyone(), own, sizeof(int), all.data());
    EXPECT_EQ(all, (std::vector<int>{0, 10, 20, 30}));
  });
}

// Process groups of two: neighbours, and ranks that are two apart.
inline void expect_groups_keep_to_themselves(OnAllRanks& on_all_ranks) {
  on_all_ranks(4, [](Communicator& c) {
    const int rank = c.rank();
    for (const ProcessGroup& group : {ProcessGroup{"near", 2, 1}, ProcessGroup{"apart", 2, 2}}) {
      const int first = group.stride == 1 ? rank / 2 * 2 : rank % 2;
      const int pair[] = {first, first + static_cast<int>(group.stride)}, place = rank == first ? 0 : 1;
      std::vector<int> all(2), received(2);
      c.all_gather(group, &rank, sizeof(int), all.data());
      EXPECT_EQ(all, (std::vector<int>{pair[0], pair[1]}));
      int* const own = &all[static_cast<size_t>(place)];
      *own = 7 * rank;
      c.all_gather(group, own, sizeof(int), all.data());
      EXPECT_EQ(all, (std::vector<int>{7 * pair[0], 7 * pair[1]}));
      const std::vector<int> parts{10 * rank, 10 * rank + 1};
      c.all_to_all(group, parts.data(), sizeof(int), received.data());
      EXPECT_EQ(received, (std::vector<int>{10 * pair[0] + place, 10 * pair[1] + place}));
    }
  });
}

// Rank i has 3 i + j bytes for rank j, so rank 0 has nothing for itself. Parts lie apart.
inline void expect_parts_of_any_length_arrive(OnAllRanks& on_all_ranks) {
  constexpr size_t kApart = 16;
  on_all_ranks(4, [](Communicator& c) {
    const auto rank = static_cast<size_t>(c.rank());
    const auto length = [](size_t from, size_t to) { return 3 * from + to; };
    const auto value = [](size_t from, size_t to) { return static_cast<std::byte>(16 * from + to); };
    std::vector<std::byte> out(4 * kApart), in(4 * kApart, std::byte{255});
    std::vector<std::span<const std::byte>> parts;
    std::vector<std::span<std::byte>> received;
    for (size_t other = 0; other < 4; ++other) {
      std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(other * kApart), kApart, value(rank, other));
      parts.emplace_back(out.data() + other * kApart, length(rank, other));
      received.emplace_back(in.data() + other * kApart, length(other, rank));
    }
    c.exchange(c.everyone(), parts, received);
    c.finish();
    for (size_t other = 0; other < 4; ++other)
      for (size_t i = 0; i < kApart; ++i)
        EXPECT_EQ(in[other * kApart + i], i < length(other, rank) ? value(other, rank) : std::byte{255})
            << rank << " from " << other << ", byte " << i;
  });
}

// Rank 2 aborts after a few calls. The other ranks' calls, whichever they are, end with rank 2's reason, and
// nobody touches these ranks' memory afterwards.
inline void expect_an_abort_ends_every_call(OnAllRanks& on_all_ranks, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    std::atomic<int> lost{0};
    on_all_ranks(4, [&](Communicator& c) {
      if (c.rank() == 2) {
        for (int i = 0; i < round % 5; ++i) c.barrier();
        return c.abort("rank 2 has had enough");
      }
      try {
        for (int i = 0;; ++i) {
          std::vector<uint64_t> mine(512, 1), all(4 * 512);
          if (i < round % 5) {
            c.barrier();
          } else if (round % 3 == 0) {
            c.all_gather(c.everyone(), mine.data(), mine.size() * 8, all.data());
          } else if (round % 3 == 1) {
            c.receive(mine.data(), 8, 2);
          } else {
            c.send(mine.data(), 8, 2);
          }
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::rank_lost);
        EXPECT_STREQ(error.what(), "rank 2 has had enough");
        EXPECT_THROW(c.throw_if_lost(), Error);
        ++lost;
      }
    });
    ASSERT_EQ(lost, 3);
  }
}

}  // namespace sluice
