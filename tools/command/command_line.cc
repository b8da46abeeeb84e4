// CLI11 only splits the arguments into options and values. No other file includes it, since it costs half a
// minute of compile time under the sanitizers.
#include "tools/command/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/suggest.h"
#include "engine/run/options/elsewhere.h"
#include "tools/command/config_file.h"
#include "tools/command/help.h"
#include "tools/command/manual.h"
#include "tools/command/verbs.h"
#include "tools/command/version.h"

namespace sluice {
namespace {

using Given = std::vector<std::pair<const OptionRow*, std::vector<std::string>>>;

bool is_switch(const OptionRow& row) { return *row.value == '\0'; }
bool takes_many(const OptionRow& row) { return std::string(row.value).ends_with("..."); }

// `written` is the name as it stands in the arguments or the file.
[[noreturn]] void unknown_option(const std::string& name, const std::string& written, Verb verb) {
  const std::string see = fmt::format("See `sluice {} --help`.", verb_name(verb));
  std::string called;
  if (const auto [row, unlike] = find_elsewhere(name, verb); row)
    called = unlike ? row->hints.difference : fmt::format("It is called --{} here.", row->name);
  else if (const char* instead = not_here(name, verb))
    called = instead;
  if (called.empty() && verb == Verb::plan && find_option(name, Verb::train) != nullptr &&
      (find_option(name, Verb::train)->verbs & verb_bit(Verb::train)))
    called = "Leave it out: `plan` reads no data and writes no run.";
  if (find_option(name) != nullptr)
    throw Error(ExitCode::usage, fmt::format("--{} is not an option of `sluice {}`.", name, verb_name(verb)),
                called.empty() ? see : called + " " + see);
  const std::string what = fmt::format("`{}` is not an option.", printable(written));
  if (!called.empty()) throw Error(ExitCode::usage, what, called + " " + see);
  std::vector<std::string> names;
  for (const OptionRow& row : option_table())
    if (row.verbs & verb_bit(verb)) names.push_back(row.name);
  const std::string near = did_you_mean(name, names, "--");
  throw Error(ExitCode::usage, what, near.empty() ? see : near + " " + see);
}

// The row of an option of this verb; throws for any other name.
const OptionRow& row_of(const std::string& name, Verb verb) {
  const OptionRow* row = find_option(name, verb);
  if (row == nullptr || !(row->verbs & verb_bit(verb))) unknown_option(name, name, verb);
  return *row;
}

Verb parse_verb(const std::string& word) {
  if (const VerbRow* row = find_verb(word)) return row->verb;
  std::vector<std::string> names;
  for (const VerbRow& row : verb_table()) names.push_back(verb_name(row.verb));
  if (word.starts_with('-'))
    throw Error(ExitCode::usage, fmt::format("`{}` stands where the verb should be.", printable(word)),
                "Write `sluice VERB [options]`, as in `sluice train --help`.");
  throw Error(ExitCode::usage, fmt::format("`{}` is not a verb.", printable(word)),
              suggestion(word, names) + " See `sluice --help`.");
}

Error no_value(const std::string& name, Verb verb) {
  return Error(
      ExitCode::usage, fmt::format("{} has no value.", printable(name)),
      fmt::format("Write the value after {}; see `sluice {} --help`.", printable(name), verb_name(verb)));
}

// The arguments after the verb as (row, values), in the table's order; or the help that was asked for.
std::variant<Given, HelpExtent> split_arguments(Verb verb, const std::vector<std::string>& arguments) {
  CLI::App app;
  app.set_help_flag("-h,--help");
  app.set_help_all_flag("--help-all");
  app.allow_extras();
  struct Slot {
    const OptionRow* row;
    CLI::Option* option;
    std::vector<std::string> values;
  };
  std::vector<Slot> slots;
  slots.reserve(option_table().size());  // CLI11 keeps references to the values
  for (const OptionRow& row : option_table()) {
    if (!(row.verbs & verb_bit(verb))) continue;
    Slot& slot = slots.emplace_back(Slot{&row, nullptr, {}});
    const bool is_word = verb_row(verb).word == std::string(row.name);
    const std::string name = (is_word ? row.name + std::string(",--") : "--") + row.name;
    if (is_switch(row)) {
      slot.option = app.add_flag(name);
      continue;
    }
    slot.option = app.add_option(name, slot.values)->type_name(row.value);
    slot.option->expected(1, takes_many(row) ? CLI::detail::expected_max_vector_size : 1);
    slot.option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes the last first
  } catch (const CLI::CallForHelp&) {
    return HelpExtent::first;
  } catch (const CLI::CallForAllHelp&) {
    return HelpExtent::all;
  } catch (const CLI::ArgumentMismatch& error) {  // "--batch: 1 required SEQUENCES missing"
    const std::string text = error.what(), name = text.substr(0, text.find(':'));
    throw no_value(name, verb);
  } catch (const CLI::ParseError& error) {
    throw Error(ExitCode::usage, fmt::format("The arguments cannot be read: {}.", printable(error.what())),
                fmt::format("See `sluice {} --help`.", verb_name(verb)));
  }
  if (const std::vector<std::string> rest = app.remaining(); !rest.empty()) {
    const std::string& word = rest.front();
    const std::string name = word.substr(0, word.find('='));
    if (name.starts_with("--") && name.size() > 2) unknown_option(name.substr(2), name, verb);
    throw Error(ExitCode::usage, fmt::format("`{}` is not expected here.", printable(word)),
                fmt::format("Options begin with two dashes; see `sluice {} --help`.", verb_name(verb)));
  }
  Given given;
  for (Slot& slot : slots) {
    if (slot.option->count() == 0) continue;
    if (is_switch(*slot.row)) slot.values = slot.option->results();
    for (const std::string& value : slot.values)  // CLI11 takes the next word, whatever it is
      if (value.starts_with("--") && find_option(value.substr(2)))
        throw no_value(std::string("--") + slot.row->name, verb);
    given.emplace_back(slot.row, std::move(slot.values));
  }
  return given;
}

std::vector<std::string> split_at_commas(const std::vector<std::string>& values) {
  std::vector<std::string> out;
  for (const std::string& value : values)
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = value.find(',', begin);
      out.push_back(value.substr(begin, end - begin));
    }
  return out;
}

void apply(Options& options, const OptionRow& row, std::vector<std::string> values) {
  if (std::holds_alternative<std::vector<std::string>*>(row.field(options)) && !takes_many(row))
    values = split_at_commas(values);
  set_option(options, row, values);
  if (!is_given(options, row.name)) options.given.push_back(row.name);
}

void apply_config(Options& options, Verb verb, const std::string& path) {
  for (ConfigEntry& entry : read_config(path)) {
    try {
      if (entry.key == "config")
        throw Error(ExitCode::usage, "A configuration file cannot name another.", "Leave out `config`.");
      apply(options, row_of(entry.key, verb), std::move(entry.values));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("Line {} of `{}`: {}", entry.line, printable(path), error.what()),
                  error.remedy());
    }
  }
}

// Options of the file of --config come first, so that the command line wins.
void apply_all(Options& options, Verb verb, const Given& given) {
  for (const auto& [row, values] : given)
    if (std::string(row->name) == "config") apply(options, *row, values);
  if (!options.run.config.empty()) apply_config(options, verb, options.run.config);
  for (const auto& [row, values] : given) apply(options, *row, values);
}

// `arguments` are options of profile, `--`, and options of train. Returns the help that was asked for.
std::optional<HelpExtent> parse_profile(const std::vector<std::string>& arguments, Options& options) {
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  const auto own = split_arguments(Verb::profile, {arguments.begin(), dashes});
  if (const auto* help = std::get_if<HelpExtent>(&own)) return *help;
  apply_all(options, Verb::profile, std::get<Given>(own));
  const std::string example = "Write `sluice profile --out DIR -- --model MODEL --data FILE`.";
  if (dashes == arguments.end())
    throw Error(ExitCode::usage, "`sluice profile` needs `--` and the options of train.", example);
  if (options.profile.out.empty())
    throw Error(ExitCode::usage, "`sluice profile` needs --out before `--`.", example);
  options.given.clear();
  std::vector<std::string> rest(dashes + 1, arguments.end());
  if (!rest.empty() && rest.front() == verb_name(Verb::train)) rest.erase(rest.begin());
  options.profile.command = rest;
  const auto train = split_arguments(Verb::train, rest);
  if (const auto* help = std::get_if<HelpExtent>(&train)) return *help;
  apply_all(options, Verb::train, std::get<Given>(train));
  return std::nullopt;
}

}  // namespace

ParsedCommand parse_command_line(int argc, const char* const* argv, size_t columns) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (arguments.empty()) throw Error(ExitCode::usage, "No verb is given.", "Begin with `sluice --help`.");
  ParsedCommand command;
  if (arguments.front() == "help") {  // `sluice help train` as `sluice train --help`
    arguments.erase(arguments.begin());
    if (arguments == std::vector<std::string>{"--man"}) command.text = manual();
    arguments.emplace_back("--help");
  }
  const std::string& first = arguments.front();
  if (first == "--help" || first == "-h") command.text = program_help(columns);
  if (first == "--version") command.text = std::string("sluice ") + kVersion + "\n";
  if (!command.text.empty()) return command;

  command.verb = parse_verb(first);
  arguments.erase(arguments.begin());
  Options& options = command.options;
  std::optional<HelpExtent> help;
  if (command.verb == Verb::profile) {
    help = parse_profile(arguments, options);
  } else if (const auto given = split_arguments(command.verb, arguments); given.index() == 0) {
    apply_all(options, command.verb, std::get<Given>(given));
  } else {
    help = std::get<HelpExtent>(given);
  }
  if (help) command.text = verb_help(command.verb, *help, columns);
  if (help) return command;
  check_options(options, command.verb,
                loads_weights(command.verb) ? ManifestUse::awaited : manifest_use(options));
  return command;
}

}  // namespace sluice
