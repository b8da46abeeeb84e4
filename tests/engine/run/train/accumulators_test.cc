// How gradient accumulators begin in a step. If an op can overwrite an accumulator, it does so in the first
// micro-batch and adds to it afterwards. All other accumulators, and only these, are zeroed before.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/support/forwarded_device.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

struct Contribution {  // of one call to the gradient of a parameter
  OpKind kind;
  uint32_t parameter;  // of the op
  bool overwrites;
  bool zeroed;   // the first contribution since the whole gradient was zeroed
  bool touched;  // the first one since some of the gradient was zeroed
};
using Contributions = std::map<const void*, std::vector<Contribution>>;  // by the address of the weights

// A device that also notes each contribution to the gradient of a parameter.
class Noting final : public ForwardedDevice {
 public:
  Noting(std::unique_ptr<Device> device, Contributions& seen)
      : ForwardedDevice(std::move(device)), seen_(seen) {}

  void forward(const OpCall& call) override {
    was_op_ = true;
    ForwardedDevice::forward(call);
  }
  void backward(const OpCall& call) override {
    for (uint32_t i = 0; i < call.parameter_gradients.size(); ++i) note(call, i);
    was_op_ = true;
    ForwardedDevice::backward(call);
  }
  void zero(void* data, uint64_t bytes) override {
    EXPECT_GT(bytes, 0u);
    if (was_op_) zeroed_.clear(), used_.clear();
    was_op_ = false;
    zeroed_.emplace_back(static_cast<std::byte*>(data), bytes);
    ForwardedDevice::zero(data, bytes);
  }

 private:
  void note(const OpCall& call, uint32_t i) {
    const auto* begin = static_cast<const std::byte*>(call.parameter_gradients[i].data);
    const std::byte* end =
        begin + static_cast<uint64_t>(element_count(call.shapes->parameters[i])) * sizeof(float);
    Contribution c{call.shapes->kind, i, call.parameter_gradients[i].addend == nullptr, false, false};
    const bool is_first = used_.insert(begin).second;
    for (const std::span<std::byte> zeroed : zeroed_) {
      const std::byte *const first = zeroed.data(), *const last = first + zeroed.size();
      c.zeroed = c.zeroed || (is_first && first <= begin && end <= last);
      c.touched = c.touched || (is_first && first < end && begin < last);
    }
    seen_[call.parameters[i].data].push_back(c);
  }

  Contributions& seen_;
  std::vector<std::span<std::byte>> zeroed_;  // ranges zeroed before the ops of a segment
  std::set<const std::byte*> used_;           // gradients with a contribution since then
  bool was_op_ = false;                       // the last call was an op's
};

constexpr size_t kMicroBatches = 3, kSteps = 2;

// All contributions to each parameter in a run in host memory alone, where weights keep their addresses.
Contributions contributions(const std::string& model, Recompute recompute) {
  const DriveDirectory directory;
  write_bytes(directory / "train.txt", sample_text(6000));
  TestRun run;
  run.options = short_run(directory, model, directory / "train.txt");
  run.options.batch = {2 * kMicroBatches, std::nullopt, 2, kSteps, 1};
  run.options.memory.recompute = recompute;
  Contributions seen;
  run.wrap_device = [&](std::unique_ptr<Device> device) {
    return std::make_unique<Noting>(std::move(device), seen);
  };
  EXPECT_EQ(train(run).steps.size(), kSteps);
  return seen;
}

TEST(Accumulators, BeginOverwrittenOrAtZeroAndAreAddedToAfterwards) {
  struct Row {
    const char* model;
    size_t parameters, overwritten, tied;
  };
  // Each model has two layers. GPT-2 has twelve parameters a layer, four of them matrices, two embeddings,
  // the first of which is also the head, and the last norm's two. Llama has nine a layer, seven of them
  // matrices, an embedding, a norm and a head.
  const Row rows[] = {
      {"gpt2:layers=2,width=64,heads=2,vocab=256,context=32", 2 * 12 + 4, 2 * 4 + 1, 1},
      {"llama-7b:layers=2,width=64,heads=4,kv_heads=2,ffn=96,vocab=256,context=32", 2 * 9 + 3, 2 * 7 + 1, 0}};
  for (const Row& row : rows)
    for (const Recompute recompute : kRecomputes) {
      SCOPED_TRACE(fmt::format("{}, recompute {}", row.model, recompute_name(recompute)));
      const Contributions seen = contributions(row.model, recompute);
      EXPECT_EQ(seen.size(), row.parameters);
      size_t overwritten = 0, tied = 0;
      for (const auto& [weights, all] : seen) {
        const size_t in_step = all.size() / kSteps;
        EXPECT_EQ(all.size() % (kSteps * kMicroBatches), 0u);
        tied += in_step > kMicroBatches;
        for (size_t i = 0; i < all.size(); ++i) {
          const Contribution& c = all[i];
          SCOPED_TRACE(std::string(op_rule(c.kind).name) + "'s parameter " + std::to_string(c.parameter) +
                       ", contribution " + std::to_string(i));
          const bool first = i % kMicroBatches == 0;  // each kind of use has its own accumulator
          const bool can = (op_rule(c.kind).overwrites_parameters >> c.parameter & 1) != 0;
          EXPECT_EQ(c.overwrites, first && can);
          EXPECT_EQ(c.zeroed, first && !can);
          EXPECT_EQ(c.touched, c.zeroed);
          overwritten += i == 0 && c.overwrites;
        }
      }
      EXPECT_EQ(overwritten, row.overwritten);
      EXPECT_EQ(tied, row.tied);
    }
}

}  // namespace
}  // namespace sluice
