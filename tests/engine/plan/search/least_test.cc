// The least memory, by hand: tiers of alignment 1, buffers of ten bytes.
#include "engine/plan/search/least.h"

#include <gtest/gtest.h>

#include "engine/plan/lower/body_builder.h"
#include "engine/verify/verify.h"

namespace sluice {
namespace {

enum : LaneId { kRun, kRunBelow, kIn, kOut, kRead, kWrite };
constexpr uint64_t kRoom = 1000;
using Bytes = std::vector<uint64_t>;

// Forward through four layers, and back. Every task reads the weights w. The first four tasks write x1, ...,
// x4; the last three of these also read x1, x2, x3. The other four tasks read x4, ..., x1.
class FourLayers {
 public:
  explicit FourLayers(bool file) {
    Machine& m = program_.machine;
    m.tiers = {{"top", kRoom, 1, false}, {"middle", kRoom, 1, false}};
    m.lanes = {{"run"}, {"run_below"}, {"in"}, {"out"}, {"read", true}, {"write", true}};
    m.links = {{1, 0, kIn, 1}, {0, 1, kOut, 1}};
    if (file) m.tiers.push_back({"low", kRoom, 1, true});
    if (file) m.links.insert(m.links.end(), {{2, 1, kRead, 1}, {1, 2, kWrite, 1}});
    m.units = {{TaskKind::forward, kRun, 0}, {TaskKind::backward, kRun, 0}, {TaskKind::norm, kRunBelow, 1}};
    const BufferId w = buffer("w", BufferClass::weights);
    for (int k = 1; k <= 4; ++k) x_.push_back(buffer("x" + std::to_string(k), BufferClass::activations));
    BodyBuilder body(program_, "body", BodyState::clean, BodyState::clean);
    for (uint32_t k = 0; k < 4; ++k) {
      Task& t = body.task(TaskKind::forward, k, 0);
      body.add(t, Role::weights, w, Access::read);
      if (k > 0) body.add(t, Role::input, x_[k - 1], Access::read);
      body.add(t, Role::output, x_[k], Access::write);
    }
    for (uint32_t k = 4; k-- > 0;) {
      Task& t = body.task(TaskKind::backward, k, 0);
      body.add(t, Role::weights, w, Access::read);
      body.add(t, Role::input, x_[k], Access::read);
    }
    body.finish();
    program_.bodies[0].predecessors = {0};
  }

  const Program& program() const { return program_; }

  // How many activations have their home in each tier of the least arrangement; empty if there is no
  // arrangement. The arrangement must be correct and stay within `capacities`.
  std::vector<int> activations(const Bytes& capacities) const {
    const auto arrangement = Least(program_).arrangement(capacities);
    if (!arrangement) return {};
    Program p = program_;
    for (size_t t = 0; t < capacities.size(); ++t) p.machine.tiers[t].capacity = capacities[t];
    EXPECT_FALSE(assemble(p, *arrangement));
    const std::vector<Violation> violations = verify(p);
    EXPECT_TRUE(violations.empty()) << describe(p, violations.front());
    std::vector<int> count(capacities.size(), 0);
    for (const BufferId x : x_) ++count[p.buffers[x].home];
    for (const Instruction& in : p.bodies[0].instructions)  // what lives in the top tier never travels
      EXPECT_TRUE(in.task != kNoTask || p.buffers[in.operands[0].buffer].home > 0);
    return count;
  }

 private:
  BufferId buffer(const std::string& name, BufferClass kind) {
    Buffer b;
    b.name = name;
    b.kind = kind;
    b.cuts = {0, 10};
    b.permanent = kind == BufferClass::weights;
    program_.buffers.push_back(std::move(b));
    return static_cast<BufferId>(program_.buffers.size() - 1);
  }
  Program program_;
  std::vector<BufferId> x_;
};

// Below lie w and, between the fourth task and the fifth, x1 to x4: 50 bytes. On top lie w and what one task
// reads and writes: 30. Each activation whose home moves up saves ten bytes below. If x1 lives on top, the
// third task needs room for x1, x2, x3 and w there: 40. If x1 and x2 or more live there, the fourth task
// needs room for x1 to x4 and w: 50. The last to move up is w, whose staged copy is still counted: 60.
TEST(Least, OfTwoTiers) {
  const FourLayers layers(false);
  const Least least(layers.program());
  EXPECT_EQ(least.together(), (Bytes{30, 50}));
  const std::pair<uint64_t, std::optional<uint64_t>> below[] = {
      {29, std::nullopt}, {30, 50}, {39, 50}, {40, 40}, {49, 40}, {50, 10}, {59, 10}, {60, 0}};
  for (const auto& [top, bytes] : below) EXPECT_EQ(least.of_tier(1, {top, 0}), bytes) << top;
  const std::pair<uint64_t, uint64_t> above[] = {{0, 60}, {9, 60}, {10, 50}, {39, 50}, {40, 40}, {50, 30}};
  for (const auto& [bytes, top] : above) EXPECT_EQ(least.of_tier(0, {0, bytes}), top) << bytes;

  EXPECT_EQ(layers.activations({30, 50}), (std::vector<int>{0, 4}));
  EXPECT_EQ(layers.activations({40, 40}), (std::vector<int>{0, 4}));  // w itself is on top
  EXPECT_EQ(layers.activations({50, 29}), (std::vector<int>{3, 1}));
  EXPECT_EQ(layers.activations({50, 10}), (std::vector<int>{4, 0}));
  EXPECT_EQ(layers.activations({60, 0}), (std::vector<int>{4, 0}));
  EXPECT_TRUE(layers.activations({50, 9}).empty());
}

// Where the file has no room for activations, they live in the middle, as if there were no file. The file's
// copies pass through the middle one buffer at a time; the figures keep room for one even where none passes.
TEST(Least, OfThreeTiers) {
  const FourLayers layers(true);
  const Least least(layers.program());
  EXPECT_EQ(least.together(), (Bytes{30, 10, 50}));
  EXPECT_EQ(least.of_tier(2, {30, 10, 0}), 50u);
  EXPECT_EQ(least.of_tier(2, {30, 60, 0}), 0u);
  EXPECT_EQ(least.of_tier(2, {30, 59, 0}), 10u);
  EXPECT_EQ(least.of_tier(2, {50, 10, 0}), 10u);
  EXPECT_EQ(least.of_tier(1, {30, 0, 9}), 60u);

  EXPECT_EQ(layers.activations({30, 10, 50}), (std::vector<int>{0, 0, 4}));
  EXPECT_EQ(layers.activations({30, 60, 0}), (std::vector<int>{0, 4, 0}));
  EXPECT_EQ(layers.activations({50, 20, 0}), (std::vector<int>{4, 0, 0}));
  EXPECT_EQ(layers.activations({50, 10, 10}), (std::vector<int>{4, 0, 0}));
  EXPECT_TRUE(layers.activations({29, 1000, 1000}).empty());
}

// The activations have the homes that suffice for these capacities. With 50 bytes on top, they live there,
// and only w is below.
TEST(Least, NamesTheLargestTask) {
  const FourLayers layers(false);
  const Least least(layers.program());
  EXPECT_EQ(least.largest_task(0, {30, 50}).shortage.task, 1u);
  EXPECT_EQ(least.largest_task(1, {30, 50}).shortage.bytes_needed, 50u);
  EXPECT_EQ(least.largest_task(1, {50, 10}).shortage.bytes_needed, 10u);
}

}  // namespace
}  // namespace sluice
