// linear, attention and the loss on the cpu device against plain double loops, at sizes that cross tiles,
// blocks and chunks. (The conformance test covers small shapes.)
//
// Tolerances. fp32 sums err by 4e-6 of their terms' magnitudes (see matmul_test.cc); exp and log leave 1e-5
// of the largest value. A bf16 or fp16 result is also rounded once, or twice if it was computed from a
// rounded matrix.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cpu_test_support.h"

namespace sluice {
namespace {

using namespace testing_support;

// The operands and gradients of one op, and its forward and backward on a device with some threads.
struct OpRun {
  OpShapes shapes;
  std::vector<Tensor> inputs, parameters, outputs, output_gradients, input_gradients, parameter_gradients;
  std::vector<int32_t> labels;
  double loss = 0;
  float seed = 1;
  bool accumulate = false;

  void run(int threads) {
    const std::unique_ptr<Device> device = make_cpu_device(threads);
    OpCall call;
    std::vector<TensorView> views[6];
    for (Tensor& t : inputs) views[0].push_back(t.view());
    if (!labels.empty()) views[0].push_back({labels.data()});
    for (Tensor& t : outputs) views[1].push_back(t.view());
    if (!labels.empty()) views[1].push_back({&loss});
    for (Tensor& t : parameters) views[2].push_back(t.view());
    for (Tensor& t : output_gradients) views[3].push_back(t.view());
    if (shapes.kind == OpKind::attention) views[3].push_back({});
    for (Tensor& t : input_gradients) views[4].push_back(t.view(accumulate));
    if (!labels.empty()) views[4].push_back({});
    for (Tensor& t : parameter_gradients) views[5].push_back(t.view(true));
    call.shapes = &shapes;
    call.inputs = views[0], call.outputs = views[1], call.parameters = views[2];
    const double loss_scale = seed, valid_tokens = 1;
    call.loss_scale = &loss_scale, call.valid_tokens = &valid_tokens;
    Workspace forward(device->workspace_bytes(shapes, Pass::forward));
    Workspace backward(device->workspace_bytes(shapes, Pass::backward));
    call.workspace = forward.data();
    if (labels.empty()) device->forward(call);  // the loss's backward computes the loss too
    call.output_gradients = views[3], call.input_gradients = views[4], call.parameter_gradients = views[5];
    call.workspace = backward.data();
    device->backward(call);
    EXPECT_TRUE(forward.guarded() && backward.guarded());
    for (const auto* tensors : {&outputs, &input_gradients, &parameter_gradients})
      for (const Tensor& t : *tensors) EXPECT_TRUE(t.guarded());
  }
};

void expect_same_bits(const OpRun& a, const OpRun& b, const std::string& what) {
  for (size_t i = 0; i < a.outputs.size(); ++i)
    EXPECT_EQ(a.outputs[i], b.outputs[i]) << what << ", output " << i;
  for (size_t i = 0; i < a.input_gradients.size(); ++i)
    EXPECT_EQ(a.input_gradients[i], b.input_gradients[i]) << what << ", gradient of input " << i;
  for (size_t i = 0; i < a.parameter_gradients.size(); ++i)
    EXPECT_EQ(a.parameter_gradients[i], b.parameter_gradients[i]) << what << ", gradient of parameter " << i;
  EXPECT_EQ(a.loss, b.loss) << what;
}

OpRun linear_run(DType t, int64_t rows, int64_t in, int64_t out, bool out_in) {
  OpRun r;
  const Shape weight = out_in ? Shape{out, in} : Shape{in, out};
  r.shapes = {OpKind::linear, {}, t, {{rows, in}}, {{rows, out}}, {weight, {out}}};
  r.shapes.attributes.weight_out_in = out_in;
  r.inputs = {Tensor::random(t, rows * in, 1)};
  r.parameters = {Tensor::random(t, in * out, 2), Tensor::random(t, out, 3)};
  r.outputs = {Tensor(t, rows * out)};
  r.output_gradients = {Tensor::random(t, rows * out, 4)};
  r.input_gradients = {Tensor::random(t, rows * in, 5)};
  r.parameter_gradients = {Tensor::random(DType::f32, in * out, 6), Tensor::random(DType::f32, out, 7)};
  return r;
}

TEST(Linear, BothWeightLayoutsAgreeWithColumnSumsInOrder) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const int64_t rows = 150, in = 70, out = 260;
    OpRun r = linear_run(t, rows, in, out, false);
    r.run(2);
    // The bias gradient is the plain double sum added to what was there.
    const std::vector<float> dy = r.output_gradients[0].values(), db = r.parameter_gradients[1].values();
    const std::vector<float> before = Tensor::random(DType::f32, out, 7).values();
    for (int64_t j = 0; j < out; ++j) {
      double sum = before[static_cast<size_t>(j)];
      for (int64_t i = 0; i < rows; ++i) sum += dy[static_cast<size_t>(i * out + j)];
      EXPECT_NEAR(db[static_cast<size_t>(j)], sum, 4e-6 * rows);
    }
    // The other layout computes the same with a transposed weight.
    OpRun o = linear_run(t, rows, in, out, true);
    const std::vector<float> w = r.parameters[0].values();
    for (int64_t i = 0; i < in; ++i)
      for (int64_t j = 0; j < out; ++j)
        o.parameters[0].set(static_cast<size_t>(j * in + i), w[static_cast<size_t>(i * out + j)]);
    o.run(1);
    const auto compare = [&](const Tensor& a, const Tensor& b, double magnitude) {
      const std::vector<float> x = a.values(), y = b.values();
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_NEAR(x[i], y[i], 4e-6 * magnitude + 2 * rounding(t) * std::fabs(y[i]));
    };
    compare(r.outputs[0], o.outputs[0], static_cast<double>(in));
    compare(r.input_gradients[0], o.input_gradients[0], static_cast<double>(out));
  }
}

TEST(Linear, BitsDoNotDependOnThreads) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    OpRun one = linear_run(t, 300, 200, 500, false), three = one;
    one.run(1);
    three.run(3);
    expect_same_bits(one, three, dtype_name(t));
  }
}

// ---- attention ----

struct AttentionCase {
  int64_t sequences, length, heads, kv_heads, size;
  bool packed;
};

OpRun attention_run(DType t, const AttentionCase& c) {
  OpRun r;
  const int64_t rows = c.sequences * c.length, q = c.heads * c.size, kv = c.kv_heads * c.size;
  const std::vector<int64_t> columns =
      c.packed ? std::vector<int64_t>{q + 2 * kv} : std::vector<int64_t>{q, kv, kv};
  r.shapes = {OpKind::attention, {}, t, {}, {{rows, q}, {c.sequences, c.heads, c.length}}, {}};
  r.shapes.attributes.sequence = c.length;
  r.shapes.attributes.heads = c.heads, r.shapes.attributes.kv_heads = c.kv_heads,
  r.shapes.attributes.head_size = c.size;
  for (const int64_t n : columns) {
    r.shapes.inputs.push_back({rows, n});
    r.inputs.push_back(Tensor::random(t, rows * n, 10 + r.inputs.size(), 2));
    r.input_gradients.push_back(Tensor::random(t, rows * n, 20 + r.inputs.size()));
  }
  r.outputs = {Tensor(t, rows * q), Tensor(DType::f32, c.sequences * c.heads * c.length)};
  r.output_gradients = {Tensor::random(t, rows * q, 30)};
  return r;
}

// Columns of head `head` of q (part 0), k (1) or v (2): {tensor, first column, stride}.
struct HeadColumns {
  size_t tensor;
  int64_t first, stride;
};
HeadColumns columns_of(const AttentionCase& c, int part, int64_t head) {
  const int64_t q = c.heads * c.size, kv = c.kv_heads * c.size;
  if (!c.packed) return {static_cast<size_t>(part), head * c.size, part == 0 ? q : kv};
  return {0, (part == 0 ? 0 : part == 1 ? q : q + kv) + head * c.size, q + 2 * kv};
}

// Plain attention in double, of every head, forward and backward.
struct PlainAttention {
  std::vector<double> o, lse;
  std::vector<std::vector<double>> gradients;  // by input

  PlainAttention(const AttentionCase& c, const OpRun& r) {
    std::vector<std::vector<float>> in;
    for (const Tensor& t : r.inputs) in.push_back(t.values());
    for (const std::vector<float>& x : in) gradients.emplace_back(x.size(), 0.0);
    const std::vector<float> d_o = r.output_gradients[0].values();
    const int64_t T = c.length, D = c.size, stride_o = c.heads * D;
    o.resize(d_o.size());
    lse.resize(static_cast<size_t>(c.sequences * c.heads * T));
    const double scale = 1 / std::sqrt(static_cast<double>(D));
    for (int64_t pair = 0; pair < c.sequences * c.heads; ++pair) {
      const int64_t s = pair / c.heads, h = pair % c.heads, kv = h / (c.heads / c.kv_heads);
      const HeadColumns cq = columns_of(c, 0, h), ck = columns_of(c, 1, kv), cv = columns_of(c, 2, kv);
      const auto at = [&](const HeadColumns& x, int64_t row, int64_t d) {
        return static_cast<size_t>((s * T + row) * x.stride + x.first + d);
      };
      for (int64_t i = 0; i < T; ++i) {
        std::vector<double> p(static_cast<size_t>(i + 1)), dp(p.size());
        double largest = -1e300, sum = 0, delta = 0;
        for (int64_t j = 0; j <= i; ++j) {
          double score = 0;
          for (int64_t d = 0; d < D; ++d)
            score += static_cast<double>(in[cq.tensor][at(cq, i, d)]) * in[ck.tensor][at(ck, j, d)];
          p[static_cast<size_t>(j)] = score * scale;
          largest = std::max(largest, score * scale);
        }
        for (double& x : p) sum += x = std::exp(x - largest);
        lse[static_cast<size_t>(pair * T + i)] = largest + std::log(sum);
        const size_t row_o = static_cast<size_t>((s * T + i) * stride_o + h * D);
        for (int64_t j = 0; j <= i; ++j) {
          const auto uj = static_cast<size_t>(j);
          p[uj] /= sum;
          for (int64_t d = 0; d < D; ++d) {
            const double v = in[cv.tensor][at(cv, j, d)], g = d_o[row_o + static_cast<size_t>(d)];
            o[row_o + static_cast<size_t>(d)] += p[uj] * v;
            dp[uj] += g * v;
            gradients[cv.tensor][at(cv, j, d)] += p[uj] * g;
          }
          delta += p[uj] * dp[uj];
        }
        for (int64_t j = 0; j <= i; ++j) {
          const double ds = p[static_cast<size_t>(j)] * (dp[static_cast<size_t>(j)] - delta) * scale;
          for (int64_t d = 0; d < D; ++d) {
            gradients[cq.tensor][at(cq, i, d)] += ds * in[ck.tensor][at(ck, j, d)];
            gradients[ck.tensor][at(ck, j, d)] += ds * in[cq.tensor][at(cq, i, d)];
          }
        }
      }
    }
  }
};

void expect_near(const Tensor& got, const std::vector<double>& want, double step, const std::string& what) {
  const std::vector<float> values = got.values();
  ASSERT_EQ(values.size(), want.size());
  double largest = 0;
  for (const double x : want) largest = std::max(largest, std::fabs(x));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(values[i], want[i], 2e-5 * largest + step * std::fabs(want[i])) << what << " at " << i;
}

// Lengths beyond one block of queries (64), most of them beyond one of keys (256). In backward, a pair of
// sequence and key/value head is a task in the first two cases. The other cases have too few pairs for that.
const AttentionCase kAttentionCases[] = {
    {4, 70, 4, 2, 16, true}, {4, 300, 2, 2, 8, false}, {1, 330, 2, 1, 8, true}, {1, 600, 3, 3, 5, false}};

// In 16 bits, delta is computed from the rounded o. That adds about one rounding of the largest gradient to
// the error of the result.
TEST(Attention, MatchesPlainLoopsBeyondOneBlock) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const AttentionCase& c : kAttentionCases) {
      const std::string what = std::string(dtype_name(t)) + " T " + std::to_string(c.length);
      OpRun r = attention_run(t, c);
      r.run(2);
      const PlainAttention plain(c, r);
      expect_near(r.outputs[0], plain.o, rounding(t), what + " o");
      expect_near(r.outputs[1], plain.lse, 0, what + " lse");
      for (size_t i = 0; i < r.inputs.size(); ++i) {
        double largest = 0;
        for (const double x : plain.gradients[i]) largest = std::max(largest, std::fabs(x));
        const std::vector<float> got = r.input_gradients[i].values();
        for (size_t j = 0; j < got.size(); ++j)
          ASSERT_NEAR(got[j], plain.gradients[i][j], (2e-5 + 2 * rounding(t)) * largest)
              << what << " gradient " << i;
      }
    }
}

TEST(Attention, BitsDoNotDependOnThreads) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const AttentionCase& c : kAttentionCases) {
      OpRun one = attention_run(t, c);
      one.accumulate = true;
      OpRun three = one;
      one.run(1);
      three.run(3);
      expect_same_bits(one, three, dtype_name(t));
    }
}

TEST(Attention, NonFiniteInputsReachTheOutputAndTheGradients) {
  const AttentionCase c{1, 300, 1, 1, 8, false};
  OpRun r = attention_run(DType::f32, c);
  r.inputs[1].set(270 * 8, std::numeric_limits<float>::quiet_NaN());  // a key that queries 270 to 299 see
  r.run(1);
  const std::vector<float> o = r.outputs[0].values(), dq = r.input_gradients[0].values();
  EXPECT_TRUE(std::isfinite(o[255 * 8]) && std::isfinite(dq[255 * 8]));  // queries of the block before
  EXPECT_TRUE(std::isnan(o[270 * 8]) && std::isnan(o[299 * 8 + 7]) && std::isnan(dq[270 * 8]));
}

// ---- loss ----

OpRun loss_run(DType t, int64_t rows, int64_t columns, int64_t vocabulary, int64_t first_row = 0) {
  OpRun r;
  r.shapes = {OpKind::linear_cross_entropy, {}, t, {{rows, columns}, {rows}}, {{1}}, {{vocabulary, columns}}};
  std::vector<float> x(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < x.size(); ++i) x[i] = number(1, static_cast<uint64_t>(first_row * columns) + i);
  r.inputs = {Tensor(t, rows * columns)};
  round_to(t, x.data(), r.inputs[0].data(), x.size());
  for (int64_t i = first_row; i < first_row + rows; ++i)
    r.labels.push_back(i % 5 == 3 ? kIgnoreLabel : static_cast<int32_t>(i * 7919 % vocabulary));
  r.parameters = {Tensor::random(t, vocabulary * columns, 2, 3)};
  r.input_gradients = {Tensor(t, rows * columns)};
  r.parameter_gradients = {Tensor::filled(DType::f32, vocabulary * columns, 0)};
  r.seed = 0.25f;
  return r;
}

TEST(Loss, MatchesPlainLoops) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const int64_t R = 37, C = 19, V = 517;
    OpRun r = loss_run(t, R, C, V);
    r.run(2);
    const std::vector<float> x = r.inputs[0].values(), w = r.parameters[0].values();
    std::vector<double> dx(x.size()), dw(w.size());
    double loss = 0;
    for (int64_t i = 0; i < R; ++i) {
      const int32_t label = r.labels[static_cast<size_t>(i)];
      if (label == kIgnoreLabel) continue;
      std::vector<double> logits(V);
      double sum = 0;
      for (int64_t v = 0; v < V; ++v) {
        for (int64_t c = 0; c < C; ++c)
          logits[static_cast<size_t>(v)] +=
              static_cast<double>(x[static_cast<size_t>(i * C + c)]) * w[static_cast<size_t>(v * C + c)];
        sum += std::exp(logits[static_cast<size_t>(v)]);
      }
      loss += std::log(sum) - logits[static_cast<size_t>(label)];
      for (int64_t v = 0; v < V; ++v) {
        const double g = 0.25 * (std::exp(logits[static_cast<size_t>(v)]) / sum - (v == label ? 1 : 0));
        for (int64_t c = 0; c < C; ++c) {
          dx[static_cast<size_t>(i * C + c)] += g * w[static_cast<size_t>(v * C + c)];
          dw[static_cast<size_t>(v * C + c)] += g * x[static_cast<size_t>(i * C + c)];
        }
      }
    }
    EXPECT_NEAR(r.loss, loss, 1e-6 * loss);
    // dlogits and dx are rounded: two roundings of terms that are no larger than the largest sum.
    const auto check = [&](const Tensor& got, const std::vector<double>& want) {
      double largest = 0;
      for (const double g : want) largest = std::max(largest, std::fabs(g));
      const std::vector<float> values = got.values();
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(values[i], want[i], (1e-5 + 2 * rounding(t)) * largest) << i;
    };
    check(r.input_gradients[0], dx);
    check(r.parameter_gradients[0], dw);
    for (int64_t c = 0; c < C; ++c)
      EXPECT_EQ(r.input_gradients[0].values()[static_cast<size_t>(3 * C + c)], 0.0f);
  }
}

// 32 rows at a time make of 40 rows a chunk of 32 and a chunk of 8: the same bits as two calls.
TEST(Loss, ChunksAreSeparateCalls) {
  const int64_t V = 1001;
  OpRun whole = loss_run(DType::bf16, 40, 4, V), first = loss_run(DType::bf16, 32, 4, V);
  whole.shapes.attributes.loss_rows = 32;
  whole.run(2);
  first.run(2);
  OpRun second = loss_run(DType::bf16, 8, 4, V, 32);
  second.loss = first.loss;
  second.parameter_gradients = first.parameter_gradients;
  second.run(1);
  EXPECT_EQ(whole.loss, second.loss);
  EXPECT_EQ(whole.parameter_gradients[0], second.parameter_gradients[0]);
  const std::vector<float> dx = whole.input_gradients[0].values();
  std::vector<float> parts = first.input_gradients[0].values();
  for (const float g : second.input_gradients[0].values()) parts.push_back(g);
  EXPECT_EQ(dx, parts);
}

TEST(Loss, BitsDoNotDependOnThreads) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    OpRun one = loss_run(t, 70, 40, 1003), three = one;
    one.run(1);
    three.run(3);
    expect_same_bits(one, three, dtype_name(t));
  }
}

TEST(Loss, IsNotFiniteWhenALogitIsNot) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      OpRun r = loss_run(t, 6, 20, 100);
      r.inputs[0].set(2 * 20 + 5, bad);
      r.run(1);
      EXPECT_FALSE(std::isfinite(r.loss));
      EXPECT_TRUE(std::isnan(r.input_gradients[0].values()[2 * 20]));
      EXPECT_TRUE(std::isfinite(r.input_gradients[0].values()[0]));
    }
}

}  // namespace
}  // namespace sluice
