#include "engine/run/train/metrics_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/base/file.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::string_view kLineBegin = "{\"step\":";
constexpr size_t kLineMost = 1 << 23;  // bytes; any metrics line is shorter, though JSON may write 6 for 1

struct WrongType {};  // thrown if the value of a known key has another type

double real(const json& object, const char* key) {
  const auto value = object.find(key);
  if (value == object.end() || value->is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value->is_number()) throw WrongType();
  return value->get<double>();
}

template <class Number>
Number number(const json& value) {
  if (!(std::is_integral_v<Number> ? value.is_number_integer() : value.is_number())) throw WrongType();
  return value.get<Number>();
}

template <class Number>
Number number(const json& object, const char* key) {
  const auto value = object.find(key);
  return value == object.end() || value->is_null() ? Number{} : number<Number>(*value);
}

template <class Number>
void read_table(const json& object, const char* key, std::vector<std::pair<std::string, Number>>& rows) {
  rows.clear();
  const auto table = object.find(key);
  if (table == object.end()) return;
  if (!table->is_object()) throw WrongType();
  for (const auto& [name, value] : table->items()) rows.emplace_back(name, number<Number>(value));
}

void read_expert_tokens(const json& object, std::vector<LayerTokens>& layers) {
  layers.clear();
  const auto table = object.find("expert_tokens");
  if (table == object.end()) return;
  const json dropped = object.value("dropped_choices", json::object());
  if (!table->is_object() || !dropped.is_object()) throw WrongType();
  for (const auto& [name, tokens] : table->items()) {
    LayerTokens of;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), of.layer);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || !tokens.is_array())
      throw WrongType();
    for (const json& count : tokens) of.tokens.push_back(number<uint64_t>(count));
    if (dropped.contains(name)) of.dropped = number<uint64_t>(dropped[name]);
    layers.push_back(std::move(of));
  }
  std::ranges::sort(layers, {}, &LayerTokens::layer);  // JSON has them in the order of their names, as text
}

std::optional<double> read_router_loss(const json& line) {
  if (!line.contains("router_loss")) return {};
  return real(line, "router_loss");
}

void read_step(const json& line, StepMetrics& m) {
  m.loss = real(line, "loss");
  m.router_loss = read_router_loss(line);
  m.grad_norm = real(line, "grad_norm");
  m.learning_rate = real(line, "learning_rate");
  m.seconds = real(line, "seconds");
  m.tokens_per_second = real(line, "tokens_per_second");
  m.trained_tokens_per_second = real(line, "trained_tokens_per_second");
  m.loss_scale = real(line, "loss_scale");
  m.micro_batch = number<int64_t>(line, "micro_batch");
  m.process_peak_bytes = number<uint64_t>(line, "process_peak_bytes");
  m.skipped = line.value("skipped", json(false)) == true;
  const json order = line.value("order", json());
  m.order = order == "guessed"    ? StepOrder::guessed
            : order == "repaired" ? StepOrder::repaired
                                  : StepOrder::plain;
  read_table(line, "peak_bytes", m.peak_bytes);
  read_table(line, "moved_bytes", m.moved_bytes);
  read_table(line, "lane_busy", m.lane_busy);
  read_expert_tokens(line, m.expert_tokens);
}

SampleMetrics read_samples(const json& line, int64_t step) {
  SampleMetrics m{.step = step, .texts = {}};
  if (!line["samples"].is_array()) throw WrongType();
  for (const json& one : line["samples"]) {
    if (!one.is_object()) throw WrongType();
    const json prompt = one.value("prompt", json("")), text = one.value("text", json(""));
    if (!prompt.is_string() || !text.is_string()) throw WrongType();
    m.texts.push_back({prompt.get<std::string>(), text.get<std::string>()});
  }
  return m;
}

// False if the text is no metrics line. `step` is storage that is used again for every line.
bool take_line(const std::string& text, const MetricsEvents& events, StepMetrics& step) {
  const json line = json::parse(text, nullptr, false);
  if (!line.is_object() || !line.contains("step")) return false;
  try {
    step.step = number<int64_t>(line["step"]);
    if (step.step < 0) return false;
    if (line.contains("loss")) {
      read_step(line, step);
      events.step(step);
    } else if (line.contains("val_loss")) {
      events.validation({step.step, real(line, "val_loss"), read_router_loss(line)});
    } else if (line.contains("samples") && events.samples) {
      events.samples(read_samples(line, step.step));
    }
  } catch (const WrongType&) {
    return false;
  }
  return true;
}

}  // namespace

bool read_line(std::istream& in, std::string& line) {
  line.clear();
  std::streambuf& chars = *in.rdbuf();
  for (int c = chars.sbumpc(); c != '\n'; c = chars.sbumpc()) {
    if (c == std::char_traits<char>::eof()) {
      in.setstate(std::ios::eofbit);
      return !line.empty();
    }
    line += static_cast<char>(c);
    if (line.size() > kLineMost) break;
  }
  return true;
}

bool is_torn(std::string_view line) {
  while (line.ends_with('\0')) line.remove_suffix(1);
  return line.starts_with(kLineBegin) || kLineBegin.starts_with(line);
}

Error foreign_line(const std::string& path, int64_t number, const std::string& remedy) {
  return Error(ExitCode::malformed_file,
               fmt::format("Line {} of `{}` is not a metrics line.", number, printable(path)), remedy);
}

void read_metrics(const std::string& path, const MetricsEvents& events) {
  InputFile checked(path);  // throws an error that says why the path is no file
  std::ifstream in(path, std::ios::binary);
  StepMetrics step;
  std::string line;
  for (int64_t number = 1; read_line(in, line); ++number)
    if (!take_line(line, events, step) && !(in.eof() && is_torn(line)))
      throw foreign_line(path, number, "Mend or remove the line; every line is one JSON object with a step.");
  if (in.bad())
    throw Error(ExitCode::io, fmt::format("Reading `{}` failed.", printable(path)), "Check the drive.");
}

}  // namespace sluice
