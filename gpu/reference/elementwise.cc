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
    const Values<T> gate(call.inputs[0]), up(call.inputs[1]), y(call.outputs[0]);
    y.put(i, silu(gate[i]) * up[i]);
  });
}

void swiglu_backward(const OpCall& call) {
  for_each_element(call, [&]<typename T>(T, int64_t i) {
    const Values<T> gate(call.inputs[0]), up(call.inputs[1]), dy(call.output_gradients[0]);
    const Values<T> d_gate(call.input_gradients[0]), d_up(call.input_gradients[1]);
    const double g = gate[i], u = up[i], d = dy[i];
    d_gate.put(i, d * u * silu_derivative(g));
    d_up.put(i, d * silu(g));
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
