// `plan --why`: which buffers a name means, and that every transfer of a plan's step is listed with its time
// and what keeps it from running earlier.
#include "tools/plan/why.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <regex>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"
#include "gpu/device.h"

namespace sluice {
namespace {

// A small model within budgets that make it fetch.
Plan small_plan(uint64_t device_bytes, std::optional<int64_t> waves = {}) {
  Options options;
  options.model.model = "gpt2:layers=3,width=64,heads=2,vocab=256,context=32";
  options.batch.batch = 4;
  if (waves) options.batch.micro_batch = 1;
  options.batch.waves = waves;
  options.memory.gpu = {Size::Kind::bytes, device_bytes};
  options.memory.host = {Size::Kind::bytes, 512ull << 20};
  const std::unique_ptr<Device> device = make_reference_device();
  const Budgets budgets = resolve_budgets(options.memory, memory_limits(), false);
  const PlanRequest request =
      plan_request(options, resolve_model(options.model).config, budgets, needs_of(*device), {});
  return plan_or_throw(request, budgets);
}

std::vector<std::string> names(const Plan& plan, const std::string& name) {
  std::vector<std::string> list;
  for (const BufferId b : buffers_named(plan, name)) list.push_back(plan.program.buffers[b].name);
  return list;
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(PlanWhy, NamesMeanABufferAGroupOrALayer) {
  const Plan plan = small_plan(1 << 20);
  EXPECT_EQ(names(plan, "w.h.1"), std::vector<std::string>{"w.h.1"});
  const std::vector<std::string> layer = names(plan, "h.1");
  EXPECT_GE(layer.size(), 3u);
  EXPECT_EQ(layer[0], "w.h.1");
  EXPECT_EQ(std::count(layer.begin(), layer.end(), "s.h.1.0"), 1);
  try {
    buffers_named(plan, "w.h.7");
    FAIL() << "there is no such layer";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_NE(std::string(e.remedy()).find("w.h."), std::string::npos) << e.remedy();
  }
}

TEST(PlanWhy, WhatItCannotTellOfIsRefusedBriefly) {
  const Plan plan = small_plan(8 << 20);
  const auto refusal = [&](const std::string& name) {
    try {
      buffers_named(plan, name);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      return std::string(e.what()) + " " + e.remedy();
    }
    return std::string("it is told of");
  };
  EXPECT_EQ(
      refusal("x.h.1.0"),
      "--why: x.h.1.0 lives within a step only, so it has no home. Give a layer, such as h.1, or weights, "
      "gradients or optimizer state: w.h.1, g.h.1, s.h.1.0.");
  EXPECT_EQ(refusal("model.layers.3.self_attn"),
            "--why: the plan has no layer or buffer model.layers.3.self_attn. Give a layer, such as h.1, or "
            "weights, "
            "gradients or optimizer state: w.h.1, g.h.1, s.h.1.0.");
}

// The text has a line for each transfer of the buffer in the step. Here, buffers move whole.
TEST(PlanWhy, EveryTransferIsTold) {
  for (const uint64_t bytes : {uint64_t{1} << 20, uint64_t{64} << 20}) {
    const Plan plan = small_plan(bytes);
    for (const char* name : {"w.h.1", "g.h.2", "s.h.0.0"}) {
      const std::string text = why_text(plan, name);
      const BufferId buffer = buffers_named(plan, name).front();
      ASSERT_EQ(plan.program.buffers[buffer].pieces(), 1u);
      const int home = plan.program.buffers[buffer].home;
      size_t fetches = 0, returns = 0;
      for (const Instruction& in : plan.program.bodies[plan.lowering.bodies().usual().front()].instructions) {
        if (in.task != kNoTask || in.operands[0].buffer != buffer) continue;
        const int from = std::abs(in.places[0].tier - home), to = std::abs(in.places[1].tier - home);
        ++(to > from ? fetches : returns);
      }
      EXPECT_EQ(count(text, "  fetch "), fetches) << text;
      EXPECT_EQ(count(text, "It stands in front of"), fetches) << text;
      EXPECT_EQ(count(text, "  write back "), returns) << text;
      EXPECT_EQ(count(text, "it is not moved"), fetches + returns == 0 ? 1u : 0u) << text;
      EXPECT_EQ(count(text, "  lives in "), 1u) << text;
    }
  }
}

TEST(PlanWhy, EveryKindOfWaveIsTold) {
  EXPECT_EQ(count(why_text(small_plan(1 << 20, 1), "w.h.1"), " wave"), 0u);
  const std::string two = why_text(small_plan(1 << 20, 2), "w.h.1");
  EXPECT_EQ(count(two, "in the first wave\nw.h.1: "), 1u) << two;
  EXPECT_EQ(count(two, "in the last wave\nw.h.1: "), 1u) << two;
  EXPECT_EQ(count(two, " wave"), 2u) << two;
  const std::string four = why_text(small_plan(1 << 20, 4), "w.h.1");
  EXPECT_EQ(count(four, "in the second wave, and likewise in the next\nw.h.1: "), 1u) << four;
  EXPECT_EQ(count(four, " wave"), 3u) << four;
}

// Tasks that use the buffer are listed in order. Those that differ only in micro-batch or shard share a line.
TEST(PlanWhy, TasksThatUseTheBufferAreTold) {
  const Plan plan = small_plan(64 << 20);
  const std::string weights = why_text(plan, "w.h.1");
  const size_t forward = weights.find("  used by    forward of h.1, micro-batch");
  const size_t backward = weights.find("  used by    backward of h.1, micro-batch");
  ASSERT_NE(forward, std::string::npos) << weights;
  ASSERT_NE(backward, std::string::npos) << weights;
  EXPECT_LT(forward, backward);
  EXPECT_EQ(count(weights, "  used by    forward of h.1"), 1u) << weights;
  const std::string state = why_text(plan, "s.h.1.0");
  EXPECT_EQ(count(state, "  used by    optimize of h.1, shard 1, from "), 1u) << state;
  EXPECT_EQ(count(state, "  used by "), 1u) << state;
}

std::string unwrapped(const std::string& text) { return std::regex_replace(text, std::regex("\\s+"), " "); }

// A claim is granted if and only if the plan has the buffer in that tier. When the claim's turn came, some
// bytes were left of the tier, or of the part that the class may have. The text names them.
TEST(PlanWhy, HomesAreExplainedByRoom) {
  size_t granted = 0, refused = 0, moved = 0;
  for (const uint64_t mib : {1, 2, 3, 4, 8}) {
    const Plan plan = small_plan(mib << 20);
    ASSERT_TRUE(plan.home_rule);
    const HomeRule& rule = *plan.home_rule;
    for (BufferId b = 0; b < plan.program.buffers.size(); ++b) {
      const Buffer& buffer = plan.program.buffers[b];
      if (!buffer.permanent || static_cast<size_t>(buffer.kind) > 2) continue;
      const std::string text = unwrapped(why_text(plan, buffer.name));
      if (std::count(rule.moved.begin(), rule.moved.end(), b)) {
        EXPECT_EQ(count(text, "The search moved"), 1u) << text;
        ++moved;
        continue;
      }
      for (const HomeClaim& claim : rule.claims) {
        if (claim.buffer != b) continue;
        EXPECT_GE(claim.bytes, buffer.bytes());
        EXPECT_EQ(claim.granted(), claim.tier == buffer.home) << text;
        const bool bound_by_class = !claim.granted() && claim.share < std::min(claim.bytes, claim.room);
        if (rule.left_to_staging[claim.tier] < plan.program.machine.tiers[claim.tier].capacity) {
          EXPECT_NE(text.find(format_size(bound_by_class ? claim.share : claim.room)), std::string::npos)
              << text;
        }
        ++(claim.granted() ? granted : refused);
      }
      EXPECT_EQ(count(text, "when its turn came") + count(text, "When its turn came") +
                    count(text, "is left to staged copies"),
                1u)
          << text;
    }
  }
  EXPECT_GT(granted, 0u);
  EXPECT_GT(refused, 0u);
  EXPECT_GT(moved, 0u);
}

}  // namespace
}  // namespace sluice
