#include "models/families/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice {
namespace {

// Columns of a head that turn. transformers rounds down, and then takes one more if the number is odd.
int64_t turning_columns(const RopeScaling& s, int64_t head_size) {
  return static_cast<int64_t>(static_cast<double>(head_size) * s.partial);
}

double original_context(const RopeScaling& s, const RopeSizes& n) {
  return s.original_context > 0 ? s.original_context : static_cast<double>(n.context);
}

double factor_of(const RopeScaling& s, const RopeSizes& n) {
  return s.factor > 0 ? s.factor : static_cast<double>(n.context) / original_context(s, n);
}

// The base of sequences beyond the context grows with their length ("dynamic NTK").
double dynamic_theta(double theta, const RopeScaling& s, const RopeSizes& n) {
  const double times = static_cast<double>(std::max(n.sequence, n.context)) / static_cast<double>(n.context);
  const auto columns = static_cast<double>(turning_columns(s, n.head_size));
  return theta * std::pow(s.factor * times - (s.factor - 1), columns / (columns - 2));
}

// Wavelengths longer than (original context) / low are stretched by the factor, those shorter than (original
// context) / high stay, and those between are blended.
double llama3_frequency(double plain, const RopeScaling& s, const RopeSizes& n) {
  const double wavelength = 2 * std::numbers::pi / plain, original = original_context(s, n);
  const double factor = factor_of(s, n);
  if (wavelength > original / s.low) return plain / factor;
  if (wavelength < original / s.high) return plain;
  const double share = (original / wavelength - s.low) / (s.high - s.low);
  return (1 - share) * plain / factor + share * plain;
}

// The pairs that make `beta_fast` turns or more within the original context stay, those that make `beta_slow`
// or fewer are stretched by the factor, and there is a linear ramp in between.
class YarnRamp {
 public:
  YarnRamp(double theta, const RopeScaling& s, const RopeSizes& n) : factor_(factor_of(s, n)) {
    const auto columns = static_cast<double>(turning_columns(s, n.head_size));
    const auto pair_of = [&](double turns) {
      return columns * std::log(original_context(s, n) / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(theta));
    };
    double first = pair_of(s.beta_fast), last = pair_of(s.beta_slow);
    if (s.truncate) first = std::floor(first), last = std::ceil(last);
    first_ = std::max(first, 0.0);
    last_ = std::min(last, columns - 1);
    if (first_ == last_) last_ += 0.001;
  }
  double frequency(double plain, int64_t pair) const {
    const double ramp = std::clamp((static_cast<double>(pair) - first_) / (last_ - first_), 0.0, 1.0);
    return plain / factor_ * ramp + plain * (1 - ramp);
  }

 private:
  double factor_, first_, last_;
};

double yarn_scale(const RopeScaling& s, const RopeSizes& n) {
  if (s.attention_factor > 0) return s.attention_factor;
  const auto scale_of = [factor = factor_of(s, n)](double mscale) {
    return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1;
  };
  const bool both = s.mscale != 0 && s.mscale_all_dim != 0;
  return both ? scale_of(s.mscale) / scale_of(s.mscale_all_dim) : scale_of(1);
}

double longrope_scale(const RopeScaling& s, const RopeSizes& n) {
  if (s.attention_factor > 0) return s.attention_factor;
  const double factor = factor_of(s, n);
  return factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original_context(s, n)));
}

}  // namespace

const char* rope_type_name(RopeType type) {
  constexpr const char* kNames[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"};
  return kNames[static_cast<int>(type)];
}

int64_t rope_pairs(const RopeScaling& scaling, int64_t head_size) {
  return (turning_columns(scaling, head_size) + 1) / 2;
}

RopeTurns rope_turns(double theta, const RopeScaling& s, const RopeSizes& n) {
  RopeTurns out;
  const auto columns = static_cast<double>(turning_columns(s, n.head_size));
  if (s.type == RopeType::dynamic) theta = dynamic_theta(theta, s, n);
  for (int64_t i = 0; i < rope_pairs(s, n.head_size); ++i)
    out.frequencies.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / columns));
  const YarnRamp ramp(theta, s, n);
  const bool is_long = static_cast<double>(n.sequence) > original_context(s, n);
  for (size_t i = 0; i < out.frequencies.size(); ++i) {
    double& frequency = out.frequencies[i];
    if (s.type == RopeType::linear) frequency /= factor_of(s, n);
    if (s.type == RopeType::llama3) frequency = llama3_frequency(frequency, s, n);
    if (s.type == RopeType::yarn) frequency = ramp.frequency(frequency, static_cast<int64_t>(i));
    if (s.type == RopeType::longrope) frequency /= (is_long ? s.long_factor : s.short_factor)[i];
  }
  if (s.type == RopeType::yarn) out.scale = yarn_scale(s, n);
  if (s.type == RopeType::longrope) out.scale = longrope_scale(s, n);
  return out;
}

}  // namespace sluice
