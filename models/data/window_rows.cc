#include "models/data/window_rows.h"

#include <algorithm>

namespace sluice {

void WindowRows::read(uint64_t first, uint64_t rows, int32_t* inputs, int32_t* labels, int32_t* documents) {
  read_rows(order_, data_, first, rows, inputs, labels);
  if (documents) std::fill_n(documents, rows * static_cast<uint64_t>(order_.sequence), 0);
}

}  // namespace sluice
