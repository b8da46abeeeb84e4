// Launchers, and the environment variables by which a launcher tells a process that it is one of several.
#pragma once

#include <optional>

namespace sluice {

struct LauncherVariables {
  const char *size, *rank, *rank_here;
};

// In a Slurm batch script SLURM_NTASKS is set although one process runs; only srun sets SLURM_STEP_NUM_TASKS.
constexpr LauncherVariables kSlurmStep = {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"};
// Launchers that start MPI: Open MPI's own, srun, and those that use PMI. One may start another. The first of
// this list whose variables are set has started this process.
constexpr LauncherVariables kMpiLaunchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"},
    kSlurmStep,
    {"PMI_SIZE", "PMI_RANK", "PMI_RANK"}};
constexpr LauncherVariables kTorchrun = {"WORLD_SIZE", "RANK", "LOCAL_RANK"};
// A process finds MPI's other ranks by one of these variables. srun sets one only if --mpi asks for it.
constexpr const char* kPmiVariables[] = {"PMIX_RANK", "PMI_RANK"};

// All launchers that may start several processes of the command.
constexpr LauncherVariables kLaunchers[] = {kMpiLaunchers[0], kSlurmStep, kMpiLaunchers[2], kTorchrun};

// The value of an environment variable; 0 for one that is no number.
std::optional<int> launcher_number(const char* variable);

// Whether `launcher` has started this process as one of several.
bool has_started_several(const LauncherVariables& launcher);

// The launcher of MPI that has started this process as one of several; nullptr: none has.
const LauncherVariables* mpi_launcher();

// Whether any launcher has started several ranks. Then the terminal of this process is one that the launcher
// made, and not what a person looks at.
bool is_launched();

}  // namespace sluice
