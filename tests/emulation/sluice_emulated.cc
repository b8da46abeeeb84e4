// The command over the emulated GPU, for tests from end to end. SLUICE_EMULATED_GPU sets up the GPU by the
// names of emulated_gpu.h: "memory_bytes=1000000,count=1". A GPU that is lost returns cudaErrorUnknown.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>
#include <variant>

#include "tests/emulation/emulated_gpu.h"

int sluice_main(int argc, char** argv);  // main of tools/sluice.cc

namespace {

using sluice::emulation::EmulatedGpu;
using Field = std::variant<int EmulatedGpu::*, uint32_t EmulatedGpu::*, uint64_t EmulatedGpu::*>;

const std::map<std::string_view, Field>& fields() {
  static const std::map<std::string_view, Field> all = {
      {"seed", &EmulatedGpu::seed},
      {"delay_microseconds_max", &EmulatedGpu::delay_microseconds_max},
      {"count", &EmulatedGpu::count},
      {"hidden", &EmulatedGpu::hidden},
      {"driver_version", &EmulatedGpu::driver_version},
      {"capability_major", &EmulatedGpu::capability_major},
      {"capability_minor", &EmulatedGpu::capability_minor},
      {"memory_bytes", &EmulatedGpu::memory_bytes},
      {"nccl_version", &EmulatedGpu::nccl_version},
      {"used_by_others", &EmulatedGpu::used_by_others},
      {"context_bytes", &EmulatedGpu::context_bytes},
      {"library_host_bytes", &EmulatedGpu::library_host_bytes},
      {"pinned_bytes_max", &EmulatedGpu::pinned_bytes_max},
      {"work_that_is_lost", &EmulatedGpu::work_that_is_lost},
  };
  return all;
}

// false: the text is not a list of names and numbers.
bool read(std::string_view text, EmulatedGpu& gpu) {
  while (!text.empty()) {
    const std::string_view setting = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), setting.size() + 1));
    const size_t equals = setting.find('=');
    const auto field = fields().find(setting.substr(0, equals));
    if (equals == std::string_view::npos || field == fields().end()) return false;
    const char *begin = setting.data() + equals + 1, *end = setting.data() + setting.size();
    const bool all = std::visit(
        [&](auto member) { return std::from_chars(begin, end, gpu.*member).ptr == end && begin != end; },
        field->second);
    if (!all) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  EmulatedGpu gpu;
  gpu.lost_with = cudaErrorUnknown;
  const char* const text = std::getenv("SLUICE_EMULATED_GPU");
  if (text != nullptr && !read(text, gpu)) {
    std::fprintf(stderr, "sluice_emulated: SLUICE_EMULATED_GPU cannot be read: %s\n", text);
    return 2;
  }
  sluice::emulation::set_up(gpu);
  return sluice_main(argc, argv);
}
