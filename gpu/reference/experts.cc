// The ops of one expert, on the rows that routing gives to it (engine/graph/routing.h).
#include <cmath>

#include "engine/graph/routing.h"
#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice::reference {
namespace {

// The expert's rows.
struct Rows {
  explicit Rows(const OpCall& call) : layout(routing_layout(*call.shapes)) {
    const auto* routing = static_cast<const int32_t*>(call.inputs[0].data);
    entries = routing + layout.entries() + routing[call.expert];
    count = routing[call.expert + 1] - routing[call.expert];
  }
  int64_t choice(int64_t i) const { return entries[i]; }
  int64_t row(int64_t i) const { return entries[i] / layout.chosen; }
  int64_t with_zeros() const { return expert_rows_most(count); }

  RoutingLayout layout;
  const int32_t* entries;
  int64_t count;
};

// Sets all elements to their addends, or to 0. Elements that are not the expert's keep these values.
template <typename T>
void put_nothing(const Values<T>& to, int64_t elements) {
  if (to.addend == to.data) return;
  for (int64_t i = 0; i < elements; ++i) to.put(i, 0);
}
// Returns a view of a gradient after put_nothing(). The view's put() adds to the elements.
template <typename T>
Values<T> in_place(const Values<T>& to) {
  return Values<T>({to.data, to.data});
}

template <typename T>
void put_zeros(const Values<T>& to, const Rows& rows, int64_t columns) {
  for (int64_t i = rows.count * columns; i < rows.with_zeros() * columns; ++i) to.put(i, 0);
}

// The row's weight, or 1 where weights do not count.
double weight_of(const OpCall& call, const Rows& rows, int64_t i) {
  if (!call.shapes->attributes.routing.weighted) return 1;
  return static_cast<const float*>(call.inputs.back().data)[rows.choice(i)];
}

// The gradient of all rows' weights. The op adds to the elements of the expert's rows. Has no data where the
// gradient is not wanted.
Values<float> weight_gradient(const OpCall& call, const Rows& rows) {
  if (!call.shapes->attributes.routing.weighted) return Values<float>({});
  const Values<float> gradient(call.input_gradients.back());
  if (!gradient) return gradient;
  put_nothing(gradient, rows.layout.choices());
  return in_place(gradient);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double gelu(double x, double* derivative) {
  const double scale = std::sqrt(2 / M_PI), cubic = 0.044715;
  const double t = std::tanh(scale * (x + cubic * x * x * x));
  *derivative = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * cubic * x * x);
  return 0.5 * x * (1 + t);
}

// The activation's value for a gate and the other factor, and its derivative with respect to each of the two.
struct Gate {
  Gate(const OpAttributes& a, double gate, double up) {
    const double limit = a.swiglu_limit;
    if (limit > 0) {
      const double g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
      const double s = sigmoid(a.swiglu_alpha * g);
      value = (u + 1) * g * s;
      by_gate = gate > limit ? 0 : (u + 1) * (s + a.swiglu_alpha * g * s * (1 - s));
      by_up = std::fabs(up) > limit ? 0 : g * s;
      return;
    }
    by_gate = sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)));
    by_up = a.gelu_gate ? gelu(gate, &by_gate) : gate * sigmoid(gate);
    by_gate *= up;
    value = by_up * up;
  }

  double value, by_gate, by_up;
};

// Where expert_swiglu's operands have the gate and the other factor of an element.
struct Gated {
  explicit Gated(const OpCall& call)
      : columns(call.shapes->outputs[0][1]),
        packed(call.shapes->inputs[1][1] != columns),
        ungated(call.shapes->attributes.ungated) {}
  size_t up_input() const { return packed ? 1 : 2; }
  int64_t gate(int64_t row, int64_t c) const { return row * (packed ? 2 : 1) * columns + c; }
  int64_t up(int64_t row, int64_t c) const { return gate(row, c) + (packed ? columns : 0); }

  int64_t columns;
  bool packed, ungated;  // ungated: there is no other factor
};

}  // namespace

void dispatch_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Rows rows(call);
    const Values<T> x(call.inputs[1]), y(call.outputs[0]);
    const int64_t columns = call.shapes->inputs[1][1];
    for (int64_t i = 0; i < rows.count; ++i)
      for (int64_t c = 0; c < columns; ++c) y.put(i * columns + c, x[rows.row(i) * columns + c]);
    put_zeros(y, rows, columns);
  });
}

void dispatch_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Rows rows(call);
    const Values<T> dy(call.output_gradients[0]), dx(call.input_gradients[1]);
    if (!dx) return;
    const int64_t columns = call.shapes->inputs[1][1];
    put_nothing(dx, rows.layout.rows * columns);
    for (int64_t i = 0; i < rows.count; ++i)
      for (int64_t c = 0; c < columns; ++c) in_place(dx).put(rows.row(i) * columns + c, dy[i * columns + c]);
  });
}

void expert_linear_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Rows rows(call);
    const OpAttributes& a = call.shapes->attributes;
    const Values<T> x(call.inputs[1]), weight(call.parameters[0]), bias(view_of(call.parameters, 1));
    const Values<T> y(call.outputs[0]);
    const int64_t in = call.shapes->inputs[1][1], out = call.shapes->outputs[0][1];
    for (int64_t i = 0; i < rows.count; ++i)
      for (int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (int64_t k = 0; k < in; ++k)
          sum += x[i * in + k] * weight[a.weight_out_in ? o * in + k : k * out + o];
        y.put(i * out + o, a.factor() * sum + (bias ? weight_of(call, rows, i) * bias[o] : 0));
      }
    put_zeros(y, rows, out);
  });
}

void expert_linear_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Rows rows(call);
    const OpAttributes& a = call.shapes->attributes;
    const Values<T> x(call.inputs[1]), weight(call.parameters[0]), bias(view_of(call.parameters, 1));
    const Values<T> dy(call.output_gradients[0]), dx(call.input_gradients[1]);
    const Values<float> d_weight = parameter_gradient(call, 0);
    const int64_t in = call.shapes->inputs[1][1], out = call.shapes->outputs[0][1];
    const auto at = [&](int64_t k, int64_t o) { return a.weight_out_in ? o * in + k : k * out + o; };
    for (int64_t i = 0; dx && i < rows.count; ++i)
      for (int64_t k = 0; k < in; ++k) {
        double sum = 0;
        for (int64_t o = 0; o < out; ++o) sum += dy[i * out + o] * weight[at(k, o)];
        dx.put(i * in + k, a.factor() * sum);
      }
    if (dx) put_zeros(dx, rows, in);
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t k = 0; d_weight && k < in; ++k) {
        double sum = 0;
        for (int64_t i = 0; i < rows.count; ++i) sum += dy[i * out + o] * x[i * in + k];
        d_weight.put(at(k, o), a.factor() * sum);
      }
      if (!bias) continue;
      double sum = 0;
      for (int64_t i = 0; i < rows.count; ++i) sum += weight_of(call, rows, i) * dy[i * out + o];
      parameter_gradient(call, 1).put(o, sum);
    }
    const Values<float> d_weights = weight_gradient(call, rows);
    for (int64_t i = 0; d_weights && i < rows.count; ++i) {
      double sum = 0;
      for (int64_t o = 0; o < out; ++o) sum += dy[i * out + o] * bias[o];
      d_weights.put(rows.choice(i), sum);
    }
  });
}

void expert_swiglu_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Rows rows(call);
    const Gated at(call);
    const Values<T> gate(call.inputs[1]), up(view_of(call.inputs, at.up_input())), y(call.outputs[0]);
    for (int64_t i = 0; i < rows.count; ++i)
      for (int64_t c = 0; c < at.columns; ++c) {
        const Gate g(call.shapes->attributes, gate[at.gate(i, c)], at.ungated ? 1 : up[at.up(i, c)]);
        y.put(i * at.columns + c, weight_of(call, rows, i) * g.value);
      }
    put_zeros(y, rows, at.columns);
  });
}

void expert_swiglu_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Rows rows(call);
    const Gated at(call);
    const Values<T> gate(call.inputs[1]), up(view_of(call.inputs, at.up_input()));
    const Values<T> dy(call.output_gradients[0]), d_gate(call.input_gradients[1]);
    const Values<T> d_up(at.ungated ? TensorView{} : call.input_gradients[at.up_input()]);
    const Values<float> d_weights = weight_gradient(call, rows);
    for (int64_t i = 0; i < rows.count; ++i) {
      const double weight = weight_of(call, rows, i);
      double sum = 0;
      for (int64_t c = 0; c < at.columns; ++c) {
        const Gate g(call.shapes->attributes, gate[at.gate(i, c)], at.ungated ? 1 : up[at.up(i, c)]);
        const double d = dy[i * at.columns + c];
        sum += d * g.value;
        d_gate.put(at.gate(i, c), weight * d * g.by_gate);
        d_up.put(at.up(i, c), weight * d * g.by_up);
      }
      d_weights.put(rows.choice(i), sum);
    }
    const int64_t width = call.shapes->inputs[1][1];
    put_zeros(d_gate, rows, width);
    if (!at.packed) put_zeros(d_up, rows, width);
  });
}

void combine_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Rows rows(call);
    const Values<T> x(call.inputs[1]);
    const Values<float> sum({call.outputs[0].data, call.outputs[0].data});
    const int64_t columns = call.shapes->inputs[1][1];
    for (int64_t i = 0; i < rows.count; ++i)
      for (int64_t c = 0; c < columns; ++c) sum.put(rows.row(i) * columns + c, x[i * columns + c]);
  });
}

void combine_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Rows rows(call);
    const Values<float> d_sum(call.output_gradients[0]);
    const Values<T> dx(call.input_gradients[1]);
    const int64_t columns = call.shapes->inputs[1][1];
    for (int64_t i = 0; i < rows.count; ++i)
      for (int64_t c = 0; c < columns; ++c) dx.put(i * columns + c, d_sum[rows.row(i) * columns + c]);
    put_zeros(dx, rows, columns);
  });
}

void add_sum_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Values<T> x(call.inputs[0]), y(call.outputs[0]);
    const Values<float> sum(call.inputs[1]);
    for (int64_t i = 0; i < element_count(call.shapes->outputs[0]); ++i) y.put(i, x[i] + sum[i]);
  });
}

void add_sum_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Values<T> dy(call.output_gradients[0]), dx(call.input_gradients[0]);
    const Values<float> d_sum(call.input_gradients[1]);
    for (int64_t i = 0; i < element_count(call.shapes->outputs[0]); ++i)
      dx.put(i, dy[i]), d_sum.put(i, dy[i]);
  });
}

void repeat_forward(const OpCall& call) {
  const Values<float> x(call.inputs[0]), y(call.outputs[0]);
  const int64_t elements = element_count(call.shapes->inputs[0]);
  for (int64_t i = 0; i < element_count(call.shapes->outputs[0]); ++i) y.put(i, x[i % elements]);
}

void repeat_backward(const OpCall& call) {
  const Values<float> dy(call.output_gradients[0]), dx(call.input_gradients[0]);
  const int64_t elements = element_count(call.shapes->inputs[0]);
  for (int64_t i = 0; i < elements; ++i) {
    double sum = 0;
    for (int64_t k = i; k < element_count(call.shapes->outputs[0]); k += elements) sum += dy[k];
    dx.put(i, sum);
  }
}

namespace {

// The softmax of a row's two shares.
struct Shares {
  Shares(const OpCall& call, int64_t row) {
    const auto* shares = static_cast<const float*>(call.inputs[3].data) + 2 * row;
    of_sum = sigmoid(static_cast<double>(shares[0]) - shares[1]);
    of_z = sigmoid(static_cast<double>(shares[1]) - shares[0]);
  }
  double of_sum, of_z;
};

}  // namespace

void add_shared_sum_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Values<T> x(call.inputs[0]), z(call.inputs[1]), y(call.outputs[0]);
    const Values<float> sum(call.inputs[2]);
    const int64_t columns = call.shapes->inputs[0][1];
    for (int64_t r = 0; r < call.shapes->inputs[0][0]; ++r) {
      const Shares shares(call, r);
      for (int64_t i = r * columns; i < (r + 1) * columns; ++i)
        y.put(i, x[i] + shares.of_sum * sum[i] + shares.of_z * z[i]);
    }
  });
}

// The gradient of share 0 is s0 s1 (dy sum - dy z). The gradient of share 1 is its negative.
void add_shared_sum_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Values<T> z(call.inputs[1]), dy(call.output_gradients[0]);
    const Values<T> dx(call.input_gradients[0]), dz(call.input_gradients[1]);
    const Values<float> sum(call.inputs[2]), d_sum(call.input_gradients[2]),
        d_shares(call.input_gradients[3]);
    const int64_t columns = call.shapes->inputs[0][1];
    for (int64_t r = 0; r < call.shapes->inputs[0][0]; ++r) {
      const Shares shares(call, r);
      double difference = 0;
      for (int64_t i = r * columns; i < (r + 1) * columns; ++i) {
        difference += dy[i] * (sum[i] - z[i]);
        dx.put(i, dy[i]);
        dz.put(i, shares.of_z * dy[i]);
        d_sum.put(i, shares.of_sum * dy[i]);
      }
      d_shares.put(2 * r, shares.of_sum * shares.of_z * difference);
      d_shares.put(2 * r + 1, -shares.of_sum * shares.of_z * difference);
    }
  });
}

}  // namespace sluice::reference
