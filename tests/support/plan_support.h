// What the planner's tests share: small models (of the families, and hand-built graphs), random programs as
// lowering leaves them (tasks only, no transfers), random machines and homes, and the least capacities that
// assemble accepts. Everything is a function of a seed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cpu_optim/optimizer.h"
#include "engine/base/pack.h"
#include "engine/plan/assemble/assemble.h"
#include "engine/plan/lower/lower.h"
#include "gpu/machine.h"
#include "models/families/config.h"
#include "models/families/family.h"
#include "models/families/segment_builder.h"
#include "tests/support/families.h"

namespace sluice::testing {

using Random = std::mt19937_64;
inline uint64_t pick(Random& random, uint64_t least, uint64_t most) {
  return least + random() % (most - least + 1);
}
inline bool chance(Random& random, uint64_t percent) { return random() % 100 < percent; }

constexpr uint64_t kPlenty = uint64_t{1} << 44;  // bytes: more than any test program can use
constexpr uint64_t kDirectAlignment = 4096;      // bytes: of transfers to files
constexpr uint64_t kFileElements = 512 * 1024;   // 16-bit values that fill a file tier's alignment of 1 MiB

// Builds models that families do not make: with branches, shared and frozen groups, layers of several
// segments.
class GraphBuilder {
 public:
  // Segments: dense is norm, linear, GELU, residual; gated is norm, SwiGLU; attention is norm, attention,
  // residual; parallel is norm, two linears that read the norm, their sum, residual, and the result added to
  // itself; fork has two outputs, and computes the second from the first; documents is attention with sinks
  // that also reads the document begins of the batch.
  enum class Kind { dense, gated, attention, parallel, fork, documents };

  GraphBuilder(DType precision, int64_t micro_batch, int64_t sequence, int64_t width, int64_t vocabulary)
      : width_(width) {
    model_.family = "graph";
    model_.precision = precision;
    model_.micro_batch = micro_batch;
    model_.sequence = sequence;
    model_.vocabulary = vocabulary;
    tokens_ = add_token_input(model_, "tokens");
    labels_ = add_token_input(model_, "labels");
  }

  uint32_t group(Kind kind, const std::string& name, bool trainable = true) {
    const int64_t c = width_;
    std::vector<Parameter> all{norm_weight(name + ".norm", c)};
    if (kind == Kind::dense) all.push_back(bias(name + ".norm_bias", c));
    if (kind == Kind::dense) all.push_back(matrix(name + ".up", c, c));
    if (kind == Kind::gated) all.push_back(matrix(name + ".gate", 2 * c, c));
    if (kind == Kind::gated) all.push_back(matrix(name + ".up", 2 * c, c));
    if (kind == Kind::gated) all.push_back(matrix(name + ".down", c, 2 * c));
    const bool attends = kind == Kind::attention || kind == Kind::documents;
    if (attends) all.push_back(matrix(name + ".qkv", c, 3 * c));
    if (kind == Kind::documents) all.push_back({.name = name + ".sinks", .shape = {kHeads}});
    const bool two_linears = kind == Kind::fork || kind == Kind::parallel;
    if (two_linears) all.push_back(matrix(name + ".up", c, c));
    if (two_linears || attends) all.push_back(matrix(name + ".out", c, c));
    const uint32_t g = add_group(model_, name, std::move(all));
    model_.groups[g].trainable = trainable;
    return g;
  }

  uint32_t embed(bool trainable = true) {
    const uint32_t g = add_group(model_, "table", {matrix("table.weight", model_.vocabulary, width_)});
    model_.groups[g].trainable = trainable;
    SegmentBuilder b(model_, "embedding");
    b.bind(model_.groups[g], "table.");
    b.output(b.op(OpKind::embedding, "x", {b.input_tokens("tokens")}, {b.weight("weight")}));
    const uint32_t x = add_activation(model_, "embedding", width_);
    add_layer(model_, "embedding", b.take(), {{}, {g}, {tokens_}, {x}});
    return x;
  }

  // Adds a layer of one segment; returns its outputs.
  std::vector<uint32_t> apply(Kind kind, const std::string& layer, uint32_t x, uint32_t g) {
    const auto [it, fresh] = templates_.try_emplace(kind, static_cast<uint32_t>(model_.segments.size()));
    if (fresh) model_.segments.push_back(make(kind, model_.groups[g]));
    std::vector<uint32_t> y{add_activation(model_, layer, width_)};
    if (kind == Kind::fork) y.push_back(add_activation(model_, layer + ".second", width_));
    std::vector<uint32_t> inputs{x};
    if (kind == Kind::documents) {
      if (documents_ == kNone) documents_ = add_token_input(model_, "documents");
      inputs.push_back(documents_);
    }
    model_.layers.push_back({layer, {{it->second, {g}, inputs, y}}});
    return y;
  }

  uint32_t sum(const std::string& layer, uint32_t a, uint32_t b) {
    const uint32_t y = add_activation(model_, layer, width_);
    if (sum_ == kNone) {
      SegmentBuilder s(model_, "sum");
      const auto left = s.input("a", width_), right = s.input("b", width_);
      s.output(s.op(OpKind::add, "y", {left, right}));
      sum_ = static_cast<uint32_t>(model_.segments.size());
      model_.segments.push_back(s.take());
    }
    model_.layers.push_back({layer, {{sum_, {}, {a, b}, {y}}}});
    return y;
  }

  // Moves the segments of the last layer to the end of the layer before.
  void join_last_layers() {
    Layer last = std::move(model_.layers.back());
    model_.layers.pop_back();
    for (SegmentUse& use : last.segments) model_.layers.back().segments.push_back(std::move(use));
  }

  // Ends the model with the loss. With `tied`, the head uses the weights of the embedding.
  Model head(uint32_t x, bool tied) {
    const uint32_t g =
        tied ? 0 : add_group(model_, "head", {matrix("head.weight", model_.vocabulary, width_)});
    SegmentBuilder b(model_, "head");
    b.bind(model_.groups[g], tied ? "table." : "head.");
    const auto in = b.input("x", width_), labels = b.input_tokens("labels");
    b.op(OpKind::linear_cross_entropy, "loss", {in, labels}, {b.weight("weight")});
    add_layer(model_, "head", b.take(), {{}, {g}, {x, labels_}, {}});
    check_model(model_);
    return std::move(model_);
  }

 private:
  static constexpr int64_t kHeads = 2;

  Segment make(Kind kind, const Group& g) {
    constexpr const char* kNames[] = {"dense", "gated", "attention", "parallel", "fork", "documents"};
    SegmentBuilder b(model_, kNames[static_cast<int>(kind)]);
    b.bind(g, g.name + ".");
    const OpAttributes norm{.epsilon = 1e-5};
    const auto x = b.input("x", width_);
    if (kind == Kind::dense) {
      const auto h = b.op(OpKind::layer_norm, "h", {x}, {b.weight("norm"), b.weight("norm_bias")}, norm);
      const auto up = b.op(OpKind::linear, "up", {h}, {b.weight("up")});
      b.output(b.op(OpKind::add, "y", {x, b.op(OpKind::gelu, "act", {up})}));
      return b.take();
    }
    const auto h = b.op(OpKind::rms_norm, "h", {x}, {b.weight("norm")}, norm);
    if (kind == Kind::gated) {
      const OpAttributes out_in{.weight_out_in = true};
      const auto gate = b.op(OpKind::linear, "gate", {h}, {b.weight("gate")}, out_in);
      const auto up = b.op(OpKind::linear, "up", {h}, {b.weight("up")}, out_in);
      b.output(
          b.op(OpKind::linear, "y", {b.op(OpKind::swiglu, "s", {gate, up})}, {b.weight("down")}, out_in));
    } else if (kind == Kind::attention || kind == Kind::documents) {
      OpAttributes heads{.sequence = model_.sequence, .heads = kHeads, .kv_heads = kHeads};
      heads.head_size = width_ / kHeads;
      const auto qkv = b.op(OpKind::linear, "qkv", {h}, {b.weight("qkv")});
      const auto o =
          kind == Kind::attention
              ? b.op(OpKind::attention, "o", {qkv}, {}, heads)
              : b.op(OpKind::attention, "o", {qkv, b.input_tokens("documents")}, {b.weight("sinks")}, heads);
      b.output(b.op(OpKind::add, "y", {x, b.op(OpKind::linear, "out", {o}, {b.weight("out")})}));
    } else if (kind == Kind::parallel) {
      const auto first = b.op(OpKind::linear, "first", {h}, {b.weight("up")});
      const auto second = b.op(OpKind::linear, "second", {h}, {b.weight("out")});
      const auto sum = b.op(OpKind::add, "sum", {x, b.op(OpKind::add, "both", {first, second})});
      b.output(b.op(OpKind::add, "y", {sum, sum}));
    } else {
      const auto first = b.op(OpKind::linear, "first", {h}, {b.weight("up")});
      b.output(first);
      b.output(b.op(OpKind::linear, "second", {first}, {b.weight("out")}));
    }
    return b.take();
  }

  Model model_;
  int64_t width_;
  uint32_t tokens_ = 0, labels_ = 0, documents_ = kNone, sum_ = kNone;
  std::map<Kind, uint32_t> templates_;
};

struct ModelSizes {
  DType precision = DType::bf16;
  int64_t micro_batch = 1, sequence = 4, width = 16;
};

// A random graph in which every activation reaches the loss. Some groups are shared or frozen. Segments are
// of the kinds up to `last`.
inline Model random_graph(Random& random, const ModelSizes& sizes, GraphBuilder::Kind last) {
  using Kind = GraphBuilder::Kind;
  GraphBuilder b(sizes.precision, sizes.micro_batch, sizes.sequence, sizes.width,
                 static_cast<int64_t>(pick(random, 5, 90)));
  const bool tied = chance(random, 40);
  std::vector<uint32_t> open{b.embed(tied || chance(random, 70))};  // activations still to be read
  std::vector<std::pair<Kind, uint32_t>> groups;
  const uint64_t layers = pick(random, 1, 6);
  for (uint64_t l = 0; l < layers; ++l) {
    const std::string name = "l" + std::to_string(l);
    Kind kind = static_cast<Kind>(pick(random, 0, static_cast<uint64_t>(last)));
    uint32_t g = 0;
    if (!groups.empty() && chance(random, 25)) {
      std::tie(kind, g) = groups[random() % groups.size()];
    } else {
      g = b.group(kind, "g" + std::to_string(l), chance(random, 80));
      groups.emplace_back(kind, g);
    }
    const size_t at = random() % open.size();
    const uint32_t x = open[at];
    if (chance(random, 70))
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));  // otherwise a later segment reads it too
    for (const uint32_t y : b.apply(kind, name, x, g)) open.push_back(y);
    if (l > 0 && chance(random, 30)) b.join_last_layers();
  }
  for (uint32_t k = 0; open.size() > 1; ++k) {
    const uint32_t y = b.sum("sum" + std::to_string(k), open[open.size() - 2], open.back());
    open.resize(open.size() - 2);
    open.insert(open.begin(), y);
  }
  return b.head(open.front(), tied);
}

inline Model random_family_model(Random& random, const ModelSizes& sizes) {
  const auto number = [&](uint64_t least, uint64_t most) {
    return std::to_string(pick(random, least, most));
  };
  const std::string width = std::to_string(sizes.width), vocabulary = number(5, 90), layers = number(1, 4);
  const std::string common = "layers=" + layers + ",width=" + width + ",vocab=" + vocabulary + ",context=16";
  const std::string tied = chance(random, 50) ? ",tied=true" : ",tied=false";
  const Family& family = *families()[random() % 100 * families().size() / 100];
  const std::string rest = takes(family, "kv_heads") ? "ffn=24," + common + tied : common;
  return build_model(config_from_name(with_heads(family, rest)), sizes.precision, sizes.micro_batch,
                     sizes.sequence, chance(random, 30));
}

inline uint64_t no_workspace(const OpShapes&, Pass) { return 0; }
// Workspaces as devices need them: none for some ops, more in backward than in forward.
inline uint64_t some_workspace(const OpShapes& s, Pass pass) {
  const auto elements = static_cast<uint64_t>(element_count(s.inputs[0]));
  return s.kind == OpKind::add ? 0 : elements * (pass == Pass::forward ? 4 : 12);
}

// A model that is lowered to tasks on a machine without limits, with homes and leads.
struct Case {
  Model model;
  LowerOptions options;
  Lowering lowering;
  Program program;
  Arrangement arrangement;

  uint32_t use_count() const { return static_cast<uint32_t>(lowering.uses.size()); }
};

inline void lower_case(Case& c, const Machine& machine) {
  c.program = {};
  c.program.machine = machine;
  c.lowering = lower(c.model, c.options, c.program);
}

// A random home for every buffer, from tier `highest` down to the lowest.
inline std::vector<TierId> random_homes(Random& random, const Program& p, TierId highest) {
  std::vector<TierId> homes;
  for (size_t i = 0; i < p.buffers.size(); ++i)
    homes.push_back(static_cast<TierId>(pick(random, highest, lowest_tier(p.machine))));
  return homes;
}

enum class Tiers { host, host_nvme, device_host, device_host_nvme };
inline Machine machine_of(Tiers tiers) {
  TierCapacities c;
  c.host = kPlenty;
  if (tiers == Tiers::device_host || tiers == Tiers::device_host_nvme) c.device = kPlenty;
  if (tiers == Tiers::host_nvme || tiers == Tiers::device_host_nvme) c.nvme = kPlenty;
  return machine_of(c);
}

// Runs all layers of a micro-batch before the next micro-batch, as gradient accumulation usually does.
inline StepSchedule slice_major(const Model& model, uint32_t slices) {
  uint32_t uses = 0;
  for (uint32_t l = 0; l < model.trained_layers(); ++l)
    uses += static_cast<uint32_t>(model.layers[l].segments.size());
  StepSchedule schedule;
  for (uint32_t m = 0; m < slices; ++m) {
    for (uint32_t u = 0; u < uses; ++u) schedule.forward.push_back({u, m});
    for (uint32_t u = uses; u-- > 0;) schedule.backward.push_back({u, m});
  }
  return schedule;
}

inline LowerOptions random_lower_options(Random& random, const Model& model) {
  LowerOptions o;
  o.batch = model.micro_batch * static_cast<int64_t>(pick(random, 1, 4));
  o.update_waits_for_norm = model.precision == DType::f16 || chance(random, 60);
  o.evaluate = chance(random, 50);
  uint64_t uses = 0;
  for (const Layer& layer : model.layers) uses += layer.segments.size();
  const uint64_t alike = pick(random, 0, 2 * kRecomputes.size() - 1);  // level of all uses; too large: random
  for (uint64_t u = 0; u < uses; ++u)
    o.recompute.push_back(
        kRecomputes[alike < kRecomputes.size() ? alike : pick(random, 0, kRecomputes.size() - 1)]);
  o.schedule = chance(random, 30) ? slice_major : layer_major;
  o.optimizer = layout_of(optimizer_of(OptimizerKind::adamw), model.precision);
  o.workspace_bytes = chance(random, 50) ? some_workspace : no_workspace;
  const uint64_t backward = chance(random, 40) ? 50 : chance(random, 50) ? 0 : 100;
  for (size_t g = 0; g < model.groups.size(); ++g) o.updated_in_backward.push_back(chance(random, backward));
  return o;
}

// Returns 1 in half of the cases and if layers share groups, otherwise a divisor of the number of
// micro-batches.
inline uint32_t random_waves(uint64_t seed, const Model& model, int64_t batch) {
  Random random(seed);
  const auto micro_batches = static_cast<uint64_t>(batch / model.micro_batch);
  if (chance(random, 50) || uses_of_groups(model).shares_layers) return 1;
  uint64_t waves = pick(random, 1, micro_batches);
  while (micro_batches % waves != 0) --waves;
  return static_cast<uint32_t>(waves);
}

inline Case random_case(uint64_t seed) {
  Random random(seed);
  constexpr DType kPrecisions[] = {DType::bf16, DType::f16, DType::f32};
  const bool coarse = chance(random, 30);
  ModelSizes sizes{kPrecisions[random() % 3], static_cast<int64_t>(pick(random, 1, 3)),
                   static_cast<int64_t>(pick(random, 1, 9)),
                   static_cast<int64_t>((coarse ? 128 : 8) * pick(random, 1, 8))};
  Case c;
  c.model = chance(random, 60) ? random_graph(random, sizes, GraphBuilder::Kind::documents)
                               : random_family_model(random, sizes);
  c.options = random_lower_options(random, c.model);
  c.options.waves = random_waves(~seed, c.model, c.options.batch);
  Machine machine = machine_of(static_cast<Tiers>(random() % 4));
  // Pieces in files begin at multiples of the file tier's alignment, so small shards need a small alignment.
  if (!coarse && machine.tiers.back().file) machine.tiers.back().alignment = kDirectAlignment;
  c.options.shard_elements = (coarse ? kFileElements : kGroupPadding) * pick(random, 1, coarse ? 2 : 8);
  lower_case(c, machine);
  const TierId highest = chance(random, 50) ? 0 : lowest_memory_tier(c.program.machine);
  c.arrangement.homes = random_homes(random, c.program, highest);
  for (size_t t = 0; t < c.program.machine.tiers.size(); ++t)
    c.arrangement.leads.push_back(static_cast<uint32_t>(pick(random, 0, 6)));
  return c;
}

inline void set_capacity(Case& c, TierId tier, uint64_t bytes) {
  c.program.machine.tiers[tier].capacity = bytes;
}
inline uint64_t capacity(const Case& c, TierId tier) { return c.program.machine.tiers[tier].capacity; }

// Bisects for the least capacity of a tier that assemble accepts, in multiples of the tier's alignment, while
// the other tiers stay as they are. assemble must accept the present capacity. Sets the least capacity,
// assembles with it, and returns it.
inline uint64_t shrink(Case& c, TierId tier) {
  const uint64_t step = placement_alignment(c.program.machine, tier);
  EXPECT_FALSE(assemble(c.program, c.arrangement).has_value());
  uint64_t fits = round_up(c.program.arena_bytes[tier], step) / step, fails = 0;
  while (fits - fails > 1) {
    const uint64_t middle = fails + (fits - fails) / 2;
    set_capacity(c, tier, middle * step);
    (assemble(c.program, c.arrangement) ? fails : fits) = middle;
  }
  set_capacity(c, tier, fits * step);
  EXPECT_FALSE(assemble(c.program, c.arrangement).has_value());
  return fits * step;
}

}  // namespace sluice::testing
