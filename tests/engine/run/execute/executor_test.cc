// The executors alone: ten thousand tiny bodies with idle lanes and random waits, and exceptions of every
// kind inside instructions.
#include "engine/run/execute/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <system_error>

#include "engine/base/error.h"
#include "offload/arena.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

constexpr size_t kLanes = 7, kLinksMax = 5, kBodies = 8;
constexpr BufferId kIn = 0, kOut = 1, kFirstLink = 2;
constexpr uint64_t kStride = 64;

// Every body copies its slot of the ring `in` along a chain of buffers to its slot of the ring `out`, each
// link on a random lane; lanes without a link are idle. A link waits for the link before it. It also waits
// until the body before is done with the bytes that it overwrites.
Program chains(uint64_t seed) {
  std::mt19937_64 random(seed);
  Program p;
  p.machine.tiers = {{"host", 1 << 20, kStride, false}};
  for (size_t l = 0; l < kLanes; ++l) p.machine.lanes.push_back({"lane" + std::to_string(l), false});
  p.rings = {{"train", 4}};
  uint64_t offset = 0;
  for (BufferId b = 0; b < kFirstLink + kLinksMax; ++b) {
    Buffer buffer;
    buffer.cuts = {0, sizeof(uint64_t)};
    buffer.permanent = true;
    buffer.ring = b < kFirstLink ? uint8_t{0} : kNoRing;
    buffer.home_offset = offset;
    buffer.slot_stride = kStride;
    offset += p.rings[0].slots * kStride;
    p.buffers.push_back(buffer);
  }
  p.arena_bytes = {offset};
  for (BodyId b = 0; b < kBodies; ++b) {
    Body body;
    body.name = "body" + std::to_string(b);
    body.advance = {1};
    for (BodyId before = 0; before < kBodies; ++before) body.predecessors.push_back(before);
    const size_t links = 1 + random() % kLinksMax;
    for (size_t k = 0; k <= links; ++k) {
      const BufferId from = k == 0 ? kIn : kFirstLink + static_cast<BufferId>(k) - 1;
      const BufferId to = k == links ? kOut : kFirstLink + static_cast<BufferId>(k);
      Instruction in;
      in.lane = static_cast<LaneId>(random() % kLanes);
      in.operands = {{from, 0, 1, Access::read}, {to, 0, 1, Access::write}};
      in.places = {{0, p.buffers[from].home_offset}, {0, p.buffers[to].home_offset}};
      body.instructions.push_back(in);
    }
    p.bodies.push_back(body);
  }
  const LaneOrders orders = lane_orders(p);
  const auto done = [&](BodyId b, size_t k) {  // wait for instruction k of body b
    const LaneId lane = p.bodies[b].instructions[k].lane;
    const auto& order = orders[b][lane];
    const auto at = std::find(order.begin(), order.end(), static_cast<uint32_t>(k));
    return Wait{lane, static_cast<uint32_t>(at - order.begin()) + 1};
  };
  for (BodyId b = 0; b < kBodies; ++b)
    for (size_t k = 0; k < p.bodies[b].instructions.size(); ++k) {
      Instruction& in = p.bodies[b].instructions[k];
      if (k > 0) in.waits.push_back(done(b, k - 1));
      for (BodyId before = 0; before < kBodies; ++before) {
        const size_t last = p.bodies[before].instructions.size() - 1;
        in.waits_before.push_back({done(before, std::min(k + 1, last))});
      }
    }
  return p;
}

TEST(ThreadedExecutor, TenThousandTinyBodies) {
  constexpr uint64_t kTickets = 10000;
  Plan plan;
  plan.program = chains(11);
  Arena arena(plan.program.arena_bytes[0]);
  const auto device = make_reference_device();
  Runner runner(plan, {{arena.data()}, nullptr, {}}, *device, {}, 1);
  const auto executor = make_threaded_executor(plan.program, runner, {});
  const auto slot = [&](BufferId buffer, uint64_t ticket) {
    return reinterpret_cast<uint64_t*>(runner.ring_slot(buffer, ticket));
  };
  std::mt19937_64 random(5);
  for (uint64_t ticket = 1; ticket <= kTickets; ++ticket) {
    executor->make_room();
    if (ticket > 2) {
      ASSERT_EQ(*slot(kOut, ticket - 2), ticket - 2);
    }
    *slot(kIn, ticket) = ticket;
    ASSERT_EQ(executor->issue(static_cast<BodyId>(random() % kBodies), {ticket, 0}), ticket);
    if (random() % 16 != 0) continue;
    executor->wait(ticket);
    ASSERT_EQ(*slot(kOut, ticket), ticket);
  }
  executor->wait(kTickets);
  EXPECT_EQ(*slot(kOut, kTickets), kTickets);
  EXPECT_FALSE(executor->error());
}

class Poison : public ::testing::TestWithParam<ExecutorKind> {};

// Whatever an instruction throws, on whichever lane, reaches the thread that waits for the body.
TEST_P(Poison, WhatAnInstructionThrowsEndsTheRun) {
  const DriveDirectory directory;
  write_bytes(directory / "train.txt", sample_text(6000));
  TestRun run;
  run.options =
      short_run(directory, "gpt2:layers=2,width=32,heads=2,vocab=256,context=32", directory / "train.txt");
  const auto device = make_device(run.options.memory, 1);
  const Plan plan = plan_or_throw(request_of(run, *device), budgets_of(run));
  SessionOptions options;
  options.executor = GetParam();
  const auto load_that_throws = [&](auto error) {
    Session session(plan, *device, options);
    load(session, [error](const ShardView&) { throw error; });
  };
  EXPECT_THROW(load_that_throws(Error(ExitCode::io, "a.", "b.")), Error);
  EXPECT_THROW(load_that_throws(std::bad_alloc()), std::bad_alloc);
  EXPECT_THROW(load_that_throws(std::system_error(EAGAIN, std::generic_category())), std::system_error);
  EXPECT_THROW(load_that_throws(7), int);
  Session session(plan, *device, options);
  load(session, [](const ShardView&) {});
  ShardHooks hooks;
  hooks.save = [](uint32_t, uint64_t, const StatePlane&, std::span<const std::byte>) -> FileTarget {
    throw std::length_error("no target");
  };
  session.runner().set_hooks(hooks);
  session.executor().wait(session.issue(*plan.lowering.bodies().save));
  EXPECT_THROW(session.check(), std::length_error);
}

INSTANTIATE_TEST_SUITE_P(Executors, Poison,
                         ::testing::Values(ExecutorKind::serial, ExecutorKind::shuffled,
                                           ExecutorKind::threaded));

}  // namespace
}  // namespace sluice
