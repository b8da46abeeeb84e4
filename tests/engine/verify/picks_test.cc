// Parts of a bank are picked while a body runs. The verifier accepts this whatever part is picked, and
// objects to every way in which picking could go wrong.
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/verify/verify.h"

namespace sluice {
namespace {

// A router writes an index, which goes to the host. One of three experts comes from the drive, by way of host
// memory.
constexpr const char* kDecode = R"(sluice program 1
tier device capacity 1024 alignment 64
tier host capacity 1024 alignment 64
tier nvme capacity 1024 alignment 64 file
lane compute
lane h2d
lane d2h
lane nvme_read overlapping
link host device h2d alignment 64
link device host d2h alignment 64
link nvme host nvme_read alignment 64
unit forward compute device
buffer experts weights permanent home nvme+0 stride 64 pieces 64x3
buffer index scalars home host pieces 64
buffer y activations home device pieces 64
buffer place weights permanent home nvme+0 bank experts index index place 1 of 2 pieces 64
arena 192 128 192
body decode clean -> clean peak 192 128 192 after decode
tasks decode
0 forward 0/0 flops 0 bytes 0 write index@0
1 forward 1/0 flops 0 bytes 0 read place@0 write y@0 read by_host index@1
instructions decode
0 compute:1 run 0 at device+0
1 d2h:1 copy index@1 device+0 -> host+64 after compute:1
2 nvme_read:1 raw - read place@0 write place@0 read by_host index@1 at nvme+0 host+0 host+64 after d2h:1
3 h2d:1 raw - read place@0 write place@0 read by_host index@1 at host+0 device+64 host+64 after nvme_read:1
4 compute:2 run 1 at device+64 device+128 host+64 after h2d:1
)";

// What the verifier says of kDecode if `new_text` replaces `old_text`.
std::string fault_of(const std::string& old_text, const std::string& new_text) {
  std::string text = kDecode;
  const size_t at = text.find(old_text);
  CHECK(at != std::string::npos, old_text);
  text.replace(at, old_text.size(), new_text);
  const Program program = program_from_text(text);
  const std::vector<Violation> violations = verify(program, 1);
  return violations.empty() ? "" : describe(program, violations.front());
}

void expect_fault(const std::string& old_text, const std::string& new_text, const std::string& what) {
  const std::string fault = fault_of(old_text, new_text);
  EXPECT_NE(fault.find(what), std::string::npos) << new_text << ": " << fault;
}

TEST(VerifyPicks, AcceptsAnyPart) {
  EXPECT_EQ(fault_of("place 1 of 2", "place 1 of 2"), "");
  EXPECT_EQ(to_text(program_from_text(kDecode)),
            to_text(program_from_text(to_text(program_from_text(kDecode)))));
  EXPECT_EQ(program_from_text(kDecode).buffers[3].pick,
            (Pick{.bank = 0, .index = 1, .place = 1, .places = 2}));
}

TEST(VerifyPicks, PartsAreEqualAndTheIndexHasANumberForEach) {
  expect_fault("pieces 64x3", "pieces 64,128", "the parts of experts are not as buffer place");
  expect_fault("home host pieces 64", "home host pieces 12", "picked by index, which is no index of 3 parts");
  expect_fault("place 1 of 2", "place 2 of 2", "has place 2 of 2");
  expect_fault("permanent home nvme+0 bank", "permanent home host+0 bank", "is not at its bank");
  expect_fault("bank experts index index", "bank experts index experts", "which is no index");
}

TEST(VerifyPicks, TheHostReadsTheIndex) {
  expect_fault("raw - read place@0 write place@0 read by_host index@1 at nvme+0 host+0 host+64",
               "copy place@0 nvme+0 -> host+0", "does not show the host their index index");
  expect_fault("read by_host index@1 at nvme+0", "read index@1 at nvme+0",
               "does not show the host their index");
  expect_fault("at nvme+0 host+0 host+64", "at nvme+0 host+0 device+0",
               "has index for the host in tier device");
  expect_fault("at device+64 device+128 host+64", "at device+64 device+128 device+0",
               "has index for the host in tier device");
  expect_fault("write y@0 read by_host index@1", "write y@0 add index@1", "writes index index again");
}

TEST(VerifyPicks, WhatTheHostReadsHasBeenMade) {
  expect_fault("write y@0 read by_host index@1", "write y@0 add by_host index@1",
               "has index for the host, which is not what this body has made");
  expect_fault("write y@0 read by_host index@1", "write y@0 read by_host index@0",
               "has index for the host, which is not what this body has made");
  expect_fault("1 forward 1/0 flops 0 bytes 0 read place@0 write y@0 read by_host",
               "1 forward 1/0 flops 0 bytes 0 read by_host place@0 write y@0 read by_host",
               "has two operands for the host");
}

TEST(VerifyPicks, TheIndexIsThereAndStays) {
  expect_fault("host+64 after d2h:1", "host+64", "reads what was written to host [64, 128)");
  expect_fault("1 d2h:1 copy index@1 device+0 -> host+64", "1 d2h:1 copy index@1 device+0 -> host+0",
               "demands index");
}

TEST(VerifyPicks, WhatIsPickedIsOnlyReadAndLiesInItsBank) {
  expect_fault("1 forward 1/0 flops 0 bytes 0 read place@0", "1 forward 1/0 flops 0 bytes 0 add place@0",
               "writes picked buffer place");
  expect_fault("at nvme+0 host+0 host+64", "at nvme+64 host+0 host+64", "beside its bank");
  expect_fault("home nvme+0 bank", "home nvme+0 empty_in pending bank", "is not permanent as its bank is");
  expect_fault("device+64 host+64 after nvme_read:1", "device+64 host+64",
               "reads what was written to host [0, 64)");
}

}  // namespace
}  // namespace sluice
