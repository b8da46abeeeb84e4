#include "tests/fuzz/promises.h"
#include "tools/command/config_file.h"

namespace sluice::fuzzing {

bool fuzz_config_file(Input input) {
  return is_taken([&] { parse_config(std::string(text_of(input)), "run.toml"); });
}

}  // namespace sluice::fuzzing
