// The verbs of the command, one row each: the command line, --help, launchers and main all follow the table.
// The rows of the options (engine/run/options) say which verbs take an option; run_verb.h runs the verbs.
#pragma once

#include <span>
#include <string>

#include "engine/run/options/options.h"

namespace sluice {

struct VerbRow {
  Verb verb;
  bool on_ranks;       // a launcher may start it as several ranks
  bool prints_result;  // its result is what it prints; the verb fails if that cannot be written
  // For --help. `about` and `examples` are as HelpSection::text and HelpSection::examples.
  const char *summary, *usage, *about, *examples;
  const char* word = "";  // the option whose value may stand after the verb without the option's name
};

std::span<const VerbRow> verb_table();  // in the order of Verb
const VerbRow& verb_row(Verb verb);
const VerbRow* find_verb(const std::string& word);  // nullptr: there is none of that name

}  // namespace sluice
