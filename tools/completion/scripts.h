// The scripts of `sluice completion`, and what they are made of: the tables of verbs and options say which
// words can stand where. Caller: the verb.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/run/options/options.h"

namespace sluice {

std::string bash_script();
std::string zsh_script();
std::string fish_script();

enum class Paths : uint8_t { none, files, directories };
Paths option_paths(const OptionRow& row);        // what its value may name, by its placeholder
bool takes_value(const OptionRow& row);          // it is no switch
std::string first_clause(const OptionRow& row);  // the start of its help, a few words
std::vector<std::string> verb_names();
std::vector<const OptionRow*> options_of(Verb verb);
std::string with_blanks(const std::vector<std::string>& words);

}  // namespace sluice
