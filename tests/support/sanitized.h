// Lets a build with a sanitizer leave cases to the release build. A sanitizer takes ten times the time and
// looks for races and bad accesses, which do not depend on the numbers that are computed.
#pragma once

#include <initializer_list>
#include <vector>

namespace sluice::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Returns all values, or only the first one under a sanitizer.
template <typename T>
std::vector<T> one_if_sanitized(std::initializer_list<T> all) {
  return {all.begin(), kSanitized ? all.begin() + 1 : all.end()};
}

}  // namespace sluice::testing
