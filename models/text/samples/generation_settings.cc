#include "models/text/samples/generation_settings.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/strict_json.h"

namespace sluice {

namespace {

constexpr uint64_t kFileBytesMax = uint64_t{16} << 20;
constexpr int64_t kTokensMax = 1'000'000'000;

// The values where do_sample is true and the file has none.
constexpr double kTemperature = 1;
constexpr int64_t kTopK = 50;

struct Neutral {
  const char* name;
  double value;  // without effect, as null, false and an empty list are
};
constexpr Neutral kNotApplied[] = {{"num_beams", 1},
                                   {"num_beam_groups", 1},
                                   {"num_return_sequences", 1},
                                   {"penalty_alpha", 0},
                                   {"dola_layers", 0},
                                   {"typical_p", 1},
                                   {"epsilon_cutoff", 0},
                                   {"eta_cutoff", 0},
                                   {"top_h", 0},
                                   {"no_repeat_ngram_size", 0},
                                   {"encoder_repetition_penalty", 1},
                                   {"encoder_no_repeat_ngram_size", 0},
                                   {"guidance_scale", 1},
                                   {"min_length", 0},
                                   {"min_new_tokens", 0},
                                   {"max_time", 0},
                                   {"exponential_decay_length_penalty", 0},
                                   {"bad_words_ids", 0},
                                   {"force_words_ids", 0},
                                   {"constraints", 0},
                                   {"forced_bos_token_id", -1},
                                   {"forced_eos_token_id", -1},
                                   {"suppress_tokens", -1},
                                   {"begin_suppress_tokens", -1},
                                   {"sequence_bias", 0},
                                   {"watermarking_config", 0},
                                   {"token_healing", 0}};

bool is_absent(const nlohmann::json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         (value.is_structured() && value.empty());
}

class Reader {
 public:
  Reader(const nlohmann::json& file, GenerationSettings& settings) : file_(file), settings_(settings) {}

  // Returns null if the file does not have the key.
  const nlohmann::json* find(const char* key) const {
    const auto found = file_.find(key);
    return found == file_.end() || found->is_null() ? nullptr : &*found;
  }
  void leave(const char* key, const nlohmann::json& value) const {
    constexpr size_t kShown = 40;
    const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    settings_.not_applied.push_back(text.size() > kShown ? key : fmt::format("{} {}", key, printable(text)));
  }
  // A number in [least, most], or in (least, most] if the end is open; another value is not applied.
  std::optional<double> number(const char* key, double least, double most, bool open) const {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) {
      const double x = value->get<double>();
      if (std::isfinite(x) && x <= most && (open ? x > least : x >= least)) return x;
    }
    leave(key, *value);
    return std::nullopt;
  }
  std::optional<int64_t> count(const char* key, int64_t least) const {
    const auto x = number(key, static_cast<double>(least), static_cast<double>(kTokensMax), false);
    if (!x) return std::nullopt;
    if (*x == std::floor(*x)) return static_cast<int64_t>(*x);
    leave(key, *find(key));
    return std::nullopt;
  }

 private:
  const nlohmann::json& file_;
  GenerationSettings& settings_;
};

void read_stops(const Reader& reader, GenerationSettings& settings) {
  const nlohmann::json* const value = reader.find("stop_strings");
  if (value == nullptr) return;
  for (const nlohmann::json& one : value->is_array() ? *value : nlohmann::json::array({*value}))
    if (one.is_string() && !one.get_ref<const std::string&>().empty())
      settings.stops.push_back(one.get<std::string>());
    else
      reader.leave("stop_strings", one);
}

}  // namespace

GenerationSettings read_generation_settings(const std::string& directory) {
  GenerationSettings settings;
  const std::string path = (std::filesystem::path(directory) / "generation_config.json").string();
  std::error_code ignored;
  if (directory.empty() || !std::filesystem::exists(path, ignored)) return settings;
  nlohmann::json file;
  try {
    file = parse_strict_json(read_text_file(path, kFileBytesMax));
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(path), error.what()),
                "Copy the model's directory anew.");
  }
  if (!file.is_object()) return settings;
  const Reader reader(file, settings);
  const nlohmann::json* const draws = reader.find("do_sample");
  settings.temperature = reader.number("temperature", 0, 1e6, false);
  settings.top_k = reader.count("top_k", 0);
  settings.top_p = reader.number("top_p", 0, 1, true);
  settings.min_p = reader.number("min_p", 0, 1, false);
  settings.repetition_penalty = reader.number("repetition_penalty", 0, 1e6, true);
  settings.max_tokens = reader.count("max_new_tokens", 1);
  settings.max_length = reader.count("max_length", 1);
  if (draws && draws->is_boolean() && draws->get<bool>()) {
    settings.temperature = settings.temperature.value_or(kTemperature);
    settings.top_k = settings.top_k.value_or(kTopK);
  } else {
    settings.temperature.reset();
  }
  read_stops(reader, settings);
  for (const Neutral& key : kNotApplied)
    if (const nlohmann::json* const value = reader.find(key.name))
      if (!is_absent(*value) && !(value->is_number() && value->get<double>() == key.value))
        reader.leave(key.name, *value);
  return settings;
}

}  // namespace sluice
