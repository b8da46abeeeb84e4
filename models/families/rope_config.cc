#include "models/families/rope_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

namespace sluice {
namespace {

struct Rope {
  std::optional<double> theta;
  std::optional<RopeScaling> scaling;
};

RopeType type_of(const ConfigReader& section) {
  const std::string name = section.text_or("rope_type", section.text_or("type", "default"));
  if (name != section.text_or("type", name))
    section.complain("rope_type and type disagree.", "Remove one of them.");
  // Early files of Phi-3 call longrope "su" or "yarn".
  if (section.has("short_factor") && (name == "su" || name == "yarn")) return RopeType::longrope;
  for (const RopeType type : {RopeType::plain, RopeType::linear, RopeType::dynamic, RopeType::llama3,
                              RopeType::yarn, RopeType::longrope})
    if (name == rope_type_name(type)) return type;
  section.complain(fmt::format("rope type \"{}\" is not supported.", printable(name)),
                   "Use a model with rope type \"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\" or "
                   "\"longrope\".");
}

void read_yarn(const ConfigReader& section, RopeScaling& s) {
  s.beta_fast = section.number_or("beta_fast", s.beta_fast);
  s.beta_slow = section.number_or("beta_slow", s.beta_slow);
  s.truncate = section.flag_or("truncate", s.truncate);
  s.mscale = section.number_or("mscale", s.mscale);
  s.mscale_all_dim = section.number_or("mscale_all_dim", s.mscale_all_dim);
}

RopeScaling read_scaling(const ConfigReader& section) {
  RopeScaling s{.type = type_of(section)};
  const bool has_factor =
      s.type != RopeType::plain && s.type != RopeType::yarn && s.type != RopeType::longrope;
  if (has_factor)
    s.factor = section.number("factor");
  else if (s.type != RopeType::plain)
    s.factor = section.number_or("factor", 0);
  if (s.type == RopeType::llama3) {
    s.low = section.number("low_freq_factor");
    s.high = section.number("high_freq_factor");
  }
  if (s.type == RopeType::yarn) read_yarn(section, s);
  if (s.type == RopeType::yarn || s.type == RopeType::longrope)
    s.attention_factor = section.number_or("attention_factor", 0);
  if (s.type == RopeType::longrope) {
    s.short_factor = section.numbers("short_factor");
    s.long_factor = section.numbers("long_factor");
  }
  if (s.type == RopeType::yarn || s.type == RopeType::longrope || s.type == RopeType::llama3)
    s.original_context =
        static_cast<double>(section.integer_or("original_max_position_embeddings", kContextMax, 0));
  return s;
}

void read_partial(const ConfigReader& section, const RopeKeys& keys, RopeScaling& s) {
  if (!keys.may_be_partial) section.require_number("partial_rotary_factor", 1);
  s.partial = section.number_or("partial_rotary_factor", s.partial);
}

// rope_scaling, rope_parameters and their parts by type of layer have the same keys.
Rope read_section(const ConfigReader& section, const RopeKeys& keys) {
  Rope rope;
  if (section.has("rope_theta")) rope.theta = section.number("rope_theta");
  rope.scaling = read_scaling(section);
  read_partial(section, keys, *rope.scaling);
  return rope;
}

void agree(const ConfigReader& file, std::optional<double>& found, const std::optional<double>& value) {
  if (value && found && *value != *found)
    file.complain(fmt::format("rope_theta is given as {} and as {}.", *found, *value), "Remove one of them.");
  if (value) found = value;
}

// What the file says of layers without a section of their own.
Rope read_common(const ConfigReader& file, const RopeKeys& keys) {
  Rope older, newer;
  if (file.has("rope_scaling")) older = read_section(file.section("rope_scaling"), keys);
  if (file.has("rope_parameters")) {
    const ConfigReader parameters = file.section("rope_parameters");
    const bool by_type = parameters.has("full_attention") || parameters.has("sliding_attention");
    newer = read_section(
        by_type && parameters.has("full_attention") ? parameters.section("full_attention") : parameters,
        keys);
  }
  Rope rope;
  if (file.has("rope_theta")) rope.theta = file.number("rope_theta");
  agree(file, rope.theta, older.theta);
  agree(file, rope.theta, newer.theta);
  if (older.scaling && newer.scaling && *older.scaling != *newer.scaling)
    file.complain("rope_scaling and rope_parameters disagree.", "Remove one of them.");
  rope.scaling = newer.scaling ? newer.scaling : older.scaling;
  return rope;
}

bool has_original_context(RopeType type) {
  return type == RopeType::llama3 || type == RopeType::yarn || type == RopeType::longrope;
}

nlohmann::ordered_json written(const RopeScaling& s) {
  nlohmann::ordered_json section = {{"rope_type", rope_type_name(s.type)}};
  const auto put = [&](const char* key, double value, double absent) {
    if (value != absent) section[key] = value;
  };
  const RopeScaling none;
  put("factor", s.factor, none.factor);
  if (s.type == RopeType::llama3) {
    section["low_freq_factor"] = s.low;
    section["high_freq_factor"] = s.high;
  }
  put("beta_fast", s.beta_fast, none.beta_fast);
  put("beta_slow", s.beta_slow, none.beta_slow);
  if (!s.truncate) section["truncate"] = false;
  put("mscale", s.mscale, none.mscale);
  put("mscale_all_dim", s.mscale_all_dim, none.mscale_all_dim);
  put("attention_factor", s.attention_factor, none.attention_factor);
  if (s.type == RopeType::longrope) {
    section["short_factor"] = s.short_factor;
    section["long_factor"] = s.long_factor;
  }
  if (s.original_context > 0)
    section["original_max_position_embeddings"] = static_cast<int64_t>(s.original_context);
  put("partial_rotary_factor", s.partial, none.partial);
  return section;
}

nlohmann::ordered_json written(double theta, const RopeScaling& scaling) {
  nlohmann::ordered_json section = written(scaling);
  section["rope_theta"] = theta;
  return section;
}

}  // namespace

void read_rope(const ConfigReader& file, const RopeKeys& keys, ModelConfig& c) {
  const Rope common = read_common(file, keys);
  c.rope_theta = common.theta.value_or(keys.theta);
  if (c.rope_theta <= 0)
    file.complain(fmt::format("rope_theta {} is not positive.", c.rope_theta), "Correct the file.");
  c.rope_scaling = common.scaling.value_or(keys.scaling);
  if (file.has("partial_rotary_factor")) read_partial(file, keys, c.rope_scaling);
  if (has_original_context(c.rope_scaling.type) && file.has("original_max_position_embeddings"))
    c.rope_scaling.original_context =
        static_cast<double>(file.integer("original_max_position_embeddings", kContextMax));
  if (keys.sliding_theta == 0) return;
  c.sliding_rope_theta = keys.sliding_theta;
  if (keys.has_local_base) c.sliding_rope_theta = file.number_or("rope_local_base_freq", keys.sliding_theta);
  if (!file.has("rope_parameters")) return;
  const ConfigReader parameters = file.section("rope_parameters");
  if (!parameters.has("sliding_attention")) return;
  const Rope sliding = read_section(parameters.section("sliding_attention"), keys);
  c.sliding_rope_theta = sliding.theta.value_or(c.sliding_rope_theta);
  c.sliding_rope_scaling = *sliding.scaling;
}

void write_rope(const ModelConfig& c, const RopeKeys& keys, nlohmann::ordered_json& file) {
  const bool says_all = c.sliding_rope_scaling == RopeScaling{} &&
                        (keys.has_local_base || c.sliding_rope_theta == keys.sliding_theta);
  if (!says_all) {
    file["rope_parameters"] = {{"full_attention", written(c.rope_theta, c.rope_scaling)},
                               {"sliding_attention", written(c.sliding_rope_theta, c.sliding_rope_scaling)}};
    return;
  }
  const bool plain = c.rope_scaling.type == RopeType::plain;
  if (plain && keys.scaling.type != RopeType::plain) {
    file["rope_parameters"] = written(c.rope_theta, c.rope_scaling);
    return;
  }
  file["rope_theta"] = c.rope_theta;
  if (keys.has_local_base) file["rope_local_base_freq"] = c.sliding_rope_theta;
  file["rope_scaling"] = nullptr;
  if (!plain) file["rope_scaling"] = written(c.rope_scaling);
  if (plain && c.rope_scaling.partial != 1) file["partial_rotary_factor"] = c.rope_scaling.partial;
}

}  // namespace sluice
