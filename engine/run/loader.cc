#include "engine/run/loader.h"

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

#include "engine/error.h"

namespace sluice {

namespace {

constexpr uint64_t kChunk = 16384;  // elements: one thread's piece of work, on its stack as fp32

// Calls work(first element within the shard, count) for the chunks of a shard, in parallel. Rethrows the
// error of the first chunk that has one.
template <typename Work>
void for_each_chunk(const ShardView& v, Workers& workers, const Work& work) {
  const auto chunks = static_cast<int64_t>((v.elements + kChunk - 1) / kChunk);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(chunks));
  workers.parallel_for(chunks, [&](int64_t chunk, int) {
    const uint64_t at = static_cast<uint64_t>(chunk) * kChunk;
    try {
      work(at, std::min(kChunk, v.elements - at));
    } catch (...) {
      errors[static_cast<size_t>(chunk)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

// Where a shard's values come from; moments without a source begin at zero.
struct ShardSources {
  ParameterSource weights, first_moment, second_moment;
};

std::function<void(const ShardView&)> load_hook(const Model& model, ShardSources sources, Workers& workers) {
  return [&model, sources = std::move(sources), &workers](const ShardView& v) {
    const Group& group = model.groups[v.group];
    for_each_chunk(v, workers, [&](uint64_t at, uint64_t count) {
      std::array<float, kChunk> values;
      fill_flat(group, sources.weights, v.first + at, count, values.data());
      if (v.weights != v.master)  // fp32: the master is the weight
        round_to(model.precision, values.data(),
                 static_cast<std::byte*>(v.weights) + at * dtype_bytes(model.precision), count);
      if (!v.master) return;
      std::copy_n(values.data(), count, v.master + at);
      fill_flat(group, sources.first_moment, v.first + at, count, v.first_moment + at);
      fill_flat(group, sources.second_moment, v.first + at, count, v.second_moment + at);
    });
  };
}

}  // namespace

void fill_flat(const Group& group, const ParameterSource& source, uint64_t first, uint64_t count,
               float* out) {
  std::fill_n(out, count, 0.0f);
  if (!source) return;
  for (const Parameter& p : group.parameters) {
    const uint64_t end = p.offset + static_cast<uint64_t>(element_count(p.shape));
    const uint64_t from = std::max(first, p.offset), to = std::min(first + count, end);
    if (from < to) source(p, from - p.offset, to - from, out + (from - first));
  }
}

ParameterSource source_of(const CheckpointReader& checkpoint) {
  return [&checkpoint](const Parameter& p, uint64_t first, uint64_t count, float* out) {
    checkpoint.read_weights(p.name, first, count, out);
  };
}

ParameterSource source_of(const CheckpointReader& checkpoint, Plane plane) {
  return [&checkpoint, plane](const Parameter& p, uint64_t first, uint64_t count, float* out) {
    CHECK(checkpoint.read(p.name, plane, first, count, out), p.name + " was not checked");
  };
}

std::function<void(const ShardView&)> load_from(const Model& model, ParameterSource source,
                                                Workers& workers) {
  return load_hook(model, {std::move(source), {}, {}}, workers);
}

std::function<void(const ShardView&)> load_from(const Model& model, const CheckpointReader& checkpoint,
                                                Workers& workers) {
  return load_hook(model,
                   {source_of(checkpoint), source_of(checkpoint, Plane::first_moment),
                    source_of(checkpoint, Plane::second_moment)},
                   workers);
}

void load(Session& session, std::function<void(const ShardView&)> hook) {
  session.runner().set_hooks({std::move(hook), {}});
  session.executor().wait(session.issue(*session.plan().lowering.bodies.load));
  session.check();
}

}  // namespace sluice
