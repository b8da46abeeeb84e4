// All measurements and calculations of tools/gpu_check.sh.
//
//   gpu_bench rows PART                       the part's rows: name, kind, most seconds, words for a peer
//   gpu_bench has PART ROW                    exit code 0 if the row is there and did not fail, else 1
//   gpu_bench run PART ROW                    measures a row into the part's file
//   gpu_bench record PART ROW --state STATE [--seconds N] [--note TEXT] [--values FILE.json]
//                                             puts in a row that the script has measured
//   gpu_bench report                          all parts as Markdown
// All take --rehearse, --dir DIR with the files of the parts, --device cuda|cpu, --disk DIR for the nvme tier
// and data, and --commit TEXT. Exit codes are those of sluice.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "models/families/config.h"
#include "models/files/file.h"
#include "tools/benchmarks/gpu/measure.h"
#include "tools/benchmarks/gpu/part_file.h"
#include "tools/benchmarks/gpu/report.h"
#include "tools/benchmarks/gpu/rows.h"
#include "tools/benchmarks/gpu/training.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

struct Command {
  std::vector<std::string> words;
  std::map<std::string, std::string> options;
  bool rehearse = false;

  std::string option(const std::string& name, const std::string& otherwise) const {
    const auto found = options.find(name);
    return found == options.end() ? otherwise : found->second;
  }
  std::string directory() const { return option("--dir", "."); }
  DeviceKind device() const {
    return option("--device", "cuda") == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
  }
};

Error usage(const std::string& what) {
  return Error(ExitCode::usage, what,
               "gpu_bench serves tools/gpu_check.sh. Its commands: rows PART, has PART ROW, run PART ROW, "
               "record PART ROW --state STATE, report.");
}

Command parse(int argc, char** argv) {
  Command command;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--rehearse") {
      command.rehearse = true;
    } else if (word.starts_with("--")) {
      if (i + 1 == argc) throw usage(word + " needs a value.");
      command.options[word] = argv[++i];
    } else {
      command.words.push_back(word);
    }
  }
  return command;
}

Row row_of(const Command& command) {
  const std::optional<Row> row = find_row(command.words[1], command.words[2]);
  if (!row) throw usage("There is no row " + command.words[2] + " of " + command.words[1] + ".");
  return command.rehearse ? rehearsed(*row) : *row;
}

// The row's configuration as options of torch_offload.py.
std::string peer_words(const Row& row) {
  const ModelConfig c = config_from_name(row.model);
  return fmt::format(
      "--mode={} --layers={} --width={} --heads={} --kv_heads={} --ffn={} --vocab={} --batch={} "
      "--seq={} --steps={}",
      row.mode, c.layers, c.width, c.heads, c.kv_heads, c.ffn, c.vocabulary, row.batch, row.sequence,
      row.steps);
}

void print_rows(const Command& command) {
  for (const Row& listed : rows_of(command.words[1])) {
    const Row row = command.rehearse ? rehearsed(listed) : listed;
    fmt::print("{} {} {} {}\n", row.name, kind_name(row.kind), row.seconds_most,
               row.kind == RowKind::peer ? peer_words(row) : "");
  }
}

std::string machine_file(const Command& command) { return command.directory() + "/machine.json"; }

// The machine description of row `bench` for this machine and build; "" if that row has none.
std::string measured_machine(const Command& command) {
  const PartFile part(command.directory(), command.words[1]);
  for (const Row& row : rows_of(command.words[1]))
    if (row.kind == RowKind::bench && part.has(row.name) && std::filesystem::exists(machine_file(command)))
      return machine_file(command);
  return "";
}

ordered_json measure(const Command& command, const Row& row) {
  const std::string disk = command.option("--disk", ".");
  switch (row.kind) {
    case RowKind::link:
      return measure_link(command.device(), command.rehearse);
    case RowKind::disk:
      return measure_disk(disk, command.rehearse);
    case RowKind::matmul:
      return measure_matmul(command.device(), command.rehearse);
    case RowKind::training:
      return measure_training(row, {command.option("--device", "cuda"), disk});
    case RowKind::bench:
      return measure_bench({command.option("--device", "cuda"), disk}, machine_file(command),
                           command.rehearse);
    case RowKind::profile:
      return measure_profile(row, {command.option("--device", "cuda"), disk, measured_machine(command)},
                             command.directory());
    case RowKind::peer:
      break;
  }
  throw usage("The row of a peer is put in by `record`, not by `run`.");
}

void put(const Command& command, const ordered_json& values) {
  PartFile file(command.directory(), command.words[1]);
  file.settle(machine_facts(command.device(), command.rehearse), command.option("--commit", "unknown"));
  file.put(command.words[2], values);
}

// A row for which the machine is too small is skipped: it has no figures, and is not tried again.
ordered_json measure_or_not(const Command& command, const Row& row) {
  try {
    return measure(command, row);
  } catch (const Error& error) {
    if (error.code() != ExitCode::infeasible) throw;
    return {{"state", "skipped"}, {"note", error.what()}};
  }
}

void measure_and_put(const Command& command) {
  const ordered_json values = measure_or_not(command, row_of(command));
  put(command, values);
  std::string text = values["state"];
  if (values.contains("tokens_per_second"))
    text += fmt::format(", {:.0f} tokens/s", values["tokens_per_second"].get<double>());
  if (values.contains("note")) text += ", " + values["note"].get<std::string>();
  fmt::print("{}\n", text);
}

void record(const Command& command) {
  ordered_json values = ordered_json::object();
  const std::string file = command.option("--values", "");
  if (!file.empty()) values = ordered_json::parse(read_text_file(file, 1 << 24), nullptr, false);
  if (!values.is_object())
    throw Error(ExitCode::malformed_file, printable(file) + " is no JSON object.",
                "See the output of the script that wrote it.");
  values["state"] = command.option("--state", "measured");
  if (command.options.contains("--seconds")) values["seconds"] = std::stod(command.option("--seconds", "0"));
  if (command.options.contains("--note")) values["note"] = command.option("--note", "");
  put(command, values);
}

void print_report(const Command& command) {
  std::map<std::string, ordered_json> parts;
  std::vector<std::string> names = row_parts();
  names.push_back("tests");
  for (const std::string& name : names) parts[name] = PartFile(command.directory(), name).json();
  fmt::print("{}", gpu_report(parts));
}

int run(const Command& command) {
  const std::vector<std::string>& words = command.words;
  const std::string verb = words.empty() ? "" : words[0];
  if (verb == "report")
    print_report(command);
  else if (verb == "rows" && words.size() == 2)
    print_rows(command);
  else if (verb == "has" && words.size() == 3)
    return PartFile(command.directory(), words[1]).has(words[2]) ? 0 : 1;
  else if (verb == "run" && words.size() == 3)
    measure_and_put(command);
  else if (verb == "record" && words.size() == 3)
    record(command);
  else
    throw usage("No such command.");
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    return sluice::run(sluice::parse(argc, argv));
  } catch (const sluice::Error& e) {
    fmt::print(stderr, "gpu_bench: {}\n{}\n", e.what(), e.remedy());
    return static_cast<int>(e.code());
  }
}
