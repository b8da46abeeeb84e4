#include "engine/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

// RFC 3720, appendix B.4, lists the bytes of each checksum, the lowest byte first.
TEST(Crc32c, HasTheValuesOfTheStandard) {
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up += static_cast<char>(i);
    down += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(up), 0x46dd794eu);
  EXPECT_EQ(crc32c(down), 0x113fdb5cu);
  constexpr unsigned char kCommand[48] = {0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0, 0, 0, 0,    0, 0, 0, 0,
                                          0x14, 0,    0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                          0x28, 0,    0, 0, 0, 0, 0,    0, 2, 0, 0, 0,    0, 0, 0, 0};
  EXPECT_EQ(crc32c({reinterpret_cast<const char*>(kCommand), sizeof kCommand}), 0xd9963a56u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);  // the check value of catalogues of checksums
  EXPECT_EQ(crc32c(""), 0u);
}

}  // namespace
}  // namespace sluice
