// Cases of tools/fixtures/chat_templates.py: a template, variables, and what jinja2 makes of them.
//
// Callers: the tests of templates, and compare_templates; they include nlohmann/json.hpp in front of this.
#pragma once

#include <fstream>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "models/text/template/chat_template.h"

namespace sluice::testing {

struct TemplateCase {
  std::string name, group, source;  // group: the template to which the case belongs
  nlohmann::ordered_json variables;
  std::optional<std::string> text;  // nothing: jinja2 fails
  std::vector<ByteRange> generation;
};

struct TemplateResult {
  std::optional<Rendered> rendered;
  std::string error;
  bool is_refused = false;
};

// The time of strftime_now in all cases: 2026-07-09 08:05:03, a Thursday.
inline std::tm case_time() {
  std::tm time{};
  time.tm_year = 126;
  time.tm_mon = 6;
  time.tm_mday = 9;
  time.tm_hour = 8;
  time.tm_min = 5;
  time.tm_sec = 3;
  time.tm_wday = 4;
  time.tm_yday = 189;
  time.tm_isdst = -1;
  return time;
}

// Reads {"templates": {NAME: SOURCE}, "variables": [...], "cases": [{"template", "variables" (an index or an
// object), "text" or "error", "generation"}]}.
inline void for_each_case(const std::string& path, const std::function<void(const TemplateCase&)>& visit) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  const auto all = nlohmann::ordered_json::parse(file);
  size_t number = 0;
  for (const auto& entry : all.at("cases")) {
    TemplateCase c;
    c.group = entry.at("template").get<std::string>();
    c.name = c.group + " #" + std::to_string(number++);
    c.source = all.at("templates").at(c.group).get<std::string>();
    const auto& variables = entry.at("variables");
    c.variables = variables.is_number() ? all.at("variables").at(variables.get<size_t>()) : variables;
    if (entry.contains("text")) c.text = entry.at("text").get<std::string>();
    for (const auto& span : entry.value("generation", nlohmann::ordered_json::array()))
      c.generation.push_back({span.at(0).get<size_t>(), span.at(1).get<size_t>()});
    visit(c);
  }
}

inline TemplateResult render_case(const TemplateCase& c, const TemplateLimits& limits = {}) {
  TemplateResult result;
  try {
    RenderOptions options;
    options.now = case_time();
    options.control_variables = {"bos_token", "eos_token", "pad_token", "unk_token"};
    options.limits = limits;
    result.rendered = ChatTemplate(c.source).render(c.variables, options);
  } catch (const Error& error) {
    result.error = error.what();
    result.is_refused = result.error.find("outside the subset") != std::string::npos;
  }
  return result;
}

// How the result differs from what jinja2 made. Empty if it does not.
inline std::string difference_of(const TemplateCase& wanted, const TemplateResult& got) {
  if (!got.rendered) return wanted.text ? "jinja2 renders it: " + got.error : "";
  const std::string& text = got.rendered->text;
  if (!wanted.text) return "jinja2 fails, this is rendered: " + text.substr(0, 200);
  if (text != *wanted.text) {
    size_t at = 0;
    while (at < text.size() && at < wanted.text->size() && text[at] == (*wanted.text)[at]) ++at;
    const size_t from = at < 40 ? 0 : at - 40;
    return "at byte " + std::to_string(at) + ": wanted [" + wanted.text->substr(from, 120) + "], got [" +
           text.substr(from, 120) + "]";
  }
  return got.rendered->generation == wanted.generation ? "" : "other spans of generation";
}

}  // namespace sluice::testing
