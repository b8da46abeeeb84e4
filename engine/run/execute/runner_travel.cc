// What a runner does where experts are divided over ranks: it carries out segments of one op between ranks.
#include <cstring>

#include "engine/base/pack.h"
#include "engine/graph/routing.h"
#include "engine/run/execute/runner.h"

namespace sluice {

namespace {

constexpr uint64_t kTravellingBytes = 4;  // of an element of routing, or of a weight

// Positions of the op's operands (engine/graph/op.h).
enum AllToAllvInput : size_t { kOwnRouting, kRoutingOfAll, kRows };

// The rows of an all_to_allv, by its step (TravelStep). Rows that leave a rank lie as in the op's input. Rows
// that arrive lie as in the op's output. In backward, the rows that came go back.
struct TravellingRows {
  const Routing& routing;
  TravelStep step;
  int64_t of_node;     // ranks
  const int32_t* all;  // the routing of each rank
  int64_t length;      // of one rank's routing
  int64_t expert;      // index among the experts of each rank
  int64_t here;        // this rank
  uint64_t row, part;  // bytes

  struct Range {
    uint64_t offset, bytes;
  };

  int64_t node_ranks() const { return of_node; }
  int64_t nodes() const { return routing.ranks() / node_ranks(); }
  int64_t node() const { return here / node_ranks(); }
  int64_t place() const { return here % node_ranks(); }
  int64_t rank_at(int64_t node, int64_t place) const { return node * node_ranks() + place; }
  uint64_t part_at(int64_t rank) const { return static_cast<uint64_t>(rank) * part; }

  // Bytes that go from one rank to another.
  uint64_t bytes(int64_t from, int64_t to) const {
    const int64_t of_tokens = routing.returns ? to : from, of_expert = routing.returns ? from : to;
    const int32_t* const begin = all + of_tokens * length + of_expert * routing.of_rank() + expert;
    return static_cast<uint64_t>(begin[1] - begin[0]) * row;
  }
  // Bytes that the first `place` ranks of a node send to rank `to`.
  uint64_t bytes_before(int64_t node, int64_t place, int64_t to) const {
    uint64_t sum = 0;
    for (int64_t p = 0; p < place; ++p) sum += bytes(rank_at(node, p), to);
    return sum;
  }
  uint64_t block(int64_t node, int64_t to) const { return bytes_before(node, node_ranks(), to); }

  // The number of rounds. In each, every rank sends one range to each of the others.
  int64_t rounds() const { return step == TravelStep::in_nodes ? nodes() : 1; }
  // The range that goes to another rank, and the range that comes from it. `to` and `from` are that rank's
  // place among the ranks that exchange with this one.
  Range leaves(int64_t round, int64_t to) const {
    switch (step) {
      case TravelStep::in_nodes:
        return {part_at(rank_at(round, to)), bytes(here, rank_at(round, to))};
      case TravelStep::across:
        return {part_at(rank_at(to, 0)), block(node(), rank_at(to, place()))};
      case TravelStep::whole:
        break;
    }
    return {part_at(to), bytes(here, to)};
  }
  Range comes(int64_t round, int64_t from) const {
    const int64_t to = rank_at(round, place());
    switch (step) {
      case TravelStep::in_nodes:
        return {part_at(rank_at(round, 0)) + bytes_before(node(), from, to),
                bytes(rank_at(node(), from), to)};
      case TravelStep::across:
        return {part_at(rank_at(from, 0)), block(from, here)};
      case TravelStep::whole:
        break;
    }
    return {part_at(from), bytes(from, here)};
  }

  // Calls f(offset in the blocks, offset in the parts, bytes) for the rows that came from each rank. They lie
  // in blocks by node, or in a part for each rank.
  template <typename F>
  void for_each_part(const F& f) const {
    for (int64_t n = 0; n < nodes(); ++n)
      for (int64_t p = 0; p < node_ranks(); ++p)
        f(part_at(rank_at(n, 0)) + bytes_before(n, p, here), part_at(rank_at(n, p)),
          bytes(rank_at(n, p), here));
  }
  // Calls f(offset, bytes) for the rest of the tile behind the last row of each part, which is to be zeros.
  template <typename F>
  void for_each_rest(bool back, const F& f) const {
    for (int64_t rank = 0; rank < routing.ranks(); ++rank) {
      const uint64_t end = back ? bytes(here, rank) : bytes(rank, here);
      f(part_at(rank) + end, round_up(end, static_cast<uint64_t>(kExpertTile) * row) - end);
    }
  }
};

}  // namespace

// Finds the operands of the only op of a segment: their positions in the instruction.
struct Runner::OperandsOfOp {
  const Op& op;
  const PassPlan& pass;
  const SegmentOperands& of_role;
  const Instruction& in;

  uint32_t input(size_t i) const {
    return nth(in, Role::input, of_role.inputs[pass.tensors[op.inputs[i]].index]);
  }
  uint32_t output(size_t i) const {
    return nth(in, Role::output, of_role.outputs[pass.tensors[op.outputs[i]].index]);
  }
  uint32_t input_gradient(size_t i) const {
    return nth(in, Role::input_gradient, of_role.input_gradients[pass.gradients[op.inputs[i]].index]);
  }
  uint32_t output_gradient(size_t i) const {
    return nth(in, Role::output_gradient, of_role.output_gradients[pass.gradients[op.outputs[i]].index]);
  }
};

void Runner::travel(const Task& task, const Instruction& in, const RingPositions& rings) {
  const SegmentPlan& plan = plan_.lowering.plans()[plan_.lowering.uses[task.subject].plan];
  const bool back = is_backward(task.kind);
  const PassOperands& of_level =
      operands_[plan_.lowering.uses[task.subject].plan][static_cast<size_t>(task.recompute)];
  const SegmentPasses& passes = plan.at(task.recompute);
  const OperandsOfOp operands{plan_.model.segments[plan.segment].ops.front(),
                              back ? passes.backward : passes.forward,
                              back ? of_level.backward : of_level.forward, in};
  const OpShapes& shapes = plan.shapes.front();
  if (shapes.kind == OpKind::all_to_allv) return exchange_rows(task, shapes, operands, in, rings);
  const ProcessGroup& ranks = among(task);
  const uint32_t from = back ? operands.output_gradient(0) : operands.input(0),
                 to = back ? operands.input_gradient(0) : operands.output(0);
  CHECK(in.operands[to].access == Access::write, "what travels is not added to anything");
  const bool gathers = shapes.kind == OpKind::all_gather;
  const uint64_t bytes =
      static_cast<uint64_t>(element_count(shapes.inputs[0])) * kTravellingBytes / (gathers ? 1 : ranks.count);
  if (gathers)
    communicator(in, rings).all_gather(ranks, address(in, from, rings), bytes, address(in, to, rings));
  else
    communicator(in, rings).all_to_all(ranks, address(in, from, rings), bytes, address(in, to, rings));
  count_sent(bytes * (ranks.count - 1), rings);
}

void Runner::count_sent(uint64_t bytes, const RingPositions& rings) {
  Sent& sent = sent_to_experts_[rings[kWaveRing] % sent_to_experts_.size()];
  if (sent.position != rings[kWaveRing]) sent = {rings[kWaveRing], 0};
  sent.bytes += bytes;
}

void Runner::copy_inside(LaneId lane, std::byte* to, const std::byte* from, uint64_t bytes) {
  if (memory_.streams && memory_.streams->has(lane))
    memory_.streams->copy_inside(lane, to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

void Runner::zero(LaneId lane, std::byte* to, uint64_t bytes) {
  if (memory_.streams && memory_.streams->has(lane))
    memory_.streams->zero(lane, to, bytes);
  else
    std::memset(to, 0, bytes);
}

// Sends rows to the ranks of their experts, or back. The unused rest of a part is not sent.
void Runner::exchange_rows(const Task& task, const OpShapes& shapes, const OperandsOfOp& operands,
                           const Instruction& in, const RingPositions& rings) {
  const Routing& routing = shapes.attributes.routing;
  const ProcessGroup& ranks = among(task);
  const auto* const all = reinterpret_cast<const int32_t*>(address(in, operands.input(kRoutingOfAll), rings));
  const uint64_t row = static_cast<uint64_t>(shapes.inputs[kRows][1]) * dtype_bytes(shapes.precision);
  const TravelStep step = travel_step(shapes.attributes);
  const auto own = static_cast<uint32_t>(ranks_.rank());
  const TravellingRows rows{routing,
                            step,
                            travel_node_ranks(shapes.attributes),
                            all,
                            shapes.inputs[kOwnRouting][0],
                            use_of(task).expert,
                            routing.over.place_of(own),
                            row,
                            static_cast<uint64_t>(shapes.inputs[kRows][0] / routing.ranks()) * row};
  const bool back = is_backward(task.kind);
  std::byte* from = address(in, back ? operands.output_gradient(0) : operands.input(kRows), rings);
  const uint32_t target = back ? operands.input_gradient(kRows) : operands.output(0);
  CHECK(in.operands[target].access == Access::write, "what travels is not added to anything");
  std::byte* const parts = address(in, target, rings);
  std::byte* to = parts;
  // Blocks come into the workspace or, in backward, leave from it.
  const bool across = step == TravelStep::across;
  std::byte* const blocks = across ? operand(in, rings, Role::workspace) : nullptr;
  if (across && back) {
    rows.for_each_part([&](uint64_t block, uint64_t part, uint64_t bytes) {
      copy_inside(in.lane, blocks + block, from + part, bytes);
    });
    from = blocks;
  } else if (across) {
    to = blocks;
  }
  Communicator& communicator = this->communicator(in, rings);
  for (int64_t round = 0; round < rows.rounds(); ++round) {
    sent_.clear(), received_.clear();
    for (uint32_t place = 0; place < ranks.count; ++place) {
      const TravellingRows::Range leaves = rows.leaves(round, place), comes = rows.comes(round, place);
      const TravellingRows::Range& sent = back ? comes : leaves;
      const TravellingRows::Range& received = back ? leaves : comes;
      sent_.push_back({from + sent.offset, sent.bytes});
      received_.push_back({to + received.offset, received.bytes});
      if (place != ranks.place_of(own)) count_sent(sent.bytes, rings);
    }
    communicator.exchange(ranks, sent_, received_);
  }
  if (across && !back)
    rows.for_each_part([&](uint64_t block, uint64_t part, uint64_t bytes) {
      copy_inside(in.lane, parts + part, blocks + block, bytes);
    });
  if (back ? !across : step != TravelStep::in_nodes)
    rows.for_each_rest(back, [&](uint64_t rest, uint64_t bytes) { zero(in.lane, parts + rest, bytes); });
}

}  // namespace sluice
