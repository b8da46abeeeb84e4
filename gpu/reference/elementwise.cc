#include <cmath>
#include <numbers>

#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice::reference {
namespace {

const double kGeluScale = std::sqrt(2 / std::numbers::pi);
constexpr double kGeluCubic = 0.044715;

double gelu(double x) { return 0.5 * x * (1 + std::tanh(kGeluScale * (x + kGeluCubic * x * x * x))); }

double gelu_derivative(double x) {
  const double t = std::tanh(kGeluScale * (x + kGeluCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGeluScale * (1 + 3 * kGeluCubic * x * x);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double silu_derivative(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

// Calls f(type, i) for every element of output 0, type being a value of the working precision.
template <typename F>
void for_each_element(const OpCall& call, F f) {
  const int64_t count = element_count(call.shapes->outputs[0]);
  with_precision(call.shapes->precision, [&](auto type) {
    for (int64_t i = 0; i < count; ++i) f(type, i);
  });
}

// Where swiglu's operands have the gate and the other factor of element i of the output: each in an input of
// its own, or the two as halves of a packed row.
struct Gated {
  explicit Gated(const OpCall& call)
      : columns(call.shapes->outputs[0][1]), packed(call.shapes->inputs.size() == 1) {}
  size_t up_input() const { return packed ? 0 : 1; }
  int64_t gate(int64_t i) const { return packed ? i + i / columns * columns : i; }
  int64_t up(int64_t i) const { return gate(i) + (packed ? columns : 0); }

  int64_t columns;
  bool packed;
};

}  // namespace

void gelu_forward(const OpCall& call) {
  for_each_element(call, [&]<typename T>(T, int64_t i) {
    const Values<T> x(call.inputs[0]), y(call.outputs[0]);
    y.put(i, gelu(x[i]));
  });
}

void gelu_backward(const OpCall& call) {
  for_each_element(call, [&]<typename T>(T, int64_t i) {
    const Values<T> x(call.inputs[0]), dy(call.output_gradients[0]), dx(call.input_gradients[0]);
    dx.put(i, dy[i] * gelu_derivative(x[i]));
  });
}

void swiglu_forward(const OpCall& call) {
  for_each_element(call, [&]<typename T>(T, int64_t i) {
    const Gated at(call);
    const Values<T> gate(call.inputs[0]), up(call.inputs[at.up_input()]), y(call.outputs[0]);
    const double g = gate[at.gate(i)];
    y.put(i, (call.shapes->attributes.gelu_gate ? gelu(g) : silu(g)) * up[at.up(i)]);
  });
}

void swiglu_backward(const OpCall& call) {
  for_each_element(call, [&]<typename T>(T, int64_t i) {
    const Gated at(call);
    const Values<T> gate(call.inputs[0]), up(call.inputs[at.up_input()]), dy(call.output_gradients[0]);
    const Values<T> d_gate(call.input_gradients[0]), d_up(call.input_gradients[at.up_input()]);
    const double g = gate[at.gate(i)], u = up[at.up(i)], d = dy[i];
    const bool is_gelu = call.shapes->attributes.gelu_gate;
    d_gate.put(at.gate(i), d * u * (is_gelu ? gelu_derivative(g) : silu_derivative(g)));
    d_up.put(at.up(i), d * (is_gelu ? gelu(g) : silu(g)));
  });
}

void add_forward(const OpCall& call) {
  for_each_element(call, [&]<typename T>(T, int64_t i) {
    const Values<T> a(call.inputs[0]), b(call.inputs[1]), y(call.outputs[0]);
    y.put(i, a[i] + b[i]);
  });
}

void add_backward(const OpCall& call) {
  for_each_element(call, [&]<typename T>(T, int64_t i) {
    const Values<T> dy(call.output_gradients[0]), da(call.input_gradients[0]), db(call.input_gradients[1]);
    const double d = dy[i];
    da.put(i, d);
    db.put(i, d);
  });
}

}  // namespace sluice::reference
