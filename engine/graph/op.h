// Ops: the vocabulary in which models are written and which every device implements.
//
// An op has static shapes. Its rule, a row of the table in op_table.cc, gives output shapes, flops, what its
// backward reads, and example operands. segment.h derives the backward pass from the rule; `sluice bench`
// times devices on the examples. No code of models or devices is here. Activations and their gradients are in
// the working precision; statistics (mean, rstd, log-sum-exp) are fp32; parameter gradients are fp32 and
// added to, or overwritten where the rule allows it. A "row" is one token: activations are [rows, columns],
// rows = sequences of the micro-batch * T, in sequence order. routing.h says how rows come to experts and
// back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/graph/mesh.h"

namespace sluice {

using Shape = std::vector<int64_t>;         // outermost dimension first
int64_t element_count(const Shape& shape);  // 1 for a scalar

// Labels equal to this are ignored by the loss (PyTorch's default ignore_index).
constexpr int32_t kIgnoreLabel = -100;
// The loss ignores these labels too. Their rows are padding, which the loss of routers does not count either.
constexpr int32_t kPaddingLabel = -101;
constexpr bool is_ignored(int32_t label) { return label == kIgnoreLabel || label == kPaddingLabel; }

// kind: inputs -> outputs | parameters | which inputs and outputs its backward reads
enum class OpKind : uint8_t {
  embedding,             // tokens i32 [R], with wpe optionally document begins i32 [R] -> x [R,C]
                         //   | wte [V,C], optionally wpe [T,C] added at the row's position | all inputs
  layer_norm,            // x [R,C] -> y [R,C], mean f32 [R], rstd f32 [R] | weight [C], bias [C]
                         //   | x, mean, rstd
  rms_norm,              // x [R,C] -> y [R,C], rstd f32 [R, C/G], or [R] if G is C: each G columns of a row
                         //   by themselves | weight [G] | x, rstd
  linear,                // x [R,K] -> y [R,N] | weight [K,N] or, if weight_out_in, [N,K]; optionally
                         //   bias [N] | x
  gelu,                  // x [R,C] -> y [R,C], tanh form | - | x
  swiglu,                // gate, up [R,C] (or one packed gate|up [R,2C]) -> y [R,C] = silu(gate) * up
                         //   | - | all inputs
  rope,                  // x [R, heads*head_size or more], optionally document begins i32 [R] -> y: each
                         //   head rotated in the rotate-half form | - | document begins
  attention,             // causal; q [R, heads*D], k, v [R, kv_heads*D]
                         //   (or one packed q|k|v [R, (heads+2*kv_heads)*D]), optionally document begins
                         //   i32 [R] -> o [R, heads*D], lse f32 [R/T, heads, T] | optionally sinks [heads]
                         //   | all inputs and outputs, sinks
  add,                   // a, b -> y | - | nothing
  linear_cross_entropy,  // x [R,C], labels i32 [R] -> loss f64 [1], or [2] if counts_right, ADDED to: sum of
                         //   the rows' losses, number of right rows | weight [V,C] | x, labels
  cached_attention,      // attention of rows that continue sequences: cache [R/T, context, 2*kv_heads*D],
                         //   UPDATED, document begins i32 [R], then q, k and v or all three packed, as
                         //   attention has them -> o [R, heads*D] | optionally sinks [heads] | no backward
  pick_rows,             // x [R,C], rows i32 [N], which it picks, each from 0 to R - 1 -> y [N,C]
                         //   | - | no backward
  router,                // x [R,C] -> logits f32 [R,E] | weight [E,C], optionally bias [E] | x
  route,                 // logits f32 [R,E], if random_second draws i32 [kDrawWords] (draws.h)
                         //   -> weights f32 [R,K], routing i32
                         //   | optionally a correction bias [E], added to scores for the choice alone; it has
                         //   no gradient | logits, routing
  router_statistics,     // logits f32 [R,E], routing, optionally labels i32 [R] -> statistics f32
                         //   [1,2E+2], ADDED to: by expert the sum of the rows' softmax; the sum of squares
                         //   of the rows' log-sum-exp; by expert the number of choices, each of rows whose
                         //   label is not kPaddingLabel; the number of all choices that experts take. Only
                         //   the first two have gradients | - | logits, labels
  router_loss,           // statistics f32 [1,2E+2], labels i32 [R] -> loss f64 [3], ADDED to in the first and
                         //   the third: the number of labels that are not ignored times what Routing says. No
                         //   other op adds to the third | - | all inputs
  dispatch,              // routing, x [R,C] -> y [M,C]: the expert's rows of x | - | routing
  expert_linear,         // routing, x [M,A], if weighted weights f32 [R,K] -> y [M,B] | weight [A,B] or, if
                         //   weight_out_in, [B,A]; optionally bias [B], times the row's weight if weighted
                         //   | all inputs, bias
  expert_swiglu,         // routing, gate, up [M,A] (or one packed gate|up [M,2A], or only the gate if
                         //   ungated), if weighted weights f32 [R,K] -> y [M,A] = swiglu, times the row's
                         //   weight if weighted | - | all inputs
  combine,               // routing, x [M,C] -> sum f32 [R,C], ADDED to: the expert's rows at their places
                         //   | - | routing
  add_sum,               // x [R,C], sum f32 [R,C] -> y [R,C] = x + sum | - | nothing
  add_noise,             // logits, deviations f32 [R,E], draws i32 [kDrawWords] -> y f32 [R,E] = logits + a
                         //   normal number for each (draws.h) * softplus(deviation) | - | deviations, draws
  add_shared_sum,   // x, z [R,C], sum f32 [R,C], shares f32 [R,2] -> y [R,C] = x + s0 * sum + s1 * z, s the
                    //   softmax of a row's shares | - | z, sum, shares
  repeat,           // x f32 [R,C] -> y f32 [N*R,C]: N times x, N the ranks that experts are divided over
                    //   | - | nothing
  number_of_kinds,  // not a kind; new kinds that devices run stand before it
  // What ranks do together. Communicators carry out these ops. Each is the only op of its segment.
  all_gather,   // routing i32 [L] -> i32 [N*L]: routings of the N ranks that experts are divided over, in
                //   order | - | nothing
  all_to_all,   // x f32 [N*R,C] -> y f32 [N*R,C]: part i of x goes to rank i, and part i of y comes from
                //   rank i | - | nothing
  all_to_allv,  // routing i32 [L], routing of all ranks i32 [N*L], which the host reads, x [N*M,C]
                //   -> y [N*M,C]: part i of x goes to rank i, and part i of y comes from rank i; a part has
                //   as many rows as an expert has. Part i of x holds this rank's rows for rank i's expert.
                //   If `returns`, it holds what this rank's expert made of rank i's rows
                //   | - | routing, routing of all ranks
};
constexpr size_t kOpKinds = static_cast<size_t>(OpKind::number_of_kinds);
constexpr bool is_between_ranks(OpKind kind) { return kind > OpKind::number_of_kinds; }
constexpr auto kAllOps = [] {
  std::array<OpKind, kOpKinds> kinds{};
  for (size_t i = 0; i < kOpKinds; ++i) kinds[i] = static_cast<OpKind>(i);
  return kinds;
}();

// `rows` is a table with a row for each kind, in the order of OpKind. Returns the first kind whose row is
// missing, out of place or not complete; number_of_kinds if there is none. Beside the table stands
//   static_assert(NoneMissing<first_missing(rows)>, "FILE: ...");
// whose error names the file and the kind.
template <typename Row>
consteval OpKind first_missing(const Row (&rows)[kOpKinds]) {
  for (const OpKind kind : kAllOps) {
    const Row& row = rows[static_cast<size_t>(kind)];
    if (row.kind != kind || !row.complete()) return kind;
  }
  return OpKind::number_of_kinds;
}
template <OpKind missing>
concept NoneMissing = missing == OpKind::number_of_kinds;

// A function that a row must have. `given` is known at compile time; a comparison of the address with null is
// no constant expression where GCC's sanitizers are on.
template <typename Function>
struct Required {
  Function* function = nullptr;
  bool given = false;

  constexpr Required() = default;
  constexpr Required(Function* f) : function(f), given(true) {}
  Required(std::nullptr_t) = delete;
  constexpr operator Function*() const { return function; }
};

// How a layer with a mixture of experts chooses the experts of a row, and what its routers' loss is.
struct Routing {
  int64_t experts = 0, chosen = 0;  // E, and K: experts of a row
  enum class Scores : uint8_t {
    softmax,         // of all logits; a row's K largest are chosen, and are its weights
    softmax_chosen,  // the K largest logits are chosen; their softmax is the row's weights
    sigmoid,         // as softmax, with the sigmoid of each logit
  };
  Scores scores = Scores::softmax;
  bool normalized = false;  // a row's weights are divided by their sum, plus 1e-20 for sigmoids
  // Experts are in `groups` groups of equal size. Only experts in the `best_groups` best groups can be
  // chosen. A group's score is the sum of its `group_scores` largest scores (DeepSeek-V3, arXiv:2412.19437).
  // 0: no groups, as in all families so far.
  int64_t groups = 0, best_groups = 0, group_scores = 0;
  double scale = 0;  // a factor of all weights; 0: 1
  // Above 0: rows are in groups of group_rows, and an expert takes at most expert_capacity() (routing.h) of a
  // group's choices: first choices of all the group's rows, by row, then second choices, and so on. Other
  // choices are dropped: they have no entry. Weights are made from all choices, but the weights of dropped
  // choices do not count.
  double capacity_factor = 0;
  int64_t group_rows = 0, least_capacity = 0;
  // A row has two choices, whose weights sum to 1. The second is tried with a probability of 2 * its weight
  // (Lepikhin et al. 2020, arXiv:2006.16668, algorithm 1), or always where draws are zeros.
  bool random_second = false;
  int64_t counted = 0;  // how many of a row's best choices count in router_loss; 0: all
  // For router_loss, over the N rows of `layers` layers that are not padding: balance_loss * E * sum over
  // experts of (choices / N) * (sum of softmax / N), as transformers 5.23 has it (Fedus et al. 2021,
  // arXiv:2101.03961), and z_loss * sum of squares / N (Zoph et al. 2022, arXiv:2202.08906).
  int64_t layers = 0;
  double balance_loss = 0, z_loss = 0;
  bool weighted = false;  // the last input holds the rows' weights
  // For predictions alone: the rows of an op's expert, over the mean of all experts (imbalance.h).
  double rows_over_mean = 1;
  // The ranks that the experts are divided over: the rank in place n has the n-th part. Each rank has rows of
  // its own.
  ProcessGroup over;
  bool returns = false;  // all_to_allv: rows move from experts, not to them

  int64_t ranks() const { return over.count; }
  int64_t of_rank() const { return experts / ranks(); }
  double factor() const { return scale == 0 ? 1 : scale; }
  bool drops() const { return capacity_factor > 0 || random_second; }
  int64_t counted_choices() const { return counted == 0 ? chosen : counted; }
};

struct OpAttributes {
  int64_t sequence = 0;  // T: rows per sequence
  // Above 0: the rows of a sequence are a part of a document of at most `context` tokens, and the document
  // may begin before these rows: its begin is then negative. A row whose document begins right behind it, at
  // t + 1, is idle: what ops make of it is not used. 0: the rows are the whole sequence.
  int64_t context = 0;
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  double epsilon = 0;
  bool weight_out_in = false;
  int64_t loss_rows = 0;  // rows whose logits a device holds at a time; 0: all
  // The document begin of row r is the position in the row's sequence at which the row's document begins. Row
  // r is at position t = r % T of its sequence, and 0 <= begin <= t. Begins never decrease within a sequence;
  // without that input they are 0. embedding and rope take t - begin as the row's position. cached_attention
  // writes the row's key and value at that position of the sequence's cache, which has first all keys, then
  // all values, in the order of heads. The row's query sees the cached positions up to its own, within the
  // window; all of these belong to the row's document. An idle row neither writes nor sees anything, and its
  // o is 0.
  //
  // rope. Columns i and F + i of each head are a pair, which turns by position * frequencies[i] radians; F is
  // the number of frequencies, at most head_size / 2. All other columns are copied.
  std::vector<double> frequencies;
  // attention, cached_attention. The query at position t of its sequence sees the keys u with
  // max(begin, t - window + 1) <= u <= t. A sink is a score of its head that takes part in the softmax's sum,
  // hence in lse, and has no value. It is neither scaled nor capped.
  int64_t window = 0;  // a query sees its own key and the window - 1 keys before it; 0: all
  // For attention's scaled scores and the loss's scaled logits: a value s becomes soft_cap * tanh(s /
  // soft_cap), and NaN where s is infinite. 0: s stays.
  double soft_cap = 0;
  // A factor of wte's rows (embedding), of x * weight (linear, expert_linear), of turned pairs (rope), or of
  // logits (linear_cross_entropy); 0 means 1. In attention, a factor of q k; 0 means 1 / sqrt(head_size).
  double scale = 0;
  bool weight_from_one = false;  // rms_norm: a column's factor is 1 + weight
  bool gelu_gate = false;        // swiglu, expert_swiglu: gelu, in the tanh form, in place of silu
  // expert_swiglu. Above 0: (up + 1) * gate * sigmoid(alpha * gate) in place of silu(gate) * up, with the
  // gate at most the limit and up within +- limit.
  double swiglu_limit = 0, swiglu_alpha = 0;
  bool ungated = false;  // expert_swiglu: silu(gate), or gelu, by itself
  // linear_cross_entropy. A row is right if none of its logits, before a soft cap, is above the logit of its
  // label. An ignored row is not right.
  bool counts_right = false;
  Routing routing;
  // The ranks that carry out an op between ranks. An all_to_allv may move rows in two steps (routing.h).
  ProcessGroup among;

  double factor() const { return scale == 0 ? 1 : scale; }  // of all ops but attention
};

// An op may run once for each of `count` parts, in order. Inputs and outputs whose bits are set are divided
// into `count` equal parts along the first dimension; each run takes the other tensors whole.
struct Parts {
  uint32_t count = 1, inputs = 0, outputs = 0;
};

struct Op {
  OpKind kind;
  OpAttributes attributes;
  std::vector<uint32_t> inputs, outputs;  // indices into the segment's tensors
  std::vector<uint32_t> parameters;       // indices into the segment's parameters
  Parts parts;
};

enum class Pass : uint8_t { forward, backward };

// How much of what backward reads is made again rather than kept since forward. Each level makes more again.
enum class Recompute : uint8_t {
  none,      // all is kept
  cheap,     // what norms and activation functions write is made again; so is what rotations and sums write,
             // if what they read is at hand
  products,  // so is what matrix products write; of a layer, only what attention writes is kept
  all,       // nothing is kept
};
inline constexpr std::array kRecomputes{Recompute::none, Recompute::cheap, Recompute::products,
                                        Recompute::all};
const char* recompute_name(Recompute level);

// Everything about one op's operands that is known before the step.
struct OpShapes {
  OpKind kind;
  OpAttributes attributes;
  DType precision;  // working precision: activations, weights, activation gradients
  std::vector<Shape> inputs, outputs, parameters;
};

// "attention backward of bf16 [2048 4800]": the shapes of inputs, then of parameters.
std::string op_text(const OpShapes& shapes, Pass pass);

// Sizes of example operands, such as transformers have. An op's rates are measured on these examples.
struct ExampleSizes {
  int64_t rows, width, vocabulary;  // rows: a multiple of 8; width: of 64
};
struct OpExample {
  OpAttributes attributes;
  std::vector<Shape> inputs, parameters;
};

struct OpRule {
  struct Count {
    uint32_t least = 0, most = 0;
  };
  OpKind kind;
  const char* name;
  Recompute made_again;  // the first level at which its outputs are made again
  Count inputs, parameters;
  // Output shapes and types. Throws std::invalid_argument with a sentence when the operands do not fit.
  Required<void(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes)> infer;
  Required<double(const OpShapes& s, Pass pass)> flops;  // multiply-adds count two
  // Example operands, some with many rows and some with few, so that the cost of a row can be told from the
  // cost of a call. nullptr: two examples, one with `rows` rows, one with an eighth of them. Each has the
  // least number of inputs, all [rows, width], and no parameters.
  std::vector<OpExample> (*examples)(const ExampleSizes& sizes) = nullptr;
  uint32_t backward_reads_inputs = 0;      // bit i: backward reads input i
  uint32_t backward_reads_outputs = 0;     // bit i: backward reads output i
  uint32_t backward_reads_parameters = 0;  // bit i: backward reads parameter i
  uint32_t gradient_inputs = 0;            // bit i: input i is differentiable, unless it holds integers
  uint32_t gradient_outputs = 0;           // bit i: a gradient arrives for output i
  // bit i: the gradient of output 0 is also the gradient of input i, so backward need not run to write it
  uint32_t passes_gradient = 0;
  // bit i: backward can overwrite the gradient of parameter i instead of adding to it
  uint32_t overwrites_parameters = 0;
  // bit i: forward also writes to input i, which is therefore a kept activation (Activation::kept).
  uint32_t updates_inputs = 0;
  // bit i: forward adds to output i, which begins as zeros and is therefore a sum (Activation::sum).
  uint32_t adds_to_outputs = 0;
  uint32_t fp32_inputs = 0;    // bit i: input i is fp32
  uint32_t host_inputs = 0;    // bit i: the host reads input i, to know what the op has to do
  bool of_an_expert = false;   // works on the rows that routing gives to one expert, at most M
  bool is_loss = false;        // its output is the loss, to which both passes add
  bool looks_up_rows = false;  // reads single rows of its parameters: their gradients are of high rank
  // Elements of a parameter that one pass touches; nullptr: all.
  uint64_t (*touched_elements)(const OpShapes& s, size_t parameter) = nullptr;

  constexpr bool has_backward() const { return gradient_outputs != 0 || is_loss; }
  constexpr bool complete() const {
    return name != nullptr && infer.given && flops.given && made_again != Recompute::none;
  }
};
const OpRule& op_rule(OpKind kind);
std::optional<OpKind> op_kind(std::string_view name);

// The type of an op's input. An input of one dimension holds integers (token ids, labels, document begins,
// routing) as i32. All other inputs hold numbers in the working precision, or in fp32 where the rule says so.
// A gradient has the type of its tensor.
DType input_type(const OpShapes& s, size_t input);
// Whether backward can give a gradient of the input. Integers have none.
bool has_gradient(const OpShapes& s, size_t input);

// The rule's examples, with their outputs.
std::vector<OpShapes> op_examples(OpKind kind, DType precision, const ExampleSizes& sizes);

// Bytes that one pass reads and writes at least: inputs, outputs, parameters and their gradients, each once.
uint64_t op_bytes(const OpShapes& s, Pass pass);

// What a pass over a segment does, by op kind in the order of OpKind: for the cost model.
struct OpWork {
  OpKind kind;
  double flops = 0;
  uint64_t bytes = 0;  // of inputs, outputs, parameters and gradients; each op counts its own once
};
struct SegmentPass {
  std::vector<OpWork> ops;
};

// A block sum: the sum of squares of kNormBlock elements of a rounded gradient. The norm is made of them.
constexpr uint64_t kNormBlock = 65536;
constexpr uint32_t kAccumulatorsMax = 8;  // of a parameter group: one for each kind of its uses

// Returns OpAttributes::loss_rows: the number of rows that have `logits_max` logits together, rounded down to
// a power of two, but at least 16.
int64_t loss_rows(int64_t vocabulary, int64_t logits_max);
// The number of rows whose logits the loss holds at a time.
int64_t rows_at_a_time(const OpShapes& loss);

}  // namespace sluice
