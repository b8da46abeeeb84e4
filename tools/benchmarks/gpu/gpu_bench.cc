// What tools/gpu_check.sh does in C++.
//
//   gpu_bench libraries                       libraries that training needs and the loader does not find
//   gpu_bench place PART                      the folder below --dir for results of this GPU and build
//   gpu_bench rows PART                       the part's rows: name, kind, most seconds, words of the
//                                             kind. With --dir: begins the part's file, and lists the
//                                             rows that were tried in vain last
//   gpu_bench has PART ROW                    exit code 0 if the row was measured, else 1
//   gpu_bench run PART ROW --seconds N        measures a row into the part's file, within N seconds
//   gpu_bench record PART ROW [--state STATE] [--seconds N] [--note TEXT] [--values FILE.json] [--log FILE]
//                                             sets a row, or what is known of it, for the script
//   gpu_bench report                          all parts as Markdown
// All take --rehearse, --dir DIR with the files of the parts, --device cuda|cpu, --disk DIR for the nvme tier
// and data, and --commit TEXT. Exit codes are those of sluice.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "gpu/cuda/facts.h"
#include "models/families/config.h"
#include "offload/nvme_files.h"
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
  return Error(
      ExitCode::usage, what,
      "gpu_bench serves tools/gpu_check.sh. Its commands: libraries, place PART, rows PART, has PART ROW, "
      "run PART ROW --seconds N, record PART ROW, report.");
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

double number(const Command& command, const std::string& name) {
  const std::string text = command.option(name, "");
  double value = 0;
  const char* const end = text.data() + text.size();
  if (std::from_chars(text.data(), end, value).ptr != end || value < 0)
    throw usage(name + " needs a number that is not negative.");
  return value;
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

// What the script needs to run the row itself.
std::string words_of(const Row& row) {
  switch (row.kind) {
    case RowKind::test:
      return row.source + " " + row.filter;
    case RowKind::sanitizer:
      return row.tool + " " + row.source + " " + row.filter;
    case RowKind::peer:
      return peer_words(row);
    default:
      return "";
  }
}

PartFile settled_file(const Command& command) {
  PartFile file(command.directory(), command.words[1]);
  file.settle(machine_facts(command.device(), command.rehearse), command.option("--commit", "unknown"));
  return file;
}

void print_rows(const Command& command) {
  std::vector<Row> rows = rows_of(command.words[1]);
  if (command.options.contains("--dir")) {
    const PartFile file = settled_file(command);
    std::stable_partition(rows.begin(), rows.end(),
                          [&](const Row& row) { return file.row(row.name).empty() || file.has(row.name); });
  }
  for (const Row& listed : rows) {
    const Row row = command.rehearse ? rehearsed(listed) : listed;
    fmt::print("{} {} {} {}\n", row.name, kind_name(row.kind), row.seconds_most, words_of(row));
  }
}

// Refuses a part whose rows need a drive, if the nvme tier cannot be in --disk.
void print_place(const Command& command) {
  const std::string disk = command.option("--disk", ".");
  if (needs_drive(command.words[1])) {
    const NvmeProbe probe = probe_nvme_directory(disk);
    if (!probe.reason.empty())
      throw Error(ExitCode::environment, probe.reason, "Name a directory on a drive with --disk.");
  }
  fmt::print("{}\n", place_name(machine_facts(command.device(), command.rehearse),
                                command.option("--commit", "unknown")));
}

std::string machine_file(const Command& command) { return command.directory() + "/machine.json"; }

// The machine description that a row `bench` has written for this GPU and build; "" if there is none.
std::string measured_machine(const Command& command) {
  return std::filesystem::exists(machine_file(command)) ? machine_file(command) : "";
}

ordered_json measure(const Command& command, const Row& row,
                     const std::function<void(const ordered_json&)>& so_far) {
  const std::string disk = command.option("--disk", ".");
  const TrainingPlace place{command.option("--device", "cuda"), disk, measured_machine(command)};
  switch (row.kind) {
    case RowKind::link:
      return measure_link(command.device(), command.rehearse);
    case RowKind::disk:
      return measure_disk(disk, command.rehearse);
    case RowKind::matmul:
      return measure_matmul(command.device(), command.rehearse);
    case RowKind::attention:
      return measure_attention(command.device(), command.rehearse);
    case RowKind::experts:
      return measure_experts(command.device(), command.rehearse);
    case RowKind::algorithms:
      return measure_algorithms(row, command.device(), command.rehearse);
    case RowKind::training:
      return measure_training(row, place, number(command, "--seconds"), so_far);
    case RowKind::bench:
      return measure_bench(place, machine_file(command), command.rehearse);
    case RowKind::profile:
      return measure_profile(row, place, command.directory());
    case RowKind::doctor:
    case RowKind::test:
    case RowKind::sanitizer:
    case RowKind::peer:
      break;
  }
  throw usage("The script runs this row, and puts it in by `record`.");
}

// A row for which the machine is too small is skipped: it has no figures.
ordered_json measure_or_not(const Command& command, const Row& row,
                            const std::function<void(const ordered_json&)>& so_far) {
  try {
    return measure(command, row, so_far);
  } catch (const Error& error) {
    if (error.code() != ExitCode::infeasible) throw;
    return {{"state", "skipped"}, {"note", error.what()}};
  }
}

// The process may be ended at any time. So the row counts as failed, with the values so far, until all is
// measured.
void measure_and_put(const Command& command) {
  const Row row = row_of(command);
  PartFile file = settled_file(command);
  const auto put_as_failed = [&](ordered_json values) {
    values["state"] = "failed";
    values["note"] = "ended while it was measured";
    file.put(row.name, values);
  };
  put_as_failed(ordered_json::object());
  const ordered_json values = measure_or_not(command, row, put_as_failed);
  file.put(row.name, values);
  std::string text = values["state"];
  if (values.contains("tokens_per_second"))
    text += fmt::format(", {:.0f} tokens/s", values["tokens_per_second"].get<double>());
  if (values.contains("note")) text += ", " + values["note"].get<std::string>();
  fmt::print("{}\n", text);
}

// Asks the GPU for facts only if the part has no file yet, since the GPU may be what failed.
void record(const Command& command) {
  PartFile file(command.directory(), command.words[1]);
  if (file.json().empty()) file = settled_file(command);
  ordered_json values = file.row(command.words[2]);
  const std::string more = command.option("--values", "");
  if (!more.empty()) {
    values = ordered_json::parse(read_text_file(more, 1 << 24), nullptr, false);
    if (!values.is_object())
      throw Error(ExitCode::malformed_file, printable(more) + " is no JSON object.",
                  "See the output of the script that wrote it.");
  }
  for (const char* key : {"state", "note", "log"})
    if (const auto option = command.options.find(std::string("--") + key); option != command.options.end())
      values[key] = option->second;
  if (command.options.contains("--seconds")) values["wall_seconds"] = number(command, "--seconds");
  file.put(command.words[2], values);
}

// If the file of a part cannot be read, the other parts are reported all the same.
ExitCode print_report(const Command& command) {
  ExitCode code = ExitCode::done;
  std::map<std::string, ordered_json> parts;
  for (const std::string& name : row_parts()) try {
      parts[name] = PartFile(command.directory(), name).json();
      gpu_report({{name, parts[name]}});
    } catch (const std::exception& e) {
      std::fputs(fmt::format("gpu_bench: part {} cannot be reported: {}\n", name, e.what()).c_str(), stderr);
      parts[name] = {{"error", e.what()}};
      code = ExitCode::malformed_file;
    }
  fmt::print("{}", gpu_report(parts));
  if (std::fflush(stdout) != 0)
    throw Error(ExitCode::io, "The report could not be written whole.", "Free some space where it goes.");
  return code;
}

int run(const Command& command) {
  const std::vector<std::string>& words = command.words;
  const std::string verb = words.empty() ? "" : words[0];
  if (verb == "report")
    return static_cast<int>(print_report(command));
  else if (verb == "libraries" && command.device() == DeviceKind::cuda)
    for (const std::string& name : missing_libraries()) fmt::print("{}\n", name);
  else if (verb == "libraries")
    return 0;
  else if (verb == "place" && words.size() == 2)
    print_place(command);
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
    std::fputs(fmt::format("gpu_bench: {}\n{}\n", e.what(), e.remedy()).c_str(), stderr);
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {  // of a file system, or of a file of results
    std::fputs(fmt::format("gpu_bench: {}\n", e.what()).c_str(), stderr);
    return static_cast<int>(sluice::ExitCode::io);
  }
}
