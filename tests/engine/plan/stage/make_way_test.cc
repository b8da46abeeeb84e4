// How a buffer that finds no place gets one, by hand: each buffer needs ten bytes of a tier of 20, and
// something lies across the middle.
#include <gtest/gtest.h>

#include "engine/plan/lower/body_builder.h"
#include "engine/plan/stage/staging.h"

namespace sluice::staging {
namespace {

constexpr uint64_t kCapacity = 20, kBytes = 10, kMiddle = 5;
constexpr uint32_t kBuffers = 3;

// Each task reads some buffers, whose homes are in the tier below.
class Row {
 public:
  explicit Row(const std::vector<std::vector<uint32_t>>& tasks, uint32_t lead = 0) {
    Machine& m = program_.machine;
    m.tiers = {{"top", kCapacity, 1, false}, {"below", 1000, 1, false}};
    m.lanes = {{"run"}, {"in"}, {"out"}};
    m.links = {{1, 0, 1, 1}, {0, 1, 2, 1}};
    for (uint32_t b = 0; b < kBuffers; ++b) {
      Buffer x;
      x.cuts = {0, kBytes};
      x.permanent = true;
      x.home = 1;
      program_.buffers.push_back(std::move(x));
    }
    BodyBuilder body(program_, "body", BodyState::clean, BodyState::clean);
    for (const std::vector<uint32_t>& buffers : tasks) {
      Task& task = body.task(TaskKind::forward, 0, 0);
      for (const uint32_t b : buffers) body.add(task, Role::weights, b, Access::read);
    }
    body.finish();
    Body& made = program_.bodies[0];
    for (uint32_t t = 0; t < made.tasks.size(); ++t)
      made.instructions.push_back(
          {0, t, made.tasks[t].operands, std::vector<Place>(made.tasks[t].operands.size()), {}, {}});
    options_.capacity = kCapacity;
    options_.lead = lead;
    uses_.emplace(collect_uses(program_, made, options_));
    allocations.emplace(*uses_);
    allocations->choose();
  }

  std::optional<Interval> make_way_for(uint32_t root, uint64_t looks = 1000) {
    return make_way(*allocations, {root}, looks);
  }

  // The allocations in the order of their roots, each as first-last position @ offset.
  std::string text() const {
    std::string all;
    for (const uint32_t u : allocations->roots()) {
      const Interval& i = allocations->at_root(u);
      if (!all.empty()) all += " ";
      all += std::to_string(i.start) + "-" + std::to_string(i.end) + "@" + std::to_string(i.offset);
    }
    return all;
  }

 private:
  Program program_;
  StageOptions options_;
  std::optional<TierUses> uses_;

 public:
  std::optional<Allocations> allocations;
};

TEST(MakeWay, AHoleCostsNothing) {
  Row row({{0}, {1}, {0}});
  row.allocations->at_root(0).offset = 10;
  EXPECT_FALSE(row.make_way_for(1));
  EXPECT_EQ(row.text(), "0-2@10 1-1@0");
}

// The kept copy lies across the middle, so nothing else fits. The copy is given up and fetched again.
TEST(MakeWay, AKeptCopyIsGivenUp) {
  Row row({{0}, {1}, {0}});
  ASSERT_EQ(row.text(), "0-2@0 1-1@0");
  row.allocations->at_root(0).offset = kMiddle;
  EXPECT_FALSE(row.make_way_for(1));
  EXPECT_EQ(row.text(), "0-0@5 1-1@0 2-2@5");
}

TEST(MakeWay, ALeadBecomesShorter) {
  Row row({{0}, {1}}, 1);
  ASSERT_EQ(row.text(), "0-0@0 0-1@0");
  row.allocations->at_root(1).offset = kMiddle;
  EXPECT_FALSE(row.make_way_for(0));
  EXPECT_EQ(row.text(), "0-0@0 1-1@5");
}

// A buffer's own lead is shortened first, which spares the kept copies of other buffers.
TEST(MakeWay, ItsOwnLead) {
  Row row({{0}, {1}, {0}, {2}}, 2);
  ASSERT_EQ(row.text(), "0-2@0 0-1@0 2-3@0");
  row.allocations->at_root(0).offset = kMiddle;
  row.allocations->at_root(1).offset = 0;
  EXPECT_FALSE(row.make_way_for(3));
  EXPECT_EQ(row.text(), "0-2@5 0-1@0 3-3@0");
}

// At position 1 another buffer lies across the middle, so buffer 0 gives up its own kept copy.
TEST(MakeWay, ItsOwnKeptCopy) {
  Row row({{0}, {1}, {0}});
  row.allocations->at_root(1).offset = kMiddle;
  EXPECT_FALSE(row.make_way_for(0));
  EXPECT_EQ(row.text(), "0-0@0 1-1@5 2-2@0");
}

TEST(MakeWay, WhatIsInUseMoves) {
  Row row({{0, 1}});
  row.allocations->at_root(0).offset = kMiddle;
  EXPECT_FALSE(row.make_way_for(1));
  EXPECT_EQ(row.text(), "0-0@10 0-0@0");
}

TEST(MakeWay, ThreeForTwoPlaces) {
  Row row({{0, 1, 2}});
  row.allocations->at_root(1).offset = kBytes;
  const std::optional<Interval> left = row.make_way_for(2);
  ASSERT_TRUE(left);
  EXPECT_EQ(left->first_use_at, 0u);
}

// A buffer that finds no place before the looks are used up gets none, even if there is a hole.
TEST(MakeWay, EndsWhenLooksAreUsedUp) {
  Row row({{0}, {1}, {0}});
  row.allocations->at_root(0).offset = 10;
  const std::optional<Interval> left = row.make_way_for(1, 0);
  ASSERT_TRUE(left);
  EXPECT_EQ(left->first_use_at, 1u);
  uint64_t looks = 2;  // the hole is found among two allocations: itself and the other one
  EXPECT_FALSE(make_way(*row.allocations, {1}, looks));
  EXPECT_EQ(looks, 0u);
}

}  // namespace
}  // namespace sluice::staging
