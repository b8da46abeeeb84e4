#include "gpu/ranks/communicator.h"

#include <fmt/format.h>

namespace sluice {

Error lost_error(const std::string& reason) {
  return {ExitCode::rank_lost, reason, "Mend what stopped that rank, and go on with --resume auto."};
}

std::string not_answered(int missing, double seconds, const std::string& doing) {
  return fmt::format("Rank {} has not answered for {:.3g} s: {}", missing, seconds, doing);
}

std::string Communicator::doing(std::string_view purpose, const char* verb) const {
  return fmt::format("rank {} {} {}.", rank(), verb, purpose);
}

}  // namespace sluice
