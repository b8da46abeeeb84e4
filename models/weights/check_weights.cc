// check_weights() of hf_weights.h: what of a directory does not fit a model, in one sentence.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "models/families/family.h"
#include "models/weights/hf_weights.h"
#include "models/weights/stacked.h"

namespace sluice {
namespace {

constexpr const char* kHeadName = "lm_head.weight";
constexpr size_t kShown = 10;  // of each kind

[[noreturn]] void refuse(const HfWeights& weights, const std::string& sentence, const std::string& remedy) {
  throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(weights.directory()), sentence),
              remedy);
}

bool is_floating_point(SafetensorsType type) {
  return type == SafetensorsType::f32 || type == SafetensorsType::f16 || type == SafetensorsType::bf16 ||
         type == SafetensorsType::f64;
}

struct Findings {
  const char* what;
  std::vector<std::string> names;
};

std::string listed(const Findings& findings) {
  const size_t n = findings.names.size();
  std::vector<std::string> first;
  for (size_t i = 0; i < std::min(n, kShown); ++i) first.push_back(shown_name(findings.names[i]));
  return fmt::format("{} {} ({}{})", n, findings.what, fmt::join(first, ", "),
                     n > kShown ? fmt::format(" and {} more", n - kShown) : "");
}

// "1, 4 to 6"
std::string numbers(const std::set<int64_t>& experts) {
  std::vector<std::string> parts;
  for (auto at = experts.begin(); at != experts.end();) {
    const int64_t first = *at;
    int64_t last = first;
    while (++at != experts.end() && *at == last + 1) last = *at;
    parts.push_back(first == last ? fmt::format("{}", first)
                                  : fmt::format("{}{}{}", first, last == first + 1 ? ", " : " to ", last));
  }
  return fmt::format("{} {}", experts.size() == 1 ? "expert" : "experts", fmt::join(parts, ", "));
}

// Collects, by layer, experts of which the directory has nothing, and experts that the model has on no rank.
// take_out() removes their parameters from `missing` and `unknown`.
class WrongExperts {
 public:
  WrongExperts(const Model& model, const HfWeights& weights) : family_(find_family(model.family)) {
    if (family_ == nullptr || *family_->experts == '\0') return;
    for (const Group& group : groups_of_all_ranks(model))
      if (holds(weights, model, group))
        for (const Parameter& parameter : group.parameters)
          if (const auto place = expert_of(*family_, parameter.name))
            is_there_[place->layer][place->expert] |= weights.find(parameter.name) != nullptr;
  }

  void take_out(std::vector<std::string>& missing, std::vector<std::string>& unknown) {
    std::erase_if(missing, [&](const std::string& name) {
      const auto place = place_of(name);
      return place && !is_there_.at(place->layer).at(place->expert) &&
             (missing_[place->layer].insert(place->expert), true);
    });
    std::erase_if(unknown, [&](const std::string& name) {
      const auto place = place_of(name);
      if (!place || !is_there_.contains(place->layer) || is_there_.at(place->layer).contains(place->expert))
        return false;
      beyond_[place->layer].insert(place->expert);
      return true;
    });
  }

  void describe(std::vector<std::string>& parts) const {
    describe(missing_, parts, [](int64_t layer, const auto& all) {
      return fmt::format("layer {} lacks {}", layer, numbers(all));
    });
    describe(beyond_, parts, [&](int64_t layer, const auto& all) {
      return fmt::format("layer {} has {} beyond the {} of config.json", layer, numbers(all),
                         is_there_.at(layer).size());
    });
  }
  bool are_missing() const { return !missing_.empty(); }

 private:
  using ByLayer = std::map<int64_t, std::set<int64_t>>;

  std::optional<ExpertPlace> place_of(const std::string& name) const {
    return is_there_.empty() ? std::nullopt : expert_of(*family_, name);
  }
  template <class Text>
  static void describe(const ByLayer& layers, std::vector<std::string>& parts, const Text& text) {
    size_t shown = 0;
    for (const auto& [layer, experts] : layers)
      if (shown++ < kShown) parts.push_back(text(layer, experts));
    if (shown > kShown) parts.push_back(fmt::format("and so on in {} more layers", shown - kShown));
  }

  const Family* family_;
  std::map<int64_t, std::map<int64_t, bool>> is_there_;  // by layer and expert of the model
  ByLayer missing_, beyond_;
};

// The parameter with which the last op makes the loss, or a reading's logits. In a tied model, it is the
// embedding. nullptr: there is none.
const Parameter* head_parameter(const Model& model) {
  if (model.layers.empty()) return nullptr;
  const SegmentUse& use = model.layers.back().segments.back();
  const Segment& segment = model.segments[use.segment];
  const std::vector<uint32_t>& of_op = segment.ops.back().parameters;
  if (of_op.empty()) return nullptr;
  const SegmentParameter& p = segment.parameters[of_op.front()];
  return &model.groups[use.groups[p.slot]].parameters[p.parameter];
}

void check_tied_head(const HfWeights& weights, const Model& model) {
  constexpr uint64_t kPiece = 1 << 18;
  const Parameter* const tied = head_parameter(model);
  const HfTensor *head = weights.find(kHeadName), *embedding = tied ? weights.find(tied->name) : nullptr;
  if (embedding == nullptr) return;  // what is missing is listed
  bool equal = head->elements() == embedding->elements();
  std::vector<float> a(kPiece), b(kPiece);
  for (uint64_t first = 0; equal && first < head->elements(); first += kPiece) {
    const uint64_t n = std::min(kPiece, head->elements() - first);
    weights.read(kHeadName, first, n, a.data());
    weights.read(tied->name, first, n, b.data());
    equal = std::memcmp(a.data(), b.data(), n * sizeof(float)) == 0;
  }
  if (!equal)
    refuse(weights,
           fmt::format("its config.json ties the head to the embedding, but {} differs from {}", kHeadName,
                       tied->name),
           "Set tie_word_embeddings to false in config.json, or remove that tensor.");
}

}  // namespace

void check_weights(const HfWeights& weights, const Model& model) {
  Findings missing{"missing", {}}, unknown{"unknown", {}}, misshapen{"of another shape", {}},
      mistyped{"not floating-point", {}};
  std::set<std::string> expected;
  for (const Group& group : groups_of_all_ranks(model)) {
    if (!holds(weights, model, group)) continue;
    for (const Parameter& parameter : group.parameters) {
      expected.insert(parameter.name);
      const HfTensor* tensor = weights.find(parameter.name);
      if (tensor == nullptr)
        missing.names.push_back(parameter.name);
      else if (tensor->shape != parameter.shape)
        misshapen.names.push_back(fmt::format("{} {} instead of {}", parameter.name,
                                              shown_shape(tensor->shape), shown_shape(parameter.shape)));
      else if (!is_floating_point(tensor->type))
        mistyped.names.push_back(fmt::format("{} {}", parameter.name, safetensors_type_name(tensor->type)));
    }
  }
  for (const std::string& name : weights.names())
    if (!expected.contains(name) && name != kHeadName) unknown.names.push_back(name);
  WrongExperts experts(model, weights);
  experts.take_out(missing.names, unknown.names);
  std::vector<std::string> parts;
  experts.describe(parts);
  for (const Findings* findings : {&missing, &unknown, &misshapen, &mistyped})
    if (!findings->names.empty()) parts.push_back(listed(*findings));
  if (!parts.empty())
    refuse(weights, fmt::format("its tensors do not fit the model: {}", fmt::join(parts, "; ")),
           weights.are_adapters() ? "Give the --model on which the adapters were trained."
           : experts.are_missing()
               ? "Download the directory again, or give the config.json that belongs to it."
               : "Give the config.json that belongs to these weights.");
  if (!expected.contains(kHeadName) && weights.find(kHeadName)) check_tied_head(weights, model);
}

}  // namespace sluice
