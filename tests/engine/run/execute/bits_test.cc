// Every plan gives the same bits: losses, gradient norms, validation loss and final state of small models on
// the reference device, over executors, tiers, budgets, homes, leads, shard sizes, recomputation and
// schedules.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>

#include "cpu_optim/optimizer.h"
#include "engine/run/execute/session.h"
#include "engine/run/start/loader.h"
#include "engine/verify/verify.h"
#include "models/weights/initial_weights.h"
#include "tests/support/offload_test_support.h"
#include "tests/support/plan_support.h"
#include "tests/support/sanitized.h"

namespace sluice::testing {
namespace {

constexpr uint32_t kSteps = 6;

// Stands for the file that task `save` writes to: every plane of every group one after the other, in fp32
// (frozen weights in working precision).
class SavedState {
 public:
  explicit SavedState(const Model& model) {
    for (const Group& g : model.groups) {
      begin_.push_back(end_);
      elements_.push_back(g.elements);
      end_ += kPlanes * g.elements * sizeof(float);
    }
    std::string path = drive_directory() + "/sluice_bits_XXXXXX";
    fd_ = mkstemp(path.data());
    CHECK(fd_ >= 0 && unlink(path.c_str()) == 0 && ftruncate(fd_, static_cast<off_t>(end_)) == 0,
          "no temporary file");
  }
  ~SavedState() { close(fd_); }
  SavedState(const SavedState&) = delete;
  SavedState& operator=(const SavedState&) = delete;

  FileTarget target(uint32_t group, uint64_t first, std::string_view plane) const {
    const uint64_t index = plane == "exp_avg" ? 1 : plane == "exp_avg_sq" ? 2 : 0;
    CHECK(index > 0 || plane == "master" || plane == "frozen", "a plane that AdamW does not have");
    return {fd_, begin_[group] + (index * elements_[group] + first) * sizeof(float), "saved state"};
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(end_);
    CHECK(pread(fd_, all.data(), end_, 0) == static_cast<ssize_t>(end_), "the saved state is too short");
    return all;
  }

 private:
  static constexpr uint64_t kPlanes = 3;
  std::vector<uint64_t> begin_, elements_;
  uint64_t end_ = 0;
  int fd_ = -1;
};

struct Outcome {
  std::vector<double> losses, norms;  // losses are sums over valid tokens; norms are before clipping
  std::vector<double> scales;         // loss scale after the step
  double validation = 0;
  std::vector<std::byte> state;
};

void expect_same_bits(const Outcome& found, const Outcome& wanted) {
  const auto bits = [](const std::vector<double>& v) {
    std::vector<uint64_t> out(v.size());
    std::memcpy(out.data(), v.data(), 8 * v.size());
    return out;
  };
  EXPECT_EQ(bits(found.losses), bits(wanted.losses)) << found.losses[0] << " instead of " << wanted.losses[0];
  EXPECT_EQ(bits(found.norms), bits(wanted.norms)) << found.norms[0] << " instead of " << wanted.norms[0];
  EXPECT_EQ(bits(found.scales), bits(wanted.scales));
  EXPECT_EQ(bits({found.validation}), bits({wanted.validation}))
      << found.validation << " instead of " << wanted.validation;
  EXPECT_TRUE(found.state == wanted.state) << "final state";
}

class Run {
 public:
  Run(const Case& c, Device& device, SessionOptions options)
      : plan_(plan_of(c)), session_(plan_, device, options), saved_(plan_.model), workers_(1) {
    ShardHooks hooks;
    hooks.load = load_from(
        plan_.model,
        [](const Parameter& p, uint64_t first, uint64_t count, float* out) {
          fill_initial(p, 7, first, count, out);
          for (uint64_t i = 0; i < count && p.initializer != Initializer::ones; ++i)
            out[i] *= 8;  // so that gradients are large enough to matter
        },
        workers_);
    hooks.save = [this](uint32_t group, uint64_t first, const StatePlane& plane, std::span<const std::byte>) {
      return saved_.target(group, first, plane.name);
    };
    session_.runner().set_hooks(std::move(hooks));
  }

  // Issues steps ahead, as a trainer does, and reads only whether a guess was right. Steps that guess
  // alternate with steps that do not.
  Outcome train() {
    const BodyIds& bodies = plan_.lowering.bodies();
    StepScalars& before = session_.scalars(0);
    before = {};
    before.update.loss_scale = plan_.model.precision == DType::f16 ? kFirstLossScale : 1;
    finish(session_.issue(*bodies.load));
    uint64_t ticket = 0;
    for (uint32_t step = 0; step < kSteps; ++step) {
      session_.executor().make_room();
      const uint64_t position = session_.next_position(kTrainRing);
      StepScalars& scalars = session_.scalars(position);
      scalars.input.learning_rate = 0.01 * (step + 1);
      scalars.input.valid_tokens = fill_tokens(step);
      for (const BodyId body : bodies.step_from(first_body(step, ticket, position))) {
        ticket = session_.issue(body);
        last_ = body;
      }
    }
    finish(ticket);
    Outcome out;
    for (uint64_t position = 1; position <= kSteps; ++position) {
      const StepScalars& scalars = session_.scalars(position);
      out.losses.push_back(scalars.loss.sum);
      out.norms.push_back(scalars.norm.norm);
      out.scales.push_back(scalars.update.loss_scale);
    }
    if (bodies.drain) session_.issue(*bodies.drain);
    out.validation = validate();
    finish(session_.issue(*bodies.save));
    out.state = saved_.bytes();
    return out;
  }

 private:
  BodyId first_body(uint32_t step, uint64_t ticket, uint64_t position) {
    const BodyIds& bodies = plan_.lowering.bodies();
    if (step == 0) return *bodies.first;
    if (!bodies.guess || step % 4 == 3) return *bodies.step;
    const Body& before = plan_.program.bodies[last_];
    if (!before.end.is_guessed()) return *bodies.repair;
    session_.executor().wait(ticket, when_decided(before));
    session_.check();
    return session_.scalars(position - 1).update.as_guessed() ? *bodies.guess : *bodies.repair;
  }
  static Plan plan_of(const Case& c) {
    Plan plan;
    plan.model = c.model;
    plan.lowering = c.lowering;
    plan.program = c.program;
    return plan;
  }
  void finish(uint64_t ticket) {
    session_.executor().wait(ticket);
    session_.check();
  }
  double validate() {
    session_.executor().make_room();
    const uint64_t position = session_.next_position(kValidationRing);
    fill_tokens(kSteps);
    const BodyIds& bodies = plan_.lowering.bodies();
    for (uint32_t wave = 0; wave < bodies.waves; ++wave)
      finish(session_.issue(wave == 0 ? *bodies.evaluate : *bodies.evaluate_more));
    return *reinterpret_cast<const double*>(
        session_.runner().ring_slot(plan_.lowering.validation_loss, position));
  }
  // Tokens as a function of step, row and column; every seventh label is ignored. Returns how many are not.
  double fill_tokens(uint32_t step) {
    double valid = 0;
    uint64_t number = 1000 * step;
    for (uint32_t wave = 0; wave < plan_.lowering.waves; ++wave)
      valid += fill_wave(session_.next_position(kWaveRing) + wave, number);
    return valid;
  }
  double fill_wave(uint64_t position, uint64_t& number) {
    const Model& m = plan_.model;
    const BufferId tokens = input_buffer(m, plan_.lowering, "tokens");
    const BufferId labels = input_buffer(m, plan_.lowering, "labels");
    const Buffer& b = plan_.program.buffers[tokens];
    std::byte* x = session_.runner().ring_slot(tokens, position);
    std::byte* y = session_.runner().ring_slot(labels, position);
    double valid = 0;
    for (uint32_t slice = 0; slice < plan_.lowering.slices; ++slice)
      for (int64_t i = 0; i < m.micro_batch * m.sequence; ++i, ++number) {
        const auto token =
            static_cast<int32_t>(number * 2654435761u % 1000003 % static_cast<uint64_t>(m.vocabulary));
        const int32_t label =
            number % 7 == 3 ? kIgnoreLabel : static_cast<int32_t>((token + 3) % m.vocabulary);
        std::memcpy(x + b.cuts[slice] + 4 * static_cast<uint64_t>(i), &token, 4);
        std::memcpy(y + b.cuts[slice] + 4 * static_cast<uint64_t>(i), &label, 4);
        valid += label != kIgnoreLabel;
      }
    if (m.documents) fill_documents(position);
    return valid;
  }
  // In every row a second document begins at position 2.
  void fill_documents(uint64_t position) {
    const Model& m = plan_.model;
    const BufferId documents = input_buffer(m, plan_.lowering, "documents");
    const Buffer& b = plan_.program.buffers[documents];
    for (uint32_t slice = 0; slice < plan_.lowering.slices; ++slice)
      for (int64_t i = 0; i < m.micro_batch * m.sequence; ++i) {
        const int32_t begin = i % m.sequence < 2 ? 0 : 2;
        std::memcpy(
            session_.runner().ring_slot(documents, position) + b.cuts[slice] + 4 * static_cast<uint64_t>(i),
            &begin, 4);
      }
  }

  const Plan plan_;
  Session session_;
  SavedState saved_;
  Workers workers_;
  BodyId last_ = 0;  // of training
};

enum class Some { all, none, random };

Recompute level_of(Some recompute, Random& random) {
  return recompute == Some::all    ? Recompute::all
         : recompute == Some::none ? Recompute::none
                                   : kRecomputes[pick(random, 0, kRecomputes.size() - 1)];
}

struct Variant {
  const char* name;
  ExecutorKind executor = ExecutorKind::serial;
  Tiers tiers = Tiers::host;
  Some recompute = Some::all;
  uint64_t shard_elements = 0;
  StepSchedule (*schedule)(const Model&, uint32_t) = layer_major;
  uint32_t lead = 0;
  uint32_t slack = 0;  // per cent of plenty, on top of the least budgets
  int threads = 1;
  bool transient_on_top = false;  // otherwise homes of transient buffers are random
  Some backward = Some::random;   // groups that are updated in backward
  Some waves = Some::none;        // none: one; all: one for each micro-batch
};

constexpr uint64_t kSmallShard = kNormBlock;  // the smallest: block sums never cross shards
const Variant kOracle{.name = "serial, all in DRAM", .backward = Some::none};
const std::vector<Variant> kVariants{
    {"serial, nothing recomputed", ExecutorKind::serial, Tiers::host, Some::none},
    {.name = "serial, all updated in backward", .backward = Some::all},
    {.name = "shuffled, all updated in backward",
     .executor = ExecutorKind::shuffled,
     .tiers = Tiers::device_host,
     .backward = Some::all},
    {"three tiers, least", ExecutorKind::shuffled, Tiers::device_host_nvme, Some::none},
    {"three tiers, least, serial", ExecutorKind::serial, Tiers::device_host_nvme, Some::random, 0,
     layer_major, 1},
    {"three tiers, more", ExecutorKind::shuffled, Tiers::device_host_nvme, Some::random, 0, layer_major, 2,
     30},
    {"host and nvme, least", ExecutorKind::threaded, Tiers::host_nvme, Some::all, 0, layer_major, 3, 0, 2},
    {"device and host, small shards", ExecutorKind::shuffled, Tiers::device_host, Some::random, kSmallShard,
     layer_major, 4, 10},
    {"host, small shards", ExecutorKind::threaded, Tiers::host, Some::none, 3 * kSmallShard},
    {"slice-major, host", ExecutorKind::shuffled, Tiers::host, Some::none, 0, slice_major},
    {"slice-major, three tiers", ExecutorKind::threaded, Tiers::device_host_nvme, Some::random,
     2 * kFileElements, slice_major, 2, 50},
    {"transient on top, least", ExecutorKind::shuffled, Tiers::device_host, Some::none, 0, layer_major, 0, 0,
     1, true},
    {"transient on top, three tiers", ExecutorKind::threaded, Tiers::device_host_nvme, Some::random, 0,
     layer_major, 2, 20, 2, true},
    {.name = "waves, host", .backward = Some::all, .waves = Some::all},
    {.name = "waves, device and host, least",
     .executor = ExecutorKind::shuffled,
     .tiers = Tiers::device_host,
     .recompute = Some::random,
     .waves = Some::all},
    {.name = "waves, three tiers, more",
     .executor = ExecutorKind::threaded,
     .tiers = Tiers::device_host_nvme,
     .recompute = Some::none,
     .lead = 2,
     .slack = 30,
     .threads = 2,
     .waves = Some::random},
    {.name = "waves, three tiers, least",
     .executor = ExecutorKind::shuffled,
     .tiers = Tiers::device_host_nvme,
     .recompute = Some::random,
     .waves = Some::random},
    {.name = "waves, slice-major, small shards",
     .executor = ExecutorKind::shuffled,
     .tiers = Tiers::host_nvme,
     .shard_elements = kFileElements,
     .schedule = slice_major,
     .waves = Some::random},
};

struct Setting {
  double clip = 1;
  int64_t slices = 2;
};

// The program of variant `v`, assembled with capacities between the least and plenty.
Case plan_variant(const Model& model, const Setting& setting, const Variant& v, Device& device,
                  uint64_t seed) {
  Random random(seed);
  Case c;
  c.model = model;
  c.options.batch = setting.slices * model.micro_batch;
  c.options.update_waits_for_norm = setting.clip > 0 || model.precision == DType::f16;
  c.options.evaluate = true;
  for (const Layer& layer : model.layers)
    for (size_t s = 0; s < layer.segments.size(); ++s)
      c.options.recompute.push_back(level_of(v.recompute, random));
  c.options.schedule = v.schedule;
  for (size_t g = 0; g < model.groups.size(); ++g)
    c.options.updated_in_backward.push_back(v.backward == Some::all ||
                                            (v.backward == Some::random && chance(random, 50)));
  const auto micro_batches = static_cast<uint32_t>(setting.slices);
  do
    c.options.waves = v.waves == Some::random ? static_cast<uint32_t>(pick(random, 1, micro_batches))
                      : v.waves == Some::all  ? micro_batches
                                              : 1;
  while (micro_batches % c.options.waves != 0);
  c.options.shard_elements = v.shard_elements;
  c.options.optimizer = layout_of(optimizer_of(OptimizerKind::adamw), model.precision);
  c.options.workspace_bytes = [&device](const OpShapes& s, Pass pass) {
    return device.workspace_bytes(s, pass);
  };
  lower_case(c, machine_of(v.tiers));
  c.arrangement.homes = random_homes(random, c.program, 0);
  for (size_t b = 0; b < c.program.buffers.size() && v.transient_on_top; ++b)
    if (!c.program.buffers[b].permanent) c.arrangement.homes[b] = 0;
  c.arrangement.leads.assign(c.program.machine.tiers.size(), v.lead);
  EXPECT_FALSE(assemble(c.program, c.arrangement));
  const std::vector<uint64_t> plenty = c.program.arena_bytes;
  for (TierId t = 0; t < plenty.size(); ++t) {
    const uint64_t least = shrink(c, t);
    set_capacity(c, t, least + std::max(plenty[t], least) / 100 * v.slack);
  }
  // With more room, upper tiers keep other copies, for which lower tiers may need more.
  for (TierId t = 1; t < plenty.size() && v.slack > 0; ++t) set_capacity(c, t, kPlenty);
  EXPECT_FALSE(assemble(c.program, c.arrangement));
  const std::vector<Violation> violations = verify(c.program);
  EXPECT_TRUE(violations.empty()) << describe(c.program, violations.front());
  return c;
}

Outcome run(const Model& model, const Setting& setting, const Variant& v, uint64_t seed) {
  const auto device = make_reference_device();
  const Case c = plan_variant(model, setting, v, *device, seed);
  SessionOptions options;
  options.threads = v.threads;
  options.rules.clip = setting.clip;
  options.nvme_directories = {{drive_directory()}};
  options.executor = v.executor;
  options.seed = seed;
  options.poison = true;
  return Run(c, *device, options).train();
}

// `chosen` says which of kVariants are compared.
template <typename Chosen>
void expect_same_bits_everywhere(const Model& model, const Setting& setting, uint64_t seed,
                                 const Chosen& chosen) {
  SCOPED_TRACE("precision " + std::string(dtype_name(model.precision)) + ", seed " + std::to_string(seed));
  const Outcome wanted = run(model, setting, kOracle, seed);
  for (const double loss : wanted.losses) ASSERT_GT(loss, 0);
  for (size_t k = 0; k < kSteps; ++k)  // a step of fp16 may overflow, and is then skipped
    ASSERT_TRUE(wanted.norms[k] > 0 || (model.precision == DType::f16 && wanted.scales[k] < kFirstLossScale));
  for (const Variant& v : kVariants) {
    const bool one_wave = v.schedule == layer_major && v.waves == Some::none;
    if ((!one_wave && uses_of_groups(model).shares_layers) || !chosen(v)) continue;
    SCOPED_TRACE(v.name);
    expect_same_bits(run(model, setting, v, seed), wanted);
    if (::testing::Test::HasFailure()) return;
  }
}

void expect_same_bits_everywhere(const Model& model, const Setting& setting, uint64_t seed) {
  expect_same_bits_everywhere(model, setting, seed, [](const Variant&) { return true; });
}

TEST(PlanBits, Gpt2) {
  const Model m =
      build_model(config_from_name("gpt2:layers=2,width=16,heads=2,vocab=50,context=8"), DType::bf16, 2, 5);
  expect_same_bits_everywhere(m, {1, 3}, 1);
}

// The group of position embeddings has more than one shard at the file tier's alignment.
TEST(PlanBits, Gpt2WithManyShards) {
  const Model m = build_model(config_from_name("gpt2:layers=1,width=64,heads=2,vocab=31,context=16500"),
                              DType::bf16, 1, 3);
  expect_same_bits_everywhere(m, {0.1, 2}, 2, [](const Variant& v) { return v.threads > 1 || !kSanitized; });
}

TEST(PlanBits, LlamaUntied) {
  const auto config =
      config_from_name("llama:layers=3,width=16,heads=4,kv_heads=2,ffn=24,vocab=40,context=8,tied=false");
  using Numbers = std::pair<DType, double>;  // precision, clip
  for (const auto& [precision, clip] : one_if_sanitized({Numbers{DType::f16, 0}, Numbers{DType::bf16, 1},
                                                         Numbers{DType::bf16, 0}, Numbers{DType::f32, 1}}))
    expect_same_bits_everywhere(build_model(config, precision, 1, 6), {clip, 3}, 3);
}

// Layers are of two types. A row has two documents, whose begins every layer and the position table read.
TEST(PlanBits, PackedDocuments) {
  for (const char* name :
       one_if_sanitized({"gpt2:layers=2,width=16,heads=2,vocab=50,context=8",
                         "smollm3:layers=4,width=16,heads=4,kv_heads=2,ffn=24,vocab=40,context=8"}))
    expect_same_bits_everywhere(build_model(config_from_name(name), DType::bf16, 2, 5, true), {1, 3}, 4);
}

TEST(PlanBits, RandomGraphs) {
  constexpr DType kPrecisions[] = {DType::bf16, DType::f32, DType::f16};
  for (uint64_t seed = 10; seed < (kSanitized ? 12 : 15); ++seed) {
    Random random(seed);
    // Only tokens and labels are fed, so no segment reads document begins.
    const Model m = random_graph(random, {kPrecisions[seed % 3], static_cast<int64_t>(1 + seed % 2), 3, 8},
                                 GraphBuilder::Kind::fork);
    expect_same_bits_everywhere(m, {seed % 2 ? 0.5 : 0.0, 1 + static_cast<int64_t>(seed % 3)}, seed);
  }
}

}  // namespace
}  // namespace sluice::testing
