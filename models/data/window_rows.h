// Rows that are windows of token files, in the order of data_order.h. A label is learned unless a mask of the
// data leaves it out. A window is one document.
#pragma once

#include "models/data/data_order.h"
#include "models/data/row_source.h"

namespace sluice {

class WindowRows : public RowSource {
 public:
  WindowRows(const TokenData& data, const DataOrder& order) : data_(data), order_(order) {}

  bool has_documents() const override { return false; }
  void read(uint64_t first, uint64_t rows, int32_t* inputs, int32_t* labels, int32_t* documents) override;

 private:
  const TokenData& data_;
  DataOrder order_;
};

}  // namespace sluice
