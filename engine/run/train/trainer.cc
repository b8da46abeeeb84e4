#include "engine/run/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/clock.h"
#include "engine/rates/network.h"
#include "engine/run/execute/recorder.h"
#include "engine/run/train/batches.h"
#include "engine/run/train/schedule.h"
#include "engine/run/train/way_on.h"
#include "gpu/machine.h"
#include "offload/system/memory_limits.h"

namespace sluice {

namespace {

// What a run does that finds no room for a checkpoint on the way.
constexpr const char* kGoesOn =
    "The run goes on, and writes it after the first step that can. Free some space.";

// All ranks take the first rank's number, so that they choose alike.
double break_even_of_first(const Session& session) {
  const double mine = session.plan().orders.break_even();
  return session.ranks().sum(session.ranks().is_first() ? mine : 0.0);
}

std::vector<uint64_t> bytes_moved(const Plan& plan, std::span<const BodyId> bodies, bool with_travelling) {
  std::vector<uint64_t> bytes(plan.program.machine.lanes.size());
  for (const BodyId id : bodies) {
    const Body& body = plan.program.bodies[id];
    for (const Instruction& in : body.instructions) {
      if (in.task == kNoTask)
        bytes[in.lane] += operand_bytes(plan.program.buffers[in.operands[0].buffer], in.operands[0]);
      else if (const Task& task = body.tasks[in.task];
               is_collective(task.kind) && (with_travelling || !is_of_segment(task.kind)))
        bytes[in.lane] += sent_bytes(plan.program, task);
    }
  }
  return bytes;
}

}  // namespace

std::vector<uint64_t> moved_bytes(const Plan& plan, std::span<const BodyId> bodies) {
  return bytes_moved(plan, bodies, true);
}

std::vector<uint64_t> fixed_bytes(const Plan& plan, std::span<const BodyId> bodies) {
  return bytes_moved(plan, bodies, false);
}

Trainer::Trainer(Session& session, const Options& options, const TrainData& data,
                 const CheckpointState& start, const std::atomic<bool>& stop, TrainEvents events)
    : session_(session),
      options_(options),
      data_(data),
      state_(start),
      stop_(stop),
      events_(std::move(events)),
      step_(start.step),
      phase_(session.plan().lowering.phase_of(start.step)),
      guess_choice_(options.memory.overlap, break_even_of_first(session)),
      expert_tokens_(session) {
  const Program& program = session.plan().program;
  CHECK(program.rings[kTrainRing].slots >= 3,
        "the trainer reads the loss of a step while two more are under way");
  for (const Activation& a : session.plan().model.activations)
    CHECK(!a.input || a.name == "tokens" || a.name == "labels" || a.name == "documents" ||
              a.name == "draws" || is_of_reading(session.plan().model, a),
          "the trainer has no data for the input " + a.name);
  for (BodyId b = 0; b < program.bodies.size(); ++b)
    fixed_bytes_.push_back(fixed_bytes(session.plan(), {&b, 1}));
  for (const Tier& tier : program.machine.tiers) metrics_.peak_bytes.emplace_back(tier.name, 0);
  for (const Lane& lane : program.machine.lanes) {
    metrics_.moved_bytes.emplace_back(lane.name, 0);
    metrics_.lane_busy.emplace_back(lane.name, 0);
  }
  moved_.assign(program.machine.lanes.size(), 0);
  busy_.assign(program.machine.lanes.size(), 0);
  session.runner().set_steps_before(start.step - static_cast<int64_t>(session.position(kTrainRing)));
  pending_.reserve(4);  // it has three entries at most
  StepScalars& scalars = session.scalars(session.position(kTrainRing));
  scalars = {};
  scalars.update.t = start.t;
  scalars.update.loss_scale = start.loss_scale;
  scalars.update.clean_steps = start.clean_steps;
  scalars.update.skipped_steps = start.skipped_steps;
}

TrainResult Trainer::run(AtEnd at_end) {
  at_end_ = at_end;
  if (at_end == AtEnd::checkpoint) {
    out_.emplace(options_.run.out);
    spare_.emplace(SpareDescriptors::kOfCheckpoint);
    checkpoint_space_ = checkpoint_space(session_.plan(), options_.optimizer.kind);
  }
  try {
    return train_on_lanes();
  } catch (const Error& error) {
    if (!error.is_in_step()) throw;
    std::string remedy = error.remedy();
    remedy.pop_back();  // the full stop
    throw Error(error.code(), error.what(), remedy + ", then " + way_on(options_.run, directory()) + ".");
  }
}

TrainResult Trainer::train_on_lanes() {
  try {
    return train();
  } catch (...) {
    record_failed();
    session_.check();  // this rank's own error takes precedence over another rank's report of it
    throw;
  }
}

void Trainer::record(int64_t step, uint64_t ticket, BodyId body) {
  if (events_.recorder) events_.recorder->copy(session_.executor().trace(), ticket, body, step);
}

// After a lane failed, bodies in flight are only counted, so they are soon done.
void Trainer::record_failed() {
  if (!events_.recorder || !session_.executor().error()) return;
  for (const Pending& p : pending_) {
    session_.executor().wait(p.ticket);
    record(p.step, p.ticket, p.body);
  }
}

TrainResult Trainer::train() {
  const bool saves_state = at_end_ == AtEnd::checkpoint;
  state_.pending_validation = state_.pending_validation && saves_state && data_.validation;
  state_.pending_samples = state_.pending_samples && saves_state && data_.samples;
  allow_drop();
  // If no step is left and the last one has a checkpoint, no further checkpoint is needed.
  if (saves_state && step_ == options_.batch.steps && session_.ranks().sum<int>(is_saved()) > 0)
    saved_ = step_;
  bool goes_on = run_pending(true);
  last_norm_ = saved_at_ = steady_seconds();
  note("the trainers' sums");
  while (goes_on && step_ < options_.batch.steps) {
    if (metrics_.seconds > kLongStep) session_.executor().await_idle_lane();
    if (stops()) break;
    if (steps_are_long_) read_bodies(1);  // before the next body is issued, all but one must be done anyway
    if (kept_) break;
    if (step_ == bodies().until) enter_next_phase();
    if (!issue_step()) break;
    note("the trainers' sums");
    read_bodies(2);
    if (kept_) break;
    const bool last = step_ == options_.batch.steps;
    const bool validates = data_.validation && (last || due(options_.data.val_every));
    const Interval& every = options_.run.checkpoint_every;
    const bool is_due = overdue_ || saves_by_time_ || due(every.steps);
    const bool saves = at_end_ == AtEnd::checkpoint && (last || (is_due && can_save(kGoesOn, every.is_auto)));
    const bool samples = data_.samples && (last || due(options_.sample.every));
    if (!validates && !samples && !saves) continue;
    drain();
    const double begin = steady_seconds();
    if (events_.forecast) events_.forecast->drained(begin, false);
    state_.pending_validation = validates;
    state_.pending_samples = samples;
    if (saves && last) await_place();
    // If this ends the run, the run's state is saved below, wherever the directory is then.
    goes_on = (!saves || save_on_the_way()) && run_pending(saves);
    excluded_ += steady_seconds() - begin;
  }
  if (allows_drop_) read_bodies(0);
  drain();
  std::string unsaved;
  if (at_end_ == AtEnd::checkpoint && saved_ != step_) try {
      await_place();
      if (!save()) checkpoint();
    } catch (const Error& error) {
      if (!failed_) throw;
      unsaved = error.what();
    }
  if (failed_) tell_failure(unsaved);
  return {step_, cut_short_ || step_ < options_.batch.steps};
}

const BodyIds& Trainer::bodies() const { return session_.plan().lowering.phases[phase_]; }

void Trainer::enter_next_phase() {
  if (bodies().unlock) {
    drain();
    const uint64_t ticket = session_.issue(*bodies().unlock);
    if (events_.recorder) {  // now, before later bodies overwrite its records
      session_.executor().wait(ticket);
      record(0, ticket, *bodies().unlock);
    }
  }
  ++phase_;
}

bool Trainer::issue_step() {
  session_.executor().make_room();
  if (kept_) return false;
  const uint64_t position = session_.next_position(kTrainRing);
  const Draws draws{.seed = options_.numbers.seed, .step = static_cast<uint32_t>(step_ + 1)};
  const RowsRead rows = fill_all_rows(session_, *data_.train, state_.cursor, draws, false, failure_);
  failed_ = rows.failed > 0;
  if (failed_) return false;
  StepScalars& scalars = session_.scalars(position);
  scalars.input.learning_rate = learning_rate(options_.optimizer, step_, options_.batch.steps);
  // A step without labels has loss and gradients of zero.
  scalars.input.valid_tokens = static_cast<double>(std::max<int64_t>(rows.labels, 1));
  const IssuedWave* const last = pending_update_ ? &pending_.back() : nullptr;
  const BodyId begin = next_step(session_, bodies(), last, guess_choice_.guesses());
  if (kept_) return false;
  pending_update_ = bodies().drain.has_value();
  state_.cursor += static_cast<uint64_t>(options_.batch.batch);
  ++step_;
  if (events_.forecast) events_.forecast->issued(steady_seconds(), step_ - state_.step);
  for (uint32_t wave = 0; wave < bodies().waves; ++wave) {
    if (wave > 0) read_bodies(2);
    const BodyId body = bodies().wave_of(begin, wave);
    may_drop_ = false;  // until pending_ has the body that is issued
    const uint64_t ticket = session_.issue(body);
    pending_.push_back(
        {{ticket, position, body}, step_, wave + 1 == bodies().waves, session_.position(kWaveRing)});
    may_drop_ = allows_drop_;
  }
  return true;
}

void Trainer::read_bodies(size_t leave) {
  while (pending_.size() > leave) {
    const Pending& oldest = pending_.front();
    session_.executor().wait(oldest.ticket);
    session_.check();
    if (kept_ && oldest.ticket + (kept_->whole ? 0 : 1) > kept_->ticket) return take_back();
    record(oldest.step, oldest.ticket, oldest.body);
    for (LaneId l = 0; l < metrics_.lane_busy.size(); ++l) {
      moved_[l] += fixed_bytes_[oldest.body][l];
      busy_[l] += session_.executor().trace().busy_seconds(l, oldest.ticket);
    }
    moved_[kCollectiveLane] += session_.runner().sent_to_experts(oldest.wave);
    expert_tokens_.add_wave(oldest.wave);
    if (session_.plan().program.bodies[oldest.body].start.is_guessed()) order_ = StepOrder::guessed;
    if (oldest.ends_step) read_step(oldest);
    pending_.erase(pending_.begin());
  }
}

// The time at which the step's norm was known.
double Trainer::norm_time(const Pending& p) const {
  const Body& body = session_.plan().program.bodies[p.body];
  for (uint32_t i = static_cast<uint32_t>(body.instructions.size()); i-- > 0;) {
    const Instruction& in = body.instructions[i];
    if (in.task == kNoTask || body.tasks[in.task].kind != TaskKind::norm) continue;
    if (const TraceRecord* record = session_.executor().trace().find(in.lane, p.ticket, i))
      return record->end;
  }
  return steady_seconds();
}

void Trainer::read_step(const Pending& p) {
  const Plan& plan = session_.plan();
  const StepScalars& s = session_.scalars(p.position);
  StepMetrics& m = metrics_;
  m.step = p.step;
  const StepScalars::Loss loss = session_.sum_of_rows(s.loss);
  m.loss = loss.sum / s.input.valid_tokens;
  if (has_router_loss(plan.model)) m.router_loss = loss.of_routers / s.input.valid_tokens;
  m.grad_norm = s.norm.norm;
  m.learning_rate = s.input.learning_rate;
  const double norm_done = norm_time(p);
  m.seconds = std::max(norm_done - last_norm_ - excluded_, 1e-9);
  last_norm_ = norm_done;
  excluded_ = 0;
  if (events_.forecast) events_.forecast->step_read(norm_done, m.seconds, step_ - p.step);
  m.tokens_per_second = static_cast<double>(options_.batch.batch * plan.model.sequence) / m.seconds;
  m.trained_tokens_per_second = s.input.valid_tokens / m.seconds;
  m.skipped = s.update.skip;
  const StepOrder otherwise =
      plan.program.bodies[p.body].end.is_guessed() ? StepOrder::repaired : StepOrder::plain;
  m.order = std::exchange(order_, std::nullopt).value_or(otherwise);
  guess_choice_.add(s.update.as_guessed());
  m.micro_batch = plan.model.micro_batch;
  m.loss_scale = state_.loss_scale;  // as the step before left the loss scale
  m.process_peak_bytes = process_peak_bytes();
  for (TierId t = 0; t < m.peak_bytes.size(); ++t)
    m.peak_bytes[t].second = session_.runner().high_water_bytes(t);
  for (LaneId l = 0; l < m.lane_busy.size(); ++l) {
    m.moved_bytes[l].second = std::exchange(moved_[l], 0);
    m.lane_busy[l].second = std::exchange(busy_[l], 0);
  }
  m.expert_tokens = expert_tokens_.end_step();
  state_.step = p.step;
  state_.validation.reset();
  state_.t = s.update.t;
  state_.loss_scale = s.update.loss_scale;
  state_.clean_steps = s.update.clean_steps;
  state_.skipped_steps = s.update.skipped_steps;
  if (events_.step) events_.step(m);
  if (events_.not_finite_goes_on) return;
  if (const auto layer = expert_tokens_.not_finite())
    throw Error(ExitCode::numerics,
                fmt::format("The router of layer {} made NaN at step {}.", *layer, m.step),
                way_on_from_bad_numbers(m.step, !m.expert_tokens.empty(), options_.run, directory()));
  const bool scaled = plan.model.precision == DType::f16;
  if (!std::isfinite(m.loss) || (!scaled && !std::isfinite(m.grad_norm)))
    throw Error(ExitCode::numerics,
                "The " + std::string(std::isfinite(m.loss) ? "gradient norm" : "loss") + " of step " +
                    std::to_string(m.step) + " is not finite.",
                way_on_from_bad_numbers(m.step, !m.expert_tokens.empty(), options_.run, directory()));
  if (scaled && state_.loss_scale < 1)
    throw Error(ExitCode::numerics,
                "The fp16 loss scale fell below 1 at step " + std::to_string(m.step) + ".",
                way_on_with("a smaller --lr", options_.run, directory()) +
                    " A new run may also use --precision bf16.");
}

void Trainer::drain() {
  may_drop_ = false;
  if (std::exchange(passes_over_, false)) {
    session_.executor().drop_next();
    session_.executor().wait(session_.issue(*bodies().drain));
  }
  uint64_t ticket = pending_.empty() ? 0 : pending_.back().ticket;
  const bool ends = std::exchange(pending_update_, false);
  if (ends) ticket = session_.issue(*bodies().drain);
  read_bodies(0);
  if (ticket) session_.executor().wait(ticket);
  session_.check();
  if (ends) record(0, ticket, *bodies().drain);
}

// Tells the ranks what the next calls are for.
void Trainer::note(const char* what) const {
  std::array<char, 80> text;
  const auto end = fmt::format_to_n(text.data(), text.size(), "at step {} for {}", step_, what);
  session_.ranks().note({text.data(), std::min(end.size, text.size())});
}

}  // namespace sluice
