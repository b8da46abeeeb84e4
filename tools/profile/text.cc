#include "tools/profile/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "tools/profile/experts.h"

namespace sluice {

namespace {

using nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

// Text for Markdown and its tables: characters with a meaning there are escaped.
std::string plain(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    if (std::string("\\`*_<>|[]&").find(c) != std::string::npos) out += '\\';
    out += c;
  }
  return out;
}
std::string plain(const ordered_json& value) { return plain(value.get<std::string>()); }

// The first row is the heading; all columns but the first `left` are aligned right.
std::string table(const Rows& rows, size_t left) {
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (const std::string& cell : rows[r]) out += "| " + cell + " ";
    out += "|\n";
    if (r > 0) continue;
    for (size_t c = 0; c < rows[r].size(); ++c) out += c < left ? "|---" : "|---:";
    out += "|\n";
  }
  return out;
}

std::string text_headline(const ordered_json& f) {
  const ordered_json& step = f["step_seconds"];
  const std::string text = fmt::format(
      "A step takes {} ({:.0f} tokens/s); for the steps that ran, {} were predicted (error {}). {}",
      seconds_of(step, "measured"), f["tokens_per_second"]["measured"].get<double>(),
      seconds_of(step, "predicted"), error_of(step), f["bound"].get<std::string>());
  return f["hint"] == "" ? text : text + " " + f["hint"].get<std::string>();
}

std::string lanes_text(const ordered_json& f) {
  const double step = f["step_seconds"]["measured"];
  Rows rows{{"lane", "busy", "of a step", "predicted", "moved"}};
  for (const ordered_json& l : f["lanes"]) {
    const double busy = l["busy_seconds"]["measured"];
    if (busy == 0) continue;
    rows.push_back({plain(l["lane"]), readable_seconds(busy), fmt::format("{:.0f} %", 100 * busy / step),
                    seconds_of(l["busy_seconds"], "predicted"), bytes_of(l["moved_bytes"])});
  }
  return table(rows, 1);
}

std::string work_text(const ordered_json& f) {
  Rows rows{{"work", "lane", "instructions", "bytes", "rate", "measured", "predicted", "error"}};
  for (const ordered_json& w : f["work"])
    rows.push_back({plain(w["name"]), plain(w["lane"]), w["instructions"].dump(), bytes_of(w["bytes"]),
                    rate_of(w), seconds_of(w["seconds"], "measured"), seconds_of(w["seconds"], "predicted"),
                    error_of(w["seconds"])});
  rows.push_back({"a step", "", "", "", "", seconds_of(f["step_seconds"], "measured"),
                  seconds_of(f["step_seconds"], "predicted"), error_of(f["step_seconds"])});
  return table(rows, 2);
}

std::string links_text(const ordered_json& f) {
  Rows rows{{"from", "to", "moved", "while busy", "described"}};
  for (const ordered_json& l : f["links"])
    rows.push_back({plain(l["from"]), plain(l["to"]), bytes_of(l["bytes"]),
                    readable_rate(l["bytes_per_second"], "B/s"),
                    l["described"].is_null() ? "" : readable_rate(l["described"], "B/s")});
  return table(rows, 2);
}

std::string tiers_text(const ordered_json& f) {
  Rows rows{{"tier", "budget", "reserve", "arena at most", "arena", "most at once"}};
  for (const ordered_json& t : f["occupancy"])
    rows.push_back({plain(t["tier"]), format_size(t["budget"]), format_size(t["reserve"]),
                    format_size(t["allowed"]), format_size(t["arena"]), format_size(most_at_once(t))});
  return budgets_explained() + "\n\n" + table(rows, 1);
}

std::string names_text(const ordered_json& f) {
  Rows rows{{"name", "what it is"}};
  for (const char* list : {"instruction_names", "buffer_names"})
    for (const ordered_json& n : f[list])
      rows.push_back({"`" + n["name"].get<std::string>() + "`", plain(n["meaning"])});
  return table(rows, 2);
}

std::string changes_text(const ordered_json& f) {
  if (!f["changes_planned"]) return "";
  const std::string heading = "\n## What would be faster (predicted)\n";
  if (f["changes"].empty()) return heading + "Nothing that was tried gains a hundredth.\n";
  Rows rows{{"change", "arguments", "step", "tokens/s", "gain"}};
  const ordered_json& now = f["unchanged"];
  rows.push_back({"none", "", readable_seconds(now["step_seconds"]),
                  fmt::format("{:.0f}", now["tokens_per_second"].get<double>()), ""});
  for (const ordered_json& c : f["changes"])
    rows.push_back({plain(c["change"]), "`" + c["arguments"].get<std::string>() + "`",
                    readable_seconds(c["step_seconds"]),
                    fmt::format("{:.0f}", c["tokens_per_second"].get<double>()),
                    readable_percent(c["gain"])});
  return heading + table(rows, 2);
}

std::string stalls_text(const ordered_json& f) {
  const double least = kStallShown * f["step_seconds"]["measured"].get<double>();
  std::string out;
  double rest = 0;
  for (const ordered_json& s : f["stalls"])
    if (const double seconds = s["seconds"]["measured"]; seconds < least)
      rest += seconds;
    else
      out += "- " + plain(s["sentence"]) + "\n";
  return rest > 0 ? out + "- All others together: " + readable_seconds(rest) + ".\n" : out;
}

std::string steps_text(const ordered_json& f) {
  Rows rows{{"step", "measured", "predicted", ""}};
  for (const ordered_json& s : f["steps"])
    rows.push_back({s["step"].dump(), seconds_of(s["seconds"], "measured"),
                    seconds_of(s["seconds"], "predicted"), s["warms_up"].get<bool>() ? "warms up" : ""});
  return table(rows, 1);
}

}  // namespace

std::string readable_rate(double per_second, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  for (; per_second >= 1000 && prefix + 1 < std::size(kPrefixes); ++prefix) per_second /= 1000;
  return fmt::format("{:.3g} {}{}", per_second, kPrefixes[prefix], unit);
}

std::string seconds_of(const ordered_json& compared, const char* which) {
  return readable_seconds(compared[which].get<double>());
}

std::string error_of(const ordered_json& compared) {
  const double measured = compared["measured"], predicted = compared["predicted"];
  return measured > 0 ? readable_percent(predicted / measured - 1) : "";
}

std::string errors_explained(const ordered_json& f) {
  std::string text = "Errors are predicted against measured: negative where work took longer than predicted.";
  std::string lanes;
  for (const ordered_json& l : f["lanes"])
    if (l["overlapping"] && l["busy_seconds"]["measured"] > 0)
      lanes += (lanes.empty() ? "" : " and ") + l["lane"].get<std::string>();
  if (lanes.empty()) return text;
  return text + " On " + lanes +
         " several transfers are under way together. So one row of such a lane may be too long and another "
         "too short by the same time; their sum is right.";
}

std::string rate_of(const ordered_json& work) {
  const double seconds = work["seconds"]["measured"], flops = work["flops"];
  const auto bytes = static_cast<double>(work["bytes"].get<uint64_t>());
  if (seconds <= 0 || std::max(flops, bytes) <= 0) return "";
  return flops > 0 ? readable_rate(flops / seconds, "FLOP/s") : readable_rate(bytes / seconds, "B/s");
}

std::string origin_of(const ordered_json& f) {
  const std::string time = f["began"];  // "2026-11-24T22:54:23Z"
  return fmt::format("Begun {} {} UTC on {}, by Sluice {}", time.substr(0, 10), time.substr(11, 8),
                     f["host_name"].get<std::string>(), f["sluice_version"].get<std::string>());
}

std::string budgets_explained() {
  return "The budget limits all that the run uses of a tier. The reserve is set aside from it for what lies "
         "outside the arena, such as libraries and stacks. The rest is the most that the arena may take. "
         "Column arena is what the plan takes.";
}

uint64_t most_at_once(const ordered_json& tier) {
  uint64_t most = 0;
  for (const ordered_json& point : tier["points"]) {
    uint64_t bytes = 0;
    for (size_t c = 1; c < point.size(); ++c) bytes += point[c].get<uint64_t>();
    most = std::max(most, bytes);
  }
  return most;
}

std::string bytes_of(const ordered_json& bytes) {
  return bytes.get<uint64_t>() == 0 ? "" : format_size(bytes.get<uint64_t>());
}

std::string readable_percent(double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); }

std::string profile_markdown(const ordered_json& f) {
  std::string out = fmt::format("# Profile of {}\n\n", plain(f["model"]));
  std::string command = "sluice train";
  for (const ordered_json& word : f["command"]) command += " " + plain(word);
  out += command + "\n\n";
  out += fmt::format(
      "{} parameters, batch {}, micro-batch {}, {} tokens a sequence, {}, device {}, rates of {}\n",
      f["parameters"].dump(), f["batch"].dump(), f["micro_batch"].dump(), f["sequence"].dump(),
      f["precision"].get<std::string>(), f["device"].get<std::string>(), plain(f["machine"]));
  out += "\n" + plain(origin_of(f)) + "\n";
  if (f["state"] != "done")
    out += fmt::format("\n**The run {} half-way (exit code {}).** {}\n", f["state"].get<std::string>(),
                       f["exit_code"].dump(), f["error"].is_null() ? "" : plain(f["error"]["what"]));
  if (f["steps_counted"] == 0) {
    out += "\nNo step after the first two was completed, so there are no figures of a step.\n";
  } else {
    out += "\n" + plain(text_headline(f)) + "\n\n## Lanes, a step\n" + lanes_text(f);
    out += "\n## Stalls\n" + stalls_text(f);
    out += changes_text(f);
    out += "\n## Predicted against measured, a step\n" + work_text(f);
    out += "\n" + plain(errors_explained(f)) + "\n";
    if (!f["links"].empty()) out += "\n## Links\n" + links_text(f);
  }
  out += experts_markdown(f["experts"]);
  return out + "\n## Memory\n" + tiers_text(f) + "\n## Steps\n" + steps_text(f) + "\n## Names\n" +
         names_text(f);
}

std::string profile_headline(const ordered_json& f) {
  if (f["steps_counted"] == 0) return "No step after the first two was completed.\n";
  return printable(text_headline(f)) + "\n" + experts_line(f["experts"]);
}

std::string profile_stalls(const ordered_json& f) {
  if (f["steps_counted"] == 0) return "";
  std::string out;
  constexpr size_t kStalls = 3;
  for (size_t i = 0; i < std::min(kStalls, f["stalls"].size()); ++i)
    out += "  " + printable(f["stalls"][i]["sentence"].get<std::string>()) + "\n";
  return out;
}

std::string profile_changes(const ordered_json& f) {
  if (f["steps_counted"] == 0) return "";
  std::string out;
  for (const ordered_json& c : f["changes"])
    out += fmt::format("  {} tokens/s with {}: {}\n", readable_percent(c["gain"]),
                       c["change"].get<std::string>(), c["arguments"].get<std::string>());
  return out;
}

}  // namespace sluice
