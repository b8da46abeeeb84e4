// The transfer lane when a drive fails: every fault, at every request.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/fault_queue.h"
#include "tests/support/transfer_rig.h"

namespace sluice {
namespace {

// 2 + 1 + 3 = 6 requests: a fault can hit first, middle and last pieces.
const std::vector<uint64_t> kFaultSizes{kMiB + 4097, 60001, 2 * kMiB + 12288};
constexpr uint64_t kFaultRequests = 6;

struct Outcome {
  std::optional<IoError> error;
  uint64_t completed = 0;
};

// Writes and reads everything. The fault hits the writing queue or the reading queue.
Outcome write_and_read(Rig& rig, const Fault& fault, bool fault_in_writes) {
  Fault other = fault;
  other.kind = FaultKind::none;
  TransferLane writes(std::make_unique<FaultQueue>(real_queue(), fault_in_writes ? fault : other), 2, 4096);
  TransferLane reads(std::make_unique<FaultQueue>(real_queue(), fault_in_writes ? other : fault), 2, 4096);
  rig.run(writes, IoDirection::write);
  if (writes.error()) return {*writes.error(), writes.completed()};
  rig.run(reads, IoDirection::read);
  if (reads.error()) return {*reads.error(), reads.completed()};
  return {std::nullopt, reads.completed()};
}

TEST(TransferLaneFaults, PassingFaultsLeaveIdenticalBytes) {
  Rig rig(kFaultSizes);
  uint64_t seed = 0;
  for (const FaultKind kind : {FaultKind::short_transfer, FaultKind::eagain, FaultKind::eintr})
    for (uint64_t n = 1; n <= kFaultRequests; ++n)
      for (const bool in_writes : {true, false}) {
        SCOPED_TRACE(::testing::Message() << "kind " << int(kind) << " at " << n << " writes " << in_writes);
        rig.reset(++seed);
        const Outcome outcome = write_and_read(rig, {kind, n, 1 + n % 3, seed}, in_writes);
        EXPECT_FALSE(outcome.error.has_value());
        EXPECT_EQ(outcome.completed, kFaultSizes.size());
      }
}

TEST(TransferLaneFaults, LastingFaultsEndWithATypedError) {
  const struct {
    FaultKind kind;
    IoFault what;
    int error;
  } kinds[] = {{FaultKind::eio, IoFault::failed, EIO}, {FaultKind::enospc, IoFault::no_space, ENOSPC}};
  Rig rig(kFaultSizes);
  for (const auto& k : kinds)
    for (uint64_t n = 1; n <= kFaultRequests; ++n) {
      rig.reset(2 * n);
      const Outcome outcome = write_and_read(rig, {k.kind, n, 1, n}, true);
      ASSERT_TRUE(outcome.error.has_value()) << n;
      EXPECT_EQ(outcome.error->what, k.what);
      EXPECT_EQ(outcome.error->error, k.error);
      EXPECT_EQ(outcome.error->direction, IoDirection::write);
      EXPECT_EQ(to_error(*outcome.error).code(), ExitCode::io);
      EXPECT_LT(outcome.completed, kFaultSizes.size());
      rig.reset(2 * n + 1);
      const Outcome in_read = write_and_read(rig, {k.kind, n, 1, n}, false);
      ASSERT_TRUE(in_read.error.has_value()) << n;
      EXPECT_EQ(in_read.error->what, IoFault::failed);
      EXPECT_EQ(in_read.error->direction, IoDirection::read);
    }
}

TEST(TransferLaneFaults, EveryFlippedBitIsFound) {
  Rig rig(kFaultSizes);
  for (uint64_t n = 1; n <= kFaultRequests; ++n)
    for (const bool in_writes : {true, false}) {
      rig.reset(2 * n + in_writes);
      const Outcome outcome = write_and_read(rig, {FaultKind::bit_flip, n, 1, n}, in_writes);
      ASSERT_TRUE(outcome.error.has_value()) << n;
      EXPECT_EQ(outcome.error->what, IoFault::checksum_mismatch);
      EXPECT_EQ(outcome.error->direction, IoDirection::read);
      EXPECT_EQ(outcome.error->offset, (n - 1) * kMiB);
    }
}

// Each of three directories fails in turn, at its second request. The message has its path and the offset.
TEST(TransferLaneFaults, OneOfSeveralDirectoriesFails) {
  Rig rig({5 * kMiB, 7 * kMiB}, {1, 1, 1});
  for (size_t bad = 0; bad < 3; ++bad)
    for (const FaultKind kind : {FaultKind::eio, FaultKind::enospc, FaultKind::bit_flip}) {
      rig.reset(3 * bad + static_cast<uint64_t>(kind));
      Fault fault{kind, 2, 1, bad};
      fault.directory = rig.drives[bad].path();
      const Outcome outcome = write_and_read(rig, fault, true);
      ASSERT_TRUE(outcome.error.has_value());
      EXPECT_EQ(outcome.error->offset, kMiB);
      const std::string text = to_error(*outcome.error).what();
      const std::string place =
          "1048576 bytes at offset 1048576 of the NVMe scratch file in " + rig.drives[bad].path();
      const std::map<FaultKind, std::string> expected{
          {FaultKind::eio, "Writing " + place + " failed: Input/output error (errno 5)."},
          {FaultKind::enospc,
           "No space is left for writing " + place + ": No space left on device (errno 28)."},
          {FaultKind::bit_flip, "Checksum mismatch: " + place + " are not what was written there."}};
      EXPECT_EQ(text, expected.at(kind));
    }
}

TEST(TransferLaneFaults, RefusalWithoutEndIsAnError) {
  for (const FaultKind kind : {FaultKind::eagain, FaultKind::eintr}) {
    Rig rig({100});
    const Outcome outcome = write_and_read(rig, {kind, 1, UINT64_MAX, 1}, true);
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->what, IoFault::refused);
    EXPECT_EQ(outcome.error->error, kind == FaultKind::eagain ? EAGAIN : EINTR);
    EXPECT_EQ(outcome.completed, 0u);
  }
}

}  // namespace
}  // namespace sluice
