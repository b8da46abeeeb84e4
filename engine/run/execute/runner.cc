#include "engine/run/execute/runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "engine/base/error.h"

namespace sluice {

namespace {

// Returns the lane of the device's tasks, if it has any. They all share one lane, since a device takes one
// call at a time.
std::optional<LaneId> device_lane(const Machine& machine) {
  std::optional<LaneId> lane;
  for (const Unit& unit : machine.units) {
    if (unit.kind != TaskKind::forward && unit.kind != TaskKind::backward && unit.kind != TaskKind::round)
      continue;
    CHECK(lane.value_or(unit.lane) == unit.lane, "the device's tasks must share one lane");
    lane = unit.lane;
  }
  return lane;
}

}  // namespace

Runner::Runner(const Plan& plan, const Memory& memory, Device& device, const UpdateRules& rules, int threads,
               const Ranks& ranks)
    : plan_(plan),
      memory_(memory),
      high_water_(plan.program.machine.tiers.size()),
      moved_(plan.program.machine.lanes.size()),
      device_(device),
      rules_(rules),
      planes_(planes_of(optimizer_of(rules.optimizer))),
      device_lane_(device_lane(plan.program.machine)),
      optimizer_workers_(threads),
      ranks_(ranks),
      sent_to_experts_(plan.program.rings.size() > kWaveRing ? plan.program.rings[kWaveRing].slots : 0) {
  CHECK(plan.lowering.mesh.ranks() == static_cast<uint32_t>(ranks.size()),
        "a plan for another number of ranks");
  for (const Group& g : plan.model.groups) find_rates(g);
  for (const SegmentPlan& p : plan.lowering.plans()) {
    const Segment& segment = plan.model.segments[p.segment];
    PlanOperands& operands = operands_.emplace_back();
    for (const Recompute level : kRecomputes)
      operands[static_cast<size_t>(level)] = {segment_operands(p, segment, TaskKind::forward, level),
                                              segment_operands(p, segment, TaskKind::backward, level)};
  }
  for (const Body& body : plan.program.bodies)
    for (const Task& task : body.tasks) check_operands(task);
  for (const UseInfo& info : plan.lowering.uses) find_added(info);
  for (const Segment& segment : plan.model.segments) sums_.push_back(added_outputs(segment));
  for (std::vector<TensorView>& v : views_) v.reserve(16);
  if (ranks.size() == 1) return;
  collectives_ = collective_names(plan.program);
  sent_.reserve(static_cast<size_t>(ranks.size()));
  received_.reserve(static_cast<size_t>(ranks.size()));
}

// Frozen parameters have gradients of zero, so their moments are zero. With a rate and a decay of zero, their
// values stay as they are.
void Runner::find_rates(const Group& group) {
  std::vector<RateRange> ranges;
  for (const Parameter& p : group.parameters) {
    const double run_decay = p.decay ? rules_.settings.weight_decay : 0;
    const double decay = p.frozen ? 0 : p.weight_decay.value_or(run_decay);
    const double rate = p.frozen ? 0 : p.learning_rate_factor;
    if (!ranges.empty()) {
      RateRange& last = ranges.back();
      if (last.weight_decay == decay && last.learning_rate_factor == rate) continue;
      last.end = p.offset;
    }
    ranges.push_back({p.offset, UINT64_MAX, decay, rate});  // a group's last range has its padding too
  }
  rate_ranges_.push_back(std::move(ranges));
}

void Runner::find_added(const UseInfo& info) {
  const SegmentPlan& plan = plan_.lowering.plans()[info.plan];
  const Segment& segment = plan_.model.segments[plan.segment];
  const std::vector<uint32_t>& groups = plan_.model.layers[info.layer].segments[info.position].groups;
  const auto is_overwritten = [&](size_t slot, size_t parameter) {
    for (const OpStep& step : plan.at(Recompute::none).backward.steps)
      for (size_t k = 0; k < step.overwrites.size(); ++k) {
        const SegmentParameter& p = segment.parameters[segment.ops[step.op].parameters[k]];
        if (step.overwrites[k] && p.slot == slot && p.parameter == parameter) return true;
      }
    return false;
  };
  std::vector<std::vector<ByteRange>> added(groups.size());
  for (size_t slot = 0; slot < groups.size(); ++slot) {
    const std::vector<Parameter>& parameters = plan_.model.groups[groups[slot]].parameters;
    added[slot].push_back({0, UINT64_MAX});
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!is_overwritten(slot, i)) continue;
      const uint64_t begin = parameters[i].offset * sizeof(float);
      added[slot].back().end = begin;
      const uint64_t bytes = static_cast<uint64_t>(element_count(parameters[i].shape)) * sizeof(float);
      added[slot].push_back({begin + bytes, UINT64_MAX});
    }
  }
  added_to_.push_back(std::move(added));
}

uint64_t Runner::offset(const Instruction& in, size_t operand, const RingPositions& rings) const {
  const Operand& o = in.operands[operand];
  const Place& place = in.places[operand];
  const Buffer& b = plan_.program.buffers[o.buffer];
  if (b.pick && place.tier == b.home)
    return place.offset + picked_part(in, b).value_or(0) * plan_.program.buffers[b.pick->bank].slot_stride;
  if (b.ring == kNoRing || place.tier != b.home) return place.offset;
  const uint64_t slots = slots_of(plan_.program, b);
  return place.offset + (rings[b.ring] + slots - o.back) % slots * b.slot_stride;
}

std::byte* Runner::address(const Instruction& in, size_t operand, const RingPositions& rings) const {
  return memory_.tiers[in.places[operand].tier] + offset(in, operand, rings);
}

uint64_t Runner::bytes_of(const Instruction& in, size_t operand) const {
  return operand_bytes(plan_.program.buffers[in.operands[operand].buffer], in.operands[operand]);
}

uint32_t Runner::position_of(const Instruction& in, Role role) {
  const std::optional<size_t> k = find_operand(in.operands, role);
  return k ? static_cast<uint32_t>(*k) : kNone;
}

uint32_t Runner::nth(const Instruction& in, Role role, uint32_t n) {
  if (n == kNone) return kNone;
  const std::optional<size_t> k = find_operand(in.operands, role, n);
  CHECK(k, "an instruction lacks an operand of its segment");
  return static_cast<uint32_t>(*k);
}

void Runner::note_high_water(const Instruction& in, const RingPositions& rings) {
  for (size_t k = 0; k < in.operands.size(); ++k) {
    const uint64_t end = offset(in, k, rings) + bytes_of(in, k);
    std::atomic<uint64_t>& mark = high_water_[in.places[k].tier];
    for (uint64_t seen = mark; seen < end && !mark.compare_exchange_weak(seen, end);) {
    }
  }
}

std::byte* Runner::ring_slot(BufferId buffer, uint64_t position) const {
  const Buffer& b = plan_.program.buffers[buffer];
  return memory_.tiers[b.home] + b.home_offset + position % slots_of(plan_.program, b) * b.slot_stride;
}

bool is_file_transfer(const Machine& machine, const Instruction& in) {
  if (in.task != kNoTask) return false;
  return machine.tiers[in.places[0].tier].file || machine.tiers[in.places[1].tier].file;
}

bool Runner::is_file_io(const Body& body, const Instruction& in) const {
  if (in.task != kNoTask) return body.tasks[in.task].kind == TaskKind::save;
  return is_file_transfer(plan_.program.machine, in);
}

size_t Runner::transfers(const Body& body, const Instruction& in, const RingPositions& rings,
                         std::span<Transfer, kTransfersMax> out) {
  note_high_water(in, rings);
  if (in.task == kNoTask) {
    if (!moves(in)) return 0;
    const bool reads = plan_.program.machine.tiers[in.places[0].tier].file;
    const uint64_t bytes = bytes_of(in, 0);
    const IoDirection direction = reads ? IoDirection::read : IoDirection::write;
    const uint64_t offset_in_file = offset(in, reads ? 0 : 1, rings);
    out[0] = {direction, -1, offset_in_file, address(in, reads ? 1 : 0, rings), bytes, memory_.checksums};
    out[0].tier = memory_.files;
    return 1;
  }
  const Task& task = body.tasks[in.task];
  const ShardView v = shard_view(task, in, rings);
  size_t count = 0;
  const auto add = [&](const void* memory, const StatePlane& plane, uint64_t first, uint64_t bytes) {
    auto* from = static_cast<std::byte*>(const_cast<void*>(memory));
    const FileTarget target = hooks_.save(v.group, first, plane, {from, bytes});
    out[count++] = {IoDirection::write, target.fd, target.offset, from, bytes, {}, target.name};
  };
  if (owns_state(task.subject)) {  // otherwise another rank saves the same values
    const StatePlane frozen = frozen_weights(plan_.model.precision);
    if (!plan_.model.groups[v.group].trainable)
      add(v.weights, frozen, v.first, frozen.page_bytes(v.elements));
    for (size_t p = 0; p < v.planes.size(); ++p)
      add(v.values[p], v.planes[p], v.first, v.planes[p].page_bytes(v.elements));
  }
  if (v.error) add(v.error, kCompressionError, v.error_first, kCompressionError.page_bytes(v.error_elements));
  if (v.factors) add(v.factors, kRightFactors, 0, bytes_of(in, position_of(in, Role::right_factor)));
  return count;
}

void Runner::run(const Body& body, const Instruction& in, const RingPositions& rings) {
  note_high_water(in, rings);
  if (in.task == kNoTask) return copy(in, rings);
  const Task& task = body.tasks[in.task];
  switch (task.kind) {
    case TaskKind::forward:
    case TaskKind::backward:
      return run_segment(task, in, rings);
    case TaskKind::round:
      return round(task, in, rings);
    case TaskKind::gather:
      return gather(task, in, rings);
    case TaskKind::exchange:
      return exchange(task, in, rings);
    case TaskKind::travel:
    case TaskKind::travel_back:
      return travel(task, in, rings);
    case TaskKind::sum:
      return sum(task, in, rings);
    case TaskKind::compress:
      return compress(task, in, rings);
    case TaskKind::project:
      return project(task, in, rings);
    case TaskKind::expand:
      return expand(task, in, rings);
    case TaskKind::clone:
      return clone(in, rings);
    case TaskKind::clear:
      std::memset(address(in, 0, rings), 0, bytes_of(in, 0));
      return;
    case TaskKind::norm:
      return norm(in, rings);
    case TaskKind::set_scalars:
      return set_scalars(in, rings);
    case TaskKind::set_guess:
      return set_guess(in, rings);
    case TaskKind::optimize:
    case TaskKind::visit:
    case TaskKind::repair:
      return update(task, in, rings);
    case TaskKind::load:
      return load(task, in, rings);
    case TaskKind::save:
      CHECK(false, "save goes through transfers()");
  }
}

void Runner::poison(BodyState state) const {
  for (const Buffer& b : plan_.program.buffers) {
    const bool in_memory = memory_.tiers[b.home] != nullptr && !(memory_.streams && b.home == 0);
    if (b.is_empty_in(state) && in_memory)
      std::memset(memory_.tiers[b.home] + b.home_offset, 0xFF, b.bytes());
  }
}

void Runner::copy(const Instruction& in, const RingPositions& rings) {
  if (!moves(in)) return;
  const uint64_t bytes = bytes_of(in, 0);
  std::byte *const to = address(in, 1, rings), *const from = address(in, 0, rings);
  if (memory_.streams && memory_.streams->has(in.lane))
    memory_.streams->copy(in.lane, to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

void Runner::round(const Task& task, const Instruction& in, const RingPositions& rings) {
  const std::vector<uint64_t>& shards = plan_.lowering.groups[task.subject].shards;
  Accumulators accumulators;
  accumulators.count = static_cast<uint32_t>(plan_.lowering.groups[task.subject].accumulators.size());
  for (uint32_t a = 0; a < accumulators.count; ++a)
    accumulators.of[a] = reinterpret_cast<const float*>(address(in, nth(in, Role::accumulator, a), rings));
  device_.round(accumulators, operand(in, rings, Role::gradient), plan_.model.precision,
                shards[task.slice + 1] - shards[task.slice], operand<double>(in, rings, Role::block_sums));
}

// Each operand holds the block sums of one group, for all ranks' parts, one after the other. The body trains
// the groups for which it has such an operand.
void Runner::norm(const Instruction& in, const RingPositions& rings) {
  double total = 0;
  uint32_t k = position_of(in, Role::norm_sums);
  for (const GroupBuffers& g : plan_.lowering.groups) {
    if (g.block_sums == kNone || k == kNone || g.norm_sums != in.operands[k].buffer) continue;
    const Buffer& b = plan_.program.buffers[g.block_sums];
    const uint64_t parts = bytes_of(in, k) / b.bytes();
    for (size_t shard = 0; shard + 1 < g.shards.size(); ++shard)
      for (uint64_t part = 0; part < parts; ++part) {
        const std::byte* const of_part = address(in, k, rings) + part * b.bytes();
        const auto* sums = reinterpret_cast<const double*>(of_part + b.cuts[shard]);
        const uint64_t elements = g.part_elements(static_cast<uint32_t>(shard));
        const uint64_t blocks = (elements + kNormBlock - 1) / kNormBlock;
        for (uint64_t i = 0; i < blocks; ++i) total += sums[i];
      }
    ++k;
  }
  operand<StepScalars::Norm>(in, rings, Role::norm)->norm =
      std::sqrt(total) / operand<StepScalars::Update>(in, rings, Role::previous_update)->loss_scale;
}

UpdateConstants Runner::constants(const StepScalars::Input& input, const StepScalars::Update& previous,
                                  double clip_factor) const {
  return optimizer_of(rules_.optimizer)
      .prepare(rules_.settings, {previous.t + 1, input.learning_rate, clip_factor, previous.loss_scale});
}

void Runner::set_guess(const Instruction& in, const RingPositions& rings) {
  operand<StepScalars::Guess>(in, rings, Role::guess)->constants =
      constants(*operand<StepScalars::Input>(in, rings, Role::input_scalars),
                *operand<StepScalars::Update>(in, rings, Role::previous_update), 1);
}

void Runner::set_scalars(const Instruction& in, const RingPositions& rings) {
  const auto& input = *operand<const StepScalars::Input>(in, rings, Role::input_scalars);
  const auto& previous = *operand<const StepScalars::Update>(in, rings, Role::previous_update);
  auto& update = *operand<StepScalars::Update>(in, rings, Role::update);
  const auto* const known = operand<const StepScalars::Norm>(in, rings, Role::norm);
  const double norm = known ? known->norm : 0;
  const bool scaled = plan_.model.precision == DType::f16;
  update = previous;
  update.skip = scaled && !std::isfinite(norm);
  update.clipped = 0;
  if (update.skip) {
    update.loss_scale = previous.loss_scale / 2;
    update.clean_steps = 0;
    ++update.skipped_steps;
    return;
  }
  ++update.t;
  if (scaled && ++update.clean_steps == kCleanStepsToDouble) {
    update.loss_scale = previous.loss_scale * 2;
    update.clean_steps = 0;
  }
  const double factor = rules_.clip > 0 && known ? std::min(1.0, rules_.clip / (norm + 1e-6)) : 1.0;
  update.clipped = factor < 1;
  update.constants = constants(input, previous, factor);
}

ShardView Runner::shard_view(const Task& task, const Instruction& in, const RingPositions& rings) const {
  const GroupBuffers& buffers = plan_.lowering.groups[task.subject];
  const uint64_t begin = buffers.shards[task.slice];
  ShardView v;
  v.group = task.subject;
  v.elements = buffers.updated_elements(task.slice);
  v.first = begin + (buffers.sharing.shares_state() ? own_part(buffers) * v.elements : 0);
  v.weights = operand(in, rings, Role::weights);
  v.error = operand<float>(in, rings, Role::error);
  if (v.error) v.error_first = begin, v.error_elements = buffers.shards[task.slice + 1] - begin;
  v.factors = operand<float>(in, rings, Role::right_factor);
  if (v.factors) v.factor_elements = buffers.compression->layout.right;
  std::byte* const state = operand(in, rings, Role::state);
  if (!state) return v;
  v.planes = planes_;
  // In fp32, the weights are the master weights. All other planes lie in the state.
  const size_t elsewhere = plan_.model.precision == DType::f32 ? 1 : 0;
  if (elsewhere > 0) v.values[0] = static_cast<std::byte*>(v.weights);
  const StatePlaneOffsets offsets = plane_offsets(v.planes.subspan(elsewhere), v.elements);
  CHECK(offsets.back() == bytes_of(in, position_of(in, Role::state)),
        "the plan's state has other planes than the optimizer");
  for (size_t p = elsewhere; p < v.planes.size(); ++p) v.values[p] = state + offsets[p - elsewhere];
  return v;
}

void Runner::update(const Task& task, const Instruction& in, const RingPositions& rings) {
  const bool visits = task.kind == TaskKind::visit;
  const UpdateForm form = visits                          ? UpdateForm::visit
                          : task.kind == TaskKind::repair ? UpdateForm::repair
                                                          : UpdateForm::optimize;
  UpdateScalars scalars;
  scalars.update = operand<const StepScalars::Update>(in, rings, Role::update);
  scalars.guess = operand<const StepScalars::Guess>(in, rings, Role::guess);
  const ShardView v = shard_view(task, in, rings);
  const Optimizer& optimizer = optimizer_of(rules_.optimizer);
  const DType precision = plan_.model.precision;
  const uint64_t end = v.first + v.elements;
  const bool on_device = in.lane == device_lane_;
  UpdateRange whole{.master = reinterpret_cast<float*>(v.values[0]),
                    .planes = {},
                    .gradient = operand(in, rings, Role::gradient),
                    .weights = precision == DType::f32 ? nullptr : v.weights,
                    .precision = precision,
                    .elements = v.elements,
                    .weight_decay = 0,
                    .next_gradient = operand(in, rings, Role::next_gradient)};
  for (size_t p = 0; p < optimizer.planes.size(); ++p) whole.planes[p] = v.values[p + 1];
  for (const RateRange& range : rate_ranges_[task.subject]) {
    const uint64_t first = std::max(range.begin, v.first), last = std::min(range.end, end);
    if (first >= last) continue;
    UpdateRange r = part_of(whole, optimizer.planes, first - v.first, last - first);
    r.weight_decay = range.weight_decay;
    r.learning_rate_factor = range.learning_rate_factor;
    if (on_device)
      device_.update(rules_.optimizer, form, r, scalars);
    else
      update_range(optimizer, form, r, scalars, optimizer_workers_);
  }
}

void Runner::load(const Task& task, const Instruction& in, const RingPositions& rings) {
  const ShardView v = shard_view(task, in, rings);
  hooks_.load(v);
  for (size_t p = 0; p < v.planes.size(); ++p)  // checkpoints store the rest of the last page, too
    std::memset(v.values[p] + v.planes[p].bytes(v.elements), 0,
                v.planes[p].page_bytes(v.elements) - v.planes[p].bytes(v.elements));
  if (v.factors) zero_rest(in, Role::right_factor, v.factor_elements, rings);
}

}  // namespace sluice
