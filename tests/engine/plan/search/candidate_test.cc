// What layers keep: the levels that are worthwhile, and which layer has which.
#include "engine/plan/search/candidate.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using Levels = std::vector<Recompute>;
constexpr Recompute kNothing = Recompute::all, kProducts = Recompute::products, kCheap = Recompute::cheap,
                    kEverything = Recompute::none;

TEST(Candidate, WorthwhileLevelsAreTheLowerHull) {
  // A mixture of kNothing (0 bytes, 10 s) and kCheap (7 bytes, 1 s) takes 7.4 s with 2 bytes.
  EXPECT_EQ(worthwhile({{kEverything, 10, 0}, {kCheap, 7, 1}, {kProducts, 2, 9}, {kNothing, 0, 10}}),
            (Levels{kNothing, kCheap, kEverything}));
  EXPECT_EQ(worthwhile({{kEverything, 10, 0}, {kCheap, 7, 1}, {kProducts, 2, 7}, {kNothing, 0, 10}}),
            (Levels{kNothing, kProducts, kCheap, kEverything}));
  // A level on the line between two others brings no gain.
  EXPECT_EQ(worthwhile({{kEverything, 10, 0}, {kCheap, 5, 5}, {kNothing, 0, 10}}),
            (Levels{kNothing, kEverything}));
  // Of equal levels, the first is taken. A level that keeps more and takes as long is of no use.
  EXPECT_EQ(worthwhile({{kNothing, 0, 10}, {kProducts, 0, 10}, {kCheap, 7, 10}, {kEverything, 10, 0}}),
            (Levels{kNothing, kEverything}));
  EXPECT_EQ(worthwhile({{kNothing, 0, 0}}), Levels{kNothing});
}

TEST(Candidate, LayersAreRaisedFromLevelToLevel) {
  const Levels levels{kNothing, kCheap, kEverything};
  const auto all = [&](KeptLayers kept) {
    Levels of_layers;
    for (uint32_t l = 0; l < 4; ++l) of_layers.push_back(level_of(kept, levels, l, 4));
    return of_layers;
  };
  EXPECT_EQ(all({0, false}), Levels(4, kNothing));
  EXPECT_EQ(all({4, false}), Levels(4, kCheap));
  EXPECT_EQ(all({5, false}), (Levels{kCheap, kCheap, kCheap, kEverything}));
  EXPECT_EQ(all({5, true}), (Levels{kEverything, kCheap, kCheap, kCheap}));
  EXPECT_EQ(all({8, false}), Levels(4, kEverything));
}

TEST(Candidate, WavesAreDivisorsOfTheMicroBatches) {
  const auto choices = [](int64_t micro_batches) {
    PlanRequest request;
    request.lower.batch = 2 * micro_batches;
    return wave_choices(request, Model{.micro_batch = 2});
  };
  using Waves = std::vector<uint32_t>;
  EXPECT_EQ(choices(1), (Waves{1}));
  EXPECT_EQ(choices(8), (Waves{1, 2, 4, 8}));
  EXPECT_EQ(choices(7), (Waves{1, 7}));
  EXPECT_EQ(choices(12), (Waves{1, 2, 4, 6, 12}));
  EXPECT_EQ(choices(1024).size(), 11u);
  PlanRequest request;
  request.lower.batch = 8;
  request.lower.share_layers_until = 5;
  EXPECT_EQ(wave_choices(request, Model{.micro_batch = 1}), (Waves{1}));
  request.waves = 4;
  EXPECT_EQ(wave_choices(request, Model{.micro_batch = 1}), (Waves{4}));
}

// The model has 2000 tasks for each micro-batch.
TEST(Candidate, LongWavesAreLeftOutUnlessTheyAreAskedFor) {
  Model model{.micro_batch = 1};
  model.layers.assign(10, Layer{.segments = std::vector<SegmentUse>(100)});
  PlanRequest request;
  request.lower.batch = 12;
  EXPECT_EQ(wave_choices(request, model), (std::vector<uint32_t>{4, 6, 12}));
  request.long_waves = true;
  EXPECT_EQ(wave_choices(request, model), (std::vector<uint32_t>{2, 4, 6, 12})) << "24,000 tasks in one";
  request.waves = 1;
  EXPECT_EQ(wave_choices(request, model), std::vector<uint32_t>{});
  request.waves.reset();
  request.lower.batch = 12;
  model.layers.assign(1000, model.layers[0]);
  request.long_waves = false;
  EXPECT_EQ(wave_choices(request, model), (std::vector<uint32_t>{12}));
}

}  // namespace
}  // namespace sluice
