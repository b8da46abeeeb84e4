// What the operands of an attention are, for its rule and for the devices: see OpKind::attention,
// OpKind::cached_attention and OpAttributes in op.h. Pure functions, any thread; the operands fit the rule.
#pragma once

#include <cmath>

#include "engine/graph/op.h"

namespace sluice {

// Whether q, k and v are the columns of one input. The inputs are one or three, and the document begins.
inline bool attention_is_packed(const OpShapes& s) { return s.inputs.size() < 3; }
// Whether the last input holds the document begins.
inline bool attention_has_documents(const OpShapes& s) { return s.inputs.size() % 2 == 0; }
// Whether there are sinks, as parameter 0.
inline bool attention_has_sinks(const OpShapes& s) { return !s.parameters.empty(); }

// The inputs of a cached_attention.
constexpr size_t kCache = 0, kCachedBegins = 1, kCachedQuery = 2;
inline bool cached_attention_is_packed(const OpShapes& s) { return s.inputs.size() == kCachedQuery + 1; }

inline double attention_scale(const OpAttributes& a) {
  return a.scale > 0 ? a.scale : 1 / std::sqrt(static_cast<double>(a.head_size));
}

}  // namespace sluice
