#include "engine/plan/lower/lower.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "engine/base/error.h"
#include "engine/plan/lower/body_builder.h"
#include "engine/plan/lower/buffers.h"
#include "engine/plan/lower/ranks.h"
#include "engine/plan/lower/segment_tasks.h"

namespace sluice {

namespace {

class Lowerer {
 public:
  Lowerer(const Model& model, const LowerOptions& options, Program& program,
          std::shared_ptr<const SegmentPlans> segments)
      : model_(model), options_(options), program_(program) {
    out_.segments = std::move(segments);
  }

  Lowering run() {
    if (options_.batch <= 0 || options_.batch % model_.micro_batch != 0)
      throw std::invalid_argument("the batch is not a multiple of the micro-batch");
    const auto micro_batches = static_cast<uint32_t>(options_.batch / model_.micro_batch);
    if (options_.waves == 0 || micro_batches % options_.waves != 0)
      throw std::invalid_argument("the micro-batches of a step cannot be divided into so many waves");
    if (options_.waves + 2 > kRingSlotsMax) throw std::invalid_argument("a step has too many waves");
    if (options_.waves > 1 && (options_.share_layers_until > 0 || uses_.shares_layers))
      throw std::invalid_argument("where layers share parameter groups, a step is one wave");
    CHECK(!options_.usual_only || !model_.generates(), "such a model has no step");
    if (model_.generates() && (options_.waves > 1 || model_.mesh.ranks() > 1))
      throw std::invalid_argument("a model that generates has one wave and one rank");
    out_.slices = micro_batches / options_.waves;
    out_.waves = options_.waves;
    out_.update_waits_for_norm = options_.update_waits_for_norm;
    out_.mesh = model_.mesh;
    out_.sharing = sharing_of(model_.mesh, {}, options_);
    program_.rings = {{"train"}, {"validation"}, {"wave"}};
    // The trainer prepares all waves of a step while the last two waves of the step before may still run.
    program_.rings[kWaveRing].slots = static_cast<uint16_t>(out_.waves + 2);
    if (model_.samples()) {
      program_.rings.push_back({"sample", 2});
      out_.reading_ring = kSampleRing;
    }
    buffers_ = make_buffers(model_, options_, program_, out_);
    makers_ = find_makers();
    schedule_ = options_.schedule(model_, out_.slices);
    check_schedule(schedule_, trained_uses(), out_.slices);
    lower_phases();
    for (Body& body : program_.bodies)
      for (size_t i = 0; i < program_.bodies.size(); ++i)
        if (can_follow(program_.bodies[i].end, body.start))
          body.predecessors.push_back(static_cast<BodyId>(i));
    return std::move(out_);
  }

 private:
  const SegmentUse& use(uint32_t u) const {
    return model_.layers[out_.uses[u].layer].segments[out_.uses[u].position];
  }
  const Segment& segment(uint32_t u) const { return model_.segments[use(u).segment]; }
  const SegmentPlan& plan(uint32_t u) const { return out_.plans()[out_.uses[u].plan]; }
  uint32_t use_count() const { return static_cast<uint32_t>(out_.uses.size()); }
  uint32_t trained_uses() const { return first_use_from(model_.trained_layers()); }
  uint32_t first_use_from(uint32_t layer) const {
    return static_cast<uint32_t>(std::ranges::lower_bound(out_.uses, layer, {}, &UseInfo::layer) -
                                 out_.uses.begin());
  }
  // The group that stands in for `g` in this phase, and its buffers.
  uint32_t stand_in(uint32_t g) const { return stand_ins_.empty() ? g : stand_ins_[g]; }
  const GroupBuffers& group(uint32_t g) const { return out_.groups[stand_in(g)]; }
  bool is_updated(uint32_t g) const { return model_.groups[g].trainable && stand_in(g) == g; }
  // Frozen layers below all trainable ones have no backward.
  bool has_backward(uint32_t u) const { return any(plan(u).wanted.inputs) || any(plan(u).wanted.trainable); }

  // `back`: Operand::back of the update's scalars.
  void lower_update(BodyBuilder& body, TaskKind kind, uint32_t g, uint32_t shard, uint8_t back) {
    const GroupBuffers& b = out_.groups[g];
    const bool visits = kind == TaskKind::visit, commits = kind != TaskKind::repair;
    const bool in_place = model_.precision == DType::f32;  // the weights are the master weights
    const uint64_t narrow = visits ? 4 : in_place ? 3 : 2, width = dtype_bytes(model_.precision);
    Task& t = body.task(kind, g, shard);
    const uint64_t elements = b.updated_elements(shard);
    t.bytes = (commits ? 2 : 1) * options_.optimizer.bytes(elements) + elements * narrow * width;
    body.add(t, Role::state, b.state[shard], commits ? Access::add : Access::read);
    body.add(t, Role::gradient, b.gradient, shard, shard + 1, visits ? Access::add : Access::read);
    body.add(t, Role::update, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::read, back);
    body.add(t, Role::weights, b.weights, shard, shard + 1, in_place ? Access::add : Access::write);
    if (visits) {
      body.add(t, Role::next_gradient, b.next_gradient, shard, shard + 1, Access::read);
      body.add(t, Role::guess, out_.scalars, kScalarGuess, kScalarGuess + 1, Access::read);
    }
    ranks_.gather_updated(body, g, shard);
  }
  void lower_update_group(BodyBuilder& body, TaskKind kind, uint32_t g, uint8_t back) {
    for (uint32_t k = 0; k < out_.groups[g].state.size(); ++k) lower_update(body, kind, g, k, back);
  }

  void lower_norm(BodyBuilder& body) {
    Task& t = body.task(TaskKind::norm, 0, 0);
    for (uint32_t g = 0; g < model_.groups.size(); ++g) {
      if (!is_updated(g)) continue;
      body.add(t, Role::norm_sums, out_.groups[g].norm_sums, Access::read);
      t.bytes += program_.buffers[out_.groups[g].norm_sums].bytes();
    }
    body.add(t, Role::previous_update, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::read, 1);
    body.add(t, Role::norm, out_.scalars, kScalarNorm, kScalarNorm + 1, Access::write);
  }

  void lower_set_scalars(BodyBuilder& body, bool after_norm) {
    Task& t = body.task(TaskKind::set_scalars, 0, 0);
    body.add(t, Role::input_scalars, out_.scalars, kScalarInput, kScalarInput + 1, Access::read);
    body.add(t, Role::previous_update, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::read, 1);
    body.add(t, Role::update, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::write);
    if (after_norm) body.add(t, Role::norm, out_.scalars, kScalarNorm, kScalarNorm + 1, Access::read);
  }

  void lower_set_guess(BodyBuilder& body) {
    Task& t = body.task(TaskKind::set_guess, 0, 0);
    body.add(t, Role::input_scalars, out_.scalars, kScalarInput, kScalarInput + 1, Access::read);
    body.add(t, Role::previous_update, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::read, 1);
    body.add(t, Role::guess, out_.scalars, kScalarGuess, kScalarGuess + 1, Access::write);
  }

  // These give names, and start and end states, to the bodies of the phase that is being lowered.
  std::string phase_name(const std::string& name) const {
    return (shares_layers() ? "shared_" : options_.compress_rank && !compress_ ? "warmup_" : "") + name;
  }
  BodyState clean() const { return in_phase(BodyState::clean); }
  BodyState pending() const { return in_phase(BodyState::pending); }
  BodyState guessed() const { return in_phase(BodyState::guessed); }
  BodyState in_phase(BodyState state) const {
    state.shared = shares_layers();
    return state;
  }
  bool shares_layers() const { return !stand_ins_.empty(); }
  bool guesses(uint32_t g) const { return options_.guesses(g, model_.precision); }
  template <typename Holds>
  bool any_updated(const Holds& holds) const {
    for (uint32_t g = 0; g < model_.groups.size(); ++g)
      if (is_updated(g) && holds(g)) return true;
    return false;
  }
  bool waits(uint32_t g) const { return options_.waits(g); }
  bool any_waits() const {
    return any_updated([&](uint32_t g) { return waits(g); });
  }
  bool any_guesses() const {
    return any_updated([&](uint32_t g) { return guesses(g); });
  }

  void lower_phases() {
    if (model_.generates()) {
      BodyIds bodies;
      bodies.load = lower_load();
      bodies.readings = lower_readings();
      return out_.phases.push_back(bodies);
    }
    const bool compresses = options_.compress_rank > 0 && model_.mesh.ranks() > 1;
    const int64_t share = options_.share_layers_until, plain = compresses ? options_.compress_after : 0;
    if (share > 0) {
      stand_ins_ = find_stand_ins();
      out_.phases.push_back(phase_bodies(share));
      out_.phases.back().unlock = lower_unlock();
      stand_ins_.clear();
    }
    if (plain > share) {
      BodyIds bodies;
      bodies.until = plain;
      lower_training(bodies);
      out_.phases.push_back(bodies);
    }
    compress_ = compresses;
    const BodyIds last = phase_bodies(INT64_MAX);
    if (plain > share) {  // bodies that do not train are the same in both phases
      const BodyIds training = out_.phases.back();
      out_.phases.back() = last;
      out_.phases.back().until = plain;
      out_.phases.back().first = training.first;
      out_.phases.back().step = training.step;
      out_.phases.back().guess = training.guess;
      out_.phases.back().repair = training.repair;
      out_.phases.back().plain = training.plain;
      out_.phases.back().guessing = training.guessing;
    }
    out_.phases.push_back(last);
  }

  std::vector<BodyId> lower_readings() {
    std::vector<BodyId> bodies;
    for (const Reading& reading : model_.readings) {
      BodyBuilder body(program_, phase_name(reading.name), clean(), clean());
      body.advance(out_.reading_ring);
      if (options_.usual_only) {
        bodies.push_back(body.finish());
        continue;
      }
      for (uint32_t u = first_use_from(reading.first); u < first_use_from(reading.last); ++u) {
        if (!buffers_.picked[u].runs) continue;
        gather_weights(body, u, &GroupBuffers::forward);
        tasks_.forward(body, u, 0, Recompute::all, {});
      }
      bodies.push_back(body.finish());
    }
    return bodies;
  }

  BodyIds phase_bodies(int64_t until) {
    BodyIds bodies;
    bodies.until = until;
    bodies.load = lower_load();
    lower_training(bodies);
    if (any_waits()) bodies.drain = lower_drain();
    if (options_.evaluate) bodies.evaluate = lower_evaluate("evaluate", {.first = true});
    if (options_.evaluate && out_.waves > 1)
      bodies.evaluate_more = lower_evaluate("evaluate_more", {.first = false});
    bodies.readings = lower_readings();
    bodies.save = lower_save();
    mark_empty();
    return bodies;
  }

  // While an update waits, the weights that it makes have no content. Accumulators have content only between
  // waves. Between waves, a rounded gradient has content only if its update still waits.
  void mark_empty() {
    if (out_.waves > 1) mark_empty_between_waves();
    const bool some_guess = any_guesses();
    for (uint32_t g = 0; g < model_.groups.size(); ++g) {
      if (!is_updated(g) || !waits(g)) continue;
      const GroupBuffers& b = out_.groups[g];
      for (const BufferId made : {b.weights, b.updated.across, b.updated.whole}) {
        if (made == kNone || !program_.buffers[made].permanent) continue;
        const bool masters = made == b.weights && model_.precision == DType::f32;
        if (masters) continue;
        program_.buffers[made].empty_in.add(pending());
        if (some_guess && !guesses(g)) program_.buffers[made].empty_in.add(guessed());
      }
    }
  }

  void mark_empty_between_waves() {
    for (uint32_t g = 0; g < model_.groups.size(); ++g) {
      if (!is_updated(g)) continue;
      for (const BufferId accumulator : out_.groups[g].accumulators)
        for (int s = 0; s < kBodyStates; ++s)
          if (!BodyState::at(s).between_waves) program_.buffers[accumulator].empty_in.add(BodyState::at(s));
      if (!waits(g)) continue;
      BodyStates& empty_in = program_.buffers[out_.groups[g].gradient].empty_in;
      empty_in.add(between_waves(BodyState::clean));
      if (!guesses(g)) empty_in.add(between_waves(BodyState::guessed));
    }
  }

  void lower_training(BodyIds& bodies) {
    bodies.waves = out_.waves;
    const bool guesses = any_guesses();
    if (!any_waits()) {
      bodies.first = bodies.step = training_step("step", clean(), clean(), true);
      bodies.plain = later_waves("", clean(), true);
      return;
    }
    bodies.first = training_step("first", clean(), pending(), false);
    if (options_.plain_step || !guesses) bodies.step = training_step("step", pending(), pending(), !guesses);
    bodies.plain = later_waves("", pending(), !guesses);
    if (!guesses) return;
    bodies.guess = training_step("guess", guessed(), guessed(), true);
    bodies.repair = training_step("repair", pending(), guessed(), false);
    bodies.guessing = later_waves("guess_", guessed(), true);
  }
  // The body of a whole step, or of its first wave. `end`: the state after the step. `usual`: the body
  // belongs to a usual step.
  BodyId training_step(const char* name, BodyState start, BodyState end, bool usual) {
    const bool whole = out_.waves == 1;
    return training_body(name, start, whole ? end : between_waves(end), {true, whole}, usual);
  }
  LaterWaves later_waves(const std::string& prefix, BodyState end, bool usual) {
    LaterWaves later;
    const BodyState between = between_waves(end);
    if (out_.waves > 2)
      later.middle = training_body(prefix + "middle_wave", between, between, {false, false}, usual);
    if (out_.waves > 1) later.last = training_body(prefix + "last_wave", between, end, {false, true}, usual);
    return later;
  }
  // While the waves of a step that guesses run, the gradients of the step before wait for their update.
  static BodyState between_waves(BodyState end) {
    if (end.update == BodyState::Update::pending) end.update = BodyState::Update::committed;
    end.between_waves = true;
    return end;
  }
  BodyId lower_drain() {
    BodyBuilder drain(program_, phase_name("drain"), pending(), clean());
    if (options_.usual_only) return drain.finish();
    for (uint32_t g = 0; g < model_.groups.size(); ++g)
      if (is_updated(g) && waits(g)) lower_update_group(drain, TaskKind::optimize, g, 0);
    return drain.finish();
  }

  // Groups in the same slot of the same segment and expert are alike, if all are trainable or none is. The
  // first stands in for the others.
  std::vector<uint32_t> find_stand_ins() const {
    std::vector<uint32_t> stand_ins(model_.groups.size());
    for (uint32_t g = 0; g < stand_ins.size(); ++g) stand_ins[g] = g;
    std::map<std::tuple<uint32_t, uint32_t, size_t>, uint32_t> first;  // by segment, expert, slot
    for (uint32_t u = 0; u < use_count(); ++u)
      for (size_t slot = 0; slot < use(u).groups.size(); ++slot) {
        const uint32_t g = use(u).groups[slot];
        const uint32_t alike = first.try_emplace({use(u).segment, use(u).expert, slot}, g).first->second;
        if (model_.groups[g].trainable == model_.groups[alike].trainable) stand_ins[g] = std::min(g, alike);
      }
    return stand_ins;
  }

  // Copies a buffer only if it stays between bodies.
  void add_clone(BodyBuilder& body, Task& t, BufferId from, BufferId to, uint32_t k) const {
    if (to == kNone || !program_.buffers[to].permanent) return;
    body.add(t, Role::source, from, k, k + 1, Access::read);
    body.add(t, Role::copy, to, k, k + 1, Access::write);
  }
  BodyId lower_unlock() {
    BodyBuilder body(program_, "unlock", clean(), BodyState::clean);
    if (options_.usual_only) return body.finish();
    for (uint32_t g = 0; g < model_.groups.size(); ++g) {
      if (stand_in(g) == g || !model_.groups[g].trainable) continue;
      for (uint32_t k = 0; k < out_.groups[g].state.size(); ++k) {
        Task& t = body.task(TaskKind::clone, g, k);
        body.add(t, Role::source, group(g).state[k], Access::read);
        body.add(t, Role::copy, out_.groups[g].state[k], Access::write);
        add_clone(body, t, group(g).weights, out_.groups[g].weights, k);
        add_clone(body, t, group(g).updated.across, out_.groups[g].updated.across, k);
        add_clone(body, t, group(g).updated.whole, out_.groups[g].updated.whole, k);
        count_operand_bytes(program_, t);
      }
    }
    return body.finish();
  }

  // How many backward tasks contribute to each group's gradient.
  std::vector<uint32_t> contributions() const {
    std::vector<uint32_t> count(model_.groups.size());
    for (uint32_t u = 0; u < use_count(); ++u)
      if (has_backward(u))
        for (const uint32_t g : use(u).groups) count[stand_in(g)] += out_.slices;
    return count;
  }

  void gather_weights(BodyBuilder& body, uint32_t u, SharedBuffers GroupBuffers::*weights) {
    for (const uint32_t g : use(u).groups) ranks_.gather_weights(body, stand_in(g), weights);
  }

  BodyId training_body(const std::string& name, BodyState start, BodyState end, Wave wave, bool usual) {
    BodyBuilder body(program_, phase_name(name), start, end);
    if (wave.first) body.advance(kTrainRing);
    body.advance(kWaveRing);
    if (options_.usual_only && !usual) return body.finish();
    const bool guesses = end.update == BodyState::Update::guessed;
    if (wave.last && !options_.update_waits_for_norm) lower_set_scalars(body, false);
    if (wave.last && guesses) lower_set_guess(body);
    std::vector<bool> updated(model_.groups.size(), !wave.first || start == clean());
    for (const auto& [u, m] : schedule_.forward) {
      for (const uint32_t g : use(u).groups) {
        if (!updated[stand_in(g)] && model_.groups[g].trainable)
          lower_due(body, stand_in(g), guesses, start.is_guessed());
        updated[stand_in(g)] = true;
      }
      if (segment(u).loss) continue;
      gather_weights(body, u, &GroupBuffers::forward);
      tasks_.forward(body, u, m, out_.uses[u].recompute, wave);
    }
    std::vector<uint32_t> missing = contributions();
    std::vector<bool> made_again(size_t{use_count()} * out_.slices);
    for (const auto& [u, m] : schedule_.backward) {
      if (!has_backward(u)) continue;
      make_again(body, u, m, wave, made_again);
      gather_weights(body, u, &GroupBuffers::backward);
      tasks_.backward(body, u, m, wave);
      for (const uint32_t g : use(u).groups)
        if (model_.groups[g].trainable && --missing[stand_in(g)] == 0 && wave.last)
          finish_gradient(body, stand_in(g), guesses);
    }
    if (wave.last) lower_norm(body);
    if (wave.last && options_.update_waits_for_norm) lower_set_scalars(body, true);
    return body.finish();
  }

  // Makes again what this backward reads and no forward has kept. `made`: by use and micro-batch, what was
  // made again so far.
  void make_again(BodyBuilder& body, uint32_t u, uint32_t m, Wave wave, std::vector<bool>& made) {
    const std::vector<bool>& reads = plan(u).at(out_.uses[u].recompute).reads_input;
    for (size_t i = 0; i < reads.size(); ++i)
      if (reads[i]) make_again(body, ScheduledUse{makers_[use(u).inputs[i]], m}, wave, made);
  }
  void make_again(BodyBuilder& body, ScheduledUse of, Wave wave, std::vector<bool>& made) {
    if (of.use == kNone || made[size_t{of.use} * out_.slices + of.slice]) return;
    made[size_t{of.use} * out_.slices + of.slice] = true;
    for (const uint32_t a : use(of.use).inputs) make_again(body, {makers_[a], of.slice}, wave, made);
    gather_weights(body, of.use, &GroupBuffers::forward);
    tasks_.forward(body, of.use, of.slice, Recompute::all, wave);
  }
  // Returns for each activation the use that makes it again for backward; kNone if the activation is kept.
  std::vector<uint32_t> find_makers() const {
    std::vector<uint32_t> makers(model_.activations.size(), kNone);
    for (uint32_t u = 0; u < use_count(); ++u)
      for (const uint32_t a : use(u).outputs)
        if (model_.activations[a].made_again) makers[a] = u;
    return makers;
  }

  // Adds what makes a group's weights before its first forward, unless the weights have content already.
  void lower_due(BodyBuilder& body, uint32_t g, bool guesses_now, bool guessed_before) {
    if (!waits(g) || (guesses(g) && guessed_before)) return;
    lower_update_group(body, guesses_now && guesses(g) ? TaskKind::repair : TaskKind::optimize, g, 1);
  }

  void finish_gradient(BodyBuilder& body, uint32_t g, bool guesses_now) {
    const bool visits = guesses_now && guesses(g);
    const BufferId gradient = visits ? out_.groups[g].next_gradient : out_.groups[g].gradient;
    ranks_.reduce(body, g, compress_, gradient, [&](uint32_t k) {
      if (visits)
        lower_update(body, TaskKind::visit, g, k, 1);
      else if (!waits(g))
        lower_update(body, TaskKind::optimize, g, k, 0);
    });
  }

  BodyId lower_evaluate(const char* name, Wave wave) {
    BodyBuilder body(program_, phase_name(name), clean(), clean());
    if (wave.first) body.advance(kValidationRing);
    body.advance(kWaveRing);
    if (options_.usual_only) return body.finish();
    for (const auto& [u, m] : schedule_.forward) {
      gather_weights(body, u, &GroupBuffers::forward);
      tasks_.forward(body, u, m, Recompute::all, wave);
    }
    return body.finish();
  }

  // takes(group) says whether the group's shards are part of the body.
  template <typename AddOperands, typename Takes>
  BodyId shard_body(const char* name, BodyState start, TaskKind kind, const AddOperands& add_operands,
                    const Takes& takes) {
    BodyBuilder body(program_, phase_name(name), start, clean());
    if (options_.usual_only) return body.finish();
    for (uint32_t g = 0; g < model_.groups.size(); ++g) {
      if (!takes(g)) continue;
      for (uint32_t k = 0; k + 1 < out_.groups[g].shards.size(); ++k) {
        Task& t = body.task(kind, g, k);
        add_operands(body, t, g, k);
        count_operand_bytes(program_, t);
        if (kind == TaskKind::load) ranks_.gather_updated(body, g, k);
      }
    }
    if (kind == TaskKind::load) clear_kept(body);
    return body.finish();
  }
  void clear_kept(BodyBuilder& body) const {
    for (uint32_t a = 0; a < model_.activations.size(); ++a)
      for (uint32_t m = 0; m < buffers_.activations[a].size() && model_.activations[a].kept; ++m) {
        Task& t = body.task(TaskKind::clear, a, m);
        body.add(t, Role::output, buffers_.activations[a][m], Access::write);
        count_operand_bytes(program_, t);
      }
  }
  void add_compression(BodyBuilder& body, Task& t, uint32_t g, uint32_t k, Access access) const {
    const std::optional<CompressionBuffers>& c = out_.groups[g].compression;
    if (!c) return;
    body.add(t, Role::error, c->error, k, k + 1, access);
    if (k == 0) body.add(t, Role::right_factor, c->right.sum.whole, access);
  }
  BodyId lower_load() {
    const auto operands = [&](BodyBuilder& body, Task& t, uint32_t g, uint32_t k) {
      const GroupBuffers& b = out_.groups[g];
      if (model_.groups[g].trainable) body.add(t, Role::state, b.state[k], Access::write);
      body.add(t, Role::weights, b.weights, b.first_piece + k, b.first_piece + k + 1, Access::write);
      add_compression(body, t, g, k, Access::write);
    };
    return shard_body("load", BodyState::empty, TaskKind::load, operands, [](uint32_t) { return true; });
  }
  BodyId lower_save() {
    const auto operands = [&](BodyBuilder& body, Task& t, uint32_t g, uint32_t k) {
      const bool trainable = model_.groups[g].trainable;
      if (trainable) body.add(t, Role::state, group(g).state[k], Access::read);
      if (!trainable || model_.precision == DType::f32)
        body.add(t, Role::weights, group(g).weights, k, k + 1, Access::read);
      add_compression(body, t, g, k, Access::read);
    };
    return shard_body("save", clean(), TaskKind::save, operands,
                      [&](uint32_t g) { return out_.groups[g].saved; });
  }

  const Model& model_;
  const LowerOptions& options_;
  Program& program_;
  Lowering out_;
  const RankTasks ranks_{program_, out_};
  const GroupUses uses_ = uses_of_groups(model_);
  SliceBuffers buffers_;
  std::vector<uint32_t> makers_;  // by activation
  StepSchedule schedule_;
  std::vector<uint32_t> stand_ins_;  // by group, in the phase that is being lowered; empty: each for itself
  bool compress_ = false;            // whether gradients travel compressed in that phase
  SegmentTasks tasks_{model_, uses_, out_, buffers_, stand_ins_, program_};
};

}  // namespace

Lowering lower(const Model& model, const LowerOptions& options, Program& program,
               std::shared_ptr<const SegmentPlans> segments) {
  if (!segments) segments = plan_segments(model, options.workspace_bytes);
  return Lowerer(model, options, program, std::move(segments)).run();
}

}  // namespace sluice
