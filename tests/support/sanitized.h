// What a sanitizer's build leaves to the release build. It takes ten times the time and looks for races and
// bad accesses, which do not depend on the numbers that are computed.
#pragma once

#include <initializer_list>
#include <vector>

namespace sluice::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// All of them; under a sanitizer the first.
template <typename T>
std::vector<T> one_if_sanitized(std::initializer_list<T> all) {
  return {all.begin(), kSanitized ? all.begin() + 1 : all.end()};
}

}  // namespace sluice::testing
