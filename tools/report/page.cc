#include "tools/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tools/page/html.h"

namespace sluice {

extern const char* const kRunsBody;
extern const char* const kRunsStyle;
extern const char* const kRunsScript;

namespace {

using nlohmann::ordered_json;

// A chart of the page. Names are those of ReportedRun::curves.
struct Chart {
  std::string curve, title;
  const char* behind = "";  // a curve that is drawn pale behind it
  const char* marks = "";   // points of a curve that are marked
  const char* unit = "";    // "bytes", or a plain number
  bool is_loss = false;     // its axis may be logarithmic
};

std::vector<Chart> charts_of(const std::vector<ReportedRun>& runs) {
  std::vector<Chart> charts{
      {"loss_smooth", "Training loss", "loss", "", "", true},
      {"val_loss", "Validation loss", "", "", "", true},
      {"router_loss", "Training loss: the part of routers"},
      {"grad_norm", "Gradient norm; clipped steps are marked", "", "clipped"},
      {"learning_rate", "Learning rate"},
      {"tokens_per_second", "Tokens per second"},
  };
  for (const ReportedRun& run : runs)
    for (const auto& [name, curve] : run.curves)
      if (name.starts_with("memory ") && std::ranges::find(charts, name, &Chart::curve) == charts.end())
        charts.push_back({name, "Memory: peak of " + name.substr(name.find(' ') + 1), "", "", "bytes"});
  std::erase_if(charts, [&](const Chart& chart) {
    return std::ranges::none_of(runs, [&](const ReportedRun& run) {
      return std::ranges::any_of(run.curves, [&](const auto& named) { return named.first == chart.curve; });
    });
  });
  return charts;
}

std::string drawn(const Chart& chart) {
  const std::string title = html_escaped(chart.title);
  const auto data = [](const char* name, const std::string& value) {
    return value.empty() ? "" : fmt::format(" data-{}=\"{}\"", name, html_escaped(value));
  };
  return section(
      title, fmt::format("<div class=\"view\"><canvas{}{}{}{}{} role=\"img\" aria-label=\"{} by "
                         "step\"></canvas><div class=\"tip\" hidden></div></div>\n",
                         data("curve", chart.curve), data("behind", chart.behind), data("marks", chart.marks),
                         data("unit", chart.unit), chart.is_loss ? " data-loss" : "", title));
}

// The text as HTML, with its line breaks.
std::string text_block(const std::string& text) {
  std::string lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines += (begin > 0 ? "\n" : "") + html_escaped(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return fmt::format("<div class=\"sample\">{}</div>", lines);
}

std::string option_of(const ReportedRun& run, const std::string& name) {
  const auto option = std::ranges::find(run.options, name, &ManifestOption::name);
  if (option == run.options.end() || option->values.empty()) return "";
  return fmt::format("{}", fmt::join(option->values, " "));
}

std::string figures(const std::vector<ReportedRun>& runs) {
  std::vector<std::vector<std::string>> rows;
  for (const ReportedRun& run : runs)
    rows.push_back({html_escaped(run.name),
                    run.options.empty() ? "no checkpoint yet" : html_escaped(option_of(run, "model")),
                    std::to_string(run.last_step), fmt::format("{:.0f}", run.tokens),
                    fmt::format("{:.4f}", run.last_loss),
                    run.best_validation
                        ? fmt::format("{:.4f} at step {}", *run.best_validation, run.best_validation_step)
                        : "none",
                    fmt::format("{:.0f}", run.tokens_per_second),
                    run.clip ? std::to_string(run.clipped) : "not known", std::to_string(run.skipped)});
  const std::string key =
      "<p class=\"key below\">The loss is smoothed, tokens/s are the median. Clipped: steps whose gradient "
      "norm was above "
      "--clip. Skipped: steps of fp16 that overflowed.</p>\n";
  return section("Runs", table({{"run", false},
                                {"model", false},
                                {"last step"},
                                {"tokens"},
                                {"loss"},
                                {"best validation"},
                                {"tokens/s"},
                                {"clipped"},
                                {"skipped"}},
                               rows) +
                             key);
}

// A table of the options whose values differ between the runs that have a checkpoint.
std::string differences(const std::vector<ReportedRun>& runs) {
  std::vector<const ReportedRun*> known;
  for (const ReportedRun& run : runs)
    if (!run.options.empty()) known.push_back(&run);
  if (known.size() < 2) return "";
  std::vector<Column> columns{{"option", false}};
  for (const ReportedRun* run : known) columns.push_back({html_escaped(run->name), false});
  std::vector<std::vector<std::string>> rows;
  for (const OptionRow& row : option_table()) {
    std::vector<std::string> values;
    for (const ReportedRun* run : known) values.push_back(option_of(*run, row.name));
    if (std::ranges::all_of(values, [&](const std::string& value) { return value == values.front(); }))
      continue;
    std::vector<std::string> cells{fmt::format("<code>--{}</code>", row.name)};
    for (const std::string& value : values) cells.push_back(value.empty() ? "none" : html_escaped(value));
    if (std::ranges::find(rows, cells) == rows.end()) rows.push_back(cells);  // a name may have two rows
  }
  if (rows.empty()) return section("Options", "<p>All runs have the same options.</p>\n");
  return section("Options that differ", table(columns, rows));
}

// A table for each prompt, whose rows are steps.
std::string samples_of(const ReportedRun& run) {
  std::map<std::string, std::vector<std::vector<std::string>>> rows;  // by prompt
  std::vector<std::string> order;
  for (const SampleMetrics& m : run.samples)
    for (const SampledText& t : m.texts) {
      const auto [found, is_new] = rows.try_emplace(t.prompt);
      if (is_new) order.push_back(t.prompt);
      found->second.push_back({std::to_string(m.step), text_block(t.text)});
    }
  std::string out = fmt::format("<h3>{}</h3>\n", html_escaped(run.name));
  for (const std::string& prompt : order)
    out += text_block(prompt) + table({{"step"}, {"text", false}}, rows[prompt]);
  return out;
}

std::string samples(const std::vector<ReportedRun>& runs) {
  std::string all;
  for (const ReportedRun& run : runs)
    if (!run.samples.empty()) all += samples_of(run);
  return all.empty() ? "" : section("Samples", all);
}

// The value with six digits, which are more than a screen shows. null for NaN.
ordered_json rounded(double value) {
  if (std::isnan(value)) return nullptr;
  return std::stod(fmt::format("{:.6g}", value));
}

ordered_json json_of(const ReportedRun& run) {
  ordered_json curves = ordered_json::object();
  for (const auto& [name, curve] : run.curves) {
    ordered_json values = ordered_json::array();
    for (const double value : curve.values) values.push_back(rounded(value));
    curves[name] = {{"steps", curve.steps}, {"values", values}};
  }
  return {{"name", run.name}, {"curves", curves}};
}

}  // namespace

std::string report_page(const std::vector<ReportedRun>& runs, const std::string& origin) {
  const std::string title = runs.size() == 1 ? runs.front().name : fmt::format("{} runs", runs.size());
  const std::vector<Chart> charts = charts_of(runs);
  std::string others;
  for (size_t i = 1; i < charts.size(); ++i) others += drawn(charts[i]);
  ordered_json data = ordered_json::array();
  for (const ReportedRun& run : runs) data.push_back(json_of(run));
  const std::string body = filled(kRunsBody, {{"title", html_escaped(title)},
                                              {"origin", html_escaped(origin)},
                                              {"figures", figures(runs)},
                                              {"differences", differences(runs)},
                                              {"loss", drawn(charts.front())},
                                              {"others", others},
                                              {"samples", samples(runs)},
                                              {"runs", safe_json(data)}});
  return whole_page("Sluice report: " + html_escaped(title), kRunsStyle, body, kRunsScript);
}

}  // namespace sluice
