#include "engine/plan/search/candidate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/pack.h"
#include "engine/plan/assemble/assemble.h"

namespace sluice {

namespace {

constexpr double kRoomToMove = 1.3;  // times what the largest task needs

class Homes {
 public:
  Homes(const Candidate& candidate, const Program& program, const std::vector<uint64_t>& capacities,
        const Least& least)
      : candidate_(candidate),
        program_(program),
        capacities_(capacities),
        least_(least),
        memory_(lowest_memory_tier(program.machine)),
        lowest_(lowest_tier(program.machine)),
        samples_(std::ranges::count(program.buffers, BufferClass::state, &Buffer::kind) > 0),
        homes_(program.buffers.size(), lowest_) {}

  std::vector<TierId> run() && {
    const ClassTurns& turns = kClassOrders[candidate_.order];
    for (TierId tier = 0; tier <= memory_ && tier < lowest_; ++tier) {
      room_ = capacities_[tier];
      room_ -= std::min(room_, left_to_staging(tier));
      for (size_t k = 0; k < kHomeClasses.size(); ++k) share_[k] = tier == memory_ ? share_of(k) : UINT64_MAX;
      uint64_t whole = UINT64_MAX;
      for (BufferId b = 0; samples_ && tier == memory_ && b < homes_.size(); ++b)
        if (program_.buffers[b].kind == BufferClass::caches) claim(b, tier, whole);
      for (uint8_t turn = 0; turn < kHomeClasses.size(); ++turn)
        for (BufferId b = 0; b < homes_.size(); ++b)
          for (size_t k = 0; k < kHomeClasses.size(); ++k)
            if (turns[k] == turn && claims_with(program_.buffers[b], kHomeClasses[k], samples_))
              claim(b, tier, share_[k]);
    }
    for (const auto& [buffer, tier] : candidate_.moved)
      if (program_.buffers[buffer].permanent) homes_[buffer] = tier;
    return std::move(homes_);
  }

  HomeRule rule() && {
    HomeRule rule;
    claims_ = &rule.claims;
    std::move(*this).run();
    rule.turns = kClassOrders[candidate_.order];
    rule.left_to_staging.assign(program_.machine.tiers.size(), 0);
    for (TierId tier = 0; tier <= memory_ && tier < lowest_; ++tier)
      rule.left_to_staging[tier] = left_to_staging(tier);
    for (const auto& [buffer, tier] : candidate_.moved) rule.moved.push_back(buffer);
    return rule;
  }

 private:
  uint64_t left_to_staging(TierId tier) const {
    return tier == memory_ ? left_in_lowest() : left_above(tier);
  }
  void claim(BufferId buffer, TierId tier, uint64_t& share) {
    const Buffer& b = program_.buffers[buffer];
    const uint64_t bytes = round_up(b.bytes(), placement_alignment(program_.machine, tier));
    if (!b.owns_home() || homes_[buffer] != lowest_) return;
    const HomeClaim claim{buffer, tier, bytes, room_, share};
    if (claims_) claims_->push_back(claim);
    if (!claim.granted()) return;
    homes_[buffer] = tier;
    room_ -= bytes;
    share -= bytes;
  }
  // Bytes of the lowest memory tier that a class may have.
  uint64_t share_of(size_t kind) const {
    if (candidate_.eighths[kind] == kAllEighths) return UINT64_MAX;
    const uint64_t alignment = placement_alignment(program_.machine, memory_);
    uint64_t all = 0;
    for (const Buffer& b : program_.buffers)
      if (b.owns_home() && claims_with(b, kHomeClasses[kind], samples_))
        all += round_up(b.bytes(), alignment);
    return all * candidate_.eighths[kind] / kAllEighths;
  }
  uint64_t left_in_lowest() const {
    if (candidate_.working == kAllOfIt) return capacities_[memory_];
    return least_.working_bytes(memory_) / 10 * candidate_.working + least_.permanent_bytes(memory_);
  }
  uint64_t left_above(TierId tier) const {
    const auto least = kRoomToMove * static_cast<double>(least_.working_bytes(tier));
    const auto all = static_cast<double>(capacities_[tier]);
    if (candidate_.upper == kUpperLevels || least >= all) return capacities_[tier];
    return static_cast<uint64_t>(least *
                                 std::pow(all / least, static_cast<double>(candidate_.upper) / kUpperLevels));
  }

  const Candidate& candidate_;
  const Program& program_;
  const std::vector<uint64_t>& capacities_;
  const Least& least_;
  TierId memory_, lowest_;
  bool samples_;
  std::vector<TierId> homes_;
  uint64_t room_ = 0;                         // of a tier
  std::array<uint64_t, 3> share_{};           // by class
  std::vector<HomeClaim>* claims_ = nullptr;  // where claims are noted; null: nowhere
};

}  // namespace

Recompute level_of(const KeptLayers& kept, const std::vector<Recompute>& levels, uint32_t layer,
                   uint32_t layers) {
  const uint32_t whole = kept.raised / layers, turn = kept.first ? layer : layers - 1 - layer;
  return levels[whole + (turn < kept.raised % layers)];
}

// Andrew's monotone chain (1979), the lower half.
std::vector<Recompute> worthwhile(std::vector<LevelCost> levels) {
  std::stable_sort(levels.begin(), levels.end(), [](const LevelCost& a, const LevelCost& b) {
    return std::pair(a.bytes, a.seconds) < std::pair(b.bytes, b.seconds);
  });
  std::vector<LevelCost> hull;
  for (const LevelCost& level : levels) {
    if (!hull.empty() && level.seconds >= hull.back().seconds) continue;
    const auto is_beaten = [&](const LevelCost& a, const LevelCost& middle) {
      const auto bytes = [&](const LevelCost& c) { return static_cast<double>(c.bytes - a.bytes); };
      return (middle.seconds - a.seconds) * bytes(level) >= (level.seconds - a.seconds) * bytes(middle);
    };
    while (hull.size() >= 2 && is_beaten(hull[hull.size() - 2], hull.back())) hull.pop_back();
    hull.push_back(level);
  }
  std::vector<Recompute> out;
  for (const LevelCost& level : hull) out.push_back(level.level);
  return out;
}

bool has_choice_of_home(const Buffer& buffer) {
  return buffer.owns_home() && (buffer.kind == BufferClass::caches ||
                                std::count(kHomeClasses.begin(), kHomeClasses.end(), buffer.kind) > 0);
}

bool claims_with(const Buffer& buffer, BufferClass kind, bool samples) {
  return buffer.kind == kind ||
         (!samples && buffer.kind == BufferClass::caches && kind == BufferClass::state);
}

Candidate with_moved(Candidate candidate, BufferId buffer, TierId tier) {
  auto& moved = candidate.moved;
  const auto at = std::lower_bound(moved.begin(), moved.end(), buffer,
                                   [](const auto& m, BufferId b) { return m.first < b; });
  if (at != moved.end() && at->first == buffer)
    at->second = tier;
  else
    moved.insert(at, {buffer, tier});
  return candidate;
}

std::vector<bool> updated_in_backward(const Candidate& candidate, const Model& model, bool waits_for_norm) {
  std::vector<bool> chosen(model.groups.size());
  uint32_t row = 0;  // from the last layer, whose gradients are complete first
  for (size_t l = model.trained_layers(); l-- > 0;)
    for (const SegmentUse& use : model.layers[l].segments)
      for (const uint32_t g : use.groups) {
        const uint32_t before = row * candidate.backward / kBackwardParts;
        chosen[g] = ++row * candidate.backward / kBackwardParts > before && !(waits_for_norm && l == 0);
      }
  return chosen;
}

std::vector<uint32_t> wave_choices(const PlanRequest& request, const Model& model) {
  if (request.shape) return {request.shape->waves};
  const auto micro_batches = static_cast<uint32_t>(request.lower.batch / model.micro_batch);
  std::vector<uint32_t> choices;
  if (request.waves) {
    choices = {*request.waves};
  } else if (request.lower.share_layers_until > 0 || uses_of_groups(model).shares_layers) {
    choices = {1};
  } else {
    for (uint32_t power = 1; power < 2 * micro_batches; power *= 2) {
      uint32_t waves = std::min(power, micro_batches);
      while (micro_batches % waves != 0) --waves;
      if (choices.empty() || waves > choices.back()) choices.push_back(waves);
    }
  }
  uint64_t uses = 0;
  for (uint32_t l = 0; l < model.trained_layers(); ++l) uses += model.layers[l].segments.size();
  const auto has_more = [&](uint64_t most) {
    return [=](uint32_t waves) { return micro_batches > waves && 2 * uses * (micro_batches / waves) > most; };
  };
  std::erase_if(choices, has_more(kWaveTasksMax));
  if (request.long_waves || choices.empty()) return choices;
  const auto first = std::find_if_not(choices.begin(), choices.end(), has_more(kLongWaveTasks));
  choices.erase(choices.begin(), std::min(first, std::prev(choices.end())));
  return choices;
}

std::vector<uint32_t> backward_choices(const PlanRequest& request, DType precision) {
  if (request.shape) return {request.shape->backward};
  const Overlap overlap = request.overlap;
  const bool waits_for_norm = request.lower.update_waits_for_norm;
  if (overlap == Overlap::never || (waits_for_norm && precision == DType::f32)) return {0};
  std::vector<uint32_t> choices{8, 4, 6, 2};
  if (overlap == Overlap::automatic) choices.insert(waits_for_norm ? choices.begin() : choices.end(), 0);
  return choices;
}

std::optional<BufferClass> first_class(const Candidate& candidate) {
  const ClassTurns& turns = kClassOrders[candidate.order];
  if (std::count(turns.begin(), turns.end(), 0) > 1) return std::nullopt;
  return kHomeClasses[static_cast<size_t>(std::find(turns.begin(), turns.end(), 0) - turns.begin())];
}

std::vector<TierId> homes_of(const Candidate& candidate, const Program& program,
                             const std::vector<uint64_t>& capacities, const Least& least) {
  return Homes(candidate, program, capacities, least).run();
}

HomeRule home_rule(const Candidate& candidate, const Program& program,
                   const std::vector<uint64_t>& capacities, const Least& least) {
  return Homes(candidate, program, capacities, least).rule();
}

CandidateChoices choices_for(Placement placement) {
  const std::vector<uint32_t> workings{20, 13, 16, 30, 50, 11, 8, 5, kAllOfIt};
  const std::vector<uint32_t> least_first{11, 13, 16, 20, 30, 50, kAllOfIt};
  std::vector<uint32_t> levels(kUpperLevels + 1), orders(kClassOrders.size());
  std::iota(levels.begin(), levels.end(), 0u);
  std::iota(orders.begin(), orders.end(), 0u);
  switch (placement) {
    case Placement::automatic:
      return {workings, {levels.rbegin(), levels.rend()}, orders, true};
    case Placement::lowest:
      return {{kAllOfIt}, {kUpperLevels}, {kWeightsFirst}};
    case Placement::highest:
      return {least_first, levels, {kByLayer}};
    case Placement::weights_first:
      return {least_first, levels, {kWeightsFirst}};
    case Placement::state_first:
      return {least_first, levels, {kStateFirst}};
  }
  CHECK(false, "no such placement");
}

}  // namespace sluice
