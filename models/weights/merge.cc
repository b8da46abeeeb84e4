#include "models/weights/merge.h"

#include <algorithm>
#include <utility>

#include "models/families/family.h"

namespace sluice {

MergedWeights::MergedWeights(const Model& model, const Adapters& settings, ReadParameter base,
                             ReadParameter adapters)
    : model_(model),
      scale_(settings.scale()),
      rank_(settings.rank),
      in_out_(find_family(model.family)->matrices_in_out),
      base_(std::move(base)),
      adapters_(std::move(adapters)) {}

const Parameter* MergedWeights::find(const std::string& name) const {
  for (const Group& group : model_.groups)
    if (group.adapter)
      for (const Parameter& parameter : group.parameters)
        if (parameter.name == name) return &parameter;
  return nullptr;
}

void MergedWeights::fetch(const std::string& name) {
  if (held_ == name) return;
  held_ = name;
  const std::string linear = linear_name(name);
  for (auto& [suffix, factor] : {std::pair{kAdapterDown, &down_}, std::pair{kAdapterUp, &up_}}) {
    const Parameter* const p = find(linear + std::string(suffix));
    factor->resize(p ? static_cast<size_t>(element_count(p->shape)) : 0);
    if (p) adapters_(p->name, 0, factor->size(), factor->data());
  }
}

void MergedWeights::read(const std::string& name, const Shape& shape, uint64_t first, uint64_t count,
                         float* out) {
  base_(name, first, count, out);
  fetch(name);
  if (down_.empty()) return;
  const auto columns = static_cast<uint64_t>(shape.back()), rank = static_cast<uint64_t>(rank_);
  const uint64_t in = down_.size() / rank;
  // Takes one row of W at a time, and adds each row of A times a factor. If W is [in, out], columns of B are
  // added instead.
  for (uint64_t at = first; at < first + count;) {
    const uint64_t row = at / columns, begin = at % columns;
    const uint64_t n = std::min(columns - begin, first + count - at);
    float* const to = out + (at - first);
    for (uint64_t r = 0; r < rank; ++r) {
      const auto s = static_cast<float>(scale_);
      const float factor = s * (in_out_ ? down_[r * in + row] : up_[row * rank + r]);
      const float* const from = in_out_ ? &up_[begin * rank + r] : &down_[r * in + begin];
      const uint64_t stride = in_out_ ? rank : 1;
      for (uint64_t i = 0; i < n; ++i) to[i] += factor * from[i * stride];
    }
    at += n;
  }
}

}  // namespace sluice
