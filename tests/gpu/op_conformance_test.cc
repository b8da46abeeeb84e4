// The cpu device against the reference device, and the reference device's backward against finite
// differences.
#include "tests/support/op_conformance.h"

namespace sluice {
namespace {

std::vector<DeviceEntry> devices_to_judge() {
  return {{"cpu", [](int threads) { return make_cpu_device(threads); }}};
}
bool judged(const OpCase&) { return true; }
std::string skip_reason() { return ""; }

TEST(OpCases, AreOfEveryKind) {
  std::vector<OpCase> cases = op_cases();
  for (const OpCase& c : cases) EXPECT_TRUE(op_rule(c.kind).has_backward()) << c.name;
  for (const OpCase& c : forward_cases())
    if (!op_rule(c.kind).has_backward()) cases.push_back(c);
  for (const OpKind kind : kAllOps)
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const OpCase& c) { return c.kind == kind; }))
        << "op_cases() or forward_cases() in tests/support/op_cases.h has no case of " << op_rule(kind).name;
}

// How much the objective changes when outputs change: the dot product of the change with the outputs'
// gradients, or seed * loss.
double objective_change(const Operands& operands, const std::vector<Result>& before,
                        const std::vector<Result>& after) {
  if (operands.output_types[0] == DType::f64) return kSeed * (after[0].values[0] - before[0].values[0]);
  const auto weights =
      read_values(operands.output_gradients[0].data(), DType::f32, element_count(operands.shapes.outputs[0]));
  double change = 0;
  for (size_t i = 0; i < weights.size(); ++i)
    if (!std::isnan(weights[i])) change += weights[i] * (after[0].values[i] - before[0].values[i]);
  return change;
}

// Whether both results choose the same experts. Between different choices, results have no slope.
bool is_same_choice(const std::vector<Result>& before, const std::vector<Result>& after) {
  for (size_t k = 0; k < before.size(); ++k)
    if (before[k].type == DType::i32 && before[k].values != after[k].values) return false;
  return true;
}

// Whether the rule gives the element no gradient: it lies behind an expert's rows, or is a number of choices.
bool is_without_gradient(const Operands& operands, float value, size_t element) {
  if (std::isnan(value)) return true;
  return operands.shapes.kind == OpKind::router_loss &&
         element > static_cast<size_t>(operands.shapes.attributes.routing.experts);
}

// Compares `gradient` with central differences at about 12 elements of `tensor`. With a step of 2^-7,
// truncation (2^-14 / 6 of the third derivative) and rounding of fp32 outputs (2^-24 * 2^7 an element) err by
// about 1e-5 each. The tolerance is 1e-3 of the largest gradient; a wrong term or factor is off by far more.
// Elements whose step changes a choice are skipped. Returns how many were compared.
int expect_slopes(Device& device, Operands& operands, Guarded& tensor, const Result& gradient) {
  int compared = 0;
  const double largest = largest_magnitude(gradient.values);
  const size_t stride = std::max<size_t>(1, gradient.values.size() / 11);
  for (size_t i = 0; i < gradient.values.size(); i += stride) {
    auto* values = static_cast<float*>(tensor.data());
    const float value = values[i];
    if (is_without_gradient(operands, value, i)) continue;
    values[i] = value + 0x1p-7f;
    const double above = values[i];
    operands.freeze();
    const auto after = results_of(operands, run_forward(device, operands));
    values[i] = value - 0x1p-7f;
    const double below = values[i];
    operands.freeze();
    const auto before = results_of(operands, run_forward(device, operands));
    values[i] = value;
    if (!is_same_choice(before, after)) continue;
    const double slope = objective_change(operands, before, after) / (above - below);
    EXPECT_NEAR(slope, gradient.values[i], 1e-3 * largest + 1e-4) << gradient.name << " at " << i;
    ++compared;
  }
  return compared;
}

TEST_P(SmallOpConformance, ReferenceMatchesFiniteDifferences) {
  const OpCase& c = GetParam();
  Operands operands(c, DType::f32);
  const auto device = make_reference_device();
  std::vector<Guarded> saved = run_forward(*device, operands);
  for (const Result& gradient :
       run_backward(*device, operands, saved, {.addend = Addend::in_place, .from_zero = true})) {
    if (gradient.name == "loss") continue;
    const size_t index = static_cast<size_t>(gradient.name.back() - '0');
    const bool of_input = gradient.name.find("input") != std::string::npos;
    const int compared = expect_slopes(
        *device, operands, of_input ? operands.inputs[index] : operands.parameters[index], gradient);
    const bool has_rows = c.crowd != OpCase::Crowd::none || !of_input || !operands.is_of_expert(index);
    const bool none_has_a_slope = c.name == "route_equal_logits" || !has_rows;
    EXPECT_EQ(compared == 0, none_has_a_slope) << gradient.name;
  }
}

}  // namespace
}  // namespace sluice
