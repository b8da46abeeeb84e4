#include "tools/command/run_verb.h"
#include "tools/command/verbs.h"
#include "tools/completion/scripts.h"

namespace sluice {
namespace {

std::string script(Shell shell) {
  switch (shell) {
    case Shell::bash:
      return bash_script();
    case Shell::zsh:
      return zsh_script();
    case Shell::fish:
      return fish_script();
  }
  return "";
}

}  // namespace

ExitCode run_completion(Options options, std::FILE* out) {
  std::fputs(script(options.completion.shell).c_str(), out);
  return ExitCode::done;
}

Paths option_paths(const OptionRow& row) {
  const std::string value = row.value;
  const auto has = [&](const char* word) { return value.find(word) != std::string::npos; };
  if (has("FILE") || has("PATH") || has("MODEL")) return Paths::files;
  return has("DIR") ? Paths::directories : Paths::none;
}

bool takes_value(const OptionRow& row) { return *row.value != '\0'; }

std::string first_clause(const OptionRow& row) {
  std::string text = option_help(row);
  for (const char* end : {"; ", ": ", " ("}) text = text.substr(0, text.find(end));
  return text;
}

std::vector<std::string> verb_names() {
  std::vector<std::string> names;
  for (const VerbRow& row : verb_table()) names.emplace_back(verb_name(row.verb));
  return names;
}

std::vector<const OptionRow*> options_of(Verb verb) {
  std::vector<const OptionRow*> rows;
  for (const OptionRow& row : option_table())
    if (row.verbs & verb_bit(verb)) rows.push_back(&row);
  return rows;
}

std::string with_blanks(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace sluice
