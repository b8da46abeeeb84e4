#include "tools/command/launchers.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace sluice {

std::optional<int> launcher_number(const char* variable) {
  const char* const value = std::getenv(variable);
  return value ? std::optional(std::atoi(value)) : std::nullopt;
}

bool has_started_several(const LauncherVariables& launcher) {
  return launcher_number(launcher.size).value_or(1) > 1 && launcher_number(launcher.rank) &&
         launcher_number(launcher.rank_here);
}

const LauncherVariables* mpi_launcher() {
  for (const LauncherVariables& launcher : kMpiLaunchers)
    if (std::getenv(launcher.size)) return has_started_several(launcher) ? &launcher : nullptr;
  return nullptr;
}

bool is_launched() { return std::any_of(std::begin(kLaunchers), std::end(kLaunchers), has_started_several); }

}  // namespace sluice
