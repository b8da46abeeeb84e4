// Decodes event files for TensorBoard, by the descriptions of their forms and without any code of the writer:
// TFRecord framing with a checksum that is computed bit by bit, and the wire format of protocol buffers.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

struct DecodedEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  std::optional<int64_t> session_status;
  std::map<std::string, float> scalars;  // by tag
};

// The first `bytes` bytes as a number, the lowest first.
inline uint64_t little(std::string_view text, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = bytes; i-- > 0;) value = value * 256 + static_cast<unsigned char>(text.at(i));
  return value;
}

// The checksum of TFRecord: (crc rotated right by 15) + 0xa282ead8. The crc divides by 0x1edc6f41, bit by
// bit.
inline uint32_t masked_checksum(std::string_view data) {
  uint32_t rest = 0xffffffff;
  for (const char c : data)
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = ((rest ^ (static_cast<unsigned char>(c) >> bit)) & 1) != 0;
      rest = one ? (rest >> 1) ^ 0x82f63b78 : rest >> 1;
    }
  rest = ~rest;
  return ((rest >> 15) | (rest << 17)) + 0xa282ead8;
}

// A field of a message: its number, its wire type, and its value as a number or as bytes.
struct WireField {
  uint64_t number = 0, type = 0, value = 0;
  std::string_view bytes;
};

inline std::vector<WireField> wire_fields(std::string_view message) {
  std::vector<WireField> fields;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(0));
      message.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (!message.empty()) {
    const uint64_t key = varint();
    WireField field{key >> 3, key & 7, 0, {}};
    size_t bytes = 0;
    if (field.type == 0) field.value = varint();
    if (field.type == 1) bytes = 8;
    if (field.type == 5) bytes = 4;
    if (field.type == 2) bytes = varint();
    EXPECT_TRUE(field.type <= 2 || field.type == 5) << field.type;
    field.bytes = message.substr(0, bytes);
    EXPECT_EQ(field.bytes.size(), bytes);
    if (bytes > 0 && field.type != 2) field.value = little(field.bytes, bytes);
    message.remove_prefix(bytes);
    fields.push_back(field);
  }
  return fields;
}

inline DecodedEvent decoded_event(std::string_view data) {
  DecodedEvent event;
  for (const WireField& f : wire_fields(data)) {
    const auto is = [&](uint64_t number, uint64_t type) { return f.number == number && f.type == type; };
    if (is(1, 1)) {
      event.wall_time = std::bit_cast<double>(f.value);
    } else if (is(2, 0)) {
      event.step = static_cast<int64_t>(f.value);
    } else if (is(3, 2)) {
      event.file_version = f.bytes;
    } else if (is(5, 2)) {  // a summary: values, each with tag and simple_value
      for (const WireField& value : wire_fields(f.bytes)) {
        EXPECT_TRUE(value.number == 1 && value.type == 2);
        const std::vector<WireField> parts = wire_fields(value.bytes);
        EXPECT_TRUE(parts.size() == 2 && parts[0].number == 1 && parts[0].type == 2 && parts[1].number == 2 &&
                    parts[1].type == 5);
        event.scalars[std::string(parts.at(0).bytes)] =
            std::bit_cast<float>(static_cast<uint32_t>(parts.at(1).value));
      }
    } else if (is(7, 2)) {  // a session log: its status
      for (const WireField& part : wire_fields(f.bytes))
        if (part.number == 1) event.session_status = static_cast<int64_t>(part.value);
    } else {
      ADD_FAILURE() << "field " << f.number << " of type " << f.type;
    }
  }
  return event;
}

// Decodes the events of a file, up to the first record that is not whole.
inline std::vector<DecodedEvent> decoded_events(std::string_view file) {
  constexpr size_t kHead = 8 + 4, kTail = 4;  // length and its checksum; checksum of the data
  std::vector<DecodedEvent> events;
  while (file.size() >= kHead) {
    const uint64_t bytes = little(file, 8);
    EXPECT_EQ(little(file.substr(8), 4), masked_checksum(file.substr(0, 8)));
    if (file.size() < kHead + bytes + kTail) break;
    const std::string_view data = file.substr(kHead, bytes);
    EXPECT_EQ(little(file.substr(kHead + bytes), 4), masked_checksum(data));
    events.push_back(decoded_event(data));
    file.remove_prefix(kHead + bytes + kTail);
  }
  return events;
}

}  // namespace sluice
