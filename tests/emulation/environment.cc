// What the variable SLUICE_EMULATED_GPU sets of the emulated GPU, by the names of emulated_gpu.h.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>
#include <variant>

#include "tests/emulation/gpu_state.h"

namespace sluice::emulation {
namespace {

using Field = std::variant<int EmulatedGpu::*, uint32_t EmulatedGpu::*, uint64_t EmulatedGpu::*,
                           bool EmulatedGpu::*, std::string EmulatedGpu::*>;

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
      {"cublaslt", &EmulatedGpu::cublaslt},
      {"idle_kernels", &EmulatedGpu::idle_kernels},
  };
  return all;
}

template <typename Number>
bool read_value(std::string_view text, Number& value) {
  const char* const end = text.data() + text.size();
  return !text.empty() && std::from_chars(text.data(), end, value).ptr == end;
}
bool read_value(std::string_view text, bool& value) {
  value = text == "1";
  return text == "0" || text == "1";
}
bool read_value(std::string_view text, std::string& value) {
  value = text;
  return true;
}

// false: the text is not a list of names and values.
bool read(std::string_view text, EmulatedGpu& gpu) {
  while (!text.empty()) {
    const std::string_view setting = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), setting.size() + 1));
    const size_t equals = setting.find('=');
    const auto field = fields().find(setting.substr(0, equals));
    if (equals == std::string_view::npos || field == fields().end()) return false;
    const std::string_view value = setting.substr(equals + 1);
    if (!std::visit([&](auto member) { return read_value(value, gpu.*member); }, field->second)) return false;
  }
  return true;
}

}  // namespace

EmulatedGpu with_environment(EmulatedGpu gpu) {
  const char* const text = std::getenv("SLUICE_EMULATED_GPU");
  if (text != nullptr && !read(text, gpu)) {
    std::fprintf(stderr, "SLUICE_EMULATED_GPU cannot be read: %s\n", text);
    std::exit(2);
  }
  return gpu;
}

}  // namespace sluice::emulation
