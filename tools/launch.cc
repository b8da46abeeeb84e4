#include "tools/launch.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gpu/shared_library.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

// Of the launchers that MPI knows of: Open MPI's own, Slurm's, and those that speak PMI.
constexpr const char* kSizes[] = {"OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE"};
// Others look at what a rank that fails has told them before the launcher ends them.
constexpr auto kGrace = std::chrono::milliseconds(300);

bool was_launched() {
  for (const char* name : kSizes)
    if (const char* value = std::getenv(name)) return std::atoi(value) > 1;
  return false;
}

void write_status(const std::string& out_directory, int rank, ExitCode code, const std::string& sentence) {
  std::error_code ignored;
  if (!fs::is_directory(out_directory, ignored)) return;  // it ended before there was one
  std::ofstream file(fs::path(out_directory) / ("rank-" + std::to_string(rank) + ".status"));
  file << static_cast<int>(code) << " " << sentence << "\n";
}

}  // namespace

ExitCode Launch::run(const std::string& out_directory, const std::function<ExitCode()>& work) const {
  const auto failed = [&](ExitCode code, const std::string& what) {
    ranks_.abort("Rank " + std::to_string(ranks_.rank()) + " ended: " + what);
    write_status(out_directory, ranks_.rank(), code, what);
    std::this_thread::sleep_for(kGrace);
    return code;
  };
  try {
    const ExitCode code = work();
    ranks_.barrier();
    write_status(out_directory, ranks_.rank(), code, "");
    mpi_.finish();
    return code;
  } catch (const Error& error) {
    const ExitCode code = failed(error.code(), error.what());
    if (ranks_.is_first()) throw;
    return code;
  } catch (const std::exception& error) {
    const ExitCode code = failed(ExitCode::bug, error.what());
    if (ranks_.is_first()) throw;
    return code;
  }
}

std::unique_ptr<Launch> open_launch() {
  if (!was_launched()) return nullptr;
  SharedLibrary module((fs::read_symlink("/proc/self/exe").parent_path() / kMpiModule).string());
  OpenMpi* open = nullptr;
  module.find(open, kMpiEntry);
  if (!module.failure().empty())
    throw Error(ExitCode::environment,
                "A launcher started several ranks, but MPI cannot be loaded: " + module.failure() + ".",
                "Install Open MPI (apt-get install libopenmpi3), or start without a launcher.");
  module.keep_open();
  MpiRanks* const mpi = open();
  if (mpi->lane->size() == 1) return nullptr;  // Slurm's variables also stand in a batch script
  return std::make_unique<Launch>(*mpi);
}

}  // namespace sluice
