#include "models/weights/stacked.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "models/families/family.h"

namespace sluice {
namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";

// The start of a name up to its layer, "model.layers.7."; "": the name has no layer.
std::string_view layer_of(std::string_view name) {
  if (!name.starts_with(kLayerPrefix)) return "";
  const size_t dot = name.find('.', kLayerPrefix.size());
  return dot == std::string_view::npos ? "" : name.substr(0, dot + 1);
}

int parts_of(const Stacked& stacked) { return *stacked.second == '\0' ? 1 : 2; }

// The shape of one parameter of a stacked tensor that has the shape `tensor`.
Shape shape_of_part(const Stacked& stacked, const Shape& tensor) {
  Shape shape(tensor.begin() + 1, tensor.end());
  int64_t& divided = stacked.order == Stacked::Order::rows ? shape.front() : shape.back();
  divided /= parts_of(stacked);
  return shape;
}

// The expert's first (`which` = 0) or second parameter. `place`: the expert's index in the tensor.
TensorPart part_of(const Family& family, const Stacked& stacked, std::string_view layer, const Shape& part,
                   int64_t expert, int64_t place, int which) {
  const auto elements = static_cast<uint64_t>(element_count(part)),
             parts = static_cast<uint64_t>(parts_of(stacked));
  const auto number = static_cast<uint64_t>(place), second = static_cast<uint64_t>(which);
  const bool alternate = stacked.order == Stacked::Order::columns;
  return {
      fmt::format("{}{}.{}.{}", layer, family.experts, expert, which == 0 ? stacked.first : stacked.second),
      part, number * elements * parts + second * (alternate ? 1 : elements), alternate ? parts : 1};
}

// The number at the start of `text`, unless it is negative; `rest` receives what follows it.
std::optional<int64_t> number_of(std::string_view text, std::string_view& rest) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0) return {};
  rest = text.substr(static_cast<size_t>(end - text.data()));
  return number;
}

// The stacked tensor that has the parameter, and the expert; nullptr: there is none.
struct Place {
  const Stacked* stacked = nullptr;
  std::string_view layer;
  int64_t expert = 0;
  bool is_first = false;
};
Place place_of(const Family& family, std::string_view parameter) {
  const std::optional<ExpertPlace> place = expert_of(family, parameter);
  if (!place) return {};
  for (const Stacked& stacked : family.stacked)
    if (place->name == stacked.first || place->name == stacked.second)
      return {&stacked, layer_of(parameter), place->expert, place->name == stacked.first};
  return {};
}

// The family's tensor of this name and shape; nullptr: there is none.
const Stacked* stacked_of(const Family& family, std::string_view tensor, const Shape& shape) {
  const std::string_view layer = layer_of(tensor), name = tensor.substr(layer.size());
  const auto found = std::ranges::find_if(family.stacked, [&](const Stacked& s) { return name == s.tensor; });
  if (layer.empty() || found == family.stacked.end() || shape.size() < 2) return nullptr;
  const int64_t divided = found->order == Stacked::Order::rows ? shape[1] : shape.back();
  return divided % parts_of(*found) == 0 ? &*found : nullptr;
}

}  // namespace

std::optional<ExpertPlace> expert_of(const Family& family, std::string_view parameter) {
  const std::string_view layer = layer_of(parameter);
  const std::string before = fmt::format("{}{}.", layer, family.experts);
  if (layer.empty() || *family.experts == '\0' || !parameter.starts_with(before)) return {};
  std::string_view rest;
  const std::optional<int64_t> number = number_of(layer.substr(kLayerPrefix.size()), rest);
  if (!number || rest != ".") return {};
  const std::optional<int64_t> expert = number_of(parameter.substr(before.size()), rest);
  if (!expert || rest.size() < 2 || rest.front() != '.') return {};
  return ExpertPlace{*number, *expert, rest.substr(1)};
}

uint64_t stacked_parameters(const Family& family, const ExpertCounts& counts) {
  uint64_t of_expert = 0;
  for (const Stacked& stacked : family.stacked) of_expert += static_cast<uint64_t>(parts_of(stacked));
  return static_cast<uint64_t>(counts.layers) * static_cast<uint64_t>(counts.experts) * of_expert;
}

StackSize stack_size(const Family& family, const std::string& tensor, const Shape& shape) {
  const Stacked* const stacked = stacked_of(family, tensor, shape);
  return stacked == nullptr || shape.front() == 0 ? StackSize{}
                                                  : StackSize{shape.front(), parts_of(*stacked)};
}

std::vector<TensorPart> stacked_parts(const Family& family, const std::string& tensor, const Shape& shape,
                                      int64_t first_expert) {
  const auto [experts, of_expert] = stack_size(family, tensor, shape);
  if (experts == 0) return {};
  const Stacked& stacked = *stacked_of(family, tensor, shape);
  const Shape part = shape_of_part(stacked, shape);
  std::vector<TensorPart> parts;
  for (int64_t e = 0; e < experts; ++e)
    for (int which = 0; which < of_expert; ++which)
      parts.push_back(part_of(family, stacked, layer_of(tensor), part, first_expert + e, e, which));
  return parts;
}

std::vector<StoredTensor> stored_tensors(const Family& family, const Model& model) {
  std::vector<StoredTensor> tensors;
  std::map<std::string, size_t> stacks;  // by name
  for (const Group& group : model.groups)
    for (const Parameter& p : group.parameters) {
      if (group.adapter) continue;
      const Place place = family.stacks ? place_of(family, p.name) : Place{};
      if (place.stacked == nullptr) {
        tensors.push_back({p.name, p.shape, {{p.name, p.shape}}});
        continue;
      }
      const std::string name = std::string(place.layer) + place.stacked->tensor;
      const auto [at, is_new] = stacks.try_emplace(name, tensors.size());
      if (is_new) {
        Shape shape = p.shape;
        (place.stacked->order == Stacked::Order::rows ? shape.front() : shape.back()) *=
            parts_of(*place.stacked);
        shape.insert(shape.begin(), 0);
        tensors.push_back({name, std::move(shape), {}});
      }
      StoredTensor& tensor = tensors[at->second];
      tensor.shape.front() = std::max(tensor.shape.front(), place.expert + 1);
      tensor.parts.push_back(part_of(family, *place.stacked, place.layer, p.shape, place.expert, place.expert,
                                     place.is_first ? 0 : 1));
    }
  return tensors;
}

void read_stored(const StoredTensor& tensor, uint64_t first, uint64_t count, const ReadPart& read,
                 float* out) {
  std::vector<float> values;
  for (const TensorPart& part : tensor.parts) {
    // Elements i with first <= skip + i * step < first + count.
    const auto elements_before = [&](uint64_t element) {
      return element <= part.skip
                 ? 0
                 : std::min(part.elements(), (element - part.skip + part.step - 1) / part.step);
    };
    const uint64_t begin = elements_before(first), end = elements_before(first + count);
    if (begin == end) continue;
    float* const to = out + (part.skip + begin * part.step - first);
    if (part.step == 1) {
      read(part, begin, end - begin, to);
      continue;
    }
    values.resize(end - begin);
    read(part, begin, end - begin, values.data());
    for (uint64_t i = 0; i < values.size(); ++i) to[i * part.step] = values[i];
  }
}

}  // namespace sluice
