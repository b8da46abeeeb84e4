// The command over the emulated GPU, for tests from end to end. A GPU that is lost returns cudaErrorUnknown.
#include "tests/emulation/emulated_gpu.h"

int sluice_main(int argc, char** argv);  // main of tools/sluice.cc

int main(int argc, char** argv) {
  sluice::emulation::set_up({.lost_with = cudaErrorUnknown});
  return sluice_main(argc, argv);
}
