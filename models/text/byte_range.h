// A range of bytes in a text.
#pragma once

#include <cstddef>

namespace sluice {

struct ByteRange {
  size_t begin = 0, end = 0;  // [begin, end)
  bool operator==(const ByteRange&) const = default;
};

}  // namespace sluice
