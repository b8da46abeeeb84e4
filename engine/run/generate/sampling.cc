#include "engine/run/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/philox.h"

namespace sluice {

namespace {

constexpr uint32_t kDrawPurpose = 0x73616D70;  // "samp"

// Uniform in [0, 1).
double uniform(uint64_t seed, uint64_t prompt, uint64_t position) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const PhiloxCounter words =
      philox4x32({low(position), low(prompt), low(prompt >> 32), kDrawPurpose}, philox_key(seed));
  return static_cast<double>((uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
}

// The `count` likeliest ids, the likeliest first.
std::vector<uint32_t> ranked(std::span<const float> logits, size_t count) {
  std::vector<uint32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0u);
  const auto likelier = [&](uint32_t a, uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(), likelier);
  ids.resize(count);
  return ids;
}

double capped(const Sampling& sampling, float logit) {
  const auto x = static_cast<double>(logit);
  return sampling.soft_cap == 0 ? x : sampling.soft_cap * std::tanh(x / sampling.soft_cap);
}

// The logits after cap and penalty. A token's logit is penalized once, however often the token occurs.
std::vector<float> penalized(const Sampling& sampling, std::span<const float> logits,
                             std::span<const uint32_t> before) {
  std::vector<float> out;
  for (const float logit : logits) out.push_back(static_cast<float>(capped(sampling, logit)));
  const std::vector<float> scores = out;
  for (const uint32_t id : before) {
    if (id >= scores.size()) continue;
    const auto score = static_cast<double>(scores[id]);
    out[id] = static_cast<float>(score < 0 ? score * sampling.repetition_penalty
                                           : score / sampling.repetition_penalty);
  }
  return out;
}

}  // namespace

uint32_t drawn_token(const Sampling& sampling, std::span<const float> logits, uint64_t prompt,
                     uint64_t position, std::span<const uint32_t> before) {
  if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }))
    throw Error(
        ExitCode::numerics, "The model's logits are not finite.",
        "Use --precision bf16 or fp32, in which large values do not overflow; else the weights may be "
        "damaged: compare them with those at their source.");
  if (sampling.repetition_penalty != 1) {
    Sampling others = sampling;
    others.repetition_penalty = 1;
    others.soft_cap = 0;
    return drawn_token(others, penalized(sampling, logits, before), prompt, position);
  }
  const auto likeliest = static_cast<uint32_t>(std::ranges::max_element(logits) - logits.begin());
  if (sampling.temperature == 0) return likeliest;
  const size_t most =
      sampling.top_k == 0 ? logits.size() : std::min(logits.size(), static_cast<size_t>(sampling.top_k));
  const bool cuts = most < logits.size() || sampling.top_p < 1 || sampling.min_p > 0;
  std::vector<uint32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0u);
  if (cuts) ids = ranked(logits, most);
  std::vector<double> sums;  // running sums of odds, which are proportional to probabilities
  double sum = 0;
  const double largest = capped(sampling, logits[likeliest]);
  // The temperature divides the difference from the largest logit: logits over a tiny temperature are
  // infinite.
  size_t probable = 0;  // tokens that min-p keeps: the first ones of `ids`
  for (const uint32_t id : ids) {
    const double odds = std::exp((capped(sampling, logits[id]) - largest) / sampling.temperature);
    probable += odds >= sampling.min_p;
    sums.push_back(sum += odds);
  }
  const auto kept = std::ranges::lower_bound(sums, sampling.top_p * sum) - sums.begin() + 1;
  sums.resize(std::min({sums.size(), static_cast<size_t>(kept), probable}));
  const double drawn = uniform(sampling.seed, prompt, position) * sums.back();
  const auto at = static_cast<size_t>(std::ranges::upper_bound(sums, drawn) - sums.begin());
  return ids[std::min(at, sums.size() - 1)];
}

}  // namespace sluice
