#include "tools/prepare/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/run/options/named_values.h"

namespace sluice {

namespace {

constexpr std::array kNames = {"messages", "role",   "content", "conversations", "from",      "value",
                               "tools",    "system", "prompt",  "completion",    "text",      "instruction",
                               "input",    "output", "history", "user",          "assistant", "tool"};

NameMap names_of(const std::vector<std::string>& given) {
  NameMap names;
  for (const std::string& one : given) {
    const auto [name, key] = split_at_equals(one, "data-keys");
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end())
      throw Error(ExitCode::usage,
                  fmt::format("`{}` of --data-keys is no key that is known.", printable(name)),
                  fmt::format("Known are {}.", fmt::join(kNames, ", ")));
    names.emplace(name, key);
  }
  return names;
}

}  // namespace

PrepareRequest prepare_request(const Options& options, const std::vector<std::string>& files,
                               const std::string& tokenizer, int64_t vocabulary) {
  const TextOptions& text = options.text;
  PrepareRequest request{.files = files,
                         .tokenizer = tokenizer,
                         .chat_template = text.chat_template,
                         .end_token = text.end_token,
                         .form = text.form,
                         .names = names_of(text.keys),
                         .separator = unescaped(text.separator),
                         .skips_bad = text.bad_records == BadRecords::skipped,
                         .vocabulary = vocabulary};
  request.choices = {text.train_on, text.control_tokens, template_values_json(text.template_values)};
  return request;
}

std::string cache_directory(const Options& options) {
  if (!options.text.cache.empty()) return options.text.cache;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache && *cache) return (std::filesystem::path(cache) / "sluice").string();
  if (home && *home) return (std::filesystem::path(home) / ".cache" / "sluice").string();
  throw Error(ExitCode::usage, "There is no home directory to keep prepared data in.", "Give --cache DIR.");
}

}  // namespace sluice
