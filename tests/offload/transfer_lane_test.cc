// The transfer lane: bytes, order of completion, checksums.
#include "offload/transfer_lane.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <vector>

#include "offload/io/backends.h"
#include "tests/support/transfer_rig.h"

namespace {
thread_local uint64_t allocations = 0;
}  // namespace

// Not inlined: GCC would take an inlined malloc or free for a mismatch with the operators.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace sluice {
namespace {

const std::vector<uint64_t> kOddSizes{
    1, 511, 4096, 4097, kMiB - 1, kMiB, kMiB + 1, 3 * kMiB, 3670139 + 17, 12345678, 5 * kMiB + 4096, 0, 77};

class LaneOnEveryBackEnd : public ::testing::TestWithParam<const IoBackend*> {
 protected:
  void SetUp() override {
    if (!works_here(GetParam())) GTEST_SKIP() << "this system has no usable " << GetParam()->title;
  }
};

TEST_P(LaneOnEveryBackEnd, OddSizesComeBackInOrder) {
  Rig rig(kOddSizes);
  TransferLane lane(real_queue(GetParam(), rig.written.span()), 4, 4096);
  rig.run(lane, IoDirection::write);
  rig.run(lane, IoDirection::read);
  EXPECT_EQ(lane.error(), nullptr);
  EXPECT_EQ(lane.completed(), 2 * kOddSizes.size());
  EXPECT_TRUE(lane.idle());
}

TEST_P(LaneOnEveryBackEnd, SeveralDirectoriesShareTheBytes) {
  Rig rig(kOddSizes, {3, 2, 1});
  TransferLane lane(make_io_queue(GetParam(), requests_in_flight(3), rig.written.span(), nullptr), 4, 4096);
  rig.run(lane, IoDirection::write);
  rig.run(lane, IoDirection::read);
  EXPECT_EQ(lane.error(), nullptr);
  EXPECT_EQ(lane.completed(), 2 * kOddSizes.size());
  Arena stripe(kMiB);
  for (uint64_t begin = 0; begin < rig.total; begin += kMiB) {  // as it lies on the drives
    const NvmeFiles::Location at = rig.files->locate(begin, kMiB);
    ASSERT_EQ(pread(at.file->fd, stripe.data(), kMiB, static_cast<off_t>(at.offset)), ssize_t{kMiB});
    const std::byte* const expected = rig.written.data() + begin;
    EXPECT_EQ(std::memcmp(stripe.data(), expected, 512), 0) << begin;
  }
}

TEST_P(LaneOnEveryBackEnd, ReadsAndWritesOfTwoLanesMix) {
  Rig a({9 * kMiB + 5, 4 * kMiB}), b({6 * kMiB, 7 * kMiB + 4095});
  TransferLane writes(real_queue(GetParam()), 4, 4096), reads(real_queue(GetParam()), 4, 4096);
  b.run(writes, IoDirection::write);
  for (size_t i = 0; i < 2; ++i) {
    writes.start(a.transfer(i, IoDirection::write));
    reads.start(b.transfer(i, IoDirection::read));
  }
  while (!(writes.idle() && reads.idle()) && !writes.error() && !reads.error()) {
    writes.progress(0);
    reads.progress(100);
  }
  for (size_t i = 0; i < 2; ++i) b.expect_read(i);
  a.run(reads, IoDirection::read);
  EXPECT_EQ(reads.completed(), 4u);
}

TEST_P(LaneOnEveryBackEnd, StopAwaitsWhatIsInFlight) {
  Rig rig({16 * kMiB});
  TransferLane lane(real_queue(GetParam()), 4, 4096);
  lane.start(rig.transfer(0, IoDirection::write));
  lane.progress(0);
  lane.stop();
  EXPECT_FALSE(lane.can_start());
}

INSTANTIATE_TEST_SUITE_P(BackEnds, LaneOnEveryBackEnd, ::testing::ValuesIn(kIoBackends), name_of_backend);

TEST(TransferLane, ChecksumsAreOfEachPieceAndNothingElse) {
  Rig rig({2 * kMiB + 1000, 5});
  rig.slots.push_back(42);  // the slot of a range that nobody writes
  TransferLane lane(real_queue(), 4, 4096);
  rig.run(lane, IoDirection::write);
  const std::byte* const data = rig.written.data();
  const std::vector<uint64_t> expected{XXH3_64bits(data, kMiB), XXH3_64bits(data + kMiB, kMiB),
                                       XXH3_64bits(data + 2 * kMiB, 1000), XXH3_64bits(data + 3 * kMiB, 5),
                                       42};
  EXPECT_EQ(rig.slots, expected);
}

TEST(TransferLane, TransfersWithoutChecksumsLeaveNoTrace) {
  Rig rig({kMiB + 8192});
  TransferLane lane(real_queue(), 4, 4096);
  Transfer t = rig.transfer(0, IoDirection::write);
  t.checksums = {};
  t.offset = 4096;  // need not be a whole request
  t.bytes = kMiB;
  lane.start(t);
  while (!lane.idle()) lane.progress(kWait);
  t = rig.transfer(0, IoDirection::read);
  t.checksums = {};
  t.offset = 4096;
  t.bytes = kMiB;
  lane.start(t);
  while (!lane.idle()) lane.progress(kWait);
  EXPECT_EQ(pattern_end({rig.read.data(), kMiB}, 0), kMiB);
  EXPECT_EQ(rig.slots, std::vector<uint64_t>(2, 0));
}

TEST(TransferLane, AllocatesNothingAfterConstruction) {
  Rig rig(kOddSizes);
  TransferLane lane(real_queue(&kThreadBackend), 4, 4096);
  for (const IoDirection direction : {IoDirection::write, IoDirection::read}) {
    const uint64_t base = lane.completed(), before = allocations;
    for (size_t next = 0; lane.completed() < base + kOddSizes.size();) {
      while (next < kOddSizes.size() && lane.can_start()) lane.start(rig.transfer(next++, direction));
      lane.progress(kWait);
    }
    EXPECT_EQ(allocations, before);
  }
}

// A queue whose completions the test chooses.
class ScriptedQueue : public IoQueue {
 public:
  struct Script {
    std::deque<IoRequest> waiting;
    std::deque<IoCompletion> done;
    void complete(size_t i) { complete(i, waiting[i].bytes); }
    void complete(size_t i, int64_t result) {
      done.push_back({waiting[i].tag, result});
      waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
    }
  };
  explicit ScriptedQueue(Script& script) : script_(script) {}
  uint32_t depth() const override { return requests_in_flight(1); }
  uint32_t in_flight() const override {
    return static_cast<uint32_t>(script_.waiting.size() + script_.done.size());
  }
  void submit(const IoRequest& request) override {
    ASSERT_LT(in_flight(), depth());
    script_.waiting.push_back(request);
  }
  uint32_t poll(std::span<IoCompletion> done, int64_t) override {
    if (draining_ && script_.done.empty() && !script_.waiting.empty()) script_.complete(0);
    draining_ = script_.done.empty();  // if the next poll finds nothing either, the lane is draining
    uint32_t n = 0;
    for (; n < done.size() && !script_.done.empty(); script_.done.pop_front())
      done[n++] = script_.done.front();
    return n;
  }

 private:
  Script& script_;
  bool draining_ = false;
};

TEST(TransferLane, CountsInOrderThoughTheDriveAnswersInAnother) {
  Rig rig({2 * kMiB, 100, 3 * kMiB, 20 * kMiB});
  ScriptedQueue::Script script;
  TransferLane lane(std::make_unique<ScriptedQueue>(script), 4, 4096);
  for (size_t i = 0; i < 4; ++i) lane.start(rig.transfer(i, IoDirection::write));
  EXPECT_FALSE(lane.can_start());
  EXPECT_TRUE(script.waiting.empty());
  lane.progress(0);
  // 2 + 1 + 3 requests of the first three transfers and ten of the fourth: 16 are in flight.
  ASSERT_EQ(script.waiting.size(), 16u);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(script.waiting[i].offset, i * kMiB);
  EXPECT_EQ(script.waiting[2].bytes, 4096u);  // 100 bytes, rounded up to whole blocks

  script.complete(2);
  lane.progress(0);
  EXPECT_EQ(lane.completed(), 0u);  // the second transfer is done, the first is not
  EXPECT_EQ(script.waiting.size(), 16u);
  EXPECT_EQ(script.waiting.back().offset, 16 * kMiB);
  script.complete(1);
  lane.progress(0);
  EXPECT_EQ(lane.completed(), 0u);
  script.complete(0);
  lane.progress(0);
  EXPECT_EQ(lane.completed(), 2u);
  EXPECT_TRUE(lane.can_start());
  while (!script.waiting.empty()) {
    script.complete(script.waiting.size() - 1);
    lane.progress(0);
    if (!script.waiting.empty()) {
      EXPECT_LT(lane.completed(), 4u);
    }
  }
  EXPECT_EQ(lane.completed(), 4u);
}

TEST(TransferLane, ContinuesAShortTransferFromAnAlignedOffset) {
  Rig rig({kMiB});
  ScriptedQueue::Script script;
  TransferLane lane(std::make_unique<ScriptedQueue>(script), 4, 4096);
  lane.start(rig.transfer(0, IoDirection::write));
  lane.progress(0);
  script.complete(0, 5000);  // one block and a part, which is written again
  lane.progress(0);
  ASSERT_EQ(script.waiting.size(), 1u);
  EXPECT_EQ(script.waiting[0].offset, 4096u);
  EXPECT_EQ(script.waiting[0].bytes, kMiB - 4096);
  EXPECT_EQ(script.waiting[0].memory, rig.written.data() + 4096);
  script.complete(0);
  lane.progress(0);
  EXPECT_EQ(lane.completed(), 1u);
}

// Drive shares 2 and 1: stripes 0 1 0 0 1 0.
TEST(TransferLane, RequestsGoWhereTheirStripeLies) {
  Rig rig({kMiB, 4 * kMiB + 5000}, {2, 1});
  ScriptedQueue::Script script;
  TransferLane lane(std::make_unique<ScriptedQueue>(script), 4, 4096);
  lane.start(rig.transfer(1, IoDirection::write));
  lane.progress(0);
  ASSERT_EQ(script.waiting.size(), 5u);
  const std::pair<size_t, uint64_t> expected[] = {{1, 0}, {0, 1}, {0, 2}, {1, 1}, {0, 3}};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(script.waiting[i].fd, rig.files->files()[expected[i].first].fd) << i;
    EXPECT_EQ(script.waiting[i].offset, expected[i].second * kMiB) << i;
    EXPECT_EQ(script.waiting[i].memory, rig.written.data() + (1 + i) * kMiB) << i;
    EXPECT_EQ(script.waiting[i].bytes, i < 4 ? kMiB : 8192) << i;
  }
  script.complete(2, 12288);  // cut short: the rest goes to the same file
  lane.progress(0);
  ASSERT_EQ(script.waiting.size(), 5u);
  EXPECT_EQ(script.waiting[4].fd, rig.files->files()[0].fd);
  EXPECT_EQ(script.waiting[4].offset, 2 * kMiB + 12288);
  EXPECT_EQ(script.waiting[4].memory, rig.written.data() + 3 * kMiB + 12288);
  while (!script.waiting.empty()) {
    script.complete(0);
    lane.progress(0);
  }
  EXPECT_EQ(lane.completed(), 1u);
}

TEST(TransferLane, NoBytesIsAnError) {
  Rig rig({kMiB});
  ScriptedQueue::Script script;
  TransferLane lane(std::make_unique<ScriptedQueue>(script), 4, 4096);
  lane.start(rig.transfer(0, IoDirection::write));
  lane.progress(0);
  script.complete(0, 8192);
  lane.progress(0);
  script.complete(0, 0);
  lane.progress(0);
  ASSERT_NE(lane.error(), nullptr);
  EXPECT_EQ(lane.error()->what, IoFault::end_of_file);
  EXPECT_EQ(lane.error()->offset, 8192u);
  EXPECT_STREQ(to_error(*lane.error()).what(),
               "Writing 1040384 bytes at offset 8192 of scratch moved no bytes.");
}

TEST(TransferLane, AnErrorDrainsAndPoisons) {
  Rig rig({4 * kMiB, 4 * kMiB, 30 * kMiB});
  ScriptedQueue::Script script;
  TransferLane lane(std::make_unique<ScriptedQueue>(script), 4, 4096);
  for (size_t i = 0; i < 3; ++i) lane.start(rig.transfer(i, IoDirection::write));
  lane.progress(0);
  for (int i = 0; i < 4; ++i) script.complete(0);
  script.complete(0, -EIO);
  lane.progress(0);
  EXPECT_EQ(script.waiting.size(), 0u);  // in-flight requests were awaited, none was added
  ASSERT_NE(lane.error(), nullptr);
  EXPECT_EQ(lane.error()->what, IoFault::failed);
  EXPECT_EQ(lane.error()->error, EIO);
  EXPECT_EQ(lane.error()->offset, 4 * kMiB);
  EXPECT_LE(lane.completed(), 1u);
  EXPECT_FALSE(lane.can_start());
  lane.progress(0);
  EXPECT_EQ(script.waiting.size(), 0u);
  const Error error = to_error(*lane.error());
  EXPECT_EQ(error.code(), ExitCode::io);
  EXPECT_STREQ(error.what(),
               "Writing 1048576 bytes at offset 4194304 of scratch failed: Input/output error (errno 5).");
}

TEST(TransferLane, ReadingWhatWasNeverWrittenIsABug) {
  Rig rig({kMiB, 3 * kMiB});
  TransferLane lane(real_queue(), 4, 4096);
  Transfer t = rig.transfer(1, IoDirection::write);
  t.bytes = 2 * kMiB;
  lane.start(t);
  while (!lane.idle()) lane.progress(kWait);
  lane.start(rig.transfer(1, IoDirection::read));
  while (!lane.error()) lane.progress(kWait);
  EXPECT_EQ(lane.error()->what, IoFault::checksum_missing);
  EXPECT_EQ(lane.error()->offset, 3 * kMiB);
  EXPECT_EQ(to_error(*lane.error()).code(), ExitCode::bug);
}

TEST(TransferLane, DamageOnTheDriveIsFound) {
  Rig rig({2 * kMiB, 100});
  TransferLane lane(real_queue(), 4, 4096);
  rig.run(lane, IoDirection::write);
  std::byte* const block = rig.read.data();
  const int fd = rig.files->files()[0].fd;
  ASSERT_EQ(pread(fd, block, 4096, 2 * kMiB), 4096);
  block[99] ^= std::byte{1};  // the last byte of the second transfer
  ASSERT_EQ(pwrite(fd, block, 4096, 2 * kMiB), 4096);
  rig.run(lane, IoDirection::read);
  ASSERT_NE(lane.error(), nullptr);
  EXPECT_EQ(lane.error()->what, IoFault::checksum_mismatch);
  const Error error = to_error(*lane.error());
  EXPECT_EQ(error.code(), ExitCode::io);
  EXPECT_STREQ(error.what(),
               "Checksum mismatch: 100 bytes at offset 2097152 of scratch are not what was written there.");
}

}  // namespace
}  // namespace sluice
