#include "models/families/family.h"
#include "tests/fuzz/promises.h"

namespace sluice::fuzzing {

bool fuzz_model_config(Input input) {
  return is_taken([&] {
    const ModelConfig config = config_from_json(std::string(text_of(input)), "config.json");
    config_from_json(config_to_json(config, DType::bf16), "written.json");
  });
}

}  // namespace sluice::fuzzing
