// attention with window, soft cap, scale, documents and sinks at once, against what PyTorch computes in
// float64 (tests/fixtures/attention.json): the one oracle that shares no code with the devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/file.h"
#include "tests/support/fixtures.h"
#include "tests/support/op_numbers.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

Numbers concatenated_columns(const std::vector<Numbers>& parts, int64_t rows) {
  Numbers out;
  for (int64_t row = 0; row < rows; ++row)
    for (const Numbers& part : parts) {
      const auto columns = static_cast<int64_t>(part.size()) / rows;
      out.insert(out.end(), part.begin() + row * columns, part.begin() + (row + 1) * columns);
    }
  return out;
}

// Inputs are exact in fp32, and gradients and outputs have the size of one. The reference device rounds
// results to fp32 once, and lse before its backward reads it: 2^-24 each. The cpu device sums in fp32.
void expect_numbers(const Result& found, const Numbers& wanted, double tolerance) {
  ASSERT_EQ(found.values.size(), wanted.size()) << found.name;
  double largest = 0;
  for (const double value : wanted) largest = std::max(largest, std::fabs(value));
  ASSERT_GT(largest, 0.1) << found.name;
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(found.values[i], wanted[i], tolerance * largest) << found.name << " at " << i;
}

class AttentionFixture {
 public:
  AttentionFixture() : json_(Json::parse(read_text_file(kFixtureFolder + "attention.json", 1 << 20))) {
    const Json& a = json_["attributes"];
    attributes_ = {.sequence = a["sequence"],
                   .heads = a["heads"],
                   .kv_heads = a["kv_heads"],
                   .head_size = a["head_size"],
                   .window = a["window"],
                   .soft_cap = a["soft_cap"],
                   .scale = a["scale"]};
    rows_ = static_cast<int64_t>(json_["operands"]["begins"].size());
  }

  void expect_of(Device& device, bool packed, double tolerance) const {
    Operands operands = make(packed);
    std::vector<Guarded> outputs = run_forward(device, operands);
    const auto forward = results_of(operands, outputs);
    expect_numbers(forward[0], result("o"), tolerance);
    expect_numbers(forward[1], result("lse"), tolerance);
    const auto gradients =
        run_backward(device, operands, outputs, {.addend = Addend::in_place, .from_zero = true});
    const std::vector<Numbers> wanted = joined({result("d_q"), result("d_k"), result("d_v")}, packed);
    ASSERT_EQ(gradients.size(), wanted.size() + 1);
    for (size_t i = 0; i < wanted.size(); ++i) expect_numbers(gradients[i], wanted[i], tolerance);
    expect_numbers(gradients.back(), result("d_sinks"), tolerance);
  }

 private:
  Numbers operand(const char* name) const { return json_["operands"][name]; }
  Numbers result(const char* name) const { return json_["results"][name]; }
  std::vector<Numbers> joined(std::vector<Numbers> parts, bool packed) const {
    if (packed) return {concatenated_columns(parts, rows_)};
    return parts;
  }
  Operands make(bool packed) const {
    const std::vector<Numbers> inputs = joined({operand("q"), operand("k"), operand("v")}, packed);
    std::vector<Shape> shapes;
    for (const Numbers& input : inputs) shapes.push_back({rows_, static_cast<int64_t>(input.size()) / rows_});
    shapes.push_back({rows_});
    Operands out = operands_of(OpKind::attention, attributes_, shapes, inputs, {{attributes_.heads}},
                               {operand("sinks")});
    set_indices(out.inputs.back(), json_["operands"]["begins"]);
    set(out.output_gradients[0], operand("d_o"));
    out.freeze();
    return out;
  }

  Json json_;
  OpAttributes attributes_;
  int64_t rows_ = 0;
};

TEST(AttentionPyTorch, EverythingAtOnce) {
  const AttentionFixture fixture;
  for (const bool packed : {false, true}) {
    SCOPED_TRACE(packed ? "packed" : "separate");
    fixture.expect_of(*make_reference_device(), packed, 5e-7);
    fixture.expect_of(*make_cpu_device(2), packed, 5e-6);
  }
}

}  // namespace
}  // namespace sluice
