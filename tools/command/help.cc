#include "tools/command/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "engine/base/units.h"
#include "models/families/family.h"
#include "tools/command/verbs.h"
#include "tools/command/wrap.h"

namespace sluice {
namespace {

constexpr size_t kIndent = 28;  // columns

void append_entry(std::string& out, const std::string& head, const std::string& explanation) {
  append_wrapped(out, "  " + head, explanation, kIndent);
}

bool takes_sizes(Verb verb) {
  return std::ranges::any_of(option_table(), [verb](const OptionRow& row) {
    return (row.verbs & verb_bit(verb)) && std::string_view(row.value) == "SIZE";
  });
}

void append_options(std::string& out, Verb verb) {
  std::string group;
  for (const OptionRow& row : option_table()) {
    if (!(row.verbs & verb_bit(verb))) continue;
    if (group != row.group) out += fmt::format("\n{}\n", row.group);
    group = row.group;
    std::string explanation = option_help(row);
    const bool kept = verb == Verb::eval && row.on_resume == OnResume::fixed;
    if (*row.default_text != '\0')
      explanation += fmt::format(" (default: {}{})", kept ? "the run's own, else " : "", row.default_text);
    append_entry(out, fmt::format("--{}{}{}", row.name, *row.value == '\0' ? "" : " ", row.value),
                 explanation);
  }
}

// "llama-8b = llama-3-8b (8.03B)": name, alias, and number of parameters.
std::string preset_words(const Family& family, const Preset& preset) {
  const auto parameters = static_cast<double>(preset.parameters);
  const std::string count =
      parameters < 1e9 ? fmt::format("{:.3g}M", parameters / 1e6) : fmt::format("{:.3g}B", parameters / 1e9);
  const bool plain =
      preset.name == std::string_view(family.plain_preset) && preset.name != std::string_view(family.name);
  return fmt::format("{}{}{} ({}{})", preset.name, *preset.alias == '\0' ? "" : " = ", preset.alias, count,
                     plain ? fmt::format("; also {}:KEY=VALUE", family.name) : "");
}

void append_families(std::string& out) {
  out += "\npresets of the model families, with their parameters; A = B are two names of one preset\n";
  for (const Family* family : families()) {
    std::vector<std::string> presets;
    for (const Preset& preset : family->presets()) presets.push_back(preset_words(*family, preset));
    append_list(out, fmt::format("  {} ({})", family->title, family->name), presets, kIndent);
  }
}

std::string size_head(const SizeKey& key) {
  const bool flag = std::holds_alternative<bool ModelConfig::*>(key.field);
  return fmt::format("{}={}", key.name, flag ? "true|false" : "N");
}

// The explanation of a size that only some families have begins with their names.
void append_sizes(std::string& out) {
  out += "\nsizes that PRESET:KEY=VALUE,KEY=VALUE changes, as in gpt2:layers=6,ffn=512\n";
  for (const SizeKey& key : common_size_keys()) append_entry(out, size_head(key), key.help);
  std::map<std::string_view, std::vector<std::string>> owners;
  for (const Family* family : families())
    for (const SizeKey& key : family->keys) owners[key.name].push_back(family->name);
  for (const Family* family : families())
    for (const SizeKey& key : family->keys)
      if (const auto owner = owners.extract(key.name))
        append_entry(out, size_head(key), fmt::format("{}: {}", enumerated(owner.mapped()), key.help));
}

}  // namespace

std::string program_help() {
  std::string out =
      "sluice: trains models that do not fit the memory of the machine, within budgets that hold.\n\n"
      "usage: sluice VERB [options]      `sluice VERB --help` explains the options of a verb\n\nverbs\n";
  for (const VerbRow& row : verb_table()) append_entry(out, verb_name(row.verb), row.summary);
  out +=
      "\nexamples\n"
      "  sluice plan --model gpt2-xl --host-mem 3GiB --nvme-dir /mnt/fast\n"
      "  sluice train --model gpt2 --data train.bin --out runs/first --steps 1000\n"
      "  sluice export --from runs/first --to exported\n"
      "\nexit codes\n"
      "  0 done, 1 bug, 2 usage, 3 the budgets cannot work, 4 environment, 5 a file is malformed,\n"
      "  6 I/O failed or space ran out, 7 a rank was lost, 8 numbers are not finite,\n"
      "  75 stopped on a signal with a durable checkpoint\n"
      "\nsignals\n"
      "  SIGINT, SIGTERM, SIGHUP or SIGUSR1 ends training after the step under way, with a checkpoint; a\n"
      "  line says how long that may take. Before the first step, and in other verbs, it ends the command\n"
      "  at once, except that SIGUSR1 only asks ranks of a launcher for a stop. A second signal, but for\n"
      "  SIGUSR1, also ends the command at once; two within a second count as one. To stop ranks of mpirun,\n"
      "  send SIGUSR1 to mpirun, which passes it on; at SIGINT and SIGTERM mpirun kills its ranks.\n";
  return out;
}

std::string verb_help(Verb verb) {
  const VerbRow& row = verb_row(verb);
  std::string out = fmt::format("sluice {}: {}.\n\nusage: sluice {} {}\n\n{}", verb_name(verb), row.summary,
                                verb_name(verb), row.usage, row.about);
  append_options(out, verb);
  if (find_option("model")->verbs & verb_bit(verb)) {
    append_families(out);
    append_sizes(out);
  }
  out += fmt::format("\nexamples\n{}", row.examples);
  if (takes_sizes(verb))
    out +=
        "\nSIZE is 1.5GiB, 800MB, 4096 (bytes), 80% (of what is free) or auto; GB is 10^9, GiB 2^30 "
        "bytes.\n";
  return out;
}

}  // namespace sluice
