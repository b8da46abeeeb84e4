#include "engine/run/train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"
#include "engine/run/train/metrics_reader.h"

namespace sluice {
namespace {

void append_number(std::string& out, double value) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(out), "{}", value);  // shortest text that reads back to the same bits
  } else {
    out += "null";
  }
}

void append_number(std::string& out, uint64_t value) { fmt::format_to(std::back_inserter(out), "{}", value); }

void append_step(std::string& out, int64_t step, double time) {
  fmt::format_to(std::back_inserter(out), "{{\"step\":{},\"time\":{:.3f}", step, time);
}

template <class Number>
void append_table(std::string& out, const char* name,
                  const std::vector<std::pair<std::string, Number>>& rows) {
  fmt::format_to(std::back_inserter(out), ",\"{}\":{{", name);
  for (size_t i = 0; i < rows.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}\"{}\":", i == 0 ? "" : ",", rows[i].first);
    append_number(out, rows[i].second);
  }
  out += '}';
}

// Appends two JSON objects with a key for each layer. One has the tokens of each of the layer's experts, the
// other the choices that these experts dropped.
void append_expert_tokens(std::string& out, const std::vector<LayerTokens>& layers) {
  if (layers.empty()) return;
  out += ",\"expert_tokens\":{";
  for (const LayerTokens& of : layers) {
    fmt::format_to(std::back_inserter(out), "{}\"{}\":[{}]", &of == &layers.front() ? "" : ",", of.layer,
                   fmt::join(of.tokens, ","));
  }
  out += '}';
  std::vector<std::pair<std::string, uint64_t>> dropped;
  for (const LayerTokens& of : layers)
    if (of.dropped) dropped.emplace_back(std::to_string(of.layer), *of.dropped);
  if (!dropped.empty()) append_table(out, "dropped_choices", dropped);
}

Error file_error(ExitCode code, const std::string& doing, const std::string& path, int error) {
  return Error(code, fmt::format("{} `{}` failed: {}.", doing, printable(path), std::strerror(error)),
               error == ENOSPC || error == EDQUOT ? "Free some space, or name another file with --metrics."
                                                  : "Name another file with --metrics.");
}

FileDescriptor open_file(const std::string& path) {
  // O_NONBLOCK: neither opening a pipe that nobody reads nor writing to one that is full may wait. It changes
  // nothing for regular files.
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  if (file.get() < 0) throw file_error(ExitCode::environment, "Opening", path, errno);
  return file;
}

// The step of one line; nothing if it is no metrics line.
std::optional<int64_t> step_of(const std::string& line) {
  const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
  if (!value.is_object()) return std::nullopt;
  const auto step = value.find("step");
  if (step == value.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

// Copies the lines to keep from `in` to `out`, the others to `later`; returns how many others there are.
int64_t split_at_step(std::istream& in, std::ostream& out, std::ostream& later, int64_t step,
                      const std::string& path) {
  int64_t number = 0, taken = 0;
  for (std::string line; read_line(in, line);) {
    ++number;
    const std::optional<int64_t> found = step_of(line);
    // Only a last line whose newline was never written may be incomplete.
    const bool torn = in.eof() && is_torn(line);
    if (!found && !torn)
      throw foreign_line(path, number, "Move the file away, or name another one with --metrics.");
    const bool stays = !torn && *found <= step;
    taken += !stays;
    (stays ? out : later) << line << '\n';
  }
  return taken;
}

}  // namespace

void append_line(std::string& out, const StepMetrics& m, double time) {
  const auto real = [&](const char* name, double value) {
    fmt::format_to(std::back_inserter(out), ",\"{}\":", name);
    append_number(out, value);
  };
  append_step(out, m.step, time);
  real("loss", m.loss);
  if (m.router_loss) real("router_loss", *m.router_loss);
  real("grad_norm", m.grad_norm);
  real("learning_rate", m.learning_rate);
  real("seconds", m.seconds);
  real("tokens_per_second", m.tokens_per_second);
  real("trained_tokens_per_second", m.trained_tokens_per_second);
  constexpr const char* kOrders[] = {"plain", "guessed", "repaired"};
  fmt::format_to(std::back_inserter(out), ",\"order\":\"{}\",\"skipped\":{},\"micro_batch\":{}",
                 kOrders[static_cast<int>(m.order)], m.skipped, m.micro_batch);
  real("loss_scale", m.loss_scale);
  append_table(out, "peak_bytes", m.peak_bytes);
  fmt::format_to(std::back_inserter(out), ",\"process_peak_bytes\":{}", m.process_peak_bytes);
  append_table(out, "moved_bytes", m.moved_bytes);
  append_table(out, "lane_busy", m.lane_busy);
  append_expert_tokens(out, m.expert_tokens);
  out += "}\n";
}

void append_line(std::string& out, const ValidationMetrics& m, double time) {
  append_step(out, m.step, time);
  out += ",\"val_loss\":";
  append_number(out, m.val_loss);
  if (m.router_loss) {
    out += ",\"router_loss\":";
    append_number(out, *m.router_loss);
  }
  out += "}\n";
}

void append_line(std::string& out, const SampleMetrics& m, double time) {
  using Json = nlohmann::ordered_json;
  Json texts = Json::array();
  for (const SampledText& t : m.texts)
    texts.push_back({{"prompt", last_characters(t.prompt, kSamplePromptBytes)},
                     {"text", first_characters(t.text, kSampleTextBytes)}});
  append_step(out, m.step, time);
  out += ",\"samples\":" + texts.dump(-1, ' ', false, Json::error_handler_t::replace) + "}\n";
}

MetricsFile::MetricsFile(const std::string& path) : GrowingFile(path, open_file(path), "lines") {
  struct stat status;
  if (::fstat(descriptor(), &status) == 0 && S_ISREG(status.st_mode) &&
      ::flock(descriptor(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw Error(ExitCode::environment, fmt::format("Another process is writing {}.", printable(path)),
                "Name another file with --metrics.");
}

void MetricsFile::write(const StepMetrics& metrics, double time) {
  line_.clear();
  append_line(line_, metrics, time);
  append(line_);
}

void MetricsFile::write(const ValidationMetrics& metrics, double time) {
  line_.clear();
  append_line(line_, metrics, time);
  append(line_);
}

void MetricsFile::write(const SampleMetrics& metrics, double time) {
  line_.clear();
  append_line(line_, metrics, time);
  append(line_);
}

std::string set_aside_of(const std::string& metrics) {
  std::error_code missing;
  const std::filesystem::path target = std::filesystem::canonical(metrics, missing);
  return (missing ? metrics : target.string()) + ".set-aside";
}

int64_t truncate_after_step(const std::string& path, int64_t step) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return 0;
  std::error_code unresolved;
  const std::string target = std::filesystem::canonical(path, unresolved).string();  // a link stays a link
  if (unresolved) throw file_error(ExitCode::environment, "Resolving", path, unresolved.value());
  const std::string temporary = target + ".cut";
  std::ifstream in(target);
  if (!in) throw file_error(ExitCode::environment, "Opening", path, errno);
  std::ostream nowhere(nullptr);  // only counts, so that a full drive does not matter if no line goes
  if (split_at_step(in, nowhere, nowhere, step, path) == 0) return 0;
  in.clear();
  in.seekg(0);
  std::ofstream out(temporary, std::ios::trunc);
  if (!out) throw file_error(ExitCode::environment, "Opening", temporary, errno);
  std::ofstream later(set_aside_of(target), std::ios::app);
  if (!later) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw file_error(ExitCode::environment, "Opening", set_aside_of(target), error);
  }
  int64_t taken = 0;
  try {
    taken = split_at_step(in, out, later, step, path);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  out.flush();
  later.flush();
  if (in.bad() || !out || !later) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw file_error(ExitCode::io, "Rewriting", path, error);
  }
  out.close();
  if (::rename(temporary.c_str(), target.c_str()) != 0)
    throw file_error(ExitCode::io, "Renaming", temporary, errno);
  return taken;
}

}  // namespace sluice
