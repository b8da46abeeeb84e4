#include "engine/graph/routing.h"

#include <algorithm>

#include "engine/base/error.h"

namespace sluice {

std::vector<int32_t> make_routing(const RoutingLayout& layout, std::span<const int32_t> experts) {
  CHECK(static_cast<int64_t>(experts.size()) == layout.choices(), "an expert for every choice");
  std::vector<int32_t> routing(static_cast<size_t>(layout.size()), 0);
  for (const int32_t expert : experts) ++routing[static_cast<size_t>(expert) + 1];
  for (int64_t e = 0; e < layout.experts; ++e)
    routing[static_cast<size_t>(e) + 1] += routing[static_cast<size_t>(e)];
  std::vector<int32_t> next(routing.begin(), routing.begin() + layout.experts);
  for (size_t choice = 0; choice < experts.size(); ++choice) {
    const auto entry = static_cast<size_t>(layout.entries() + next[static_cast<size_t>(experts[choice])]++);
    routing[entry] = static_cast<int32_t>(choice);
  }
  std::ranges::copy(experts, routing.begin() + layout.experts_of());
  return routing;
}

}  // namespace sluice
