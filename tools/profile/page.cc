#include "tools/profile/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/units.h"
#include "tools/page/html.h"
#include "tools/profile/experts.h"
#include "tools/profile/facts.h"
#include "tools/profile/names.h"
#include "tools/profile/text.h"

namespace sluice {

extern const char* const kReportBody;
extern const char* const kReportStyle;
extern const char* const kReportScript;

namespace {

using nlohmann::ordered_json;

std::string escaped(const ordered_json& value) { return html_escaped(value.get<std::string>()); }

std::string name_of(const ordered_json& row) { return "<code>" + escaped(row["name"]) + "</code>"; }

std::string tile(const std::string& figure, const std::string& words) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", figure, words);
}

// A bar whose width is `part` of `whole`.
std::string bar(double part, double whole, const char* kind) {
  return fmt::format("<i class=\"{}\" style=\"width:{:.1f}%\"></i>", kind,
                     whole > 0 ? std::clamp(100 * part / whole, 0.0, 100.0) : 0.0);
}
std::string two_bars(const ordered_json& compared, double whole) {
  return "<div class=\"bar\">" + bar(compared["measured"], whole, "m") +
         bar(compared["predicted"], whole, "p") + "</div>";
}

constexpr const char* kKey =
    "<p class=\"key\"><i></i> measured <i class=\"p\"></i> predicted; seconds of a step</p>\n";

std::string headline(const ordered_json& f) {
  if (f["steps_counted"] == 0)
    return "<section><p>No step after the first two was completed, so there are no figures of a "
           "step.</p></section>\n";
  const ordered_json& step = f["step_seconds"];
  const double idle = f["idle_seconds"]["measured"], measured = step["measured"];
  std::string out = "<div class=\"tiles\">\n";
  out += tile(seconds_of(step, "measured"), fmt::format("a step, mean of {}", f["steps_counted"].dump()));
  out += tile(fmt::format("{:.0f}", f["tokens_per_second"]["measured"].get<double>()), "tokens a second");
  const double error = step["predicted"].get<double>() / measured - 1;
  out +=
      tile(seconds_of(step, "predicted"), fmt::format("predicted, {:.1f} % {} the measured",
                                                      100 * std::abs(error), error < 0 ? "below" : "above"));
  out += tile(fmt::format("{:.0f} %", 100 * idle / measured),
              "of a step, in which compute waits: " + readable_seconds(idle));
  out += "</div>\n<p class=\"bound\">" + escaped(f["bound"]) + "</p>\n";
  return f["hint"] == "" ? out : out + "<p class=\"key\">" + escaped(f["hint"]) + "</p>\n";
}

std::string state(const ordered_json& f) {
  if (f["state"] == "done") return "";
  std::string text = fmt::format(
      "<div class=\"banner\"><p><strong>The run {} half-way, with exit code {}.</strong> "
      "What it did until then is below.",
      escaped(f["state"]), f["exit_code"].dump());
  if (!f["error"].is_null())
    text += "<br>" + escaped(f["error"]["what"]) + " " + escaped(f["error"]["remedy"]);
  return text + "</p></div>\n";
}

// Explains the names of buffers in the stalls that are shown.
std::string longest_explained(const ordered_json& f) {
  const double least = kStallShown * f["step_seconds"]["measured"].get<double>();
  std::string text;
  for (const ordered_json& n : f["buffer_names"]) {
    const auto names_it = [&](const ordered_json& s) {
      return s["seconds"]["measured"] >= least && has_form(s["longest"], n["name"]);
    };
    if (std::ranges::any_of(f["stalls"], names_it))
      text += (text.empty() ? "" : "; ") + name_of(n) + ": " + escaped(n["meaning"]);
  }
  return text.empty() ? "" : "<p class=\"key below\">" + text + "</p>\n";
}

std::string stalls(const ordered_json& f) {
  constexpr size_t kAtOnce = 7;
  const double step = f["step_seconds"]["measured"];
  std::string out = "<p>Every moment in which compute executes nothing, charged to what it waited for.</p>\n";
  out += "<ol class=\"stalls\">\n";
  double rest = 0;
  size_t shown = 0;
  for (const ordered_json& s : f["stalls"]) {  // most first
    const double seconds = s["seconds"]["measured"], most = f["stalls"].front()["seconds"]["measured"];
    if (seconds < kStallShown * step) {
      rest += seconds;
      continue;
    }
    if (++shown == kAtOnce + 1)
      out += "</ol>\n<details><summary>more</summary>\n<ol class=\"stalls more\">\n";
    out += fmt::format(
        "<li><div class=\"stall\">{}<span>{}, {:.1f} % of a step; predicted {}</span></div>"
        "<div>{}</div></li>\n",
        bar(seconds, most, "w"), readable_seconds(seconds), 100 * seconds / step,
        seconds_of(s["seconds"], "predicted"), escaped(s["sentence"]));
  }
  out += shown > kAtOnce ? "</ol>\n</details>\n" : "</ol>\n";
  if (rest > 0) out += "<p class=\"key below\">All others together: " + readable_seconds(rest) + ".</p>\n";
  return section("What compute waited for", out + longest_explained(f));
}

std::string changes(const ordered_json& f) {
  if (!f["changes_planned"]) return "";
  if (f["changes"].empty())
    return section("What would be faster",
                   "<p>No plan with more memory in a tier, or with a larger batch, gains a "
                   "hundredth.</p>\n");
  std::string out = fmt::format(
      "<p class=\"key\">As it is, a step of {} and {:.0f} tokens/s are predicted.</p>\n<div "
      "class=\"changes\">\n",
      readable_seconds(f["unchanged"]["step_seconds"]), f["unchanged"]["tokens_per_second"].get<double>());
  for (const ordered_json& c : f["changes"])
    out += fmt::format(
        "<div class=\"change\"><b>{}</b>tokens a second with {}<code>{}</code>"
        "<span>a step of {}, {:.0f} tokens/s; both predicted</span></div>\n",
        readable_percent(c["gain"]), escaped(c["change"]), escaped(c["arguments"]),
        readable_seconds(c["step_seconds"]), c["tokens_per_second"].get<double>());
  return section("What would be faster", out + "</div>\n");
}

std::string lanes(const ordered_json& f) {
  const double step = f["step_seconds"]["measured"];
  std::vector<std::vector<std::string>> rows;
  for (const ordered_json& l : f["lanes"]) {
    const double busy = l["busy_seconds"]["measured"];
    if (busy == 0) continue;
    rows.push_back({escaped(l["lane"]), two_bars(l["busy_seconds"], step),
                    fmt::format("{:.0f} %", 100 * busy / step), seconds_of(l["busy_seconds"], "measured"),
                    seconds_of(l["busy_seconds"], "predicted"), bytes_of(l["moved_bytes"])});
  }
  return section(
      "Lanes",
      kKey + table({{"lane", false}, {"busy", false}, {"of a step"}, {"measured"}, {"predicted"}, {"moved"}},
                   rows));
}

std::string work(const ordered_json& f) {
  double most = 0;
  for (const ordered_json& w : f["work"])
    most = std::max({most, w["seconds"]["measured"].get<double>(), w["seconds"]["predicted"].get<double>()});
  std::vector<std::vector<std::string>> rows;
  for (const ordered_json& w : f["work"]) {
    rows.push_back({escaped(w["name"]), escaped(w["lane"]), two_bars(w["seconds"], most),
                    w["instructions"].dump(), bytes_of(w["bytes"]), rate_of(w),
                    seconds_of(w["seconds"], "measured"), seconds_of(w["seconds"], "predicted"),
                    error_of(w["seconds"])});
  }
  const ordered_json& step = f["step_seconds"];
  rows.push_back({"a whole step", "", "", "", "", "", seconds_of(step, "measured"),
                  seconds_of(step, "predicted"), error_of(step)});
  const std::string rows_of_work = table({{"work", false},
                                          {"lane", false},
                                          {"", false},
                                          {"instructions"},
                                          {"bytes"},
                                          {"rate"},
                                          {"measured"},
                                          {"predicted"},
                                          {"error"}},
                                         rows, true);
  return section("Predicted against measured",
                 kKey + rows_of_work + "<p class=\"key below\">" + escaped(errors_explained(f)) + "</p>\n");
}

std::string links(const ordered_json& f) {
  if (f["links"].empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const ordered_json& l : f["links"]) {
    const double achieved = l["bytes_per_second"],
                 described = l["described"].is_null() ? 0 : l["described"].get<double>();
    rows.push_back({escaped(l["from"]) + " to " + escaped(l["to"]), escaped(l["lane"]),
                    "<div class=\"bar\">" + bar(achieved, std::max(achieved, described), "m") +
                        bar(described, std::max(achieved, described), "p") + "</div>",
                    bytes_of(l["bytes"]), readable_rate(achieved, "B/s"),
                    described > 0 ? readable_rate(described, "B/s") : "",
                    described > 0 ? fmt::format("{:.0f} %", 100 * achieved / described) : ""});
  }
  return section("Links",
                 "<p class=\"key\"><i></i> achieved while busy <i class=\"p\"></i> as the machine "
                 "description has it</p>\n" +
                     table({{"link", false},
                            {"lane", false},
                            {"", false},
                            {"moved a step"},
                            {"achieved"},
                            {"described"},
                            {"of it"}},
                           rows));
}

std::string memory(const ordered_json& f) {
  std::vector<std::vector<std::string>> rows;
  for (const ordered_json& t : f["occupancy"]) {
    rows.push_back({escaped(t["tier"]), format_size(t["budget"]), format_size(t["reserve"]),
                    format_size(t["allowed"]), format_size(t["arena"]), format_size(most_at_once(t))});
  }
  return section(
      "Memory",
      "<p class=\"key\">" + budgets_explained() + "</p>\n" +
          table({{"tier", false}, {"budget"}, {"reserve"}, {"arena at most"}, {"arena"}, {"most at once"}},
                rows));
}

std::string steps(const ordered_json& f) {
  double most = 0;
  for (const ordered_json& s : f["steps"])
    most = std::max({most, s["seconds"]["measured"].get<double>(), s["seconds"]["predicted"].get<double>()});
  std::vector<std::vector<std::string>> rows;
  for (const ordered_json& s : f["steps"])
    rows.push_back({s["step"].dump() + (s["warms_up"].get<bool>() ? " (warms up)" : ""),
                    two_bars(s["seconds"], most), seconds_of(s["seconds"], "measured"),
                    seconds_of(s["seconds"], "predicted")});
  return section("Steps", table({{"step", false}, {"", false}, {"measured"}, {"predicted"}}, rows));
}

std::string names(const ordered_json& f) {
  std::vector<std::vector<std::string>> rows;
  for (const char* list : {"instruction_names", "buffer_names"})
    for (const ordered_json& n : f[list]) rows.push_back({name_of(n), escaped(n["meaning"])});
  return "<details><summary>names of instructions and buffers</summary>\n" +
         table({{"name", false}, {"what it is", false}}, rows) + "</details>\n";
}

std::string run_words(const ordered_json& f) {
  return fmt::format(
      "{} parameters &middot; batch {}, {} at once, {} tokens each &middot; {} &middot; {} device &middot; "
      "rates of {}",
      readable_rate(f["parameters"].get<double>(), ""), f["batch"].dump(), f["micro_batch"].dump(),
      f["sequence"].dump(), escaped(f["precision"]), escaped(f["device"]), escaped(f["machine"]));
}

}  // namespace

std::string profile_page(const ordered_json& facts, const ordered_json& drawn) {
  std::string command = "sluice train", sections;
  for (const ordered_json& word : facts["command"]) command += " " + escaped(word);
  const bool has_steps = facts["steps_counted"] != 0;
  if (has_steps) sections = changes(facts) + stalls(facts) + lanes(facts) + work(facts) + links(facts);
  sections += experts_section(facts["experts"]);
  sections += "<div class=\"pair\">\n" + memory(facts) + steps(facts) + "</div>\n";
  const std::string title = escaped(facts["model"]);
  const std::string body =
      filled(kReportBody, {{"title", title},
                           {"run", run_words(facts)},
                           {"origin", html_escaped(origin_of(facts))},
                           {"names", names(facts)},
                           {"command", command},
                           {"state", state(facts)},
                           {"headline", headline(facts)},
                           {"drawing", drawn["columns"]["begin"].empty() ? "hidden" : ""},
                           {"sections", sections},
                           {"facts", safe_json(facts)},
                           {"lanes", safe_json(drawn)}});
  return whole_page("Sluice profile: " + title, kReportStyle, body, kReportScript);
}

}  // namespace sluice
