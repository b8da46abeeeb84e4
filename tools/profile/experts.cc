#include "tools/profile/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "engine/run/train/measured_imbalance.h"
#include "tools/page/html.h"

namespace sluice {

namespace {

using nlohmann::ordered_json;

double mean_of(const std::vector<uint64_t>& tokens) {
  const uint64_t all = std::accumulate(tokens.begin(), tokens.end(), uint64_t{0});
  return static_cast<double>(all) / static_cast<double>(tokens.size());
}

std::string layers_words(const ordered_json& experts) {
  double most = 0;
  uint64_t idle = 0;
  std::string most_uneven;
  for (const ordered_json& layer : experts["layers"]) {
    idle += layer["without_tokens"].get<uint64_t>();
    if (const double imbalance = layer["imbalance"]; imbalance > most) {
      most = imbalance;
      most_uneven = layer["layer"].dump();
    }
  }
  std::string text = fmt::format(
      "In a step, the largest expert of a layer has {:.2f} times the mean of its tokens (mean over layers; "
      "{:.2f} in layer {}).",
      experts["imbalance"].get<double>(), most, most_uneven);
  if (experts.contains("dropped_choices"))
    text += fmt::format(" No expert took {:.1f} % of all choices.",
                        100 * experts["dropped_choices"].get<double>());
  if (idle > 0)
    text += fmt::format(" {} {} no token at all.", idle, idle == 1 ? "expert had" : "experts had");
  return text;
}

// The shade of a square, from 0 to 8: the number of tokens in eighths of twice the mean.
int shade_of(uint64_t tokens, double mean) {
  if (tokens == 0 || mean <= 0) return 0;
  return std::clamp(static_cast<int>(std::lround(4 * static_cast<double>(tokens) / mean)), 1, 8);
}

// The share of all choices that were dropped. None if the model drops no choices.
std::optional<double> dropped_share(std::span<const StepMetrics> steps) {
  uint64_t choices = 0, dropped = 0;
  for (const StepMetrics& step : steps)
    for (const LayerTokens& layer : step.expert_tokens) {
      if (!layer.dropped) return std::nullopt;
      choices += std::reduce(layer.tokens.begin(), layer.tokens.end());
      dropped += *layer.dropped;
    }
  return static_cast<double>(dropped) / static_cast<double>(std::max<uint64_t>(choices, 1));
}

}  // namespace

ordered_json expert_facts(std::span<const StepMetrics> steps) {
  const std::optional<double> imbalance = measured_imbalance(steps);
  if (!imbalance) return nullptr;
  ordered_json out{{"steps", steps.size()}, {"imbalance", *imbalance}};
  if (const auto share = dropped_share(steps)) out["dropped_choices"] = *share;
  out["layers"] = ordered_json::array();
  for (size_t l = 0; l < steps.front().expert_tokens.size(); ++l) {
    std::vector<uint64_t> tokens(steps.front().expert_tokens[l].tokens.size());
    double sum = 0;
    for (const StepMetrics& step : steps) {
      const LayerTokens& of = step.expert_tokens[l];
      for (size_t e = 0; e < tokens.size(); ++e) tokens[e] += of.tokens[e];
      sum += imbalance_of(of);
    }
    out["layers"].push_back({{"layer", steps.front().expert_tokens[l].layer},
                             {"imbalance", sum / static_cast<double>(steps.size())},
                             {"without_tokens", std::ranges::count(tokens, uint64_t{0})},
                             {"tokens", tokens}});
  }
  return out;
}

std::string experts_line(const ordered_json& experts) {
  return experts.is_null() ? "" : "  " + layers_words(experts) + "\n";
}

std::string experts_markdown(const ordered_json& experts) {
  if (experts.is_null()) return "";
  std::string out = "\n## Experts\n" + layers_words(experts) +
                    fmt::format(" Tokens of an expert in {} steps:\n\n", experts["steps"].dump());
  out += "| layer | least | mean | most | largest / mean, in a step | without tokens |\n";
  out += "|---:|---:|---:|---:|---:|---:|\n";
  for (const ordered_json& layer : experts["layers"]) {
    const auto tokens = layer["tokens"].get<std::vector<uint64_t>>();
    const auto [least, most] = std::ranges::minmax_element(tokens);
    out +=
        fmt::format("| {} | {} | {:.1f} | {} | {:.2f} | {} |\n", layer["layer"].dump(), *least,
                    mean_of(tokens), *most, layer["imbalance"].get<double>(), layer["without_tokens"].dump());
  }
  return out;
}

std::string experts_section(const ordered_json& experts) {
  if (experts.is_null()) return "";
  std::string out = "<p>" + html_escaped(layers_words(experts)) + "</p>\n";
  out += fmt::format(
      "<p class=\"key\">Tokens that chose each expert in {} steps: a row for each layer, a square for each "
      "expert. The mean of a layer is half dark; the darkest have twice the mean or more, and an outline has "
      "none.</p>\n<div class=\"wide\"><table class=\"experts\">\n",
      experts["steps"].dump());
  for (const ordered_json& layer : experts["layers"]) {
    const auto tokens = layer["tokens"].get<std::vector<uint64_t>>();
    const double mean = mean_of(tokens);
    out += fmt::format("<tr><th>layer {}</th><td>", layer["layer"].dump());
    for (size_t e = 0; e < tokens.size(); ++e)
      out += fmt::format("<i class=\"e{}\" title=\"layer {}, expert {}: {} tokens\"></i>",
                         shade_of(tokens[e], mean), layer["layer"].dump(), e, tokens[e]);
    out += fmt::format("</td><td class=\"n\">{:.2f}</td></tr>\n", layer["imbalance"].get<double>());
  }
  return section("Tokens by expert", out + "</table></div>\n");
}

}  // namespace sluice
