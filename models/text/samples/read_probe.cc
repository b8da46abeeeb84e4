#include "models/text/samples/read_probe.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

// Integers and floats are one kind.
int kind_of(const Json& json) {
  return static_cast<int>(json.is_number() ? Json::value_t::number_float : json.type());
}

Json altered(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return !json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<int64_t>() ^ 1;
    case Json::value_t::number_unsigned:
      return json.get<uint64_t>() ^ 1;
    case Json::value_t::number_float:
      return json.get<double>() == 0 ? 1 : json.get<double>() / 2;
    case Json::value_t::string:
      return json.get<std::string>() + "_";
    default:
      break;
  }
  Json out = json;
  if (json.is_structured())
    for (Json& inner : out) inner = altered(inner);
  return out;
}

}  // namespace

std::string path_of_value(const std::string& path, const std::string& key) {
  static constexpr std::array kWithNames = {".properties", ".patternProperties", ".$defs", ".definitions"};
  const bool is_name = std::any_of(kWithNames.begin(), kWithNames.end(),
                                   [&](std::string_view end) { return path.ends_with(end); });
  return path + "." + (is_name ? "*" : key);
}

Json ReadProbe::changed(const Json& json, const std::string& at, const Target& target, Change change) {
  if (!json.is_structured() || !target.path.starts_with(at)) return json;
  Json out = json.is_array() ? Json::array() : Json::object();
  if (json.is_array())
    for (const Json& inner : json) out.push_back(changed(inner, at + "[]", target, change));
  else
    for (const auto& [key, inner] : json.items()) {
      const std::string path = path_of_value(at, key);
      if (path != target.path || kind_of(inner) != target.kind)
        out[key] = changed(inner, path, target, change);
      else if (change == Change::alter)
        out[key] = altered(inner);
    }
  return out;
}

std::optional<std::string> ReadProbe::text_of(const Conversation& conversation) const {
  try {
    const AdaptedConversation adapted{conversation, TemplateMessages(conversation.messages)};
    return renderer_.render(adapted, conversation.messages->size(), false).text;
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

std::optional<std::string> ReadProbe::text_with(const Target& target, Change change) const {
  Conversation other = conversation_;
  Json messages = Json::array();
  for (const Json& message : *conversation_.messages)
    messages.push_back(changed(message, "message", target, change));
  other.messages = std::make_shared<const Json>(std::move(messages));
  if (other.tools)
    other.tools = std::make_shared<const Json>(changed(*conversation_.tools, "tools", target, change));
  return text_of(other);
}

bool ReadProbe::reads(const std::string& path, const Json& value) {
  static constexpr std::string_view kPart = "part.";
  const bool is_of_part = path.starts_with(kPart);
  const Target target{is_of_part ? "message.content[]." + path.substr(kPart.size()) : path, kind_of(value)};
  const auto [known, is_new] = known_.try_emplace(target, true);
  if (!is_new) return known->second;
  if (!text_) text_ = text_of(conversation_).value_or("");
  return known->second =
             text_with(target, Change::remove) != text_ || text_with(target, Change::alter) != text_;
}

}  // namespace sluice
