// A fuzzer by libFuzzer (https://llvm.org/docs/LibFuzzer.html) for the function SLUICE_FUZZ_TARGET of
// targets.h. tools/fuzz.sh builds and runs all of them.
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzzing::SLUICE_FUZZ_TARGET({data, size});
  return 0;
}
