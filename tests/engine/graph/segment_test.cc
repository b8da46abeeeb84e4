// How segments run: which tensors are saved, which are computed again, and that nothing in a workspace is
// overwritten while it is needed.
#include "engine/graph/segment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "engine/base/pack.h"
#include "models/families/family.h"
#include "tests/support/plan_support.h"

namespace sluice::testing {
namespace {

using Kind = GraphBuilder::Kind;

// A layer of one kind, with 4 rows of 16 columns in bf16. An activation takes 128 bytes, statistics 16 (64
// with padding).
Model model_of(Kind kind) {
  GraphBuilder b(DType::bf16, 1, 4, 16, 20);
  const uint32_t g = b.group(kind, "g");
  std::vector<uint32_t> y = b.apply(kind, "layer", b.embed(), g);
  return b.head(y.size() == 1 ? y[0] : b.sum("sum", y[0], y[1]), false);
}
constexpr uint32_t kLayerSegment = 1;  // after the embedding

SegmentPlan plan_of(const Model& model, bool input_gradient, bool trainable) {
  return plan_segment(model, kLayerSegment, {{input_gradient}, {false}, {trainable}}, no_workspace);
}

std::vector<std::string> saved_names(const Model& model, const SegmentPlan& p,
                                     Recompute level = Recompute::none) {
  std::vector<std::string> names;
  const PassPlan& forward = p.at(level).forward;
  for (size_t t = 0; t < forward.tensors.size(); ++t)
    if (forward.tensors[t].storage == Storage::saved)
      names.push_back(model.segments[p.segment].tensors[t].name);
  return names;
}

// "F1" runs op 1 forward, "B1" backward.
std::vector<std::string> steps(const PassPlan& pass) {
  std::vector<std::string> out;
  for (const OpStep& s : pass.steps)
    out.push_back((s.pass == Pass::forward ? "F" : "B") + std::to_string(s.op));
  return out;
}

using Words = std::vector<std::string>;

// layer_norm, linear, gelu, add. Backward reads the norm's statistics and the inputs of linear and of gelu.
// Nothing in it reads gelu's output or the sum, so these are not computed again. The sum's gradient passes to
// `act` and x.
TEST(Segment, Dense) {
  const Model m = model_of(Kind::dense);
  const SegmentPlan p = plan_of(m, true, true);
  EXPECT_EQ(saved_names(m, p), (Words{"h", "h.1", "h.2", "up"}));
  EXPECT_EQ(p.at(Recompute::none).saved_bytes, 128u + 64u + 64u + 128u);
  EXPECT_EQ(p.at(Recompute::none).reads_input, std::vector<bool>{true});
  EXPECT_EQ(p.at(Recompute::none).reads_output, std::vector<bool>{false});
  EXPECT_EQ(p.output_gradient_added, std::vector<bool>{false});
  EXPECT_EQ(steps(p.at(Recompute::none).forward), (Words{"F0", "F1", "F2", "F3"}));
  EXPECT_EQ(steps(p.at(Recompute::all).forward), (Words{"F0", "F1", "F2", "F3"}));
  EXPECT_EQ(steps(p.at(Recompute::none).backward), (Words{"B2", "B1", "B0"}));
  EXPECT_EQ(steps(p.at(Recompute::all).backward), (Words{"F0", "F1", "B2", "B1", "B0"}));
  EXPECT_EQ(p.at(Recompute::none).forward.workspace_bytes, 128u);  // `act`
  EXPECT_EQ(p.at(Recompute::all).forward.workspace_bytes,
            2 * 128u);  // h and `up` meet in F1, `up` and `act` in F2
  EXPECT_EQ(p.at(Recompute::none).backward.workspace_bytes,
            128u + 128u);  // the gradients of h and `up` meet in B1
  EXPECT_DOUBLE_EQ(p.at(Recompute::all).backward.flops,
                   p.at(Recompute::none).backward.flops +
                       op_rule(OpKind::layer_norm).flops(p.shapes[0], Pass::forward) +
                       op_rule(OpKind::linear).flops(p.shapes[1], Pass::forward));
}

// If the gradient of a matrix or of its input is not wanted, backward has one product less, which takes two
// flops for each row and element of the matrix. The norm is charged in full.
TEST(Segment, GradientsThatAreNotWantedAreNotCharged) {
  const Model m = model_of(Kind::dense);
  const SegmentPlan all = plan_of(m, true, true), frozen = plan_of(m, true, false),
                    first = plan_of(m, false, true);
  const auto backward = [](const SegmentPlan& p) { return p.at(Recompute::none).backward; };
  const double product = 2.0 * 4 * 16 * 16;
  EXPECT_DOUBLE_EQ(backward(frozen).flops, backward(all).flops - product);
  EXPECT_EQ(backward(frozen).bytes, backward(all).bytes - 16 * 16 * sizeof(float));
  EXPECT_DOUBLE_EQ(backward(first).flops,
                   backward(all).flops);  // the norm's weight needs what its output has
}

// An expert's products compute whole tiles of rows. 8 tokens choose 2 of 4 experts each. If all experts have
// equally many rows, an expert has 4, which take one tile.
TEST(Segment, AnExpertsGradientsThatAreNotWantedAreNotCharged) {
  const Model m = build_model(
      config_from_name(
          "mixtral:layers=1,width=16,heads=2,kv_heads=2,ffn=8,vocab=50,context=8,experts=4,top=2"),
      DType::bf16, 1, 8);
  const auto expert =
      static_cast<uint32_t>(std::ranges::find(m.segments, "expert", &Segment::name) - m.segments.begin());
  ASSERT_LT(expert, m.segments.size());
  const auto backward = [&](bool trainable) {
    const SegmentPlan p =
        plan_segment(m, expert, {{true, true, false}, {false, false, false}, {trainable}}, no_workspace);
    const std::vector<OpWork>& ops = p.at(Recompute::none).backward.work.ops;
    return *std::ranges::find(ops, OpKind::expert_linear, &OpWork::kind);
  };
  const double product = 2.0 * 64 * 16 * 8;
  EXPECT_DOUBLE_EQ(backward(true).flops, 3 * 2 * product);
  EXPECT_DOUBLE_EQ(backward(false).flops, 3 * product);
  EXPECT_EQ(backward(true).bytes - backward(false).bytes, 3 * 16 * 8 * sizeof(float));
}

// dispatch, expert_linear, combine. 128 rows choose 2 of 4 experts each, so an expert has 64 rows.
TEST(Segment, GradientsOfAnExpertsInputThatAreNotWantedAreNotCharged) {
  const Routing routing{.experts = 4, .chosen = 2};
  constexpr int64_t kRouting = 5 + 2 * 256, kRows = 128, kExpertRows = 64;
  Model m;
  m.segments.resize(1);
  Segment& s = m.segments[0];
  s.tensors = {{"routing", {kRouting}, DType::i32},
               {"x", {kRows, 16}},
               {"rows", {kRows, 16}},
               {"y", {kRows, 8}},
               {"sum", {kRows, 8}, DType::f32}};
  s.parameters = {{0, 0, {16, 8}}};
  s.ops = {{OpKind::dispatch, {.routing = routing}, {0, 1}, {2}, {}},
           {OpKind::expert_linear, {.routing = routing}, {0, 2}, {3}, {0}},
           {OpKind::combine, {.routing = routing}, {0, 3}, {4}, {}}};
  s.inputs = {0, 1};
  s.outputs = {4};
  const auto backward = [&](bool input_gradient, bool trainable) {
    return plan_segment(m, 0, {{false, input_gradient}, {false, false}, {trainable}}, no_workspace)
        .at(Recompute::none)
        .backward;
  };
  const double product = 2.0 * kExpertRows * 16 * 8;
  EXPECT_DOUBLE_EQ(backward(true, true).flops, 2 * product);
  EXPECT_DOUBLE_EQ(backward(true, false).flops, product);
  EXPECT_DOUBLE_EQ(backward(false, true).flops, product);
  EXPECT_EQ(backward(true, true).bytes - backward(true, false).bytes, 16 * 8 * sizeof(float));
  // Without the gradient of x, dispatch has no backward, which would read routing and dy, and write dx.
  EXPECT_EQ(backward(true, true).bytes - backward(false, true).bytes,
            kExpertRows * 16 * 2 + 4 * kRouting + 2 * kExpertRows * 16 * 2);
}

// rms_norm, qkv, attention, out, add. Neither `out` nor `add` runs again. The norm's backward adds to the
// residual's gradient and to the gradient of its weight. Products overwrite the gradients of their weights.
TEST(Segment, Attention) {
  const Model m = model_of(Kind::attention);
  const SegmentPlan p = plan_of(m, true, true);
  EXPECT_EQ(saved_names(m, p), (Words{"h", "h.1", "qkv", "o", "o.1"}));
  EXPECT_EQ(steps(p.at(Recompute::all).backward), (Words{"F0", "F1", "F2", "B3", "B2", "B1", "B0"}));
  const uint32_t y = m.segments[kLayerSegment].outputs[0];
  const OpStep &out = p.at(Recompute::none).backward.steps.front(),
               &norm = p.at(Recompute::none).backward.steps.back();
  EXPECT_EQ(out.output_gradients, std::vector<uint32_t>{y});
  EXPECT_EQ(out.addends, std::vector<uint32_t>{kNone});
  EXPECT_EQ(out.overwrites, std::vector<bool>{true});
  EXPECT_EQ(norm.addends, std::vector<uint32_t>{y});
  EXPECT_EQ(norm.overwrites, std::vector<bool>{false});
}

// What each level keeps, and which steps make the rest again.
TEST(Segment, Levels) {
  const Model attention = model_of(Kind::attention);
  SegmentPlan p = plan_of(attention, true, true);
  EXPECT_EQ(saved_names(attention, p, Recompute::cheap), (Words{"qkv", "o", "o.1"}));
  EXPECT_EQ(saved_names(attention, p, Recompute::products), (Words{"o", "o.1"}));
  EXPECT_EQ(saved_names(attention, p, Recompute::all), Words{});
  EXPECT_EQ(steps(p.at(Recompute::cheap).backward), (Words{"F0", "B3", "B2", "B1", "B0"}));
  EXPECT_EQ(steps(p.at(Recompute::products).backward), (Words{"F0", "F1", "B3", "B2", "B1", "B0"}));
  const Model dense = model_of(Kind::dense);
  p = plan_of(dense, true, true);
  EXPECT_EQ(saved_names(dense, p, Recompute::cheap), Words{"up"});
  EXPECT_EQ(saved_names(dense, p, Recompute::products), Words{});
  EXPECT_EQ(steps(p.at(Recompute::cheap).backward), (Words{"F0", "B2", "B1", "B0"}));
  EXPECT_EQ(p.at(Recompute::cheap).reads_input, std::vector<bool>{true});
}

// norm, linear, add, norm, linear. The first product's output is not kept, since nothing in backward reads
// it. So the sum is kept at `cheap`, which runs no product again. In backward the sum only passes its
// gradient on.
TEST(Segment, CheapKeepsSumsOfProducts) {
  SegmentPlan p;
  Model m = model_of(Kind::attention);
  Segment& s = m.segments[kLayerSegment];
  const Op norm = s.ops[0], out = s.ops[3], sum = s.ops[4];
  ASSERT_EQ(norm.kind, OpKind::rms_norm);
  ASSERT_EQ(out.kind, OpKind::linear);
  ASSERT_EQ(sum.kind, OpKind::add);
  const auto like = [&](uint32_t tensor, const char* name) {
    s.tensors.push_back(s.tensors[tensor]);
    s.tensors.back().name = name;
    return static_cast<uint32_t>(s.tensors.size() - 1);
  };
  const uint32_t x = s.inputs[0], y = s.outputs[0];
  Op norm_2 = norm, out_2 = out, middle = sum;
  const uint32_t inner = like(y, "sum");
  middle.outputs = {inner};
  middle.inputs = {x, out.outputs[0]};
  norm_2.inputs = {inner};
  norm_2.outputs = {like(norm.outputs[0], "h_2"), like(norm.outputs[1], "rstd_2")};
  out_2.inputs = {norm_2.outputs[0]};
  out_2.outputs = {y};
  s.ops = {norm, s.ops[3], middle, norm_2, out_2};
  s.ops[1].inputs = {norm.outputs[0]};
  p = plan_of(m, true, true);
  EXPECT_EQ(saved_names(m, p), (Words{"h", "h.1", "sum", "h_2", "rstd_2"}));
  EXPECT_EQ(saved_names(m, p, Recompute::cheap), Words{"sum"});
  EXPECT_EQ(steps(p.at(Recompute::cheap).backward), (Words{"F0", "F3", "B4", "B3", "B1", "B0"}));
  EXPECT_EQ(saved_names(m, p, Recompute::products), Words{});
  EXPECT_EQ(steps(p.at(Recompute::products).backward),
            (Words{"F0", "F1", "F2", "F3", "B4", "B3", "B1", "B0"}));
}

// Where another segment has written a part of the input's gradient, the sum adds to that part itself.
TEST(Segment, AddsToAPartOfTheInputsGradient) {
  const Model m = model_of(Kind::attention);
  const SegmentPlan p = plan_segment(m, kLayerSegment, {{true}, {true}, {true}}, no_workspace);
  EXPECT_EQ(steps(p.at(Recompute::none).backward), (Words{"B4", "B3", "B2", "B1", "B0"}));
  const uint32_t x = m.segments[kLayerSegment].inputs[0];
  const OpStep &sum = p.at(Recompute::none).backward.steps.front(),
               &norm = p.at(Recompute::none).backward.steps.back();
  EXPECT_EQ(sum.wants_gradient, (std::vector<bool>{true, false}));
  EXPECT_EQ(sum.addends[0], x);
  EXPECT_EQ(norm.addends, std::vector<uint32_t>{x});
}

// rms_norm, first, second, both, sum, y. Of the two sums, only y's backward runs, since y's two inputs are
// one tensor: the gradient that is passed on to the first input is the addend of the second.
TEST(Segment, Parallel) {
  const Model m = model_of(Kind::parallel);
  const SegmentPlan p = plan_of(m, true, true);
  EXPECT_EQ(steps(p.at(Recompute::none).backward), (Words{"B5", "B2", "B1", "B0"}));
  const Segment& s = m.segments[kLayerSegment];
  const OpStep& doubled = p.at(Recompute::none).backward.steps.front();
  EXPECT_EQ(doubled.wants_gradient, (std::vector<bool>{false, true}));
  EXPECT_EQ(doubled.addends, (std::vector<uint32_t>{kNone, s.outputs[0]}));
  EXPECT_EQ(p.at(Recompute::none).backward.steps[1].output_gradients,
            std::vector<uint32_t>{s.ops[4].outputs[0]});
  EXPECT_EQ(p.at(Recompute::none).backward.steps[3].addends, std::vector<uint32_t>{s.ops[4].outputs[0]});
}

// The segment itself uses its first output. Therefore backward adds to the gradient of that output, and reads
// the output's value at the output's place.
TEST(Segment, Fork) {
  const Model m = model_of(Kind::fork);
  const SegmentPlan p = plan_of(m, true, true);
  EXPECT_EQ(p.output_gradient_added, (std::vector<bool>{true, false}));
  EXPECT_EQ(p.at(Recompute::none).reads_output, (std::vector<bool>{true, false}));
  EXPECT_EQ(saved_names(m, p), (Words{"h", "h.1"}));
  // When computed again, the first output lies in the workspace. `second` (op 2) is not needed.
  EXPECT_EQ(steps(p.at(Recompute::all).backward), (Words{"F0", "F1", "B2", "B1", "B0"}));
  const uint32_t first = m.segments[kLayerSegment].outputs[0];
  EXPECT_EQ(p.at(Recompute::all).backward.tensors[first].storage, Storage::workspace);
  EXPECT_EQ(p.at(Recompute::none).backward.tensors[first].storage, Storage::output);
}

// rms_norm, qkv, attention, out, add. The document begins are read by both passes where the batch has them,
// and nobody asks for their gradient.
TEST(Segment, DocumentsAreReadAndHaveNoGradient) {
  const Model m = model_of(Kind::documents);
  const auto plan = [&](bool input_gradient, bool trainable) {
    return plan_segment(m, kLayerSegment, {{input_gradient, false}, {false, false}, {trainable}},
                        no_workspace);
  };
  const SegmentPlan p = plan(true, true);
  EXPECT_EQ(saved_names(m, p), (Words{"h", "h.1", "qkv", "o", "o.1"}));
  EXPECT_EQ(p.at(Recompute::none).reads_input, (std::vector<bool>{true, true}));
  EXPECT_EQ(p.at(Recompute::all).reads_input, (std::vector<bool>{true, true}));
  EXPECT_EQ(steps(p.at(Recompute::all).backward), (Words{"F0", "F1", "F2", "B3", "B2", "B1", "B0"}));
  const OpStep& attention = p.at(Recompute::none).backward.steps[1];
  EXPECT_EQ(attention.wants_gradient, (std::vector<bool>{true, false}));
  EXPECT_EQ(attention.addends, (std::vector<uint32_t>{kNone, kNone}));
  const uint32_t documents = m.segments[kLayerSegment].inputs[1];
  EXPECT_EQ(p.at(Recompute::none).backward.tensors[documents].storage, Storage::input);
  EXPECT_EQ(p.at(Recompute::none).backward.gradients[documents].storage, Storage::none);
  EXPECT_TRUE(plan(false, false).at(Recompute::none).backward.steps.empty());
  EXPECT_FALSE(plan(false, false).at(Recompute::none).reads_input[1]);
  // Every op of the segment has a trained weight, or lies behind an op that has one.
  EXPECT_EQ(steps(plan(false, true).at(Recompute::none).backward), (Words{"B3", "B2", "B1", "B0"}));
}

// The segment has a second gelu, whose output only the host reads if `host_only` is set.
TEST(Segment, WhatOnlyTheHostReadsHasNoBackward) {
  Model m = model_of(Kind::dense);
  Segment& segment = m.segments[kLayerSegment];
  segment.tensors.push_back(segment.tensors[segment.ops[2].outputs[0]]);
  const auto told = static_cast<uint32_t>(segment.tensors.size() - 1);
  Op gelu = segment.ops[2];
  gelu.outputs = {told};
  segment.ops.push_back(gelu);
  segment.outputs.push_back(told);
  const auto plan = [&](bool host_only) {
    return plan_segment(m, kLayerSegment, {{true}, {false}, {true}, {false, host_only}}, no_workspace);
  };
  EXPECT_EQ(steps(plan(false).at(Recompute::none).backward), (Words{"B4", "B2", "B1", "B0"}));
  EXPECT_EQ(plan(false).has_output_gradient, (std::vector<bool>{true, true}));
  EXPECT_EQ(steps(plan(true).at(Recompute::none).backward), (Words{"B2", "B1", "B0"}));
  EXPECT_EQ(plan(true).has_output_gradient, (std::vector<bool>{true, false}));
}

TEST(Segment, NothingToLearnMeansNoBackward) {
  const SegmentPlan p = plan_of(model_of(Kind::gated), false, false);
  EXPECT_TRUE(p.at(Recompute::none).backward.steps.empty());
  EXPECT_TRUE(p.at(Recompute::all).backward.steps.empty());
  EXPECT_EQ(p.at(Recompute::none).saved_bytes, 0u);
  EXPECT_EQ(p.at(Recompute::all).reads_input, std::vector<bool>{false});
  EXPECT_EQ(p.at(Recompute::none).forward.steps.size(), 5u);
}

// The first trained op needs no gradient of its input.
TEST(Segment, InputsWithoutGradient) {
  const SegmentPlan p = plan_of(model_of(Kind::dense), false, true);
  EXPECT_EQ(p.at(Recompute::none).backward.steps.back().wants_gradient, std::vector<bool>{false});
  EXPECT_EQ(p.at(Recompute::none).backward.steps.front().wants_gradient, std::vector<bool>{true});
}

struct Life {
  uint32_t first, last;
  uint64_t begin, end;
};

// When each tensor of a pass lives in its workspace, derived from the op table alone.
class Lives {
 public:
  Lives(const Segment& segment, const SegmentPlan& plan, const PassPlan& pass,
        const WorkspaceBytes& workspace_bytes)
      : segment_(segment), pass_(pass) {
    for (uint32_t s = 0; s < pass.steps.size(); ++s) {
      const OpStep& step = pass.steps[s];
      const Op& op = segment.ops[step.op];
      const OpRule& rule = op_rule(op.kind);
      const bool forward = step.pass == Pass::forward;
      for (size_t k = 0; k < op.inputs.size(); ++k) {
        if (forward || (rule.backward_reads_inputs >> k & 1)) touch(pass.tensors, op.inputs[k], s);
        if (forward || !step.wants_gradient[k]) continue;
        touch(pass.gradients, op.inputs[k], s);
        if (step.addends[k] != kNone) touch(pass.gradients, step.addends[k], s);
      }
      for (size_t k = 0; k < op.outputs.size(); ++k) {
        if (forward || (rule.backward_reads_outputs >> k & 1)) touch(pass.tensors, op.outputs[k], s);
        if (!forward && step.output_gradients[k] != kNone) touch(pass.gradients, step.output_gradients[k], s);
      }
      const uint64_t bytes = workspace_bytes(plan.shapes[step.op], step.pass);
      if (bytes > 0) lives_.push_back({s, s, step.workspace_offset, step.workspace_offset + bytes});
    }
    for (const auto& [place, life] : tensors_) lives_.push_back(life);
  }
  void expect_apart() const {
    for (size_t a = 0; a < lives_.size(); ++a) {
      EXPECT_LE(lives_[a].end, pass_.workspace_bytes);
      for (size_t b = 0; b < a; ++b) {
        const bool meet = lives_[a].first <= lives_[b].last && lives_[b].first <= lives_[a].last;
        EXPECT_TRUE(!meet || lives_[a].end <= lives_[b].begin || lives_[b].end <= lives_[a].begin)
            << segment_.name;
      }
    }
  }

 private:
  void touch(const std::vector<TensorPlace>& places, uint32_t t, uint32_t step) {
    const TensorPlace& place = places[t];
    if (place.storage != Storage::workspace) return;
    const SegmentTensor& tensor = segment_.tensors[t];
    const uint64_t bytes = static_cast<uint64_t>(element_count(tensor.shape)) * dtype_bytes(tensor.dtype);
    const auto [it, fresh] =
        tensors_.try_emplace(&place, Life{step, step, place.offset, place.offset + bytes});
    it->second.last = step;
    EXPECT_EQ(place.offset % kTensorAlignment, 0u);
  }
  const Segment& segment_;
  const PassPlan& pass_;
  std::map<const TensorPlace*, Life> tensors_;
  std::vector<Life> lives_;
};

TEST(Segment, WorkspaceLivesDoNotOverlap) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Case c = random_case(seed);
    for (const SegmentPlan& p : c.lowering.plans())
      for (const SegmentPasses& passes : p.levels)
        for (const PassPlan* pass : {&passes.forward, &passes.backward})
          Lives(c.model.segments[p.segment], p, *pass, c.options.workspace_bytes).expect_apart();
  }
}

// The terms of which a tensor's gradient is the sum. An op whose output has a gradient contributes the term
// "op.input" to the gradient of each input. An `add` contributes the terms of its own output's gradient.
using Terms = std::multiset<std::string>;

Terms term_of(uint32_t op, size_t input) { return {std::to_string(op) + "." + std::to_string(input)}; }
Terms joined(Terms a, const Terms& b) {
  a.insert(b.begin(), b.end());
  return a;
}

std::vector<Terms> expected_gradients(const Segment& segment, std::vector<Terms> before) {
  for (auto i = static_cast<uint32_t>(segment.ops.size()); i-- > 0;) {
    const Op& op = segment.ops[i];
    const auto has_none = [&](uint32_t t) { return before[t].empty(); };
    if (!op_rule(op.kind).is_loss && std::ranges::all_of(op.outputs, has_none)) continue;
    for (size_t k = op.inputs.size(); k-- > 0;)
      before[op.inputs[k]] =
          joined(before[op.inputs[k]], op.kind == OpKind::add ? before[op.outputs[0]] : term_of(i, k));
  }
  return before;
}

// Tells the places of gradients apart. Each tensor in the workspace has a place of its own, as
// WorkspaceLivesDoNotOverlap tests.
using GradientPlace = std::tuple<Storage, uint32_t>;

GradientPlace place_of(const PassPlan& pass, uint32_t t) {
  const TensorPlace& place = pass.gradients[t];
  return {place.storage, place.storage == Storage::workspace ? t : place.index};
}

// Carries out the steps of a backward on terms, in the places that the runner uses.
void expect_sums(const Segment& segment, const SegmentPlan& plan, const PassPlan& pass) {
  std::vector<Terms> before(segment.tensors.size());
  std::map<GradientPlace, Terms> at;
  const auto begin = [&](const char* what, uint32_t t) {
    before[t] = at[place_of(pass, t)] = {what + segment.tensors[t].name};
  };
  for (size_t i = 0; i < segment.outputs.size(); ++i)
    if (!plan.wanted.host_only[i]) begin("after ", segment.outputs[i]);
  for (size_t i = 0; i < segment.inputs.size(); ++i)
    if (plan.wanted.added[i]) begin("beside ", segment.inputs[i]);
  const std::vector<Terms> expected = expected_gradients(segment, before);
  for (const OpStep& step : pass.steps) {
    if (step.pass == Pass::forward) continue;
    const Op& op = segment.ops[step.op];
    const OpRule& rule = op_rule(op.kind);
    for (size_t k = 0; k < op.outputs.size(); ++k) {
      if ((rule.gradient_outputs >> k & 1) == 0) continue;
      ASSERT_NE(step.output_gradients[k], kNone);
      EXPECT_EQ(at[place_of(pass, step.output_gradients[k])], expected[op.outputs[k]])
          << segment.name << " " << rule.name;
    }
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      if (!step.wants_gradient[k]) continue;
      Terms sum = op.kind == OpKind::add ? expected[op.outputs[0]] : term_of(step.op, k);
      if (step.addends[k] != kNone) sum = joined(sum, at[place_of(pass, step.addends[k])]);
      at[place_of(pass, op.inputs[k])] = sum;
    }
  }
  for (size_t i = 0; i < segment.inputs.size(); ++i) {
    if (!plan.wanted.inputs[i]) continue;
    EXPECT_EQ(at[place_of(pass, segment.inputs[i])], expected[segment.inputs[i]])
        << segment.name << " input " << i;
  }
}

TEST(Segment, GradientsAreSumsOfAllThatOpsContribute) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Case c = random_case(seed);
    for (const SegmentPlan& p : c.lowering.plans())
      for (const SegmentPasses& passes : p.levels)
        expect_sums(c.model.segments[p.segment], p, passes.backward);
  }
}

}  // namespace
}  // namespace sluice::testing
