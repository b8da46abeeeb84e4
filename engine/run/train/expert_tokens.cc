#include "engine/run/train/expert_tokens.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string_view>

namespace sluice {

namespace {

constexpr std::string_view kName = "experts.";

// The number of experts, E. The output has statistics of shape [1, 2E+2] (OpKind::router_statistics).
size_t experts_of(const Activation& output) { return static_cast<size_t>(output.shape[1] / 2 - 1); }

}  // namespace

ExpertTokens::ExpertTokens(Session& session) : session_(session) {
  const Plan& plan = session.plan();
  const bool drops = drops_choices(plan.model);
  for (size_t a = 0; a < plan.model.activations.size(); ++a) {
    const Activation& output = plan.model.activations[a];
    if (!output.output || !output.name.starts_with(kName)) continue;
    LayerTokens& layer = layers_.emplace_back();
    const char* const end = output.name.data() + output.name.size();
    const auto parsed = std::from_chars(output.name.data() + kName.size(), end, layer.layer);
    CHECK(parsed.ec == std::errc() && parsed.ptr == end, output.name);
    layer.tokens.assign(experts_of(output), 0);
    if (drops) layer.dropped = 0;
    outputs_.push_back(plan.lowering.outputs[a]);
    counts_.resize(counts_.size() + layer.tokens.size() + 2);
  }
}

// A logit that is NaN or +infinity makes sums of the softmax NaN; a logit of -infinity gives a probability of
// 0.
void ExpertTokens::add_wave(uint64_t position) {
  const Plan& plan = session_.plan();
  uint64_t* counts = counts_.data();
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Buffer& buffer = plan.program.buffers[outputs_[l]];
    const std::byte* const slot = session_.runner().ring_slot(outputs_[l], position);
    const size_t experts = layers_[l].tokens.size();
    for (uint32_t m = 0; m < plan.lowering.slices; ++m) {
      const auto* const statistics = reinterpret_cast<const float*>(slot + buffer.cuts[m]);
      for (size_t e = 0; e < experts; ++e) counts[e] += static_cast<uint64_t>(statistics[experts + 1 + e]);
      counts[experts] += static_cast<uint64_t>(statistics[2 * experts + 1]);
      counts[experts + 1] += !std::all_of(statistics, statistics + experts,
                                          [](float softmax) { return std::isfinite(softmax); });
    }
    counts += experts + 2;
  }
}

const std::vector<LayerTokens>& ExpertTokens::end_step() {
  not_finite_.reset();
  if (layers_.empty()) return layers_;
  if (!session_.counts_rows()) std::ranges::fill(counts_, 0);
  const std::vector<uint64_t> sums = session_.ranks().sum(counts_);
  std::ranges::fill(counts_, 0);
  const uint64_t* of_layer = sums.data();
  for (LayerTokens& layer : layers_) {
    const size_t experts = layer.tokens.size();
    std::copy_n(of_layer, experts, layer.tokens.begin());
    const uint64_t choices = std::reduce(layer.tokens.begin(), layer.tokens.end());
    if (layer.dropped) layer.dropped = choices - std::min(choices, of_layer[experts]);
    if (of_layer[experts + 1] > 0 && !not_finite_) not_finite_ = layer.layer;
    of_layer += experts + 2;
  }
  return layers_;
}

}  // namespace sluice
