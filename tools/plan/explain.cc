#include "tools/plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "engine/profile/occupancy.h"
#include "engine/simulate/simulate.h"
#include "tools/command/wrap.h"
#include "tools/plan/facts.h"

namespace sluice {

namespace {

constexpr BufferClass kClasses[] = {BufferClass::weights, BufferClass::gradients,   BufferClass::state,
                                    BufferClass::caches,  BufferClass::activations, BufferClass::workspace};
constexpr size_t kIndent = 15;  // columns

std::vector<BodyId> step_of(const Plan& plan) { return plan.lowering.bodies().usual(); }

uint64_t& bytes_in(ClassBytes& bytes, BufferClass kind) { return bytes[static_cast<size_t>(kind)]; }

std::string joined(const std::vector<std::string>& parts, const char* between = ", ") {
  return fmt::format("{}", fmt::join(parts, between));
}

class Explanation {
 public:
  explicit Explanation(const Plan& plan)
      : plan_(plan),
        machine_(plan.program.machine),
        permanent_(permanent_bytes(plan.program)),
        has_several_waves_(std::any_of(plan.weighed.begin(), plan.weighed.end(),
                                       [](const Weighed& w) { return w.waves > 1; })) {}

  std::string text() {
    std::string out = "  why it lives there\n";
    for (TierId t = 0; t < machine_.tiers.size(); ++t)
      if (!machine_.tiers[t].file)
        append_wrapped(out, fmt::format("  {:<12}", machine_.tiers[t].name), room_words(t), kIndent);
    for (const BufferClass kind : kClasses) {
      if (kind == BufferClass::caches && !plan_.model.samples()) continue;
      append_wrapped(out, fmt::format("  {:<12}", buffer_class_name(kind)),
                     place_words(kind) + why_words(kind), kIndent);
      const std::string moved = moved_words(kind);
      if (!moved.empty()) append_wrapped(out, "", "moves a step: " + moved, kIndent);
    }
    return out + weighed_table();
  }

 private:
  static bool lives_across(BufferClass kind) {
    return kind != BufferClass::activations && kind != BufferClass::workspace;
  }

  std::string place_words(BufferClass kind) {
    std::vector<std::string> parts;
    for (size_t t = 0; t < machine_.tiers.size(); ++t)
      if (const uint64_t bytes = bytes_in(permanent_[t], kind))
        parts.push_back(fmt::format("{} in {}", format_size(bytes), machine_.tiers[t].name));
    if (parts.empty()) return "";
    return joined(parts) + ". ";
  }

  // Why a class of buffers lives where it does.
  std::string why_words(BufferClass kind) {
    switch (kind) {
      case BufferClass::workspace:
        return fmt::format("In {}, where segments run: every task fills it and forgets it.",
                           machine_.tiers.front().name);
      case BufferClass::activations:
        return activation_words();
      case BufferClass::caches:
        return "Of samples: they come before other classes in the lowest memory tier, since every token "
               "writes "
               "them.";
      default:
        break;
    }
    // Names of the tiers below which a part of the class lives. Tiers in `taken` have no room for that part,
    // tiers in `roomy` have room.
    std::vector<std::string> taken, roomy;
    uint64_t below = 0;
    for (ClassBytes& bytes : permanent_) below += bytes_in(bytes, kind);
    for (size_t t = 0; t < machine_.tiers.size(); ++t) {
      below -= bytes_in(permanent_[t], kind);
      const uint64_t room = machine_.tiers[t].capacity - plan_.program.arena_bytes[t];
      if (below > 0) (room < below ? taken : roomy).push_back(machine_.tiers[t].name);
    }
    if (taken.empty() && roomy.empty()) return "All of it fits where it is used.";
    if (plan_.placement != Placement::automatic) return "That is the rule which --placement names.";
    std::vector<std::string> reasons;
    if (!taken.empty())
      reasons.push_back(
          fmt::format("The rest of {} is left to other classes and to copies, which were worth more there.",
                      joined(taken, " and ")));
    if (!roomy.empty())
      reasons.push_back(fmt::format("All of it would fit in {}, but no better step was found with it there.",
                                    joined(roomy, " and in ")));
    return joined(reasons, " ");
  }

  // The most bytes that a memory tier holds in a step.
  std::string room_words(TierId tier) {
    uint64_t homes = 0;
    for (const BufferClass kind : kClasses)
      if (lives_across(kind)) homes += bytes_in(permanent_[tier], kind);
    uint64_t most = 0;
    for (const BodyId body : step_of(plan_))
      most = std::max(most, plan_.program.bodies[body].peak_bytes[tier]);
    return fmt::format("{} of {}: homes take {}, staged copies and data of one step {}.", format_size(most),
                       format_size(machine_.tiers[tier].capacity), format_size(homes),
                       format_size(most - std::min(most, homes)));
  }

  std::string activation_words() const {
    const SegmentLevels levels = segment_levels(plan_);
    if (levels_of(levels) == 1 && levels[static_cast<size_t>(Recompute::none)] > 0)
      return "Kept from forward to backward: nothing is computed twice.";
    std::string words = fmt::format("Recompute {}.", levels_words(levels));
    constexpr std::array<const char*, kRecomputes.size()> kMeaning{
        "", "what norms and activation functions write is made again in backward",
        "only what attention writes is kept, the rest inside of a layer is made again",
        "nothing inside of a layer is kept"};
    for (const Recompute level : kRecomputes)
      if (level != Recompute::none && levels[static_cast<size_t>(level)] > 0)
        words += fmt::format(" {}: {}.", recompute_name(level), kMeaning[static_cast<size_t>(level)]);
    const bool chosen = std::any_of(plan_.weighed.begin(), plan_.weighed.end(),
                                    [&](const Weighed& w) { return w.segments != levels; });
    return words + (chosen ? " Keeping more does not fit or costs more than it saves (see below)." : "");
  }
  static int64_t levels_of(const SegmentLevels& levels) {
    return std::count_if(levels.begin(), levels.end(), [](uint32_t segments) { return segments > 0; });
  }

  std::string moved_words(BufferClass kind) const {
    std::map<std::pair<TierId, TierId>, uint64_t> moved;
    for (const BodyId body : step_of(plan_))
      for (const Instruction& in : plan_.program.bodies[body].instructions) {
        if (in.task != kNoTask) continue;
        const Buffer& b = plan_.program.buffers[in.operands[0].buffer];
        if (b.kind == kind) moved[{in.places[0].tier, in.places[1].tier}] += operand_bytes(b, in.operands[0]);
      }
    std::vector<std::string> parts;
    for (const auto& [tiers, bytes] : moved)
      parts.push_back(fmt::format("{} from {} to {}", format_size(bytes), machine_.tiers[tiers.first].name,
                                  machine_.tiers[tiers.second].name));
    return joined(parts);
  }

  static std::string in_order_of(std::optional<BufferClass> first) {
    return first ? fmt::format("to {} first", buffer_class_name(*first)) : "layer by layer";
  }

  // The plan can differ from the best candidate for two reasons (engine/plan/search/search.h): large models
  // are searched with larger shards than the plan has, or a candidate that is hardly slower writes far less
  // to drives.
  std::string estimate_words(const Weighed& best) const {
    constexpr double kSame = 1e-3;  // smaller differences do not show in the printed digits
    const std::string takes = "the plan itself takes " + readable_seconds(plan_.step_seconds);
    const uint64_t written = bytes_to_files(plan_.program, plan_.lowering.bodies().usual());
    if (best.written > 0 && written <= best.written / 2 && plan_.step_seconds <= kWorthWear * best.seconds)
      return fmt::format("; {}, and writes {:.0f} % of what the first writes to drives", takes,
                         100 * static_cast<double>(written) / static_cast<double>(best.written));
    if (std::abs(best.seconds / plan_.step_seconds - 1) < kSame) return "";
    return ", as the search estimated; " + takes;
  }

  std::string way_words(const Weighed& w, bool upper) const {
    return fmt::format("memory given {}, recompute {}{}{}{}{}", in_order_of(w.first),
                       levels_words(w.segments),
                       levels_of(w.segments) == 1 ? ""
                       : w.first_keep_more        ? ", the first keep more"
                                                  : ", the last keep more",
                       !has_several_waves_ ? ""
                       : w.waves == 1      ? ", 1 wave"
                                           : fmt::format(", {} waves", w.waves),
                       !upper            ? ""
                       : w.upper_is_free ? fmt::format(", {} left to copies", machine_.tiers[0].name)
                                         : fmt::format(", homes in {} too", machine_.tiers[0].name),
                       w.moved ? ", buffers moved" : "");
  }

  // The fastest candidates, one of each kind.
  std::string weighed_table() const {
    constexpr size_t kRows = 10;
    const bool upper = !machine_.tiers.front().file && machine_.tiers.size() > 1 && !machine_.tiers[1].file;
    std::map<std::string, double> best;
    std::optional<Weighed> fastest;
    size_t unfit = 0;
    for (const Weighed& w : plan_.weighed) {
      unfit += w.seconds == 0;
      if (w.seconds == 0) continue;
      if (!fastest || w.seconds < fastest->seconds) fastest = w;
      double& seconds = best.try_emplace(way_words(w, upper), w.seconds).first->second;
      seconds = std::min(seconds, w.seconds);
    }
    std::vector<std::pair<double, std::string>> rows;
    for (const auto& [way, seconds] : best) rows.emplace_back(seconds, way);
    std::sort(rows.begin(), rows.end());
    if (rows.size() > kRows) rows.resize(kRows);
    std::string out = fmt::format("  weighed, the best first{}{}\n", fastest ? estimate_words(*fastest) : "",
                                  unfit ? fmt::format("; {} more do not fit", unfit) : "");
    for (const auto& [seconds, way] : rows)
      out += fmt::format("  {:>10}  {}\n", readable_seconds(seconds), way);
    return out;
  }

  const Plan& plan_;
  const Machine& machine_;
  std::vector<ClassBytes> permanent_;  // by tier
  bool has_several_waves_;             // any weighed candidate has
};

}  // namespace

std::string explain_text(const Plan& plan) { return Explanation(plan).text(); }

void add_weighed(const Plan& plan, nlohmann::ordered_json& out) {
  nlohmann::ordered_json& rows = out["weighed"] = nlohmann::ordered_json::array();
  for (const Weighed& w : plan.weighed) {
    rows.push_back({{"homes_first", w.first ? buffer_class_name(*w.first) : "layers"},
                    {"recompute", nullptr},
                    {"first_keep_more", w.first_keep_more},
                    {"waves", w.waves},
                    {"upper_is_free", w.upper_is_free},
                    {"moved", w.moved},
                    {"seconds", nullptr},
                    {"bytes_written", nullptr}});
    for (const Recompute level : kRecomputes)
      rows.back()["recompute"][recompute_name(level)] = w.segments[static_cast<size_t>(level)];
    if (w.seconds == 0) continue;
    rows.back()["seconds"] = w.seconds;
    rows.back()["bytes_written"] = w.written;
  }
}

}  // namespace sluice
