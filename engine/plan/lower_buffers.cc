#include "engine/plan/lower_buffers.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>

#include "engine/pack.h"

namespace sluice {

namespace {

constexpr uint64_t kScalarAlignment = 64;

BufferId add_buffer(Program& program, std::string name, BufferClass kind, std::vector<uint64_t> cuts,
                    bool permanent, uint8_t ring = kNoRing) {
  Buffer b;
  b.name = std::move(name);
  b.kind = kind;
  b.cuts = std::move(cuts);
  b.permanent = permanent;
  b.ring = ring;
  if (ring != kNoRing) b.slot_stride = round_up(b.bytes(), kPieceAlignment);
  program.buffers.push_back(std::move(b));
  return static_cast<BufferId>(program.buffers.size() - 1);
}

class BufferMaker {
 public:
  BufferMaker(const Model& model, const LowerOptions& options, Program& program, Lowering& out)
      : model_(model), options_(options), program_(program), out_(out) {}

  SliceBuffers run() {
    plan_segments();
    make_group_buffers();
    make_input_buffers();
    make_slice_buffers();
    return std::move(slices_);
  }

 private:
  BufferId buffer(std::string name, BufferClass kind, std::vector<uint64_t> cuts, bool permanent = false,
                  uint8_t ring = kNoRing) {
    return add_buffer(program_, std::move(name), kind, std::move(cuts), permanent, ring);
  }
  BufferId flat_buffer(std::string name, BufferClass kind, uint64_t bytes, bool permanent = false) {
    return add_flat_buffer(program_, std::move(name), kind, bytes, permanent);
  }

  // One plan per template, set of differentiable inputs and set of trainable groups.
  void plan_segments() {
    differentiable_.assign(model_.activations.size(), false);
    std::map<std::tuple<uint32_t, std::vector<bool>, std::vector<bool>>, uint32_t> known;
    for (uint32_t l = 0; l < model_.layers.size(); ++l)
      for (uint32_t s = 0; s < model_.layers[l].segments.size(); ++s) {
        const SegmentUse& u = model_.layers[l].segments[s];
        std::vector<bool> inputs, trainable;
        for (const uint32_t a : u.inputs) inputs.push_back(differentiable_[a]);
        for (const uint32_t g : u.groups) trainable.push_back(model_.groups[g].trainable);
        const auto next = static_cast<uint32_t>(out_.plans.size());
        const auto [it, fresh] = known.try_emplace({u.segment, inputs, trainable}, next);
        if (fresh)
          out_.plans.push_back(plan_segment(model_, u.segment, inputs, trainable, options_.workspace_bytes));
        for (const uint32_t a : u.outputs) differentiable_[a] = any(inputs) || any(trainable);
        const bool recompute = model_.segments[u.segment].loss || options_.recompute.empty() ||
                               options_.recompute[out_.uses.size()];
        out_.uses.push_back({l, s, it->second, recompute});
      }
  }

  void make_group_buffers() {
    const std::vector<std::vector<bool>> high_rank = high_rank_parameters(model_);
    for (const Group& g : model_.groups) {
      GroupBuffers b;
      b.shards = shards_of(g);
      const auto cuts = [&](uint64_t element_bytes) {
        std::vector<uint64_t> c;
        for (const uint64_t e : b.shards) c.push_back(e * element_bytes);
        return c;
      };
      const auto part_cuts = [&](uint64_t element_bytes) {
        std::vector<uint64_t> c = cuts(element_bytes);
        for (uint64_t& bytes : c) bytes /= options_.ranks;
        return c;
      };
      const uint64_t width = dtype_bytes(model_.precision);
      const auto updated = [&](std::string name, BufferClass kind, bool permanent) {
        return buffer(std::move(name), kind, out_.shares_state() ? part_cuts(width) : cuts(width), permanent);
      };
      make_weights(g, b, cuts(width), updated);
      if (g.trainable) {
        b.gradient = updated("g." + g.name, BufferClass::gradients, options_.update_waits_for_norm);
        b.summed = b.gradient;
        b.accumulator = buffer("a." + g.name, BufferClass::gradients, cuts(4));
        if (options_.ranks > 1) {
          b.rounded = buffer("r." + g.name, BufferClass::gradients, cuts(width));
          b.received = buffer("e." + g.name, BufferClass::gradients, cuts(width));
          if (!out_.shares_state())
            b.summed = buffer("p." + g.name, BufferClass::gradients, part_cuts(width));
        }
        make_shard_buffers(g, b);
        make_compression(g, high_rank[out_.groups.size()], b, cuts(4));
      }
      out_.groups.push_back(std::move(b));
    }
  }

  template <typename Updated>
  void make_weights(const Group& g, GroupBuffers& b, const std::vector<uint64_t>& whole,
                    const Updated& updated) {
    // Where whole weights stay, a part of them is only on its way from the optimizer; but masters stay too.
    const bool stays = !out_.shares_state() || out_.shares_weights() || model_.precision == DType::f32 ||
                       !g.trainable;
    b.weights = updated("w." + g.name, BufferClass::weights, stays);
    b.forward_weights = b.backward_weights = b.weights;
    if (out_.shares_weights()) {
      b.forward_weights = buffer("wf." + g.name, BufferClass::weights, whole);
      b.backward_weights = buffer("wb." + g.name, BufferClass::weights, whole);
    } else if (out_.shares_state()) {
      b.forward_weights = b.backward_weights = buffer("ww." + g.name, BufferClass::weights, whole, true);
    }
  }

  // Every rank's part of a shard is as long as the others', and a file's pages whole.
  std::vector<uint64_t> shards_of(const Group& g) const {
    const uint64_t ranks = options_.ranks;
    const uint64_t shard =
        ranks * (options_.shard_elements ? options_.shard_elements : default_shard_elements(model_));
    const uint64_t elements = round_up(g.elements, ranks * kGroupPadding);
    std::vector<uint64_t> shards;
    for (uint64_t e = 0; e < elements; e += shard) shards.push_back(e);
    shards.push_back(elements);
    return shards;
  }

  void make_shard_buffers(const Group& g, GroupBuffers& b) {
    std::vector<uint64_t> sums{0};
    for (size_t k = 0; k + 1 < b.shards.size(); ++k) {
      const uint64_t elements = b.shards[k + 1] - b.shards[k], part = elements / options_.ranks;
      const uint64_t blocks = (part + kNormBlock - 1) / kNormBlock;
      sums.push_back(sums.back() + round_up(8 * blocks, kScalarAlignment));
      const uint64_t plane = options_.optimizer.plane_stride(out_.shares_state() ? part : elements);
      b.state.push_back(flat_buffer("s." + g.name + "." + std::to_string(k), BufferClass::state,
                                    options_.optimizer.planes * plane, true));
    }
    b.block_sums = b.all_block_sums = buffer("n." + g.name, BufferClass::scalars, sums);
    if (options_.ranks > 1)
      b.all_block_sums = buffer("nn." + g.name, BufferClass::scalars, {0, options_.ranks * sums.back()});
  }

  // Only where the factors are less than the gradient.
  void make_compression(const Group& g, const std::vector<bool>& high_rank, GroupBuffers& b,
                        const std::vector<uint64_t>& error_cuts) {
    if (options_.compress_rank == 0 || options_.ranks == 1) return;
    CompressionBuffers c;
    c.layout = low_rank_layout(g, options_.compress_rank, high_rank);
    if (c.layout.matrices.empty()) return;
    c.error = buffer("c." + g.name, BufferClass::state, error_cuts, true);
    c.left = factor("l." + g.name, c.layout.left, false);
    c.right = factor("q." + g.name, c.layout.right, true);
    b.compression = std::move(c);
  }
  FactorBuffers factor(const std::string& name, uint64_t elements, bool permanent) {
    const uint64_t whole = 4 * out_.factor_elements(elements);
    return {flat_buffer(name + ".own", BufferClass::gradients, whole),
            flat_buffer(name + ".received", BufferClass::gradients, whole),
            flat_buffer(name + ".part", BufferClass::gradients, whole / options_.ranks),
            buffer(name, permanent ? BufferClass::state : BufferClass::gradients, {0, whole}, permanent)};
  }

  void make_input_buffers() {
    std::vector<uint64_t> cuts{0};
    const auto slice_bytes = static_cast<uint64_t>(model_.micro_batch * model_.sequence) * 4;
    for (uint32_t m = 0; m < out_.slices; ++m)
      cuts.push_back(cuts.back() + round_up(slice_bytes, kScalarAlignment));
    const std::vector<uint64_t> pieces{offsetof(StepScalars, input), offsetof(StepScalars, loss),
                                       offsetof(StepScalars, norm), offsetof(StepScalars, update),
                                       sizeof(StepScalars)};
    out_.scalars = buffer("scalars", BufferClass::scalars, pieces, true, kTrainRing);
    out_.tokens = buffer("tokens", BufferClass::scalars, cuts, true, kTrainRing);
    out_.labels = buffer("labels", BufferClass::scalars, cuts, true, kTrainRing);
    if (!options_.evaluate) return;
    out_.validation_tokens = buffer("validation_tokens", BufferClass::scalars, cuts, true, kValidationRing);
    out_.validation_labels = buffer("validation_labels", BufferClass::scalars, cuts, true, kValidationRing);
    out_.validation_loss =
        buffer("validation_loss", BufferClass::scalars, {0, kScalarAlignment}, true, kValidationRing);
  }

  void make_slice_buffers() {
    slices_.activations.resize(model_.activations.size());
    slices_.gradients.resize(model_.activations.size());
    for (size_t a = 0; a < model_.activations.size(); ++a) {
      const Activation& x = model_.activations[a];
      if (x.source != ActivationSource::segment) continue;
      const uint64_t bytes = static_cast<uint64_t>(element_count(x.shape)) * dtype_bytes(x.dtype);
      for (uint32_t m = 0; m < out_.slices; ++m) {
        const std::string name = x.name + "." + std::to_string(m);
        slices_.activations[a].push_back(flat_buffer("x." + name, BufferClass::activations, bytes));
        if (differentiable_[a])
          slices_.gradients[a].push_back(flat_buffer("d." + name, BufferClass::activations, bytes));
      }
    }
    for (const UseInfo& use : out_.uses) slices_.saved.push_back(saved_buffers(use));
  }

  std::vector<BufferId> saved_buffers(const UseInfo& use) {
    const uint64_t bytes = out_.plans[use.plan].saved_bytes;
    std::vector<BufferId> by_slice;
    if (use.recompute || bytes == 0) return by_slice;
    const std::string name = "v." + model_.layers[use.layer].name + "." + std::to_string(use.position) + ".";
    for (uint32_t m = 0; m < out_.slices; ++m)
      by_slice.push_back(flat_buffer(name + std::to_string(m), BufferClass::activations, bytes));
    return by_slice;
  }

  const Model& model_;
  const LowerOptions& options_;
  Program& program_;
  Lowering& out_;
  std::vector<bool> differentiable_;  // by activation
  SliceBuffers slices_;
};

}  // namespace

uint64_t default_shard_elements(const Model& model) {
  constexpr uint64_t kShardMin = 4ull << 20;
  constexpr uint64_t kShardMultiple = 512ull << 10;
  return round_up(std::max(kShardMin, parameter_count(model) / 2048), kShardMultiple);
}

BufferId add_flat_buffer(Program& program, std::string name, BufferClass kind, uint64_t bytes,
                         bool permanent) {
  return add_buffer(program, std::move(name), kind,
                    {0, round_up(std::max<uint64_t>(bytes, 1), kPieceAlignment)}, permanent);
}

SliceBuffers make_buffers(const Model& model, const LowerOptions& options, Program& program,
                          Lowering& lowering) {
  return BufferMaker(model, options, program, lowering).run();
}

}  // namespace sluice
