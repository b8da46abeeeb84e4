#include "models/families/family.h"
#include "tests/fuzz/promises.h"

namespace sluice::fuzzing {

bool fuzz_model_description(Input input) {
  return is_taken([&] { config_from_name(std::string(text_of(input))); });
}

}  // namespace sluice::fuzzing
