#include "engine/run/start/loader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/simd/convert.h"
#include "models/weights/initial_weights.h"

namespace sluice {

namespace {

constexpr uint64_t kChunk = 16384;  // elements: one thread's piece of work, on its stack as fp32

// Calls work(first element, count) for all chunks, in parallel. Rethrows the error of the first chunk that
// has one.
template <typename Work>
void for_each_chunk(uint64_t elements, Workers& workers, const Work& work) {
  const auto chunks = static_cast<int64_t>((elements + kChunk - 1) / kChunk);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(chunks));
  workers.parallel_for(chunks, [&](int64_t chunk, int) {
    const uint64_t at = static_cast<uint64_t>(chunk) * kChunk;
    try {
      work(at, std::min(kChunk, elements - at));
    } catch (...) {
      errors[static_cast<size_t>(chunk)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

struct ShardSources {
  ParameterSource weights;
  // Everything but the weights is read from here. If nullptr, the other planes and the compression errors are
  // zeros, and right factors are random.
  const CheckpointReader* checkpoint = nullptr;
  int rank = 0, ranks = 1;
};

// Right factors begin with random numbers, the same in every run. Any factors that are not orthogonal to the
// gradient would do (Vogels et al. 2019, algorithm 1).
void fill_factors(const Group& group, const ShardSources& sources, const ShardView& v) {
  if (sources.checkpoint &&
      sources.checkpoint->read_of_writer(0, kRightFactors, group.name, v.factor_elements, 0,
                                         v.factor_elements, v.factors))
    return;
  const Parameter factors{"right factors of " + group.name,
                          {static_cast<int64_t>(v.factor_elements)},
                          false,
                          Initializer::normal,
                          1};
  fill_initial(factors, 0, 0, v.factor_elements, v.factors);
}

// Fills the shard's compression error with the sum of the errors of certain writers. These are the writers
// whose number modulo `ranks` is this rank's number.
void fill_error(const Group& group, const ShardSources& sources, const ShardView& v, Workers& workers) {
  for_each_chunk(v.error_elements, workers, [&](uint64_t at, uint64_t count) {
    float* const out = v.error + at;
    std::fill_n(out, count, 0.0f);
    if (!sources.checkpoint) return;
    std::array<float, kChunk> values;
    for (int64_t w = sources.rank; w < sources.checkpoint->state().writers; w += sources.ranks) {
      const ParameterSource of_writer = [&](const Parameter& p, uint64_t first, uint64_t n, float* to) {
        const auto elements = static_cast<uint64_t>(element_count(p.shape));
        sources.checkpoint->read_of_writer(w, kCompressionError, p.name, elements, first, n, to);
      };
      fill_flat(group, of_writer, v.error_first + at, count, values.data());
      for (uint64_t i = 0; i < count; ++i) out[i] += values[i];
    }
  });
}

std::function<void(const ShardView&)> load_hook(const Model& model, ShardSources sources, Workers& workers) {
  return [&model, sources = std::move(sources), &workers](const ShardView& v) {
    const Group& group = model.groups[v.group];
    if (v.error) fill_error(group, sources, v, workers);
    if (v.factors) fill_factors(group, sources, v);
    for_each_chunk(v.elements, workers, [&](uint64_t at, uint64_t count) {
      std::array<float, kChunk> values;
      fill_flat(group, sources.weights, v.first + at, count, values.data());
      if (v.weights != v.values[0])  // in fp32 the weights are the master weights
        round_to(model.precision, values.data(),
                 static_cast<std::byte*>(v.weights) + at * dtype_bytes(model.precision), count);
      if (v.planes.empty()) return;
      std::memcpy(v.values[0] + kMasterWeights.bytes(at), values.data(), kMasterWeights.bytes(count));
      for (size_t p = 1; p < v.planes.size(); ++p) {
        std::byte* const out = v.values[p] + v.planes[p].bytes(at);
        if (sources.checkpoint)
          fill_plane(group, *sources.checkpoint, v.planes[p], v.first + at, count, out);
        else
          std::memset(out, 0, v.planes[p].bytes(count));
      }
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

ParameterSource source_of(const HfWeights& weights) {
  return [&weights](const Parameter& p, uint64_t first, uint64_t count, float* out) {
    weights.read(p.name, first, count, out);
  };
}

ParameterSource source_of(const HfWeights& base, ParameterSource adapters) {
  return [&base, adapters = std::move(adapters)](const Parameter& p, uint64_t first, uint64_t count,
                                                 float* out) {
    if (base.find(p.name))
      base.read(p.name, first, count, out);
    else
      adapters(p, first, count, out);
  };
}

ParameterSource source_of(uint64_t seed) {
  return [seed](const Parameter& p, uint64_t first, uint64_t count, float* out) {
    fill_initial(p, seed, first, count, out);
  };
}

ParameterSource source_of(const CheckpointReader& checkpoint) {
  return [&checkpoint](const Parameter& p, uint64_t first, uint64_t count, float* out) {
    checkpoint.read_weights(p.name, first, count, out);
  };
}

void fill_plane(const Group& group, const CheckpointReader& checkpoint, const StatePlane& plane,
                uint64_t first, uint64_t count, std::byte* out) {
  std::memset(out, 0, plane.bytes(count));
  for (const Parameter& p : group.parameters) {
    const uint64_t end = p.offset + static_cast<uint64_t>(element_count(p.shape));
    const uint64_t from = std::max(first, p.offset), to = std::min(first + count, end);
    if (from < to)
      CHECK(checkpoint.read(p.name, plane, from - p.offset, to - from, out + plane.bytes(from - first)),
            p.name + " was not checked");
  }
}

std::function<void(const ShardView&)> load_from(const Model& model, ParameterSource source,
                                                Workers& workers) {
  return load_hook(model, {std::move(source)}, workers);
}

std::function<void(const ShardView&)> load_from(const Model& model, const CheckpointReader& checkpoint,
                                                const Ranks& ranks, Workers& workers, const HfWeights* base) {
  ParameterSource weights = source_of(checkpoint);
  if (base) weights = source_of(*base, std::move(weights));
  return load_hook(model, {std::move(weights), &checkpoint, ranks.rank(), ranks.size()}, workers);
}

void load(Session& session, std::function<void(const ShardView&)> hook, int64_t step) {
  const Lowering& lowering = session.plan().lowering;
  session.runner().set_hooks({std::move(hook), {}});
  session.executor().wait(session.issue(*lowering.phases[lowering.phase_of(step)].load));
  session.check();
}

}  // namespace sluice
