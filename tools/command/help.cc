#include "tools/command/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string_view>

#include "engine/base/units.h"
#include "models/families/family.h"
#include "tools/command/verbs.h"

namespace sluice {
namespace {

bool takes(const OptionRow& row, Verb verb) { return (row.verbs & verb_bit(verb)) != 0; }
bool is_first(const OptionRow& row, Verb verb) { return (row.hints.first_in & verb_bit(verb)) != 0; }

bool takes_sizes(Verb verb) {
  return std::ranges::any_of(option_table(), [verb](const OptionRow& row) {
    return takes(row, verb) && std::string_view(row.value) == "SIZE";
  });
}

bool has_first_options(Verb verb) {
  return std::ranges::any_of(option_table(), [verb](const OptionRow& row) { return is_first(row, verb); });
}

// A section for each group; its title is the group's name.
std::vector<HelpSection> all_options(Verb verb) {
  std::vector<HelpSection> sections;
  for (const OptionRow& row : option_table()) {
    if (!takes(row, verb)) continue;
    if (sections.empty() || sections.back().title != row.group) sections.push_back({.title = row.group});
    sections.back().items.push_back(option_item(row, verb));
  }
  return sections;
}

// The first options with their explanations, and the names of the others in a line for each group.
std::vector<HelpSection> first_options(Verb verb) {
  HelpSection first{.title = "options to begin with"};
  HelpSection others{.title =
                         fmt::format("more options, which `sluice {} --help-all` explains", verb_name(verb))};
  for (const OptionRow& row : option_table()) {
    if (!takes(row, verb)) continue;
    if (is_first(row, verb)) {
      first.items.push_back(option_item(row, verb));
    } else if (!others.items.empty() && others.items.back().head == row.group) {
      others.items.back().text += fmt::format(", --{}", row.name);
    } else {
      others.items.push_back({row.group, fmt::format("--{}", row.name)});
    }
  }
  return {first, others};
}

// "llama-8b = llama-3-8b (8.03B)": name, alias, and number of parameters.
std::string preset_words(const Family& family, const Preset& preset) {
  const auto parameters = static_cast<double>(preset.parameters);
  const std::string count =  // three digits
      parameters < 999.5e6 ? fmt::format("{:.3g}M", parameters / 1e6)
                           : fmt::format("{:.3g}B", parameters / 1e9);
  const bool plain =
      preset.name == std::string_view(family.plain_preset) && preset.name != std::string_view(family.name);
  return fmt::format("{}{}{} ({}{})", preset.name, *preset.alias == '\0' ? "" : " = ", preset.alias, count,
                     plain ? fmt::format("; also {}:KEY=VALUE", family.name) : "");
}

HelpSection preset_section() {
  HelpSection section{
      .title = "presets of the model families, with their parameters; A = B are two names of one preset"};
  for (const Family* family : families()) {
    std::vector<std::string> presets;
    for (const Preset& preset : family->presets()) presets.push_back(preset_words(*family, preset));
    section.items.push_back({fmt::format("{} ({})", family->title, family->name), unbroken_list(presets)});
  }
  return section;
}

// One preset of each family, for those who begin.
HelpSection first_presets() {
  std::vector<std::string> presets;
  for (const Family* family : families()) presets.push_back(family->plain_preset);
  HelpSection section{.title = "presets, one of each model family; --help-all lists all"};
  section.text = fmt::format("{}.\n", fmt::join(presets, ", "));
  return section;
}

std::string size_head(const SizeKey& key) {
  if (std::holds_alternative<bool ModelConfig::*>(key.field))
    return fmt::format("{}={}|{}", key.name, key.yes, key.no);
  const bool is_list = std::holds_alternative<std::vector<int64_t> ModelConfig::*>(key.field);
  return fmt::format("{}={}", key.name, key.is_factor ? "X|none" : is_list ? "N[/N...]" : "N");
}

// If only some families have a size, its explanation begins with the names of these families.
HelpSection size_section() {
  HelpSection section{.title = "sizes that PRESET:KEY=VALUE,KEY=VALUE changes, as in gpt2:layers=6,ffn=512"};
  for (const SizeKey& key : common_size_keys()) section.items.push_back({size_head(key), key.help});
  std::map<std::string_view, std::vector<std::string>> owners;
  for (const Family* family : families())
    for (const SizeKey& key : family->keys) owners[key.name].push_back(family->name);
  for (const Family* family : families())
    for (const SizeKey& key : family->keys)
      if (const auto owner = owners.extract(key.name))
        section.items.push_back(
            {size_head(key), fmt::format("{}: {}", enumerated(owner.mapped()), key.help)});
  return section;
}

// Lines of HelpSection::text.
void append_text(std::string& out, const std::string& text, size_t indent, size_t columns) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t second = line.starts_with("  ") ? second_part(line) : 0;
    out += second > 0 ? fitted(line, columns) + "\n" : "";
    if (second == 0) append_wrapped(out, "", line, indent, columns);
  }
}

// The command with tabs where no line should break: between an option and its value, unless they are too
// long.
std::string with_values(const std::string& command, size_t columns) {
  std::istringstream words(command);
  std::string out, before;
  for (std::string word; words >> word; before = word) {
    const bool value = before.starts_with("--") && before.size() > 2 && !word.starts_with('-');
    const bool fits = before.size() + 1 + word.size() <= columns;
    out += (out.empty() ? "" : value && fits ? "\t" : " ") + word;
  }
  return out;
}

// A command that is too long goes on in the next line after a backslash, so that it can be pasted.
void append_examples(std::string& out, const std::string& examples, size_t columns) {
  std::istringstream lines(examples);
  for (std::string line; std::getline(lines, line);) {
    const bool comment = line.starts_with("# ");
    const bool fits = line.size() + 2 <= columns;
    const size_t room = fits ? columns : columns - (comment ? 4 : 8);  // less what stands around a line
    std::string broken;
    append_wrapped(broken, "", comment ? line : with_values(line, room), 0, room);
    broken.pop_back();
    const std::string between = comment ? "\n  # " : " \\\n      ";
    for (size_t at = 0; (at = broken.find('\n', at)) != std::string::npos; at += between.size())
      broken.replace(at, 1, between);
    out += "  " + broken + "\n";
  }
}

}  // namespace

HelpItem option_item(const OptionRow& row, Verb verb) {
  std::string text = option_help(row);
  const bool kept = loads_weights(verb) && row.on_resume == OnResume::fixed;
  if (*row.default_text != '\0')
    text += fmt::format(" (default: {}{})", kept ? "the run's own, else " : "", row.default_text);
  return {fmt::format("--{}{}{}", row.name, *row.value == '\0' ? "" : " ", row.value), text};
}

std::vector<HelpSection> model_sections() { return {preset_section(), size_section()}; }

HelpPage program_page() {
  HelpPage page{
      .summary = "sluice: trains models that do not fit the memory of the machine, within budgets that hold.",
      .usage = "sluice VERB [options]",
      .about =
          "`sluice VERB --help` explains the options of a verb to begin with, --help-all all of them. "
          "`sluice help --man` prints the manual page.\n"};
  HelpSection verbs{.title = "verbs"};
  for (const VerbRow& row : verb_table()) verbs.items.push_back({verb_name(row.verb), row.summary});
  page.sections = {
      verbs,
      {.title = "examples",
       .examples = "sluice plan --model gpt2-xl --host-mem 3GiB --nvme-dir /mnt/fast\n"
                   "sluice train --model ./Qwen3-8B --data chats.jsonl --out runs/mine --epochs 3 --seq 2048 "
                   "--lr 1e-5\n"
                   "sluice generate --from runs/mine --chat\n"
                   "sluice export --from runs/mine --to exported\n"},
      {.title = "exit codes",
       .text =
           "0 done, 1 bug, 2 usage, 3 the budgets cannot work, 4 environment, 5 a file is malformed, 6 I/O "
           "failed or space ran out, 7 a rank was lost, 8 numbers are not finite, 75 stopped on a signal: "
           "`train` with a durable checkpoint, `profile` with its report, `generate` with what it has "
           "said, `prepare` with what it has prepared\n"},
      {.title = "signals",
       .text =
           "SIGINT, SIGTERM, SIGHUP or SIGUSR1 ends training after the step under way, with a checkpoint; a "
           "line says how long that may take. `profile` ends its steps in the same way, with a report and no "
           "checkpoint; `generate` ends after the token at hand, `prepare` after the part at hand. Before "
           "the "
           "first step, and in other verbs, it ends the command at once, except that "
           "SIGUSR1 only asks ranks of a launcher for a stop. A second signal, but for "
           "SIGUSR1, also ends the command at once; two within a second count as one. To stop ranks of "
           "mpirun, send SIGUSR1 to mpirun, which passes it on; at SIGINT and SIGTERM mpirun kills its "
           "ranks.\n"}};
  return page;
}

HelpPage verb_page(Verb verb, HelpExtent extent) {
  const VerbRow& row = verb_row(verb);
  HelpPage page{.summary = fmt::format("sluice {}: {}.", verb_name(verb), row.summary),
                .usage = fmt::format("sluice {} {}", verb_name(verb), row.usage),
                .about = row.about};
  const bool some = extent == HelpExtent::first && has_first_options(verb);
  page.sections = some ? first_options(verb) : all_options(verb);
  if (takes(*find_option("model"), verb)) {
    page.sections.push_back(some ? first_presets() : preset_section());
    if (!some) page.sections.push_back(size_section());
  }
  HelpSection examples{.title = "examples", .examples = row.examples};
  page.sections.push_back(examples);
  if (takes_sizes(verb))
    page.sections.push_back(
        {.text = "SIZE is 1.5GiB, 800MB, 80% (of what is free) or auto; GB is 10^9, GiB 2^30 bytes.\n"});
  return page;
}

std::string help_text(const HelpPage& page, size_t columns) {
  constexpr size_t kWide = 80, kIndent = 28, kNarrowIndent = 8;  // columns
  std::string out;
  append_wrapped(out, "", page.summary, 0, columns);
  out += '\n';
  append_wrapped(out, "usage:", page.usage, 7, columns);
  out += '\n';
  append_text(out, page.about, 0, columns);
  for (const HelpSection& section : page.sections) {
    out += '\n';
    if (!section.title.empty()) append_wrapped(out, "", section.title, 0, columns);
    append_text(out, section.text, section.title.empty() ? 0 : 2, columns);
    for (const HelpItem& item : section.items)
      append_wrapped(out, "  " + item.head, item.text, columns < kWide ? kNarrowIndent : kIndent, columns);
    append_examples(out, section.examples, columns);
  }
  return out;
}

std::string program_help(size_t columns) { return help_text(program_page(), columns); }

std::string verb_help(Verb verb, HelpExtent extent, size_t columns) {
  return help_text(verb_page(verb, extent), columns);
}

}  // namespace sluice
