#include "engine/rates/machine_rates.h"
#include "tests/fuzz/promises.h"

namespace sluice::fuzzing {

bool fuzz_machine(Input input) {
  return is_taken([&] { parse_machine_rates(std::string(text_of(input)), "machine.json"); });
}

}  // namespace sluice::fuzzing
