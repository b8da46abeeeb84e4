// Rows of several sources in fixed shares.
//
// Row r of the run is the next row of one source. Let W be the sum of all weights. Of the first r rows, a
// source with weight w has r * w / W, with an error below one: its j-th row, counted from 0, is one of rows
// [floor(j * W / w), ceil((j + 1) * W / w)). If several sources may have a row, it goes to the source whose
// range ends first, and of several such sources to the first. Then all rows find a place (Baruah, Cohen,
// Plaxton, Varvel, "Proportionate Progress", 1996, for one processor). After W rows each source has had
// exactly its weight in rows, and the order repeats. The order depends on the weights alone. Owner: one
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/data/row_source.h"

namespace sluice {

class MixOrder {
 public:
  struct Place {
    size_t source = 0;
    uint64_t row = 0;  // of that source
    bool operator==(const Place&) const = default;
  };
  // Weights are above 0; their sum is at most 2^62.
  explicit MixOrder(std::vector<uint64_t> weights);

  // Takes time in proportion to the rows that it passes over, at most W rows; ascending rows are fast.
  Place at(uint64_t row);

 private:
  struct Source {
    uint64_t weight = 0;
    uint64_t rows = 0;              // so far in the period
    uint64_t release = 0, end = 0;  // range of the source's next row, in the period
  };
  void begin_period();
  size_t step();  // the source of row_

  std::vector<Source> sources_;
  uint64_t sum_ = 0;
  uint64_t row_ = 0;  // the next row of the period
};

class MixedRows : public RowSource {
 public:
  // `weights`: of each source; `sequence`: tokens of a row.
  MixedRows(std::vector<std::unique_ptr<RowSource>> sources, std::vector<uint64_t> weights, int64_t sequence);

  bool has_documents() const override;
  void read(uint64_t first, uint64_t rows, int32_t* inputs, int32_t* labels, int32_t* documents) override;

 private:
  std::vector<std::unique_ptr<RowSource>> sources_;
  MixOrder order_;
  uint64_t sequence_;
};

}  // namespace sluice
