// Rows of several sources: shares that hold at every row, and an order that the weights alone decide.
#include "models/data/mixed_rows.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice {
namespace {

using Weights = std::vector<uint64_t>;

uint64_t sum_of(const Weights& weights) {
  uint64_t sum = 0;
  for (const uint64_t weight : weights) sum += weight;
  return sum;
}

// Checks the first `rows` rows. Each row is the next of its source, and the number of rows that a source has
// given differs from its share by less than one.
void expect_exact_shares(const Weights& weights, uint64_t rows) {
  MixOrder order(weights);
  const uint64_t sum = sum_of(weights);
  Weights had(weights.size());
  for (uint64_t row = 0; row < rows; ++row) {
    const MixOrder::Place place = order.at(row);
    ASSERT_LT(place.source, weights.size());
    ASSERT_EQ(place.row, had[place.source]) << row;
    ++had[place.source];
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto due = static_cast<__int128_t>(weights[i]) * (row + 1),
                 has = static_cast<__int128_t>(had[i]) * sum;
      ASSERT_TRUE(due - has < sum && has - due < sum) << "source " << i << " behind row " << row;
    }
    if ((row + 1) % sum != 0) continue;
    for (size_t i = 0; i < weights.size(); ++i) ASSERT_EQ(had[i], weights[i] * ((row + 1) / sum));
  }
}

TEST(MixOrder, SharesHoldAtEveryRow) {
  for (const Weights& weights :
       {Weights{1}, Weights{7, 3}, Weights{1, 1}, Weights{1, 1, 1}, Weights{97, 1, 1, 1}, Weights{1, 999999},
        Weights{333333, 666667}, Weights{6, 5, 4, 3, 2, 1}, Weights{1'000'000'000'000'000, 3, 1},
        Weights{123456789, 987654321, 555555555, 42}})
    expect_exact_shares(weights, 5000);
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    Weights weights(2 + random() % 9);
    for (uint64_t& weight : weights) weight = 1 + random() % (i % 2 ? 20 : 1000);
    expect_exact_shares(weights, 2 * sum_of(weights));
  }
}

TEST(MixOrder, TheOrderIsSpreadEvenly) {
  MixOrder order({7, 3});
  std::string sources;
  for (uint64_t row = 0; row < 20; ++row) sources += "ab"[order.at(row).source];
  EXPECT_EQ(sources, "aabaabaaabaabaabaaab");
}

TEST(MixOrder, ARowDoesNotDependOnThoseReadBefore) {
  const Weights weights{5, 3, 11, 2};
  MixOrder ascending(weights);
  std::vector<MixOrder::Place> expected;
  for (uint64_t row = 0; row < 200; ++row) expected.push_back(ascending.at(row));
  std::mt19937 random(7);
  MixOrder anywhere(weights);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t row = random() % expected.size();
    ASSERT_EQ(anywhere.at(row), expected[row]) << row;
  }
  const uint64_t far = uint64_t{21} * 1'000'000'000'000 + 4;  // whole periods take no time
  EXPECT_EQ(anywhere.at(far).source, expected[4].source);
  EXPECT_EQ(anywhere.at(far).row, expected[4].row + weights[expected[4].source] * 1'000'000'000'000);
}

// A source whose rows tell which they are.
class NumberedRows : public RowSource {
 public:
  NumberedRows(int32_t source, bool has_documents) : source_(source), has_documents_(has_documents) {}
  bool has_documents() const override { return has_documents_; }
  void read(uint64_t first, uint64_t rows, int32_t* inputs, int32_t* labels, int32_t* documents) override {
    for (uint64_t row = 0; row < rows; ++row)
      for (int t = 0; t < 2; ++t) {
        *inputs++ = source_;
        *labels++ = static_cast<int32_t>(first + row);
        if (documents) *documents++ = t;
      }
  }

 private:
  int32_t source_;
  bool has_documents_;
};

TEST(MixedRows, RowsAreThoseOfTheirSources) {
  const auto mixed = [](bool has_documents) {
    std::vector<std::unique_ptr<RowSource>> sources;
    sources.push_back(std::make_unique<NumberedRows>(10, false));
    sources.push_back(std::make_unique<NumberedRows>(20, has_documents));
    return MixedRows(std::move(sources), {2, 1}, 2);
  };
  MixedRows rows = mixed(true);
  EXPECT_TRUE(rows.has_documents());
  EXPECT_FALSE(mixed(false).has_documents());
  std::vector<int32_t> inputs(12), labels(12), documents(12);
  rows.read(1, 6, inputs.data(), labels.data(), documents.data());
  EXPECT_EQ(inputs, (std::vector<int32_t>{10, 10, 20, 20, 10, 10, 10, 10, 20, 20, 10, 10}));
  EXPECT_EQ(labels, (std::vector<int32_t>{1, 1, 0, 0, 2, 2, 3, 3, 1, 1, 4, 4}));
  EXPECT_EQ(documents, (std::vector<int32_t>{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}));
  std::vector<int32_t> again(2), labels_again(2);
  rows.read(5, 1, again.data(), labels_again.data(), nullptr);
  EXPECT_EQ(again, (std::vector<int32_t>{20, 20}));
  EXPECT_EQ(labels_again, (std::vector<int32_t>{1, 1}));
}

}  // namespace
}  // namespace sluice
