#include "tools/command/report_error.h"

#include <cstdio>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "engine/base/error.h"
#include "tools/command/screen.h"

namespace sluice {

Error as_error(const std::exception& e) {
  if (const auto* error = dynamic_cast<const Error*>(&e)) return *error;
  if (const auto* error = dynamic_cast<const std::filesystem::filesystem_error*>(&e))
    return {ExitCode::environment, printable(error->path1().string()) + ": " + error->code().message() + ".",
            "Check this path and the permissions on the way to it."};
  if (dynamic_cast<const std::bad_alloc*>(&e))
    return {ExitCode::environment, "There is not enough memory outside the arenas.",
            "Give smaller budgets, free some memory, or raise ulimit -v."};
  if (dynamic_cast<const std::system_error*>(&e))
    return {ExitCode::environment, std::string("The system refuses: ") + e.what() + ".",
            "Raise the limits on processes and memory (ulimit -u, ulimit -v, the container's)."};
  return {ExitCode::bug, std::string("internal error: ") + e.what(),
          "This is a bug in Sluice; please report it."};
}

int report_error(const std::exception& e) {
  const Error error = as_error(e);
  const std::string what = error.what();
  std::fflush(stdout);
  if (!what.empty()) show(stderr, "sluice: " + what + "\n  " + error.remedy() + "\n");
  return static_cast<int>(error.code());
}

}  // namespace sluice
