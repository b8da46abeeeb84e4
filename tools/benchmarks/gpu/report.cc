#include "tools/benchmarks/gpu/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "tools/benchmarks/gpu/rows.h"

namespace sluice {

using nlohmann::ordered_json;

namespace {

constexpr const char* kNotMeasured = "not measured";
constexpr double kGiB = 1ull << 30;

using Cells = std::vector<std::string>;

std::string line(const Cells& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += " " + cell + " |";
  return out + "\n";
}

std::string heading(const Cells& cells) { return line(cells) + line(Cells(cells.size(), "---")); }

// A part's row; nullptr if it was not tried.
const ordered_json* find(const ordered_json& part, const std::string& name) {
  return part.contains("rows") && part["rows"].contains(name) ? &part["rows"][name] : nullptr;
}

// A part's row if it has figures: it was measured, or some of its steps were measured before it failed.
const ordered_json* measured(const ordered_json& part, const std::string& name) {
  const ordered_json* row = find(part, name);
  return row && (row->value("state", "") == "measured" || row->contains("tokens_per_second")) ? row : nullptr;
}

// "failed: why".
std::string outcome(const ordered_json& row) {
  std::string note = row.value("note", "");
  std::replace(note.begin(), note.end(), '\n', ' ');
  std::replace(note.begin(), note.end(), '|', '/');
  return row.value("state", "") + (note.empty() ? "" : ": " + note);
}

// The words for a row without figures, with the reason.
std::string absence(const ordered_json& part, const std::string& name) {
  const ordered_json* row = find(part, name);
  return row ? fmt::format("{} ({})", kNotMeasured, outcome(*row)) : kNotMeasured;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

// ---- One training row.

struct Figures {
  const ordered_json& row;
  std::optional<double> peak;  // operations a second, of matrix products in the row's precision

  double tokens_per_second() const { return row.at("tokens_per_second"); }
  double parameters() const { return row.at("plan").at("parameters"); }
  double model_flops() const { return 6 * parameters() * tokens_per_second(); }
  double attention_flops() const {
    return row.at("attention_flops").get<double>() / row.at("seconds").get<double>();
  }
  double limit() const { return *peak * 6 / (6 + row.at("recomputed").get<double>()); }
};

std::string busy(const ordered_json& row) {
  std::string out;
  for (const auto& [lane, share] : row.at("busy").items())
    if (share.get<double>() >= 0.0005)
      out += fmt::format("{}{} {:.0f} %", out.empty() ? "" : ", ", lane, 100 * share.get<double>());
  return out;
}

// "used / planned" by tier, in GiB: the highest address that instructions used, and the arena of the plan.
std::string memory(const ordered_json& row) {
  std::string out;
  for (const auto& [tier, planned] : row.at("plan").at("arenas").items())
    if (row.at("peak_bytes").contains(tier))
      out += fmt::format("{}{} {:.2f} / {:.2f}", out.empty() ? "" : ", ", tier,
                         row["peak_bytes"][tier].get<double>() / kGiB, planned.get<double>() / kGiB);
  return out;
}

// Memory that the process held in all, and its budgets.
std::string process(const ordered_json& row) {
  const ordered_json& budgets = row.at("plan").at("budgets");
  std::string out;
  if (row.contains("device_held_bytes"))
    out += fmt::format("GPU {:.2f} / {:.2f}, ", row["device_held_bytes"].get<double>() / kGiB,
                       budgets.at("device").get<double>() / kGiB);
  return out + fmt::format("host {:.2f} / {:.2f}", row.at("process_peak_bytes").get<double>() / kGiB,
                           budgets.at("host").get<double>() / kGiB);
}

std::string homes_of_state(const ordered_json& row) {
  std::string out;
  for (const auto& [tier, bytes] : row.at("plan").at("homes").at("state").items())
    if (bytes.get<double>() > 0)
      out += fmt::format("{}{} {:.1f}", out.empty() ? "" : ", ", tier, bytes.get<double>() / kGiB);
  return out;
}

const Cells kTrainingHeading = {"configuration",     "parameters",         "micro-batch",
                                "tokens a step",     "tokens/s",           "TFLOP/s",
                                "attention TFLOP/s", "of the matmul peak", "of its limit",
                                "of resident speed", "step s / predicted", "busy"};
const Cells kMemoryHeading = {"configuration", "arenas: used / planned, GiB", "process: held / allowed, GiB",
                              "state, GiB"};

// `values`: the row's values, or nullptr if it was not measured.
std::string precision_of(const Row& row, const ordered_json* values) {
  return values ? values->value("precision", row.precision) : row.precision;
}

std::string title_of(const Row& row, const ordered_json* values) {
  std::string title = row.title + ", " + precision_of(row, values);
  if (values && row.model.ends_with('*'))
    title += fmt::format(", {} layers", values->at("layers").get<int>());
  if (values && !values->value("finite", true)) title += ", LOSSES NOT FINITE";
  if (values && values->value("state", "") != "measured")
    title += fmt::format(" ({} after {} steps)", outcome(*values), values->at("seconds_of_steps").size());
  return title;
}

Cells speed_cells(const Row& row, const ordered_json& part) {
  const ordered_json* values = measured(part, row.name);
  if (!values) {
    Cells cells{title_of(row, nullptr), absence(part, row.name)};
    cells.resize(kTrainingHeading.size());
    return cells;
  }
  const ordered_json* products = measured(part, "matmul");
  Figures f{*values, std::nullopt};
  if (const std::string precision = precision_of(row, values); products && products->contains(precision))
    f.peak = (*products)[precision].get<double>();
  std::string of_resident = "-";
  if (!row.resident.empty()) {
    const ordered_json* resident = measured(part, row.resident);
    of_resident = resident ? percent(f.tokens_per_second() / resident->at("tokens_per_second").get<double>())
                           : absence(part, row.resident);
  }
  return {title_of(row, values),
          fmt::format("{:.4g} billion", f.parameters() / 1e9),
          fmt::format("{}", values->at("plan").at("micro_batch").get<int>()),
          fmt::format("{:.0f}", values->at("tokens").get<double>()),
          fmt::format("{:.0f}", f.tokens_per_second()),
          fmt::format("{:.1f}", f.model_flops() / 1e12),
          fmt::format("{:.1f}", f.attention_flops() / 1e12),
          f.peak ? percent(f.model_flops() / *f.peak) : kNotMeasured,
          f.peak ? percent(f.model_flops() / f.limit()) : kNotMeasured,
          of_resident,
          fmt::format("{:.3f} / {:.3f}", values->at("seconds").get<double>(),
                      values->at("plan").at("seconds_predicted").get<double>()),
          busy(*values)};
}

std::string training_tables(const std::vector<Row>& rows, const ordered_json& part) {
  std::string speed, sizes;
  for (const Row& row : rows) {
    if (row.kind != RowKind::training) continue;
    speed += line(speed_cells(row, part));
    if (const ordered_json* values = measured(part, row.name))
      sizes += line({title_of(row, values), memory(*values), process(*values), homes_of_state(*values)});
  }
  if (speed.empty()) return "";
  std::string out = "\n" + heading(kTrainingHeading) + speed;
  if (!sizes.empty()) out += "\n" + heading(kMemoryHeading) + sizes;
  return out;
}

// ---- Tests.

bool is_test(const Row& row) {
  return row.kind == RowKind::doctor || row.kind == RowKind::test || row.kind == RowKind::sanitizer;
}

std::string tests_table(const std::vector<Row>& rows, const ordered_json& part) {
  std::string out;
  for (const Row& row : rows) {
    if (!is_test(row)) continue;
    const ordered_json* values = find(part, row.name);
    if (values)
      out += line({row.title, outcome(*values), fmt::format("{:.0f}", values->value("wall_seconds", 0.0)),
                   values->value("log", "")});
    else
      out += line({row.title, "not run", "", ""});
  }
  return out.empty() ? "" : heading({"test", "result", "seconds", "log"}) + out + "\n";
}

// ---- The machine's own figures.

std::string products(const ordered_json& values) {
  std::string out;
  for (const char* precision : {"bf16", "fp16", "fp32"})
    if (values.contains(precision))
      out += fmt::format("{}{} {:.4g} TFLOP/s", out.empty() ? "" : ", ", precision,
                         values[precision].get<double>() / 1e12);
  return out;
}

// By how much the chosen algorithms are faster than those that cuBLASLt proposes first.
std::string gain(const ordered_json& values) {
  double first = 0, all_chosen = 0, most = 0;  // seconds of all products, and the largest gain of one
  for (const ordered_json& product : values.at("products")) {
    const double flops = product.at("flops"), rate = product.at("first"), chosen = product.at("chosen");
    first += flops / rate;
    all_chosen += flops / chosen;
    most = std::max(most, chosen / rate - 1);
  }
  return fmt::format("{} products, {:+.1f} % together by the chosen algorithms, {:+.1f} % at most",
                     values.at("products").size(), 100 * (first / all_chosen - 1), 100 * most);
}

std::string attention_rates(const ordered_json& values) {
  std::string out = fmt::format("{}, {} sequences of {} tokens", values.at("precision").get<std::string>(),
                                values.at("sequences").get<int>(), values.at("sequence").get<int>());
  for (const ordered_json& heads : values.at("heads"))
    out += fmt::format("; heads of {}: {:.4g} TFLOP/s forward, {:.4g} backward", heads.at("size").get<int>(),
                       heads.at("forward").get<double>() / 1e12, heads.at("backward").get<double>() / 1e12);
  return out;
}

std::string expert_rates(const ordered_json& values) {
  std::string out =
      fmt::format("{}, {} tokens", values.at("precision").get<std::string>(), values.at("tokens").get<int>());
  for (const ordered_json& layer : values.at("layers")) {
    out += fmt::format("; {} of {} experts, {} x {}", layer.at("chosen").get<int>(),
                       layer.at("experts").get<int>(), layer.at("width").get<int>(),
                       layer.at("columns").get<int>());
    for (const char* const pass : {"forward", "backward"}) {
      const double rate = layer.at(pass).at("experts"), one = layer.at(pass).at("one");
      out += fmt::format(", {} {:.4g} TFLOP/s ({:.2f} of one product's)", pass, rate / 1e12, rate / one);
    }
  }
  return out;
}

std::string rates(const Row& row, const ordered_json& part) {
  const ordered_json* values = measured(part, row.name);
  if (!values) return absence(part, row.name);
  const auto gb = [&](const char* key) { return values->at(key).get<double>() / 1e9; };
  if (row.kind == RowKind::link)
    return fmt::format("{:.1f} GB/s to the GPU, {:.1f} back, {:.1f} both ways together", gb("host_to_device"),
                       gb("device_to_host"), gb("both"));
  if (row.kind == RowKind::disk)
    return fmt::format("{:.2f} GB/s read, {:.2f} written", gb("read"), gb("write"));
  if (row.kind == RowKind::profile)
    return fmt::format("a step of {:.3f} s, predicted {:.3f} ({:+.1f} %) by the description \"{}\"",
                       values->at("seconds").get<double>(), values->at("seconds_predicted").get<double>(),
                       100 * values->at("prediction_error").get<double>(),
                       values->at("machine").get<std::string>());
  if (row.kind == RowKind::attention) return attention_rates(*values);
  if (row.kind == RowKind::experts) return expert_rates(*values);
  if (row.kind == RowKind::algorithms) return gain(*values);
  if (row.kind == RowKind::bench)
    return fmt::format(
        "{:.0f} s; products of layers {}; rounding and AdamW in the device's memory {:.1f} "
        "GB/s, AdamW in DRAM {:.1f}",
        values->at("seconds").get<double>(), products(*values), gb("memory"), gb("optimizer"));
  return products(*values);
}

std::string machine_list(const std::vector<Row>& rows, const ordered_json& part) {
  std::string out;
  for (const Row& row : rows)
    if (!is_test(row) && row.kind != RowKind::training && row.kind != RowKind::peer)
      out += "- " + row.title + ": " + rates(row, part) + "\n";
  return out;
}

// ---- PyTorch, in the same call.

std::string peer_table(const std::vector<Row>& rows, const ordered_json& part) {
  std::string out;
  const ordered_json* ours = nullptr;
  double best = 0;
  for (const Row& row : rows) {
    const ordered_json* values = measured(part, row.name);
    if (row.kind == RowKind::training) ours = values;
    if (row.kind != RowKind::peer) continue;
    if (values && ours && values->at("parameters") != ours->at("plan").at("parameters")) {
      out += line({row.title, "not comparable: another number of parameters", ""});
      continue;
    }
    const double speed = values ? values->at("tokens_per_second").get<double>() : 0;
    best = std::max(best, speed);
    out += line({row.title, values ? fmt::format("{:.0f}", speed) : absence(part, row.name),
                 values ? fmt::format("{:.2f}", values->at("seconds").get<double>()) : ""});
  }
  if (out.empty()) return "";
  const std::string ratio = ours && best > 0
                                ? fmt::format("{:.2f}", ours->at("tokens_per_second").get<double>() / best)
                                : kNotMeasured;
  return "\n" + heading({"peer", "tokens/s", "step s"}) + out + "\nSluice / the faster peer: " + ratio + "\n";
}

// ---- The page.

std::string machine_line(const ordered_json& part) {
  const ordered_json& machine = part["machine"];
  std::string out;
  if (machine.contains("rehearsal"))
    out = "A rehearsal with tiny models: the figures below are those of no machine";
  else
    out = fmt::format(
        "{}, commit {}: {}, {} cores, {:.0f} GiB of DRAM", part.value("date", ""), part.value("commit", ""),
        machine.contains("gpu") ? fmt::format("{} ({:.0f} GiB)", machine["gpu"].get<std::string>(),
                                              machine["gpu_memory_bytes"].get<double>() / kGiB)
                                : "the cpu device",
        machine.at("cores").get<int>(), machine.at("memory_bytes").get<double>() / kGiB);
  if (machine.contains("libraries"))
    for (const auto& [library, file] : machine["libraries"].items())
      out += fmt::format("; {}: {}", library, file.get<std::string>());
  return out + "\n\n";
}

std::string part_section(const std::string& name, const ordered_json& part) {
  const std::string heading = "\n## " + name + "\n\n";
  if (part.contains("error")) return heading + "Cannot be read: " + part["error"].get<std::string>() + "\n";
  if (!part.contains("machine")) return heading + "Not run.\n";
  const std::vector<Row> rows = rows_of(name);
  return heading + machine_line(part) + tests_table(rows, part) + machine_list(rows, part) +
         training_tables(rows, part) + peer_table(rows, part);
}

}  // namespace

std::string gpu_report(const std::map<std::string, ordered_json>& parts) {
  static const ordered_json none = ordered_json::object();
  const auto part_of = [&](const std::string& name) -> const ordered_json& {
    const auto found = parts.find(name);
    return found == parts.end() ? none : found->second;
  };
  std::string out =
      "# Training on a GPU, measured\n\nAll with `--clip 1`; medians over the steps. TFLOP/s: 6 x "
      "parameters x tokens; attention's scores are counted apart. The limit of a step is peak x "
      "6 / (6 + what it recomputes). Attention by itself: 4 x columns of a head in forward and 10 x "
      "in backward, for each pair of a query and a key that it sees.\n";
  for (const std::string& name : row_parts()) out += part_section(name, part_of(name));
  return out;
}

}  // namespace sluice
