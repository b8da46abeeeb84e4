#include "engine/run/start/group_options.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "engine/base/error.h"

namespace sluice {

namespace {

constexpr const char* kForm =
    "Write --group-options as in experts:lr=0.5,decay=0 or routers:frozen=yes; docs/groups.md has all.";

// A word, and which ops use the parameters that it names.
struct Word {
  std::string_view name;
  bool (*is_used_by)(OpKind kind);
};
constexpr Word kWords[] = {
    {"experts", [](OpKind kind) { return op_rule(kind).of_an_expert; }},
    {"routers", [](OpKind kind) { return kind == OpKind::router || kind == OpKind::route; }},
    {"embeddings", [](OpKind kind) { return kind == OpKind::embedding; }},
    {"norms", [](OpKind kind) { return kind == OpKind::layer_norm || kind == OpKind::rms_norm; }},
    {"head", [](OpKind kind) { return kind == OpKind::linear_cross_entropy; }},
};

struct Entry {
  std::string what;
  std::optional<double> learning_rate_factor, weight_decay;
  std::optional<bool> frozen;
};

[[noreturn]] void refuse(const std::string& entry, const std::string& clause) {
  throw Error(ExitCode::usage, fmt::format("`{}` for --group-options {}.", printable(entry), clause), kForm);
}

// Reads a number of 0 or more, or above 0 if `above_zero`. Throws for any other text.
double number_of(const std::string& entry, std::string_view name, std::string_view text, bool above_zero) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !std::isfinite(value) || value < 0 || (above_zero && value == 0))
    refuse(entry, fmt::format("has a value of {} that is no number {}", name,
                              above_zero ? "above 0" : "of 0 or more"));
  return value;
}

void read_option(const std::string& entry, std::string_view option, Entry& out) {
  const size_t equals = std::min(option.find('='), option.size());
  const std::string_view name = option.substr(0, equals);
  const std::string_view value = option.substr(std::min(equals + 1, option.size()));
  if (name == "lr") {
    out.learning_rate_factor = number_of(entry, name, value, true);
  } else if (name == "decay") {
    out.weight_decay = number_of(entry, name, value, false);
  } else if (name == "frozen") {
    if (value != "yes" && value != "no") refuse(entry, "says neither frozen=yes nor frozen=no");
    out.frozen = value == "yes";
  } else {
    refuse(entry, "has an option that is neither lr, decay nor frozen");
  }
}

Entry entry_of(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size())
    refuse(text, "is no WHAT:OPTION=X");
  Entry entry{text.substr(0, colon), {}, {}, {}};
  const std::string_view options = std::string_view(text).substr(colon + 1);
  for (size_t begin = 0, end = 0; begin <= options.size(); begin = end + 1) {
    end = std::min(options.find(',', begin), options.size());
    read_option(text, options.substr(begin, end - begin), entry);
  }
  return entry;
}

// By group and parameter: a bit for each word that names it.
std::vector<std::vector<uint32_t>> words_of(const Model& model) {
  std::vector<std::vector<uint32_t>> words;
  for (const Group& group : model.groups) words.emplace_back(group.parameters.size(), 0);
  for (uint32_t l = 0; l < model.trained_layers(); ++l)
    for (const SegmentUse& use : model.layers[l].segments) {
      const Segment& segment = model.segments[use.segment];
      for (const Op& op : segment.ops)
        for (const uint32_t p : op.parameters) {
          const SegmentParameter& parameter = segment.parameters[p];
          for (size_t w = 0; w < std::size(kWords); ++w)
            if (kWords[w].is_used_by(op.kind))
              words[use.groups[parameter.slot]][parameter.parameter] |= 1u << w;
        }
    }
  return words;
}

// Whether the entry names the parameter. A parameter of a divided group stands for another parameter on each
// rank. An entry must name all of these parameters or none, since ranks run the same program.
bool is_named(const Entry& entry, const Group& group, const Parameter& parameter, uint32_t words) {
  for (size_t w = 0; w < std::size(kWords); ++w)
    if (entry.what == kWords[w].name) return (words >> w & 1) != 0;
  uint32_t named = 0;
  for (uint32_t part = 0; part < group.parts(); ++part)
    named += fnmatch(entry.what.c_str(), name_in(group, parameter, part).c_str(), FNM_NOESCAPE) == 0;
  if (named == 0 || named == group.parts()) return named > 0;
  throw Error(ExitCode::usage,
              fmt::format("`{}` for --group-options names experts of some ranks alone, and all ranks run the "
                          "same program.",
                          printable(entry.what)),
              "Name all experts of a layer, or train without --experts-over.");
}

void apply(const Entry& entry, Parameter& p) {
  if (entry.learning_rate_factor) p.learning_rate_factor = *entry.learning_rate_factor;
  if (entry.weight_decay) p.weight_decay = *entry.weight_decay;
  if (entry.frozen) p.frozen = *entry.frozen;
}

}  // namespace

void apply_group_options(const std::vector<std::string>& entries, Model& model) {
  if (entries.empty() || model.trained_layers() == 0) return;
  const std::vector<std::vector<uint32_t>> words = words_of(model);
  for (const std::string& text : entries) {
    const Entry entry = entry_of(text);
    bool found = false;
    for (size_t g = 0; g < model.groups.size(); ++g) {
      std::vector<Parameter>& parameters = model.groups[g].parameters;
      if (!model.groups[g].trainable) continue;
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (!is_named(entry, model.groups[g], parameters[i], words[g][i])) continue;
        apply(entry, parameters[i]);
        found = true;
      }
    }
    if (!found)
      throw Error(ExitCode::usage,
                  fmt::format("`{}` for --group-options names nothing that this model trains.",
                              printable(entry.what)),
                  "Name experts, routers, embeddings, norms or head, where the model has them, or a pattern "
                  "of names, as *.q_proj.weight.");
  }
  bool trains = false;
  for (Group& group : model.groups) {
    group.trainable =
        group.trainable && !std::ranges::all_of(group.parameters, [](const auto& p) { return p.frozen; });
    trains |= group.trainable;
  }
  if (!trains)
    throw Error(ExitCode::usage, "--group-options freezes all parameters.", "Leave some to be trained.");
}

}  // namespace sluice
