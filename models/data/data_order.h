// Which tokens a row of the run reads.
//
// The tokens are cut into W = floor((tokens - 1) / T) windows; window i holds tokens [i*T, i*T + T + 1): T
// inputs, and the labels, which are one token further. A label is kIgnoreLabel where a mask of the data says
// that the token is not trained. Row r of the run reads window r mod W. If shuffled, every epoch (r / W)
// permutes the windows anew by (seed, epoch). The permutation is a function, not a table: it needs no memory,
// however large W is, and a run resumes from its cursor alone, the number of rows consumed. Callers: the
// trainer, before it issues a body; validation.
#pragma once

#include <cstdint>

#include "models/data/token_data.h"

namespace sluice {

struct DataOrder {
  uint64_t windows = 0;  // W > 0
  int64_t sequence = 0;  // T
  bool shuffled = true;
  uint64_t seed = 0;
  // If set, the last window may have fewer labels, and rows behind it have none, so that no label counts
  // twice. Where there is no label, the input is token 0 and the label kPaddingLabel.
  bool once = false;
};

// Throws Error(malformed_file) when the data does not hold one window of `sequence` tokens.
DataOrder make_data_order(const TokenData& data, int64_t sequence, bool shuffled, uint64_t seed);

// A permutation of [0, size) keyed by (seed, epoch): a Feistel network (Luby and Rackoff 1988) of Philox
// rounds on the least number of bits that holds size - 1, repeated until the result is below size (Black and
// Rogaway, "Ciphers with Arbitrary Finite Domains", 2002); fewer than two passes on average.
uint64_t permuted(uint64_t index, uint64_t size, uint64_t seed, uint64_t epoch);

uint64_t window_of_row(const DataOrder& order, uint64_t row);

// Rows [first_row, first_row + rows): inputs and labels are [rows, T]. Throws as TokenData::read.
void read_rows(const DataOrder& order, const TokenData& data, uint64_t first_row, uint64_t rows,
               int32_t* inputs, int32_t* labels);

// Validation reads the first `batches` x `rows_per_batch` windows in order, every time. If the data has
// fewer windows, throws Error(usage) that says how many.
DataOrder make_validation_order(const TokenData& data, int64_t sequence, uint64_t batches,
                                uint64_t rows_per_batch);

// An evaluation of all data reads every label once, in order. Throws Error(malformed_file) when the data hold
// no label.
DataOrder make_evaluation_order(const TokenData& data, int64_t sequence);

}  // namespace sluice
