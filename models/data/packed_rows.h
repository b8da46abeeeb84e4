// Rows made of the samples of a prepared set.
//
// A sample of n tokens takes n - 1 positions: tokens 0 .. n - 2 with the tokens behind them as labels. A
// sample that is longer than a row is cut to its first `sequence` positions or divided into pieces, each a
// document of its own. A piece is left out if it lies before the sample's first trained token or behind its
// last one.
//
// An epoch is a sequence of pieces, in the samples' order or permuted by (seed, epoch), which is consumed in
// groups of kGroupPieces. The rows of a group are made by best-fit decreasing (Johnson 1973): the longest
// piece comes first, and the earliest of equally long ones. Each piece goes into the fullest row that has
// room. Rows of a group are permuted by (seed, epoch) too. So each sample's PreparedSample, the seed and the
// epoch alone decide which pieces a row has. Each unused position at a row's end is a document of its own:
// token 0 with label kPaddingLabel.
//
// Memory: one group, and 16 bytes for each group of an epoch. Owner: one thread.
#pragma once

#include <vector>

#include "models/data/prepared_set.h"
#include "models/data/row_source.h"
#include "models/data/sample_choice.h"

namespace sluice {

enum class LongSamples : uint8_t { cut, divided, refused };

struct PackingChoice {
  int64_t sequence = 0;
  bool packed = true;  // else a row has one piece
  LongSamples long_samples = LongSamples::cut;
  bool shuffled = true;
  uint64_t seed = 0;
  bool once = false;  // rows behind the first epoch are empty, so that a last batch has no piece twice
};

struct EpochFacts {
  uint64_t rows = 0;
  uint64_t tokens = 0;     // positions that are used
  uint64_t trained = 0;    // labels
  uint64_t cut = 0;        // samples that were cut, or divided
  uint64_t lost = 0;       // labels of cut samples that no row has
  uint64_t lost_ends = 0;  // cut samples whose last label is lost
  uint64_t left_out = 0;   // pieces without trained tokens
};

class PackedRows : public RowSource {
 public:
  // `set` must outlive this. Throws Error(malformed_file) for a set that gives no row, Error(usage) for a
  // sample that is too long where such samples are refused.
  PackedRows(const PreparedSet& set, SampleChoice samples, const PackingChoice& choice);

  bool has_documents() const override { return choice_.packed; }
  void read(uint64_t first, uint64_t rows, int32_t* inputs, int32_t* labels, int32_t* documents) override;

  const PackingChoice& choice() const { return choice_; }
  EpochFacts facts() { return seek(0), facts_; }  // of the first epoch
  // Rows of epochs [0, epochs).
  uint64_t rows_of_epochs(uint64_t epochs);

 private:
  struct Piece {
    uint64_t begin;    // first token, in the set
    uint32_t length;   // positions
    uint32_t row = 0;  // of the group
  };
  struct Place {                     // in an epoch's sequence of pieces
    uint64_t sample = 0, piece = 0;  // index in the epoch's order; piece of that sample
  };
  struct Group {
    Place begin;
    uint64_t first_row;  // in the epoch
  };
  SampleStretch sample_at(uint64_t epoch, uint64_t index) const;
  PreparedSample sample(uint64_t epoch, uint64_t index);
  void scan(uint64_t epoch);  // groups_ and facts_ of that epoch
  // Takes the pieces of one group from `place` on, and moves `place` behind them. Counts into `facts`.
  void take_pieces(uint64_t epoch, Place& place, EpochFacts& facts);
  uint32_t fill_rows();  // gives every piece its row; returns how many rows there are
  void load_group(uint64_t group);
  void seek(uint64_t row);  // to the epoch of a row of the run
  uint64_t read_row(uint64_t row, int32_t* inputs, int32_t* labels, int32_t* documents);

  const PreparedSet& set_;
  SampleChoice samples_;
  PackingChoice choice_;
  std::vector<Group> groups_;  // of epoch_
  EpochFacts facts_;
  uint64_t epoch_ = ~uint64_t{0}, first_row_ = 0;  // of the run
  uint64_t loaded_ = ~uint64_t{0};                 // group whose pieces are in pieces_
  std::vector<Piece> pieces_;
  std::vector<uint32_t> order_, starts_;            // pieces by row; index of each row's first
  std::vector<uint32_t> room_, next_, first_with_;  // of fill_rows
  std::vector<uint64_t> occupied_;
  std::vector<uint8_t> marks_;
  std::vector<int32_t> ids_;
  std::vector<PreparedSample> ahead_;  // samples read in one piece; one if shuffled
  uint64_t ahead_first_ = 0;
};

}  // namespace sluice
