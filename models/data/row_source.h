// Rows of a run: what a micro-batch is filled with.
//
// A row has `sequence` tokens. Its labels are the tokens that follow them, or kIgnoreLabel where none is to
// be learned. Rows are numbered from the start of the run, without end. Which tokens a row has depends on its
// number alone, so the rows are the same with any number of ranks, with any budget and after a resume. Reads
// of ascending rows are fast. Owner: one thread at a time.
#pragma once

#include <cstdint>

namespace sluice {

class RowSource {
 public:
  virtual ~RowSource() = default;

  // Whether rows hold several documents, which attention and positions must not cross.
  virtual bool has_documents() const = 0;

  // Rows [first, first + rows). inputs, labels and, unless it is nullptr, documents are [rows, sequence].
  // `documents` gets the position in the row at which the token's document begins. Throws
  // Error(malformed_file, io).
  virtual void read(uint64_t first, uint64_t rows, int32_t* inputs, int32_t* labels, int32_t* documents) = 0;
};

}  // namespace sluice
