// Shape rules, flops and bytes of the op table, by numbers worked out by hand.
#include "engine/graph/op.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <utility>

namespace sluice {
namespace {

using enum OpKind;

constexpr int64_t kHuge = int64_t{1} << 40;

struct Inferred {
  std::vector<Shape> shapes;
  std::vector<DType> types;
};

Inferred infer(const OpShapes& s) {
  Inferred out;
  op_rule(s.kind).infer(s, out.shapes, out.types);
  return out;
}

OpShapes shapes(OpKind kind, std::vector<Shape> inputs, std::vector<Shape> parameters,
                OpAttributes attributes = {}, DType precision = DType::bf16) {
  return {kind, attributes, precision, std::move(inputs), {}, std::move(parameters)};
}

// The sentence with which the op's rule refuses the operands.
std::string refusal(const OpShapes& s) {
  try {
    infer(s);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

double flops(const OpShapes& s, Pass pass) { return op_rule(s.kind).flops(s, pass); }

const OpAttributes kNorm{.epsilon = 1e-5};
const OpAttributes kHeads{
    .sequence = 4, .heads = 4, .kv_heads = 2, .head_size = 8, .frequencies = {1, 0.1, 0.01}};

TEST(Op, TypesHaveNamesAndSizes) {
  EXPECT_STREQ(dtype_name(DType::f32), "fp32");
  EXPECT_STREQ(dtype_name(DType::bf16), "bf16");
  EXPECT_STREQ(dtype_name(DType::f16), "fp16");
  EXPECT_STREQ(dtype_name(DType::f64), "fp64");
  EXPECT_STREQ(dtype_name(DType::i32), "int32");
  EXPECT_STREQ(dtype_name(DType::u8), "uint8");
  EXPECT_EQ(dtype_bytes(DType::f64) + dtype_bytes(DType::i32) + dtype_bytes(DType::u8), 13u);
}

TEST(Op, ElementCountRefusesWhatIsNotRepresentable) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 5, 7}), 105);
  EXPECT_EQ(element_count({3, 0}), 0);
  EXPECT_EQ(element_count({int64_t{1} << 59}), int64_t{1} << 59);
  EXPECT_THROW(element_count({int64_t{1} << 60}), std::invalid_argument);  // 2^63 bytes in fp64
  EXPECT_THROW(element_count({kHuge, kHuge}), std::invalid_argument);
  EXPECT_THROW(element_count({2, -3}), std::invalid_argument);
  EXPECT_THROW(element_count({-2, -3}), std::invalid_argument);
}

TEST(Op, RowsOfALossAreAPowerOfTwoFromTheVocabulary) {
  constexpr int64_t kLogits = 1 << 25;
  EXPECT_EQ(loss_rows(256, kLogits), 131072);  // 2^25 / 2^8
  EXPECT_EQ(loss_rows(300, kLogits), 65536);   // 2^25 / 300 = 111848
  EXPECT_EQ(loss_rows(50257, kLogits), 512);   // 667
  EXPECT_EQ(loss_rows(50257, 8 * kLogits), 4096);
  EXPECT_EQ(loss_rows(128256, kLogits), 256);  // 261
  EXPECT_EQ(loss_rows(1 << 21, kLogits), 16);  // 16
  EXPECT_EQ(loss_rows(kHuge, kLogits), 16);    // 0
}

// Stands for the tables that have a row for each kind of op.
struct Row {
  OpKind kind;
  bool whole = true;
  constexpr bool complete() const { return whole; }
};
struct Table {
  Row rows[kOpKinds];
};
constexpr Table table_of_rows() {
  Table table{};
  for (const OpKind kind : kAllOps) table.rows[static_cast<size_t>(kind)] = {kind};
  return table;
}
template <typename Change>
consteval OpKind first_missing_after(Change change) {
  Table table = table_of_rows();
  change(table.rows);
  return first_missing(table.rows);
}

TEST(Op, ATableThatLacksAnOpIsFoundByTheCompiler) {
  static_assert(first_missing_after([](Row*) {}) == number_of_kinds);
  static_assert(first_missing_after([](Row* rows) { rows[1].whole = false; }) == layer_norm);
  static_assert(first_missing_after([](Row* rows) { std::swap(rows[3], rows[4]); }) == linear);
  static_assert(first_missing_after([](Row* rows) { rows[kOpKinds - 1] = {}; }) == kAllOps.back());
}

// Each op's rule agrees with itself.
TEST(Op, EveryRuleIsWhole) {
  for (const OpKind kind : kAllOps) {
    const OpRule& rule = op_rule(kind);
    SCOPED_TRACE(std::string("engine/graph/op_table.cc, ") + rule.name);
    EXPECT_EQ(op_kind(rule.name), kind) << "two ops have one name";
    EXPECT_GE(rule.inputs.least, 1u);
    EXPECT_LE(rule.inputs.least, rule.inputs.most);
    EXPECT_LE(rule.parameters.least, rule.parameters.most);
    EXPECT_EQ((rule.backward_reads_inputs | rule.gradient_inputs) >> rule.inputs.most, 0u);
    EXPECT_EQ(rule.backward_reads_parameters >> rule.parameters.most, 0u);
    EXPECT_EQ(rule.overwrites_parameters >> rule.parameters.most, 0u);
    EXPECT_EQ(rule.passes_gradient & ~rule.gradient_inputs, 0u);
    EXPECT_TRUE(rule.passes_gradient == 0 || rule.gradient_outputs == 1) << "which gradient is passed on?";
  }
}

// `sluice bench` fits two rates, of flops and of bytes, to these examples.
TEST(Op, EveryKindHasExamplesOfSeveralSizes) {
  for (const OpKind kind : kAllOps) {
    SCOPED_TRACE(std::string("examples in engine/graph/op_table.cc, ") + op_rule(kind).name);
    std::vector<OpShapes> examples;
    ASSERT_NO_THROW(examples = op_examples(kind, DType::bf16, {64, 128, 256}));
    ASSERT_GE(examples.size(), 2u);
    for (const OpShapes& s : examples) {
      EXPECT_EQ(s.kind, kind);
      EXPECT_EQ(s.outputs.size(), infer(s).shapes.size());
      EXPECT_GT(op_bytes(s, Pass::forward), 0u);
      EXPECT_EQ(op_bytes(s, Pass::backward) > 0, op_rule(kind).has_backward());
    }
    const auto work = [](const OpShapes& s) {
      return std::pair(flops(s, Pass::forward), op_bytes(s, Pass::forward));
    };
    EXPECT_NE(work(examples[0]), work(examples[1]));
  }
}

TEST(Op, AnOpWithoutExamplesOfItsOwnIsTimedOnItsInputsAlone) {
  const std::vector<OpShapes> examples = op_examples(add, DType::f16, {64, 128, 256});
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0].inputs, (std::vector<Shape>{{64, 128}, {64, 128}}));
  EXPECT_EQ(examples[1].inputs, (std::vector<Shape>{{8, 128}, {8, 128}}));
  EXPECT_EQ(examples[1].outputs, (std::vector<Shape>{{8, 128}}));
  EXPECT_TRUE(examples[0].parameters.empty());
  EXPECT_EQ(examples[0].precision, DType::f16);
}

TEST(Op, BackwardReadsWhatTheHeaderSays) {
  const auto masks = [](OpKind kind) {
    const OpRule& r = op_rule(kind);
    return std::vector<uint32_t>{r.backward_reads_inputs, r.backward_reads_outputs, r.gradient_inputs,
                                 r.gradient_outputs};
  };
  EXPECT_EQ(masks(embedding), (std::vector<uint32_t>{3, 0, 0, 1}));
  EXPECT_EQ(masks(layer_norm), (std::vector<uint32_t>{1, 6, 1, 1}));
  EXPECT_EQ(masks(rms_norm), (std::vector<uint32_t>{1, 2, 1, 1}));
  EXPECT_EQ(masks(linear), (std::vector<uint32_t>{1, 0, 1, 1}));
  EXPECT_EQ(masks(gelu), (std::vector<uint32_t>{1, 0, 1, 1}));
  EXPECT_EQ(masks(swiglu), (std::vector<uint32_t>{3, 0, 3, 1}));
  EXPECT_EQ(masks(rope), (std::vector<uint32_t>{2, 0, 1, 1}));
  EXPECT_EQ(masks(attention), (std::vector<uint32_t>{15, 3, 15, 1}));
  EXPECT_EQ(masks(add), (std::vector<uint32_t>{0, 0, 3, 1}));
  EXPECT_EQ(masks(linear_cross_entropy), (std::vector<uint32_t>{3, 0, 1, 0}));
  for (const OpKind kind : {cached_attention, pick_rows}) {
    EXPECT_EQ(masks(kind), (std::vector<uint32_t>{0, 0, 0, 0}));
    EXPECT_FALSE(op_rule(kind).has_backward());
  }
  EXPECT_EQ(op_rule(cached_attention).updates_inputs, 1u);
}

// An op is cheap to run again if it takes few flops for each byte of output that need not be kept.
TEST(Op, CheapOpsTakeFewFlopsForEachByteOfTheirOutputs) {
  for (const OpKind kind : kAllOps) {
    if (op_rule(kind).is_loss) continue;
    for (const OpShapes& s : op_examples(kind, DType::bf16, {512, 512, 1024})) {
      uint64_t bytes = 0;
      for (size_t i = 0; i < s.outputs.size(); ++i)
        bytes += static_cast<uint64_t>(element_count(s.outputs[i])) *
                 dtype_bytes(s.outputs[i].size() == 2 ? DType::bf16 : DType::f32);
      const double flops_per_byte = op_rule(kind).flops(s, Pass::forward) / static_cast<double>(bytes);
      EXPECT_EQ(op_rule(kind).made_again == Recompute::cheap, flops_per_byte < 16) << op_rule(kind).name;
    }
  }
}

TEST(Op, InfersShapesAndTypes) {
  const auto expect = [](const OpShapes& s, std::vector<Shape> wanted, std::vector<DType> types) {
    const Inferred found = infer(s);
    EXPECT_EQ(found.shapes, wanted) << op_rule(s.kind).name;
    EXPECT_EQ(found.types, types) << op_rule(s.kind).name;
  };
  const DType b = DType::bf16, f = DType::f32;
  expect(shapes(embedding, {{8}}, {{300, 40}}), {{8, 40}}, {b});
  expect(shapes(embedding, {{8}}, {{300, 40}, {6, 40}}, {.sequence = 4}, DType::f16), {{8, 40}},
         {DType::f16});
  expect(shapes(layer_norm, {{8, 40}}, {{40}, {40}}, kNorm), {{8, 40}, {8}, {8}}, {b, f, f});
  expect(shapes(embedding, {{8}, {8}}, {{300, 40}, {6, 40}}, {.sequence = 4}), {{8, 40}}, {b});
  expect(shapes(rms_norm, {{8, 40}}, {{40}}, kNorm), {{8, 40}, {8}}, {b, f});
  expect(shapes(rms_norm, {{8, 40}}, {{10}}, kNorm), {{8, 40}, {8, 4}}, {b, f});
  expect(shapes(linear, {{8, 40}}, {{40, 24}, {24}}), {{8, 24}}, {b});
  expect(shapes(linear, {{8, 40}}, {{24, 40}}, {.weight_out_in = true}), {{8, 24}}, {b});
  expect(shapes(gelu, {{8, 40}}, {}), {{8, 40}}, {b});
  expect(shapes(swiglu, {{8, 40}, {8, 40}}, {}, {}, f), {{8, 40}}, {f});
  expect(shapes(swiglu, {{8, 40}}, {}), {{8, 20}}, {b});
  expect(shapes(rope, {{8, 32}}, {}, kHeads), {{8, 32}}, {b});
  expect(shapes(rope, {{8, 50}, {8}}, {}, kHeads), {{8, 50}}, {b});
  expect(shapes(attention, {{8, 32}, {8, 16}, {8, 16}}, {}, kHeads), {{8, 32}, {2, 4, 4}}, {b, f});
  expect(shapes(attention, {{8, 64}}, {}, kHeads), {{8, 32}, {2, 4, 4}}, {b, f});
  expect(shapes(attention, {{8, 64}, {8}}, {{4}}, kHeads), {{8, 32}, {2, 4, 4}}, {b, f});
  expect(shapes(attention, {{8, 32}, {8, 16}, {8, 16}, {8}}, {}, kHeads), {{8, 32}, {2, 4, 4}}, {b, f});
  expect(shapes(add, {{8, 40}, {8, 40}}, {}), {{8, 40}}, {b});
  OpAttributes cached = kHeads;
  cached.context = 9;
  expect(shapes(cached_attention, {{2, 9, 32}, {8}, {8, 64}}, {}, cached), {{8, 32}}, {b});
  expect(shapes(cached_attention, {{2, 9, 32}, {8}, {8, 32}, {8, 16}, {8, 16}}, {{4}}, cached), {{8, 32}},
         {b});
  expect(shapes(pick_rows, {{8, 40}, {3}}, {}), {{3, 40}}, {b});
  expect(shapes(linear_cross_entropy, {{8, 40}, {8}}, {{300, 40}}), {{1}}, {DType::f64});
  expect(shapes(linear_cross_entropy, {{8, 40}, {8}}, {{300, 40}}, {.counts_right = true}), {{2}},
         {DType::f64});
}

// Which inputs hold integers follows from their shapes, so every op refuses numbers of one dimension.
TEST(Op, InputsOfOneDimensionHoldIntegersAndHaveNoGradient) {
  const auto types = [](const OpShapes& s) {
    std::string out;
    for (size_t i = 0; i < s.inputs.size(); ++i)
      out += (input_type(s, i) == DType::i32 ? "i" : "x") + std::string(has_gradient(s, i) ? "d " : " ");
    return out;
  };
  EXPECT_EQ(types(shapes(embedding, {{8}}, {{300, 40}})), "i ");
  EXPECT_EQ(types(shapes(linear_cross_entropy, {{8, 40}, {8}}, {{300, 40}})), "xd i ");
  EXPECT_EQ(types(shapes(embedding, {{8}, {8}}, {{300, 40}, {6, 40}}, {.sequence = 4})), "i i ");
  EXPECT_EQ(types(shapes(rope, {{8, 32}, {8}}, {}, kHeads)), "xd i ");
  EXPECT_EQ(types(shapes(attention, {{8, 64}}, {}, kHeads)), "xd ");
  EXPECT_EQ(types(shapes(attention, {{8, 64}, {8}}, {}, kHeads)), "xd i ");
  EXPECT_EQ(types(shapes(attention, {{8, 32}, {8, 16}, {8, 16}, {8}}, {}, kHeads)), "xd xd xd i ");
  for (const OpKind kind : kAllOps)
    for (const OpShapes& s : op_examples(kind, DType::bf16, {64, 128, 256}))
      for (size_t i = 0; i < s.inputs.size(); ++i) {
        OpShapes one = s;
        one.inputs[i] = {s.inputs[i][0]};
        EXPECT_EQ(refusal(one) == "accepted", input_type(s, i) == DType::i32) << op_rule(kind).name << i;
      }
}

TEST(Op, RefusesOperandsThatDoNotFit) {
  EXPECT_EQ(refusal(shapes(linear, {{8, 40}}, {{41, 24}})),
            "linear: the input has 40 columns, the weight [41, 24] takes 41.");
  EXPECT_EQ(refusal(shapes(linear, {{8, 40}}, {{40, 24}}, {.weight_out_in = true})),
            "linear: the input has 40 columns, the weight [40, 24] takes 24.");
  EXPECT_EQ(refusal(shapes(linear, {{8, 40}}, {{40, 24}, {40}})),
            "linear: the bias has shape [40] where [24] is needed.");
  EXPECT_EQ(refusal(shapes(gelu, {{8, 40}}, {{40, 24}})), "gelu: 1 parameters are given, 0 to 0 are taken.");
  EXPECT_EQ(refusal(shapes(gelu, {{8, 40, 2}}, {})),
            "gelu: the input of shape [8, 40, 2] needs 2 dimensions.");
  EXPECT_EQ(refusal(shapes(linear, {{8, 40}}, {})), "linear: 0 parameters are given, 1 to 2 are taken.");
  EXPECT_EQ(refusal(shapes(linear, {{40}}, {{40, 24}})),
            "linear: the input of shape [40] needs 2 dimensions.");
  EXPECT_EQ(refusal(shapes(linear, {{8, 0}}, {{0, 24}})), "linear: an operand of shape [8, 0] is empty.");
  EXPECT_EQ(refusal(shapes(linear, {{8, 40}}, {{40, 24}}, {}, DType::f64)),
            "linear: fp64 is no working precision.");
  EXPECT_EQ(refusal(shapes(embedding, {{8}}, {{300, 40}, {3, 40}}, {.sequence = 4})),
            "embedding: 3 positions are too few for sequences of 4.");
  EXPECT_EQ(refusal(shapes(embedding, {{9}}, {{300, 40}, {4, 40}}, {.sequence = 4})),
            "embedding: 9 rows are not whole sequences of 4.");
  EXPECT_EQ(refusal(shapes(embedding, {{8}}, {{300, 40}, {4, 41}}, {.sequence = 4})),
            "embedding: the tables have 40 and 41 columns.");
  EXPECT_EQ(refusal(shapes(embedding, {{8}}, {{kHuge, 40}})),
            "embedding: a vocabulary of 1099511627776 does not fit the 32-bit token type.");
  EXPECT_EQ(refusal(shapes(layer_norm, {{8, 40}}, {{40}, {41}}, kNorm)),
            "layer_norm: the bias has shape [41] where [40] is needed.");
  EXPECT_EQ(refusal(shapes(rms_norm, {{8, 40}}, {{40}}, {.epsilon = 0})),
            "rms_norm: epsilon 0 is not a positive number.");
  EXPECT_EQ(refusal(shapes(rms_norm, {{8, 40}}, {{16}}, kNorm)),
            "rms_norm: 40 columns are no multiple of the weight's 16.");
  EXPECT_EQ(refusal(shapes(embedding, {{8}, {8}}, {{300, 40}})),
            "embedding: document begins are given, and no position table.");
  EXPECT_EQ(refusal(shapes(embedding, {{8}, {4}}, {{300, 40}, {4, 40}}, {.sequence = 4})),
            "embedding: the vector of document begins has shape [4] where [8] is needed.");
  EXPECT_EQ(refusal(shapes(swiglu, {{8, 41}}, {})), "swiglu: 41 columns are not a gate and as many others.");
  EXPECT_EQ(refusal(shapes(linear, {{8, 40}}, {{40, 24}}, {.scale = -1})),
            "linear: the scale -1 is neither a positive number nor 0.");
  EXPECT_EQ(refusal(shapes(linear_cross_entropy, {{8, 40}, {8}}, {{300, 40}}, {.soft_cap = -1})),
            "linear_cross_entropy: the soft cap -1 is neither a positive number nor 0.");
  EXPECT_EQ(refusal(shapes(add, {{8, 40}, {40, 8}}, {})),
            "add: an input has shape [40, 8] where [8, 40] is needed.");
  EXPECT_EQ(refusal(shapes(linear_cross_entropy, {{8, 40}, {9}}, {{300, 40}})),
            "linear_cross_entropy: the label vector has shape [9] where [8] is needed.");
  EXPECT_EQ(refusal(shapes(linear_cross_entropy, {{8, 40}, {8}}, {{300, 41}})),
            "linear_cross_entropy: the input has 40 columns, the weight [300, 41] takes 41.");
}

TEST(Op, RefusesHeadsThatDoNotFit) {
  const auto with = [](auto change) {
    OpAttributes a = kHeads;
    change(a);
    return a;
  };
  const auto rope_with = [&](auto change) { return refusal(shapes(rope, {{8, 32}}, {}, with(change))); };
  EXPECT_EQ(rope_with([](OpAttributes& a) { a.heads = 5; }),
            "rope: 32 columns are fewer than 5 heads of size 8 have.");
  EXPECT_EQ(rope_with([](OpAttributes& a) { a.heads = 0; }), "rope: 0 heads of size 8 are not possible.");
  EXPECT_EQ(rope_with([](OpAttributes& a) { a.sequence = 0; }),
            "rope: the sequence length 0 is not positive.");
  EXPECT_EQ(rope_with([](OpAttributes& a) { a.frequencies[1] = -1; }),
            "rope: the frequency -1 is neither a positive number nor 0.");
  EXPECT_EQ(rope_with([](OpAttributes& a) { a.frequencies.clear(); }),
            "rope: 0 frequencies are given for heads of size 8.");
  EXPECT_EQ(rope_with([](OpAttributes& a) { a.frequencies.resize(5); }),
            "rope: 5 frequencies are given for heads of size 8.");
  EXPECT_EQ(rope_with([](OpAttributes& a) { a.heads = a.head_size = kHuge; }),
            "rope: 1099511627776 heads of size 1099511627776 overflow.");
  EXPECT_EQ(rope_with([](OpAttributes& a) { a.scale = -2; }),
            "rope: the scale -2 is neither a positive number nor 0.");
  EXPECT_EQ(refusal(shapes(rope, {{8, 32}, {4}}, {}, kHeads)),
            "rope: the vector of document begins has shape [4] where [8] is needed.");
  const auto attention_with = [&](std::vector<Shape> inputs, auto change) {
    return refusal(shapes(attention, std::move(inputs), {}, with(change)));
  };
  EXPECT_EQ(attention_with({{8, 64}}, [](OpAttributes& a) { a.kv_heads = 3; }),
            "attention: 4 heads cannot share 3 key/value heads evenly.");
  EXPECT_EQ(attention_with({{8, 32}, {8, 16}}, [](OpAttributes&) {}),
            "attention: the inputs are q, k and v, or all three packed into one.");
  EXPECT_EQ(attention_with({{8, 32}, {8, 16}, {8, 32}}, [](OpAttributes&) {}),
            "attention: v has shape [8, 32] where [8, 16] is needed.");
  EXPECT_EQ(attention_with({{8, 60}}, [](OpAttributes&) {}),
            "attention: the packed input has shape [8, 60] where [8, 64] is needed.");
  EXPECT_EQ(attention_with({{9, 64}}, [](OpAttributes&) {}),
            "attention: 9 rows are not whole sequences of 4.");
}

TEST(Op, RefusesScoresThatAreNotPossible) {
  const auto with = [](std::vector<Shape> inputs, std::vector<Shape> parameters, auto change) {
    OpShapes s = shapes(attention, std::move(inputs), std::move(parameters), kHeads);
    change(s.attributes);
    return refusal(s);
  };
  const auto unchanged = [](OpAttributes&) {};
  EXPECT_EQ(with({{8, 64}}, {}, [](OpAttributes& a) { a.window = -1; }),
            "attention: the window -1 is negative.");
  EXPECT_EQ(with({{8, 64}}, {}, [](OpAttributes& a) { a.soft_cap = -2; }),
            "attention: the soft cap -2 is neither a positive number nor 0.");
  EXPECT_EQ(
      with({{8, 64}}, {}, [](OpAttributes& a) { a.soft_cap = std::numeric_limits<double>::infinity(); }),
      "attention: the soft cap inf is neither a positive number nor 0.");
  EXPECT_EQ(with({{8, 64}}, {}, [](OpAttributes& a) { a.scale = -0.5; }),
            "attention: the scale -0.5 is neither a positive number nor 0.");
  EXPECT_EQ(with({{8, 64}, {9}}, {}, unchanged),
            "attention: the vector of document begins has shape [9] where [8] is needed.");
  EXPECT_EQ(with({{8, 32}, {8, 16}, {8, 16}, {8, 1}}, {}, unchanged),
            "attention: the vector of document begins has shape [8, 1] where [8] is needed.");
  EXPECT_EQ(with({{8, 32}, {8, 16}, {8}}, {}, unchanged),
            "attention: v has shape [8] where [8, 16] is needed.");
  EXPECT_EQ(with({{8, 64}}, {{2}}, unchanged),
            "attention: the vector of sinks has shape [2] where [4] is needed.");
}

// Additions, multiplications and function calls, counted by hand for 8 rows.
TEST(Op, Flops) {
  const auto expect = [](const OpShapes& s, double forward, double backward) {
    EXPECT_EQ(flops(s, Pass::forward), forward) << op_rule(s.kind).name;
    EXPECT_EQ(flops(s, Pass::backward), backward) << op_rule(s.kind).name;
  };
  expect(shapes(embedding, {{8}}, {{300, 40}}), 0, 320);  // 8 * 40
  expect(shapes(embedding, {{8}}, {{300, 40}, {4, 40}}, {.sequence = 4}), 320, 640);
  expect(shapes(linear, {{8, 40}}, {{40, 24}}), 15360, 30720);  // 2 * 8 * 40 * 24
  expect(shapes(linear, {{8, 40}}, {{24, 40}, {24}}, {.weight_out_in = true}), 15552, 30912);  // + 8 * 24
  expect(shapes(layer_norm, {{8, 40}}, {{40}, {40}}, kNorm), 2560, 4160);  // 8 and 13 an element
  expect(shapes(rms_norm, {{8, 40}}, {{40}}, kNorm), 1280, 2880);          // 4 and 9
  expect(shapes(gelu, {{8, 40}}, {}), 2880, 5760);                         // 9 and 18
  expect(shapes(swiglu, {{8, 40}, {8, 40}}, {}), 1920, 3840);              // 6 and 12
  expect(shapes(swiglu, {{8, 80}}, {}), 1920, 3840);
  expect(shapes(swiglu, {{8, 80}}, {}, {.gelu_gate = true}), 3200, 7360);  // 10 and 23
  expect(shapes(rope, {{8, 32}}, {}, kHeads), 576, 576);                   // 6 for each of 8 * 4 * 3 pairs
  expect(shapes(add, {{8, 40}, {8, 40}}, {}), 320, 0);
  // Two sequences of 4, 4 heads: 2 * 4 * (1 + 2 + 3 + 4) = 80 pairs, of 4 * 8 + 5 forward and 10 * 8 + 5
  // backward.
  expect(shapes(attention, {{8, 64}}, {}, kHeads), 2960, 6800);
  expect(shapes(attention, {{8, 32}, {8, 16}, {8, 16}}, {}, kHeads), 2960, 6800);
  // With a window of 2, 2 * 4 * (1 + 2 + 2 + 2) = 56 pairs. A window of 4 or more changes nothing, nor do
  // documents.
  const auto with_window = [](int64_t window) {
    OpAttributes a = kHeads;
    a.window = window;
    return a;
  };
  expect(shapes(attention, {{8, 64}}, {}, with_window(2)), 56 * 37, 56 * 85);
  expect(shapes(attention, {{8, 64}}, {}, with_window(1)), 32 * 37, 32 * 85);
  expect(shapes(attention, {{8, 64}, {8}}, {}, with_window(4)), 2960, 6800);
  expect(shapes(attention, {{8, 64}}, {}, with_window(5)), 2960, 6800);
  // A soft cap takes 3 flops forward and 6 backward for each of 80 pairs, sinks 4 for each of 32 queries.
  OpAttributes capped = kHeads;
  capped.soft_cap = 3;
  expect(shapes(attention, {{8, 64}}, {}, capped), 2960 + 240, 6800 + 480);
  expect(shapes(attention, {{8, 64}}, {{4}}, kHeads), 2960 + 128, 6800 + 128);
  // The product takes 2 * 8 * 40 * 300 = 192000, and three times as much backward. Each of 2400 logits takes
  // 4 more forward and 6 more backward.
  expect(shapes(linear_cross_entropy, {{8, 40}, {8}}, {{300, 40}}), 201600, 590400);
  // A soft cap takes 3 forward and 6 backward for each logit. A scale takes 1 for each logit forward, and
  // backward 1 for each element of dx (320) and dW (12000).
  expect(shapes(linear_cross_entropy, {{8, 40}, {8}}, {{300, 40}}, {.soft_cap = 3}), 208800, 604800);
  expect(shapes(linear_cross_entropy, {{8, 40}, {8}}, {{300, 40}}, {.scale = 3}), 204000, 605120);
  // Counting right rows takes a comparison of each logit.
  expect(shapes(linear_cross_entropy, {{8, 40}, {8}}, {{300, 40}}, {.counts_right = true}), 204000, 592800);
  expect(shapes(linear, {{8, 40}}, {{40, 24}}, {.scale = 3}), 15552, 32000);  // 192; 320 and 960
  expect(shapes(embedding, {{8}}, {{300, 40}}, {.scale = 3}), 320, 640);
}

TEST(Op, Bytes) {
  const auto expect = [](const OpShapes& s, uint64_t forward, uint64_t backward) {
    EXPECT_EQ(op_bytes(s, Pass::forward), forward) << op_rule(s.kind).name;
    EXPECT_EQ(op_bytes(s, Pass::backward), backward) << op_rule(s.kind).name;
  };
  // x 640, y 384, weight 1920, bias 48; backward x, dx, dy, weight, fp32 gradients 3840 and 96.
  expect(shapes(linear, {{8, 40}}, {{40, 24}, {24}}), 2992, 640 + 640 + 384 + 1920 + 3840 + 96);
  // x, y 640 each; backward x, dx, dy.
  expect(shapes(gelu, {{8, 40}}, {}), 1280, 1920);
  // tokens 32, x 640, 8 rows of the table 640, 4 positions 320; backward tokens, dx, fp32 gradients of the
  // same rows.
  expect(shapes(embedding, {{8}}, {{300, 40}, {6, 40}}, {.sequence = 4}), 1632, 32 + 640 + 1280 + 640);
  // x, y 640 each, mean, rstd 32 each, weight, bias 80 each; backward x, dx, dy, mean, rstd, weight,
  // gradients 160 each.
  expect(shapes(layer_norm, {{8, 40}}, {{40}, {40}}, kNorm), 1504, 3 * 640 + 64 + 80 + 320);
  expect(shapes(add, {{8, 40}, {8, 40}}, {}), 1920, 1920);
  // packed 1024, o 512, lse 128; backward packed and its gradient, o and its gradient, lse.
  expect(shapes(attention, {{8, 64}}, {}, kHeads), 1664, 2 * 1024 + 2 * 512 + 128);
  // 8 document begins 32, 4 sinks 8; backward reads them again, and the sinks' fp32 gradients take 16.
  expect(shapes(attention, {{8, 64}, {8}}, {{4}}, kHeads), 1664 + 32 + 8, 3200 + 32 + 8 + 16);
  // x 640, labels 32, weight 24000, loss 8; backward also dx 640 and the fp32 gradient 48000.
  expect(shapes(linear_cross_entropy, {{8, 40}, {8}}, {{300, 40}}), 24680, 73320);
}

}  // namespace
}  // namespace sluice
