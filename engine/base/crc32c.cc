#include "engine/base/crc32c.h"

#include <array>

namespace sluice {
namespace {

constexpr std::array<uint32_t, 256> kTable = [] {  // by byte: its remainder
  constexpr uint32_t kPolynomial = 0x82f63b78;     // 0x1edc6f41, lowest bit first
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = ~uint32_t{0};
  for (const char c : bytes) value = kTable[(value ^ static_cast<unsigned char>(c)) & 0xff] ^ (value >> 8);
  return ~value;
}

}  // namespace sluice
