#include <fmt/format.h>

#include "tools/command/verbs.h"
#include "tools/completion/scripts.h"

namespace sluice {
namespace {

constexpr const char* kHead = R"(#compdef sluice
# Completion of sluice for zsh, printed by `sluice completion zsh`.

# _sluice_value PATHS WORD...: offers the words, and with `files` or `directories` those too.
_sluice_value() {
  local paths=$1
  shift
  if (( $# )); then compadd -- "$@"; fi
  case $paths in
    files) _files ;;
    directories) _files -/ ;;
  esac
}

_sluice() {
  local verb=$words[2]
  integer at=2  # where the verb stands, or the -- in whose place it would
)";

constexpr const char* kDispatch = R"(  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  if [[ $verb == profile && $words[(i)--] -lt $CURRENT ]]; then
    at=$words[(i)--]
    verb=train
  fi
  words=("${(@)words[at,-1]}")
  (( CURRENT -= at - 1 ))
  case $verb in
    help) _describe verb verbs ;;
)";

constexpr const char* kTail = R"(  esac
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _sluice "$@"
else
  compdef _sluice sluice
fi
)";

std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return "'" + out + "'";
}

// Escapes the text of a part of an argument of _arguments. Colons and brackets separate such parts.
std::string part(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += (std::string("[]:\\").find(c) == std::string::npos ? "" : "\\") + std::string(1, c);
  return out;
}

bool takes_many(const OptionRow& row) { return std::string(row.value).ends_with("..."); }

// What is offered for the option's value.
std::string value_action(const OptionRow& row) {
  const Paths paths = option_paths(row);
  std::string action = paths == Paths::none ? "none" : paths == Paths::files ? "files" : "directories";
  for (const std::string& word : option_words(row)) action += " " + word;
  return fmt::format("{}: _sluice_value {}", part(row.value), part(action));
}

// What _arguments has to know of an option: --name[explanation]:VALUE: action.
std::string argument(const OptionRow& row) {
  const std::string spec =
      fmt::format("{}--{}[{}]", takes_many(row) ? "*" : "", row.name, part(first_clause(row)));
  return quoted(takes_value(row) ? fmt::format("{}:{}", spec, value_action(row)) : spec);
}

// What _arguments has to know of a value whose option name is left out.
std::string word_argument(const OptionRow& row) {
  return quoted(fmt::format("{}:{}", takes_many(row) ? "*" : "1", value_action(row)));
}

}  // namespace

std::string zsh_script() {
  std::string out = kHead;
  out += "  local -a verbs=(\n";
  for (const VerbRow& verb : verb_table())
    out += fmt::format("    {}\n", quoted(fmt::format("{}:{}", verb_name(verb.verb), verb.summary)));
  out += std::string("    'help:explain a verb'\n  )\n") + kDispatch;
  for (const VerbRow& verb : verb_table()) {
    out += fmt::format("    {})\n      _arguments \\\n", verb_name(verb.verb));
    for (const OptionRow* row : options_of(verb.verb)) {
      out += fmt::format("        {} \\\n", argument(*row));
      if (verb.word == std::string(row->name)) out += fmt::format("        {} \\\n", word_argument(*row));
    }
    out +=
        "        '--help[explain the options to begin with]' '--help-all[explain all options]'\n      ;;\n";
  }
  return out + kTail;
}

}  // namespace sluice
