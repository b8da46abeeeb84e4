#include "models/text/tokenizer/component_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "models/text/tokenizer/vocabulary.h"
#include "models/text/unicode.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// The string of {"String": "..."}.
std::string string_pattern(const Component& component) {
  const Component pattern = component.object("pattern");
  if (!pattern.has("String")) component.unsupported("a pattern that is a regular expression");
  std::string text = pattern.text("String");
  if (text.empty()) component.unsupported("an empty pattern");
  return text;
}

char32_t character(const Component& component, const char* key) {
  const std::string text = component.text(key);
  size_t at = 0;
  const char32_t c = text.empty() ? 0 : next_code_point(text, at);
  if (at == 0 || at != text.size()) component.damaged(fmt::format("\"{}\" is not one character", key));
  return c;
}

// Reads the text that a normalizer writes, which must be short.
std::string short_text(const Component& component, const char* key) {
  constexpr size_t kBytesMax = 64;  // published files have up to 3
  std::string text = component.text(key);
  if (text.size() > kBytesMax)
    component.unsupported(fmt::format("\"{}\" of more than {} bytes", key, kBytesMax));
  return text;
}

// The steps of a component. A Sequence has the steps of its list, any other component is one step.
template <typename Step, typename ReadOne>
std::vector<Step> read_steps(const Component& component, const char* list, const ReadOne& read_one) {
  constexpr size_t kStepsMax = 64;  // published files have up to 5
  const auto check = [&](size_t count) {
    if (count > kStepsMax) component.unsupported(fmt::format("a sequence of more than {} steps", kStepsMax));
  };
  std::vector<Step> steps;
  if (component.text("type") != "Sequence") {
    steps.push_back(read_one(component));
    return steps;
  }
  check(component.at(list).size());
  for (const Component& part : component.objects(list)) {
    for (Step& step : read_steps<Step>(part, list, read_one)) steps.push_back(std::move(step));
    check(steps.size());
  }
  return steps;
}

// How many bytes a step can make of one byte.
size_t growth_of(const NfcNormalizer&) { return 3; }  // UAX #15, section 1
size_t growth_of(const ReplaceNormalizer& step) { return 1 + step.content.size() / step.pattern.size(); }
size_t growth_of(const PrependNormalizer&) { return 1; }
size_t growth_of(const SplitStep&) { return 1; }
size_t growth_of(const ByteLevelStep& step) { return step.add_prefix_space ? 4 : 2; }
size_t growth_of(const MetaspaceStep& step) { return 1 + step.replacement.size(); }
size_t growth_of(const ReplaceDecoder& step) { return 1 + step.content.size() / step.pattern.size(); }
template <typename Decoder>
size_t growth_of(const Decoder&) {
  return 1;  // but 3, once in a chain, where bytes become U+FFFD
}

// Steps that each lengthen what the step before has made could fill the memory from a few words.
template <typename Step>
std::vector<Step> bounded(const Component& component, std::vector<Step> steps) {
  constexpr int kGrowthMax = 100;  // published files: up to 12
  double growth = 1;
  for (const Step& step : steps)
    growth *= std::visit([](const auto& chosen) { return static_cast<double>(growth_of(chosen)); }, step);
  if (growth > kGrowthMax)
    component.unsupported(fmt::format("what can make more than {} bytes of one", kGrowthMax));
  return steps;
}

Normalizer read_normalizer(const Component& component) {
  const std::string type = component.text("type");
  if (type == "NFC") return NfcNormalizer{};
  if (type == "Replace")
    return ReplaceNormalizer{string_pattern(component), short_text(component, "content")};
  if (type == "Prepend") return PrependNormalizer{short_text(component, "prepend")};
  component.unsupported(fmt::format("normalizer \"{}\"", printable(type)));
}

SplitBehavior behavior_of(const Component& component) {
  const std::string name = component.text("behavior");
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  component.damaged(fmt::format("behavior \"{}\" is unknown", printable(name)));
}

SplitStep read_split(const Component& component) {
  const Component pattern = component.object("pattern");
  SplitStep step;
  if (pattern.has("Regex"))
    step.pattern = Pattern(pattern.text("Regex"));
  else
    step.pattern = string_pattern(component);
  step.behavior = behavior_of(component);
  step.invert = component.flag("invert");
  return step;
}

PrependScheme prepend_scheme(const Component& component) {
  const std::string name = component.text_or("prepend_scheme", "always");
  const bool none = !component.flag_or("add_prefix_space", true);  // the key of older files
  if (none && component.has("prepend_scheme") && name != "never")
    component.damaged("add_prefix_space contradicts prepend_scheme");
  if (none || name == "never") return PrependScheme::never;
  if (name == "first") return PrependScheme::first;
  if (name == "always") return PrependScheme::always;
  component.damaged(fmt::format("prepend_scheme \"{}\" is unknown", printable(name)));
}

std::string metaspace_replacement(const Component& component) {
  character(component, "replacement");
  return component.text("replacement");
}

PreTokenizer read_pre_tokenizer(const Component& component) {
  const std::string type = component.text("type");
  if (type == "Split") return read_split(component);
  if (type == "Digits") return digits_split(component.flag_or("individual_digits", false));
  if (type == "ByteLevel") {
    ByteLevelStep step;
    step.add_prefix_space = component.flag_or("add_prefix_space", true);
    if (component.flag_or("use_regex", true)) step.split = gpt2_split();
    return step;
  }
  if (type == "Metaspace")
    return MetaspaceStep{metaspace_replacement(component), prepend_scheme(component),
                         component.flag_or("split", true)};
  component.unsupported(fmt::format("pre-tokenizer \"{}\"", printable(type)));
}

DecoderStep read_decoder(const Component& component) {
  const std::string type = component.text("type");
  if (type == "ByteLevel") return ByteLevelDecoder{};
  if (type == "ByteFallback") return ByteFallbackDecoder{};
  if (type == "Fuse") return FuseDecoder{};
  if (type == "Replace") return ReplaceDecoder{string_pattern(component), component.text("content")};
  if (type == "Strip")
    return StripDecoder{character(component, "content"), component.number("start"), component.number("stop")};
  if (type == "Metaspace")
    return MetaspaceDecoder{metaspace_replacement(component),
                            prepend_scheme(component) != PrependScheme::never};
  component.unsupported(fmt::format("decoder \"{}\"", printable(type)));
}

// A template for one text: special tokens around "A".
AddedIds read_template(const Component& component) {
  AddedIds ids;
  bool behind_text = false;
  const Component tokens = component.object("special_tokens");
  for (const Component& piece : component.objects("single")) {
    if (piece.has("Sequence")) {
      if (behind_text || piece.object("Sequence").text("id") != "A")
        component.unsupported("a template with other than one sequence A");
      behind_text = true;
      continue;
    }
    const std::string name = piece.object("SpecialToken").text("id");
    if (!tokens.has(name.c_str()))
      component.damaged(fmt::format("special_tokens lacks \"{}\"", printable(name)));
    const Json& list = tokens.object(name.c_str()).at("ids");
    for (const Json& id : list) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > kIdMax)
        component.damaged(fmt::format("\"{}\" has no list of ids", printable(name)));
      (behind_text ? ids.suffix : ids.prefix).push_back(id.get<uint32_t>());
    }
  }
  if (!behind_text) component.unsupported("a template without sequence A");
  return ids;
}

AddedIds read_processor(const Component& component) {
  const std::string type = component.text("type");
  if (type == "ByteLevel") return {};  // trims offsets, adds nothing
  if (type == "TemplateProcessing") return read_template(component);
  component.unsupported(fmt::format("post-processor \"{}\"", printable(type)));
}

}  // namespace

Component::Component(const Json& value, std::string where) : value_(value), where_(std::move(where)) {
  if (!value.is_object()) damaged("it is not an object");
}

void Component::damaged(const std::string& clause) const {
  throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", where_, clause),
              "Take the tokenizer's files of the model's release; this one is damaged.");
}

void Component::unsupported(const std::string& what) const {
  throw Error(ExitCode::malformed_file, fmt::format("{}: {} is not supported.", where_, what),
              "Choose another model, or tokenize with the model's own tools.");
}

bool Component::has(const char* key) const {
  const auto found = value_.find(key);
  return found != value_.end() && !found->is_null();
}

const Json& Component::at(const char* key) const {
  if (!has(key)) damaged(fmt::format("\"{}\" is missing", printable(key)));
  return *value_.find(key);
}

Component Component::object(const char* key) const {
  return Component(at(key), fmt::format("{}, {}", where_, printable(key)));
}

std::vector<Component> Component::objects(const char* key) const {
  if (!at(key).is_array()) damaged(fmt::format("\"{}\" is not a list", key));
  std::vector<Component> all;
  for (const Json& value : at(key)) all.emplace_back(value, fmt::format("{}, {}", where_, key));
  return all;
}

std::string Component::text(const char* key) const {
  if (!at(key).is_string()) damaged(fmt::format("\"{}\" is not a string", key));
  return at(key).get<std::string>();
}

std::string Component::text_or(const char* key, const char* otherwise) const {
  return has(key) ? text(key) : otherwise;
}

bool Component::flag(const char* key) const {
  if (!at(key).is_boolean()) damaged(fmt::format("\"{}\" is neither true nor false", key));
  return at(key).get<bool>();
}

bool Component::flag_or(const char* key, bool otherwise) const { return has(key) ? flag(key) : otherwise; }

uint32_t Component::number(const char* key) const {
  const Json& value = at(key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kIdMax)
    damaged(fmt::format("\"{}\" is not a number from 0 to {}", key, kIdMax));
  return value.get<uint32_t>();
}

std::vector<Normalizer> read_normalizers(const Component& component) {
  return bounded(component, read_steps<Normalizer>(component, "normalizers", read_normalizer));
}

std::vector<PreTokenizer> read_pre_tokenizers(const Component& component) {
  return bounded(component, read_steps<PreTokenizer>(component, "pretokenizers", read_pre_tokenizer));
}

std::vector<DecoderStep> read_decoders(const Component& component) {
  return bounded(component, read_steps<DecoderStep>(component, "decoders", read_decoder));
}

AddedIds read_post_processor(const Component& component) {
  AddedIds all;
  for (const AddedIds& ids : read_steps<AddedIds>(component, "processors", read_processor)) {
    all.prefix.insert(all.prefix.begin(), ids.prefix.begin(), ids.prefix.end());
    all.suffix.insert(all.suffix.end(), ids.suffix.begin(), ids.suffix.end());
  }
  return all;
}

}  // namespace sluice
