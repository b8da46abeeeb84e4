#include "models/data/mixed_rows.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"

namespace sluice {

namespace {

// floor(a * b / c) and ceil(a * b / c).
uint64_t floor_of(uint64_t a, uint64_t b, uint64_t c) {
  return static_cast<uint64_t>(static_cast<__uint128_t>(a) * b / c);
}
uint64_t ceil_of(uint64_t a, uint64_t b, uint64_t c) {
  return static_cast<uint64_t>((static_cast<__uint128_t>(a) * b + c - 1) / c);
}

}  // namespace

MixOrder::MixOrder(std::vector<uint64_t> weights) {
  for (const uint64_t weight : weights) {
    CHECK(weight > 0 && weight <= (uint64_t{1} << 62) - sum_, "weights of a mix");
    sources_.push_back({.weight = weight});
    sum_ += weight;
  }
  CHECK(!sources_.empty(), "a mix has sources");
  begin_period();
}

void MixOrder::begin_period() {
  row_ = 0;
  for (Source& s : sources_) s = {s.weight, 0, 0, ceil_of(1, sum_, s.weight)};
}

size_t MixOrder::step() {
  Source* chosen = nullptr;
  for (Source& s : sources_)
    if (s.release <= row_ && (!chosen || s.end < chosen->end)) chosen = &s;
  CHECK(chosen && chosen->end > row_, "a row of a mix finds its place");
  ++chosen->rows, ++row_;
  chosen->release = floor_of(chosen->rows, sum_, chosen->weight);
  chosen->end = ceil_of(chosen->rows + 1, sum_, chosen->weight);
  return static_cast<size_t>(chosen - sources_.data());
}

MixOrder::Place MixOrder::at(uint64_t row) {
  const uint64_t period = row / sum_, wanted = row % sum_;
  if (wanted < row_) begin_period();
  while (row_ < wanted) step();
  const size_t source = step();
  return {source, period * sources_[source].weight + sources_[source].rows - 1};
}

MixedRows::MixedRows(std::vector<std::unique_ptr<RowSource>> sources, std::vector<uint64_t> weights,
                     int64_t sequence)
    : sources_(std::move(sources)), order_(std::move(weights)), sequence_(static_cast<uint64_t>(sequence)) {}

bool MixedRows::has_documents() const {
  return std::any_of(sources_.begin(), sources_.end(), [](const auto& s) { return s->has_documents(); });
}

void MixedRows::read(uint64_t first, uint64_t rows, int32_t* inputs, int32_t* labels, int32_t* documents) {
  for (uint64_t row = first; row < first + rows; ++row) {
    const MixOrder::Place place = order_.at(row);
    sources_[place.source]->read(place.row, 1, inputs, labels, documents);
    inputs += sequence_, labels += sequence_;
    if (documents) documents += sequence_;
  }
}

}  // namespace sluice
