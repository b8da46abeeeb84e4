// Which operand of an attention is which, for its rule and for the devices: see OpKind::attention,
// OpKind::cached_attention and OpAttributes in op.h. Pure functions, any thread. They require operands that
// fit the rule.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>

#include "engine/graph/op.h"

namespace sluice {

// Whether q, k and v are the columns of input 0; otherwise they are inputs 0, 1 and 2.
inline bool attention_is_packed(const OpShapes& s) { return s.inputs.size() < 3; }
// The index of the input with the document begins, which follows q, k and v; nullopt if there is no such
// input.
inline std::optional<size_t> attention_documents(const OpShapes& s) {
  const size_t behind = attention_is_packed(s) ? 1 : 3;
  return s.inputs.size() > behind ? std::optional(behind) : std::nullopt;
}
// Whether there are sinks, as parameter 0.
inline bool attention_has_sinks(const OpShapes& s) { return !s.parameters.empty(); }

// The inputs of a cached_attention.
constexpr size_t kCache = 0, kCachedBegins = 1, kCachedQuery = 2;
inline bool cached_attention_is_packed(const OpShapes& s) { return s.inputs.size() == kCachedQuery + 1; }

inline double attention_scale(const OpAttributes& a) {
  return a.scale > 0 ? a.scale : 1 / std::sqrt(static_cast<double>(a.head_size));
}

}  // namespace sluice
