// What --help and the manual page say, as data made from the tables of verbs and options and from the
// registry of model families, so that they are never out of date. help_text() and manual() (manual.h)
// format these data.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/run/options/options.h"
#include "tools/command/wrap.h"

namespace sluice {

struct HelpItem {
  std::string head, text;  // a tab in `text` is a blank at which no line breaks
};

struct HelpSection {
  std::string title;
  std::string text;  // each line is a paragraph, or, if it begins with two blanks, a row of two parts
  std::vector<HelpItem> items;
  std::string examples;  // each line is a command or a # comment
};

struct HelpPage {
  std::string summary;  // one line
  std::string usage;    // without the word "usage"
  std::string about;    // as HelpSection::text
  std::vector<HelpSection> sections;
};

enum class HelpExtent : uint8_t {
  first,  // --help: explains the options that are needed first (OptionHints::first_in), names the others
  all,    // --help-all: explains every option. The same for a verb that has no first options
};

HelpPage program_page();                           // verbs, a first example, exit codes
HelpPage verb_page(Verb verb, HelpExtent extent);  // options by group with their defaults, models, examples

// The row as an item: the option with its placeholder; its explanation, with the default of this verb.
HelpItem option_item(const OptionRow& row, Verb verb);
std::vector<HelpSection> model_sections();  // presets, sizes

std::string help_text(const HelpPage& page, size_t columns);
std::string program_help(size_t columns = kPageColumns);
std::string verb_help(Verb verb, HelpExtent extent = HelpExtent::all, size_t columns = kPageColumns);

}  // namespace sluice
