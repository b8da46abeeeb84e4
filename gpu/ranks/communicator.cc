#include "gpu/ranks/communicator.h"

#include <fmt/format.h>

#include <algorithm>

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

// Every rank serves the pairs that it belongs to in one order: by the lower rank of a pair, then by the
// higher. So the first pair that is not done can always go on.
void Communicator::exchange(const ProcessGroup& among, std::span<const std::span<const std::byte>> parts,
                            std::span<const std::span<std::byte>> received) {
  for (int i = 0; i < static_cast<int>(among.count); ++i) {
    const std::span<const std::byte> part = parts[static_cast<size_t>(i)];
    const std::span<std::byte> to = received[static_cast<size_t>(i)];
    const int other = rank_at(among, i);
    if (other == rank()) std::ranges::copy(part, to.begin());
    if (rank() < other) send(part.data(), part.size(), other);
    if (rank() != other) receive(to.data(), to.size(), other);
    if (rank() > other) send(part.data(), part.size(), other);
  }
}

}  // namespace sluice
