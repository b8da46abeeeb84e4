#include "models/text/samples/prompt_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"

namespace sluice {

namespace {

constexpr const char* kForm = "A line is {\"prompt\": TEXT} or {\"messages\": [...]}.";

std::vector<uint32_t> tokens_of(const std::string& line, SampleMaker& maker) {
  const nlohmann::ordered_json object = parse_strict_json_line(line);
  if (!object.is_object()) throw std::invalid_argument("it is no JSON object");
  if (object.contains("prompt") == object.contains("messages"))
    throw std::invalid_argument("it has neither or both of \"prompt\" and \"messages\"");
  // Messages are read as training data are, so that a conversation is rendered as it was trained.
  if (!object.contains("prompt"))
    return maker.prompt(std::get<Conversation>(parse_record(line, RecordForm::messages, {})));
  if (!object["prompt"].is_string()) throw std::invalid_argument("\"prompt\" is no string");
  for (const auto& [key, value] : object.items())
    if (key != "prompt" && !value.is_null() && value != "" && !(value.is_structured() && value.empty()))
      maker.note_unread(key);
  return maker.prompt(object["prompt"].get<std::string>());
}

}  // namespace

std::vector<std::vector<uint32_t>> read_prompts(const std::string& path, SampleMaker& maker,
                                                const RecordLimit& limit) {
  const RecordFile file(path, Division::lines, "", limit);
  std::vector<std::vector<uint32_t>> prompts;
  file.read(0, file.bytes(), [&](const std::string& line, uint64_t begin) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) return true;
    const auto refuse = [&](const std::string& why, const std::string& remedy = kForm) {
      throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", file.place(begin), why), remedy);
    };
    try {
      prompts.push_back(tokens_of(line, maker));
    } catch (const std::invalid_argument& error) {
      refuse(error.what(), remedy_of(error, kForm, path));
    }
    if (prompts.back().empty()) refuse("the prompt is empty");
    return true;
  });
  if (prompts.empty())
    throw Error(ExitCode::malformed_file, fmt::format("{} has no prompts.", printable(path)), kForm);
  return prompts;
}

}  // namespace sluice
