#include "engine/plan/lower/buffers.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <stdexcept>

#include "engine/base/pack.h"
#include "engine/plan/lower/picks.h"
#include "engine/plan/lower/ranks.h"

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
    make_uses();
    if (options_.picks_experts) picks_ = find_picks(model_, home_alignment(program_.machine));
    place_in_banks();
    make_group_buffers();
    make_input_buffers();
    make_slice_buffers();
    make_next_gradients();
    make_picked_buffers();
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

  void make_uses() {
    for (uint32_t l = 0; l < model_.layers.size(); ++l)
      for (uint32_t s = 0; s < model_.layers[l].segments.size(); ++s) {
        const SegmentUse& u = model_.layers[l].segments[s];
        const bool chosen =
            l < model_.trained_layers() && !model_.segments[u.segment].loss && !options_.recompute.empty();
        const size_t use = out_.uses.size();
        out_.uses.push_back(
            {l, s, out_.segments->of_use[use], chosen ? options_.recompute[use] : Recompute::all});
      }
  }

  void make_group_buffers() {
    const std::vector<std::vector<bool>> high_rank = high_rank_parameters(model_);
    const bool adapted = has_adapters(model_);
    for (const Group& g : model_.groups) {
      GroupBuffers b;
      const size_t index = out_.groups.size();
      b.sharing = sharing_of(model_.mesh, g.divided, options_);
      if (options_.optimizer.whole_tensors && b.sharing.shares_state())
        throw std::invalid_argument("updates of whole tensors cannot be shared by ranks");
      add_process_groups(b.sharing, program_);
      b.parts = model_.mesh.group_of(g.divided);
      if (b.parts.count > 1) process_group(b.parts, program_);
      b.saved = g.adapter || !adapted;
      b.updated_in_backward = g.trainable && options_.updates_in_backward(static_cast<uint32_t>(index));
      sharing_ = b.sharing;
      b.shards = shards_of(g);
      const auto cuts = [&](uint64_t element_bytes) {
        std::vector<uint64_t> c;
        for (const uint64_t e : b.shards) c.push_back(e * element_bytes);
        return c;
      };
      const uint64_t width = dtype_bytes(model_.precision);
      if (!is_banked(static_cast<uint32_t>(index), b)) make_weights(g, b, cuts(width));
      if (g.trainable) {
        make_gradients(g, options_.waits(static_cast<uint32_t>(index)), b, cuts(width), cuts(4));
        make_shard_buffers(g, b);
        make_compression(g, high_rank[out_.groups.size()], b, cuts(4));
      }
      out_.groups.push_back(std::move(b));
    }
  }

  // Returns the cuts of a part where a buffer with the cuts `whole` is divided into `ranks` equal parts.
  static std::vector<uint64_t> part_cuts(std::vector<uint64_t> whole, uint32_t ranks) {
    for (uint64_t& bytes : whole) bytes /= ranks;
    return whole;
  }
  // Returns the cuts of what an optimizer reads and writes: one rank's part if ranks share state, else all.
  std::vector<uint64_t> updated_cuts(const std::vector<uint64_t>& whole) const {
    return part_cuts(whole, sharing_.shares_state() ? sharing_.ranks() : 1);
  }
  // Adds a buffer for the part that one rank of a node group has. Returns kNone if there is one node group.
  BufferId across_buffer(const std::string& name, BufferClass kind, const std::vector<uint64_t>& whole,
                         bool permanent = false) {
    if (!sharing_.has_node_groups()) return kNone;
    return buffer(name, kind, part_cuts(whole, sharing_.in_node_group.count), permanent);
  }

  // A bank has the pieces of its first group, then those of the second, and so on. Each group begins where a
  // home in any tier may begin, so the last piece of a group reaches to the start of the next group.
  bool is_banked(uint32_t g, GroupBuffers& b) {
    const auto [k, part] = in_banks_[g];
    if (k == kNone) return false;
    const std::vector<uint32_t>& bank = picks_.banks[k];
    if (bank_buffers_[k] == kNone) bank_buffers_[k] = bank_buffer(bank.front(), b, bank.size());
    b.weights = b.forward.whole = b.backward.whole = bank_buffers_[k];
    b.first_piece = part * b.pieces();
    return true;
  }
  void place_in_banks() {
    bank_buffers_.resize(picks_.banks.size(), kNone);
    in_banks_.resize(model_.groups.size());
    for (uint32_t k = 0; k < picks_.banks.size(); ++k)
      for (uint32_t part = 0; part < picks_.banks[k].size(); ++part)
        in_banks_[picks_.banks[k][part]] = {k, part};
  }
  BufferId bank_buffer(uint32_t first, const GroupBuffers& b, size_t groups) {
    const uint64_t width = dtype_bytes(model_.precision);
    const uint64_t stride = part_bytes(b.shards.back(), model_.precision, home_alignment(program_.machine));
    std::vector<uint64_t> cuts{0};
    for (size_t part = 0; part < groups; ++part) {
      for (size_t k = 1; k + 1 < b.shards.size(); ++k) cuts.push_back(part * stride + b.shards[k] * width);
      cuts.push_back((part + 1) * stride);
    }
    const BufferId bank = buffer("bank." + model_.groups[first].name + "-" + std::to_string(groups - 1),
                                 BufferClass::weights, std::move(cuts), true);
    program_.buffers[bank].slot_stride = stride;
    return bank;
  }

  void make_weights(const Group& g, GroupBuffers& b, const std::vector<uint64_t>& whole) {
    const auto kind = BufferClass::weights;
    // Where gathered weights are permanent, the rank's own part of them is transient, unless it holds master
    // weights (in fp32) or frozen weights that are saved.
    const bool gathered =
        sharing_.shares_state() && (!sharing_.shares_weights() || sharing_.weights_in_node_group);
    const bool stays = !gathered || (g.trainable ? model_.precision == DType::f32 : b.saved);
    b.weights = buffer("w." + g.name, kind, updated_cuts(whole), stays);
    if (!sharing_.shares_state()) {
      b.forward.whole = b.backward.whole = b.weights;
    } else if (!sharing_.shares_weights()) {
      b.updated = {b.weights, across_buffer("wm." + g.name, kind, whole),
                   buffer("ww." + g.name, kind, whole, true)};
      b.forward.whole = b.backward.whole = b.updated.whole;
    } else {
      b.forward.whole = buffer("wf." + g.name, kind, whole);
      b.backward.whole = buffer("wb." + g.name, kind, whole);
      if (sharing_.weights_in_node_group) {
        b.updated = {b.weights, across_buffer("wm." + g.name, kind, whole, true), kNone};
        b.forward.across = b.backward.across = b.updated.across;
      } else {
        b.forward.part = b.backward.part = b.weights;
        b.forward.across = across_buffer("wfm." + g.name, kind, whole);
        b.backward.across = across_buffer("wbm." + g.name, kind, whole);
      }
    }
  }

  void make_gradients(const Group& g, bool waits, GroupBuffers& b, const std::vector<uint64_t>& whole,
                      const std::vector<uint64_t>& whole_fp32) {
    const auto kind = BufferClass::gradients;
    b.gradient = buffer("g." + g.name, kind, updated_cuts(whole), waits);
    const uint32_t uses = uses_.kind_counts[out_.groups.size()];
    if (uses > kAccumulatorsMax)
      throw std::invalid_argument("parameter group " + g.name + " has too many kinds of uses");
    for (uint32_t k = 0; k < uses; ++k)
      b.accumulators.push_back(buffer(uses == 1 ? "a." + g.name : "a." + g.name + "." + std::to_string(k),
                                      kind, whole_fp32, out_.waves > 1));
    b.summed = {b.gradient, kNone, b.gradient};
    if (sharing_.ranks() == 1) return;
    if (!sharing_.shares_state())
      b.summed = {buffer("p." + g.name, kind, part_cuts(whole, sharing_.ranks())),
                  across_buffer("pm." + g.name, kind, whole), b.gradient};
    b.reduction.own = buffer("r." + g.name, kind, whole);
    if (sharing_.has_node_groups()) {
      b.reduction.in_node_group = buffer("e." + g.name, kind, whole);
      b.reduction.partial_sum = across_buffer("es." + g.name, kind, whole_fp32);
      b.reduction.received = across_buffer("ea." + g.name, kind, whole_fp32);
    } else {
      b.reduction.received = buffer("e." + g.name, kind, whole);
    }
    b.reduction.sum = b.summed.part;
  }

  // These buffers come after all others, so that the others have the same indices with and without guesses.
  void make_next_gradients() {
    for (uint32_t g = 0; g < out_.groups.size(); ++g) {
      if (!model_.groups[g].trainable || !options_.guesses(g, model_.precision)) continue;
      const Buffer& waiting = program_.buffers[out_.groups[g].gradient];
      out_.groups[g].next_gradient = buffer("gn." + model_.groups[g].name, waiting.kind, waiting.cuts);
    }
  }

  // Every rank has an equal part of each shard. In 16 bits, such a part fills whole pages of a file.
  std::vector<uint64_t> shards_of(const Group& g) const {
    const uint64_t ranks = sharing_.ranks();
    const uint64_t shard = ranks * shard_elements_;
    const uint64_t elements = round_up(g.elements, ranks * kGroupPadding);
    if (options_.optimizer.whole_tensors) return {0, elements};
    std::vector<uint64_t> shards;
    for (uint64_t e = 0; e < elements; e += shard) shards.push_back(e);
    shards.push_back(elements);
    return shards;
  }

  void make_shard_buffers(const Group& g, GroupBuffers& b) {
    std::vector<uint64_t> sums{0};
    for (size_t k = 0; k + 1 < b.shards.size(); ++k) {
      const uint64_t elements = b.shards[k + 1] - b.shards[k], part = elements / sharing_.ranks();
      const uint64_t blocks = (part + kNormBlock - 1) / kNormBlock;
      sums.push_back(sums.back() + round_up(8 * blocks, kScalarAlignment));
      const uint64_t own = sharing_.shares_state() ? part : elements;
      b.state.push_back(flat_buffer("s." + g.name + "." + std::to_string(k), BufferClass::state,
                                    plane_offsets(options_.optimizer.planes, own).back(), true));
    }
    b.block_sums = buffer("n." + g.name, BufferClass::scalars, sums);
    b.all_block_sums = {b.block_sums, kNone, b.block_sums};
    const std::vector<uint64_t> of_all{0, sharing_.ranks() * sums.back()};
    if (sharing_.ranks() > 1) {
      b.all_block_sums.across = across_buffer("nm." + g.name, BufferClass::scalars, of_all);
      b.all_block_sums.whole = buffer("nn." + g.name, BufferClass::scalars, of_all);
    }
    b.norm_sums = b.all_block_sums.whole;
    if (b.parts.count > 1)
      b.norm_sums = buffer("nd." + g.name, BufferClass::scalars, {0, b.parts.count * of_all.back()});
  }

  // A group has factors only if they are smaller than its gradient.
  void make_compression(const Group& g, const std::vector<bool>& high_rank, GroupBuffers& b,
                        const std::vector<uint64_t>& error_cuts) {
    if (options_.compress_rank == 0 || sharing_.ranks() == 1 || b.parts.count > 1) return;
    CompressionBuffers c;
    c.layout = low_rank_layout(g, options_.compress_rank, high_rank);
    if (c.layout.matrices.empty()) return;
    c.error = buffer("c." + g.name, BufferClass::state, error_cuts, true);
    c.left = factor("l." + g.name, c.layout.left, false);
    c.right = factor("q." + g.name, c.layout.right, true);
    b.compression = std::move(c);
  }
  FactorBuffers factor(const std::string& name, uint64_t elements, bool permanent) {
    const auto kind = BufferClass::gradients;
    const std::vector<uint64_t> whole{0, 4 * sharing_.factor_elements(elements)};
    FactorBuffers f;
    f.reduction.own = buffer(name + ".own", kind, whole);
    if (sharing_.has_node_groups()) {
      f.reduction.in_node_group = buffer(name + ".in_node_group", kind, whole);
      f.reduction.partial_sum = across_buffer(name + ".partial_sum", kind, whole);
      f.reduction.received = across_buffer(name + ".received", kind, whole);
    } else {
      f.reduction.received = buffer(name + ".received", kind, whole);
    }
    f.reduction.sum = f.sum.part = buffer(name + ".part", kind, part_cuts(whole, sharing_.ranks()));
    f.sum.across = across_buffer(name + ".node_group", kind, whole);
    f.sum.whole = buffer(name, permanent ? BufferClass::state : kind, whole, permanent);
    return f;
  }

  void make_input_buffers() {
    const std::vector<uint64_t> pieces{offsetof(StepScalars, input), offsetof(StepScalars, loss),
                                       offsetof(StepScalars, norm),  offsetof(StepScalars, update),
                                       offsetof(StepScalars, guess), sizeof(StepScalars)};
    if (!model_.generates()) out_.scalars = buffer("scalars", BufferClass::scalars, pieces, true, kTrainRing);
    make_host_buffers();
    if (options_.evaluate && !model_.generates())
      out_.validation_loss =
          buffer("validation_loss", BufferClass::scalars, {0, kScalarAlignment}, true, kValidationRing);
  }

  // The number of an activation's buffers: one for each micro-batch, or only one if the activation is kept or
  // belongs to a reading.
  uint32_t slices_of(const Activation& x) const {
    return x.kept || is_of_reading(model_, x) ? 1 : out_.slices;
  }

  // Makes the buffers that the host writes and reads. They have a piece for each micro-batch.
  void make_host_buffers() {
    out_.inputs.assign(model_.activations.size(), kNone);
    out_.outputs.assign(model_.activations.size(), kNone);
    for (size_t a = 0; a < model_.activations.size(); ++a) {
      const Activation& x = model_.activations[a];
      if (!x.input && !x.output) continue;
      const uint64_t bytes = static_cast<uint64_t>(element_count(x.shape)) * dtype_bytes(x.dtype);
      std::vector<uint64_t> cuts{0};
      for (uint32_t m = 0; m < slices_of(x); ++m)
        cuts.push_back(cuts.back() + round_up(bytes, kScalarAlignment));
      (x.input ? out_.inputs : out_.outputs)[a] =
          buffer(x.name, BufferClass::scalars, std::move(cuts), true,
                 is_of_reading(model_, x) ? out_.reading_ring : kWaveRing);
    }
  }

  void make_slice_buffers() {
    slices_.activations.resize(model_.activations.size());
    slices_.gradients.resize(model_.activations.size());
    for (size_t a = 0; a < model_.activations.size(); ++a) {
      const Activation& x = model_.activations[a];
      if (x.input || x.output) continue;
      const uint64_t bytes = static_cast<uint64_t>(element_count(x.shape)) * dtype_bytes(x.dtype);
      for (uint32_t m = 0; m < slices_of(x); ++m) {
        const std::string name = x.name + "." + std::to_string(m);
        if (x.kept) {
          slices_.activations[a].push_back(flat_buffer(name, BufferClass::caches, bytes, true));
          continue;
        }
        // The host reads an index, so an index lives in the tier of the scalars.
        const bool index =
            std::ranges::any_of(picks_.uses, [&](const ExpertUses& u) { return u.routing == a; });
        slices_.activations[a].push_back(
            flat_buffer("x." + name, index ? BufferClass::scalars : BufferClass::activations, bytes));
        if (out_.segments->differentiable[a])
          slices_.gradients[a].push_back(flat_buffer("d." + name, BufferClass::activations, bytes));
      }
    }
    for (const UseInfo& use : out_.uses) slices_.saved.push_back(saved_buffers(use));
  }

  std::vector<BufferId> saved_buffers(const UseInfo& use) {
    const uint64_t bytes = out_.plans()[use.plan].at(use.recompute).saved_bytes;
    std::vector<BufferId> by_slice;
    if (bytes == 0) return by_slice;
    const std::string name = "v." + model_.layers[use.layer].name + "." + std::to_string(use.position) + ".";
    for (uint32_t m = 0; m < out_.slices; ++m)
      by_slice.push_back(flat_buffer(name + std::to_string(m), BufferClass::activations, bytes));
    return by_slice;
  }

  // Picked buffers come after all others, since they name a bank and an index.
  void make_picked_buffers() {
    slices_.picked.resize(out_.uses.size());
    for (const ExpertUses& uses : picks_.uses) {
      const BufferId index = slices_.activations[uses.routing].front();
      for (uint32_t e = 0; e < uses.count; ++e) {
        PickedUse& picked = slices_.picked[uses.first + e];
        picked.runs = e < uses.places;
        if (!picked.runs) continue;
        picked.index = index;
        picked.part = static_cast<double>(uses.places) / uses.count;
        for (const uint32_t bank : uses.banks) picked.weights.push_back(picked_buffer(bank, index, e, uses));
      }
    }
  }
  BufferId picked_buffer(uint32_t bank, BufferId index, uint32_t place, const ExpertUses& uses) {
    const Buffer& parts = program_.buffers[bank_buffers_[bank]];
    const auto pieces = static_cast<std::ptrdiff_t>(parts.pieces() / uses.count);
    std::vector<uint64_t> cuts(parts.cuts.begin(), parts.cuts.begin() + pieces + 1);
    const std::string of_bank = parts.name.substr(4);
    const BufferId b = buffer("place." + std::to_string(place) + "." + program_.buffers[index].name + of_bank,
                              BufferClass::weights, std::move(cuts), true);
    program_.buffers[b].pick = {bank_buffers_[bank], index, place, uses.places};
    return b;
  }

  const Model& model_;
  const LowerOptions& options_;
  Program& program_;
  Lowering& out_;
  ExpertPicks picks_;
  std::vector<BufferId> bank_buffers_;  // by bank; kNone until one of its groups has been met
  struct InBank {
    uint32_t bank = kNone, part = 0;
  };
  std::vector<InBank> in_banks_;  // by group
  const GroupUses uses_ = uses_of_groups(model_);
  const uint64_t shard_elements_ =
      options_.shard_elements ? options_.shard_elements : default_shard_elements(model_);
  StateSharing sharing_;  // of the group at hand
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

// Backward runs the uses in reverse: the last use that reads an activation is the first to write its
// gradient.
std::shared_ptr<const SegmentPlans> plan_segments(const Model& model, const WorkspaceBytes& workspace_bytes) {
  auto all = std::make_shared<SegmentPlans>();
  all->differentiable.assign(model.activations.size(), false);
  std::vector<uint32_t> reads(model.activations.size(), 0);  // by uses that are still to come
  for (const Layer& layer : model.layers)
    for (const SegmentUse& u : layer.segments)
      for (const uint32_t a : u.inputs) ++reads[a];
  std::map<std::pair<uint32_t, WantedGradients>, uint32_t> known;
  for (uint32_t l = 0; l < model.layers.size(); ++l)
    for (const SegmentUse& u : model.layers[l].segments) {
      WantedGradients wanted;
      for (const uint32_t a : u.inputs) {
        wanted.inputs.push_back(all->differentiable[a]);
        wanted.added.push_back(all->differentiable[a] && --reads[a] > 0);
      }
      for (const uint32_t a : u.outputs) wanted.host_only.push_back(model.activations[a].output);
      for (const SegmentParameter& p : model.segments[u.segment].parameters)
        wanted.frozen.push_back(model.groups[u.groups[p.slot]].parameters[p.parameter].frozen);
      for (const uint32_t g : u.groups)
        wanted.trainable.push_back(l < model.trained_layers() && model.groups[g].trainable);
      const auto next = static_cast<uint32_t>(all->plans.size());
      const auto [it, fresh] = known.try_emplace({u.segment, wanted}, next);
      if (fresh) all->plans.push_back(plan_segment(model, u.segment, wanted, workspace_bytes));
      const std::vector<bool>& has_gradient = all->plans[it->second].has_output_gradient;
      for (size_t i = 0; i < u.outputs.size(); ++i)
        if (has_gradient[i]) all->differentiable[u.outputs[i]] = true;
      all->of_use.push_back(it->second);
    }
  return all;
}

SliceBuffers make_buffers(const Model& model, const LowerOptions& options, Program& program,
                          Lowering& lowering) {
  return BufferMaker(model, options, program, lowering).run();
}

}  // namespace sluice
