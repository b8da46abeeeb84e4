#include "models/text/samples/prompt_file.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"
#include "models/text/records/record_file.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const Json> list_at(const Json& object, const char* key) {
  if (!object.contains(key)) return nullptr;
  if (!object[key].is_array()) throw std::invalid_argument(fmt::format("\"{}\" is no list", key));
  return std::make_shared<const Json>(object[key]);
}

std::vector<uint32_t> tokens_of(const std::string& line, SampleMaker& maker) {
  const Json object = parse_strict_json_line(line);
  if (!object.is_object()) throw std::invalid_argument("it is no JSON object");
  if (object.contains("prompt") == object.contains("messages"))
    throw std::invalid_argument("it has neither or both of \"prompt\" and \"messages\"");
  if (!object.contains("prompt"))
    return maker.prompt(Conversation{list_at(object, "messages"), list_at(object, "tools"), {}});
  if (!object["prompt"].is_string()) throw std::invalid_argument("\"prompt\" is no string");
  return maker.prompt(object["prompt"].get<std::string>());
}

}  // namespace

std::vector<std::vector<uint32_t>> read_prompts(const std::string& path, SampleMaker& maker) {
  const RecordFile file(path, Division::lines);
  std::vector<std::vector<uint32_t>> prompts;
  file.read(0, file.bytes(), [&](const std::string& line, uint64_t begin) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) return true;
    const auto refuse = [&](const std::string& why) {
      throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(file.place(begin)), why),
                  "A line is {\"prompt\": TEXT} or {\"messages\": [...]}.");
    };
    try {
      prompts.push_back(tokens_of(line, maker));
    } catch (const std::invalid_argument& error) {
      refuse(error.what());
    }
    if (prompts.back().empty()) refuse("the prompt is empty");
    return true;
  });
  if (prompts.empty())
    throw Error(ExitCode::malformed_file, fmt::format("{} has no prompts.", printable(path)),
                "A line is {\"prompt\": TEXT} or {\"messages\": [...]}.");
  return prompts;
}

}  // namespace sluice
