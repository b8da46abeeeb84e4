#include "engine/run/loader.h"

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

namespace sluice {

namespace {

constexpr uint64_t kChunk = 16384;  // elements: one thread's piece of work, on its stack as fp32

// The group's flat elements [first, first + count), zeros between parameters.
void fill_flat(const Group& group, const ParameterSource& source, uint64_t first, uint64_t count,
               float* out) {
  std::fill(out, out + count, 0.0f);
  for (const Parameter& p : group.parameters) {
    const uint64_t end = p.offset + static_cast<uint64_t>(element_count(p.shape));
    const uint64_t from = std::max(first, p.offset), to = std::min(first + count, end);
    if (from < to) source(p, from - p.offset, to - from, out + (from - first));
  }
}

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

void write_weights(const Model& model, const ShardView& v, uint64_t at, const float* values, uint64_t count) {
  if (v.weights == v.master) return;  // fp32: the master is the weight
  round_to(model.precision, values, static_cast<std::byte*>(v.weights) + at * dtype_bytes(model.precision),
           count);
}

}  // namespace

std::function<void(const ShardView&)> load_from(const Model& model, ParameterSource source,
                                                Workers& workers) {
  return [&model, source = std::move(source), &workers](const ShardView& v) {
    for_each_chunk(v, workers, [&](uint64_t at, uint64_t count) {
      std::array<float, kChunk> values;
      fill_flat(model.groups[v.group], source, v.first + at, count, values.data());
      write_weights(model, v, at, values.data(), count);
      if (!v.master) return;
      std::copy_n(values.data(), count, v.master + at);
      std::fill_n(v.first_moment + at, count, 0.0f);
      std::fill_n(v.second_moment + at, count, 0.0f);
    });
  };
}

std::function<void(const ShardView&)> load_from(const Model& model, const CheckpointReader& checkpoint,
                                                Workers& workers) {
  return [&model, &checkpoint, &workers](const ShardView& v) {
    const Group& group = model.groups[v.group];
    for_each_chunk(v, workers, [&](uint64_t at, uint64_t count) {
      std::array<float, kChunk> values;
      checkpoint.fill(group, v.first + at, count, v.master ? Plane::master : Plane::frozen_weights,
                      values.data());
      write_weights(model, v, at, values.data(), count);
      if (!v.master) return;
      std::copy_n(values.data(), count, v.master + at);
      checkpoint.fill(group, v.first + at, count, Plane::first_moment, v.first_moment + at);
      checkpoint.fill(group, v.first + at, count, Plane::second_moment, v.second_moment + at);
    });
  };
}

void load(Session& session, std::function<void(const ShardView&)> hook) {
  session.runner().set_hooks({std::move(hook), {}});
  session.executor().wait(session.issue(*session.plan().lowering.bodies.load));
  session.check();
}

}  // namespace sluice
