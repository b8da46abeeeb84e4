#include <fmt/format.h>

#include "tools/command/verbs.h"
#include "tools/completion/scripts.h"

namespace sluice {
namespace {

constexpr const char* kHead = R"(# Completion of sluice for fish, printed by `sluice completion fish`.

function __sluice_verb # whether the verb is one of the arguments
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    test (count $words) -ge 2; and contains -- $words[2] $argv
end

function __sluice_no_verb
    test (count (commandline --tokenize --cut-at-cursor --current-process)) -eq 1
end

complete --command sluice --no-files
)";

std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return "'" + out + "'";
}

std::string names_of(uint32_t verbs) {
  std::string names;
  for (const VerbRow& verb : verb_table())
    if (verbs & verb_bit(verb.verb)) names += std::string(" ") + verb_name(verb.verb);
  return names;
}

// What is offered for the option's value, apart from files.
std::vector<std::string> words_of(const OptionRow& row) {
  std::vector<std::string> words = option_words(row);
  if (option_paths(row) == Paths::directories) words.emplace_back("(__fish_complete_directories)");
  return words;
}

// The value of an option: words, files or directories.
std::string value_of(const OptionRow& row) {
  if (!takes_value(row)) return "";
  const std::vector<std::string> words = words_of(row);
  std::string out = option_paths(row) == Paths::files ? " --require-parameter --force-files" : " --exclusive";
  return words.empty() ? out : out + " --arguments " + quoted(with_blanks(words));
}

}  // namespace

std::string fish_script() {
  std::string out = kHead;
  const auto add = [&](const std::string& condition, const std::string& what,
                       const std::string& explanation) {
    out += fmt::format("complete --command sluice --condition {} {} --description {}\n", quoted(condition),
                       what, quoted(explanation));
  };
  for (const VerbRow& verb : verb_table())
    add("__sluice_no_verb", fmt::format("--arguments {}", verb_name(verb.verb)), verb.summary);
  add("__sluice_no_verb", "--arguments help", "explain a verb");
  add("__sluice_verb help", "--arguments " + quoted(with_blanks(verb_names())), "verb");
  for (const OptionRow& row : option_table()) {
    add("__sluice_verb" + names_of(row.verbs), fmt::format("--long-option {}{}", row.name, value_of(row)),
        first_clause(row));
    for (const VerbRow& verb : verb_table())
      if (verb.word == std::string(row.name))
        add(fmt::format("__sluice_verb {}", verb_name(verb.verb)),
            "--arguments " + quoted(with_blanks(words_of(row))), row.name);
  }
  const std::string any = "__sluice_verb " + with_blanks(verb_names());
  add(any, "--long-option help", "explain the options to begin with");
  add(any, "--long-option help-all", "explain all options");
  return out;
}

}  // namespace sluice
