#include <fmt/format.h>

#include "tools/command/verbs.h"
#include "tools/completion/scripts.h"

namespace sluice {
namespace {

constexpr const char* kHead = R"(# Completion of sluice for bash, printed by `sluice completion bash`.

_sluice() {
  local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} option='' count=0 i
  local options='' takes='' many='' words='' paths=''
  # The last option before the word, and how many words follow it. Bash splits --option=value at the sign.
  for ((i = 2; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      --)
        if [[ $verb == profile ]]; then verb=train; fi
        option='' count=0
        ;;
      --*) option=${COMP_WORDS[i]} count=0 ;;
      =) ;;
      *) count=$((count + 1)) ;;
    esac
  done
  if [[ $word == = ]]; then word=''; fi
)";

constexpr const char* kTail = R"(  if [[ -n $takes && $word != --* && ($count == 0 || -n $many) ]]; then
    mapfile -t COMPREPLY < <(
      compgen -W "$words" -- "$word"
      if [[ -n $paths ]]; then compgen "-$paths" -- "$word"; fi
    )
    if [[ -n $paths ]]; then compopt -o filenames 2> /dev/null; fi
  else
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  fi
}

complete -F _sluice sluice
)";

// A shell pattern for "VERB:OPTION", such as "train:--lr | plan:--lr", after which the option's value comes.
// If the option's name may be left out after a verb, "VERB:" matches too.
std::string pattern(const OptionRow& row) {
  std::string text;
  const auto add = [&](const std::string& one) { text += (text.empty() ? "" : " | ") + one; };
  for (const VerbRow& verb : verb_table()) {
    if (!(row.verbs & verb_bit(verb.verb))) continue;
    add(fmt::format("{}:--{}", verb_name(verb.verb), row.name));
    if (verb.word == std::string(row.name)) add(fmt::format("{}:", verb_name(verb.verb)));
  }
  return text;
}

std::string value_of(const OptionRow& row) {
  std::string text = "takes=1";
  if (std::string(row.value).ends_with("...")) text += " many=1";
  if (const Paths paths = option_paths(row); paths != Paths::none)
    text += paths == Paths::files ? " paths=f" : " paths=d";
  if (const std::vector<std::string> words = option_words(row); !words.empty())
    text += fmt::format(" words='{}'", with_blanks(words));
  return text;
}

}  // namespace

std::string bash_script() {
  const std::string verbs = with_blanks(verb_names());
  std::string out = kHead;
  out += "  case $verb in\n";
  for (const VerbRow& verb : verb_table()) {
    std::vector<std::string> names;
    for (const OptionRow* row : options_of(verb.verb)) names.push_back(std::string("--") + row->name);
    out +=
        fmt::format("    {}) options='{} --help --help-all' ;;\n", verb_name(verb.verb), with_blanks(names));
  }
  out += fmt::format("    help) options='{} --man' ;;\n  esac\n", verbs);
  out += fmt::format("  if ((COMP_CWORD == 1)); then options='{} help --help --version'; fi\n", verbs);
  out += "  case $verb:$option in\n";
  for (const OptionRow& row : option_table())
    if (takes_value(row)) out += fmt::format("    {}) {} ;;\n", pattern(row), value_of(row));
  return out + "  esac\n  if ((COMP_CWORD == 1)); then takes=''; fi\n" + kTail;
}

}  // namespace sluice
