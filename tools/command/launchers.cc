#include "tools/command/launchers.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace sluice {

std::optional<int> number_in(const char* variable) {
  const char* const value = std::getenv(variable);
  return value ? std::optional(std::atoi(value)) : std::nullopt;
}

bool has_started_several(const LauncherVariables& launcher) {
  return number_in(launcher.size).value_or(1) > 1 && number_in(launcher.rank) &&
         number_in(launcher.rank_here);
}

bool is_launched() {
  return has_started_several(kTorchrun) ||
         std::any_of(std::begin(kMpiLaunchers), std::end(kMpiLaunchers), has_started_several);
}

}  // namespace sluice
