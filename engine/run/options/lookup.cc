// Finds rows of the table of options.
#include <algorithm>
#include <iterator>
#include <sstream>

#include "engine/base/error.h"
#include "engine/run/options/elsewhere.h"
#include "engine/run/options/options.h"

namespace sluice {

namespace {

// Whether `names`, with blanks between them, has `name`. - and _ count as equal.
bool has(const char* names, std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  std::istringstream words(names);
  const std::istream_iterator<std::string> begin(words), end;
  return std::find(begin, end, name) != end;
}

}  // namespace

std::string option_help(const OptionRow& row) {
  std::string help = row.help;
  if (row.known) help.replace(help.find("{}"), 2, row.known());
  return help;
}

const OptionRow* find_option(const std::string& name, Verb verb) {
  const OptionRow* first = nullptr;
  for (const OptionRow& row : option_table()) {
    if (name != row.name) continue;
    if (row.verbs & verb_bit(verb)) return &row;
    if (!first) first = &row;
  }
  return first;
}

NamedElsewhere find_elsewhere(const std::string& name, Verb verb) {
  for (const OptionRow& row : option_table()) {
    if (!(row.verbs & verb_bit(verb))) continue;
    if (has(row.hints.elsewhere, name)) return {&row, false};
    if (has(row.hints.unlike, name)) return {&row, true};
  }
  return {};
}

const char* not_here(const std::string& name, Verb verb) {
  for (const NotHere& other : kNotHere)
    if ((other.verbs & verb_bit(verb)) && has(other.names, name)) return other.instead;
  return nullptr;
}

bool is_given(const Options& options, const std::string& name) {
  CHECK(find_option(name) != nullptr, name);
  return std::find(options.given.begin(), options.given.end(), name) != options.given.end();
}

}  // namespace sluice
