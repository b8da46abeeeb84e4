#include "engine/run/loader.h"

#include <algorithm>
#include <array>

namespace sluice {

namespace {

constexpr uint64_t kChunk = 16384;  // elements: one thread's piece of work, on its stack as fp32

// The group's flat elements [first, first + count), zeros between parameters.
void fill_flat(const Group& group, const ParameterSource& source, uint64_t first, uint64_t count, float* out) {
  std::fill(out, out + count, 0.0f);
  for (const Parameter& p : group.parameters) {
    const uint64_t end = p.offset + static_cast<uint64_t>(element_count(p.shape));
    const uint64_t from = std::max(first, p.offset), to = std::min(first + count, end);
    if (from < to) source(p, from - p.offset, to - from, out + (from - first));
  }
}

}  // namespace

std::function<void(const ShardView&)> load_from(const Model& model, ParameterSource source, Workers& workers) {
  return [&model, source = std::move(source), &workers](const ShardView& v) {
    const uint64_t width = dtype_bytes(model.precision);
    const auto chunks = static_cast<int64_t>((v.elements + kChunk - 1) / kChunk);
    workers.parallel_for(chunks, [&](int64_t chunk, int) {
      const uint64_t at = static_cast<uint64_t>(chunk) * kChunk, count = std::min(kChunk, v.elements - at);
      std::array<float, kChunk> values;
      fill_flat(model.groups[v.group], source, v.first + at, count, values.data());
      if (v.master) {
        std::copy_n(values.data(), count, v.master + at);
        std::fill_n(v.first_moment + at, count, 0.0f);
        std::fill_n(v.second_moment + at, count, 0.0f);
      }
      if (v.weights != v.master) round_to(model.precision, values.data(), static_cast<std::byte*>(v.weights) + at * width, count);
    });
  };
}

}  // namespace sluice
