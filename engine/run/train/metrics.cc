#include "engine/run/train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
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
#include <string_view>

#include "engine/base/clock.h"
#include "engine/base/error.h"

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

Error file_error(ExitCode code, const std::string& doing, const std::string& path, int error) {
  return Error(code, fmt::format("{} `{}` failed: {}.", doing, printable(path), std::strerror(error)),
               error == ENOSPC || error == EDQUOT ? "Free some space, or name another file with --metrics."
                                                  : "Name another file with --metrics.");
}

// The step of one line; nothing if it is no metrics line.
std::optional<int64_t> step_of(const std::string& line) {
  const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
  if (!value.is_object()) return std::nullopt;
  const auto step = value.find("step");
  if (step == value.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

constexpr std::string_view kLineBegin = "{\"step\":";
constexpr size_t kLineMost = 1 << 20;  // far above any line of ours

// The next line without its newline, or as much of it as a line may have and one byte more. False at the end.
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

// Whether a last line without a newline is the beginning of one of ours. Where the power failed, a file
// system may have put zeros in place of the rest.
bool is_torn(std::string_view line) {
  while (line.ends_with('\0')) line.remove_suffix(1);
  return line.starts_with(kLineBegin) || kLineBegin.starts_with(line);
}

// Copies the lines to keep from `in` to `out`, the others to `later`; returns how many others there are.
int64_t split_at_step(std::istream& in, std::ostream& out, std::ostream& later, int64_t step,
                      const std::string& path) {
  int64_t number = 0, taken = 0;
  for (std::string line; read_line(in, line);) {
    ++number;
    const std::optional<int64_t> found = step_of(line);
    // The last line, whose newline was never written; anything else is no line of ours.
    const bool torn = in.eof() && is_torn(line);
    if (!found && !torn)
      throw Error(ExitCode::malformed_file,
                  fmt::format("Line {} of `{}` is not a metrics line.", number, printable(path)),
                  "Move the file away, or name another one with --metrics.");
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
  real("grad_norm", m.grad_norm);
  real("learning_rate", m.learning_rate);
  real("seconds", m.seconds);
  real("tokens_per_second", m.tokens_per_second);
  constexpr const char* kOrders[] = {"plain", "guessed", "repaired"};
  fmt::format_to(std::back_inserter(out), ",\"order\":\"{}\",\"skipped\":{},\"micro_batch\":{}",
                 kOrders[static_cast<int>(m.order)], m.skipped, m.micro_batch);
  real("loss_scale", m.loss_scale);
  append_table(out, "peak_bytes", m.peak_bytes);
  fmt::format_to(std::back_inserter(out), ",\"process_peak_bytes\":{}", m.process_peak_bytes);
  append_table(out, "moved_bytes", m.moved_bytes);
  append_table(out, "lane_busy", m.lane_busy);
  out += "}\n";
}

void append_line(std::string& out, const ValidationMetrics& m, double time) {
  append_step(out, m.step, time);
  out += ",\"val_loss\":";
  append_number(out, m.val_loss);
  out += "}\n";
}

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: neither opening a pipe that nobody reads nor writing to one that is full may wait. It changes
  // nothing for regular files.
  file_ = FileDescriptor(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  if (file_.get() < 0) throw file_error(ExitCode::environment, "Opening", path, errno);
  struct stat status;
  if (::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode) &&
      ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw Error(ExitCode::environment, fmt::format("Another process is writing {}.", printable(path)),
                "Name another file with --metrics.");
}

void MetricsFile::write(const StepMetrics& metrics, double time) {
  append_line(waiting_, metrics, time);
  flush();
}

void MetricsFile::write(const ValidationMetrics& metrics, double time) {
  append_line(waiting_, metrics, time);
  flush();
}

void MetricsFile::flush() {
  size_t done = 0;
  int error = 0;
  while (done < waiting_.size() && error == 0) {
    const ssize_t n = ::write(file_.get(), waiting_.data() + done, waiting_.size() - done);
    if (n >= 0)
      done += static_cast<size_t>(n);
    else if (errno != EINTR)
      error = errno;
  }
  waiting_.erase(0, done);
  if (waiting_.size() >
      kWaitingMax) {  // a part of the first line may be in the file already, so its rest stays
    const size_t first = waiting_.find('\n') + 1;
    waiting_.erase(first, waiting_.find('\n', kWaitingMax / 2) + 1 - first);
  }
  if (error == 0) is_told_ = false;
  error_ = error;
}

void MetricsFile::finish() {
  flush();
  const double end = steady_seconds() + 1;
  pollfd reader{file_.get(), POLLOUT, 0};
  while (error_ == EAGAIN && steady_seconds() < end) {
    ::poll(&reader, 1, 50);
    flush();
  }
}

std::optional<std::string> MetricsFile::trouble() {
  if (error_ == 0 || std::exchange(is_told_, true)) return std::nullopt;
  return fmt::format("Writing `{}` failed: {}. The run goes on; its lines are kept and tried again.",
                     printable(path_), error_ == EAGAIN ? "its reader does not read" : std::strerror(error_));
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
  std::ostream nowhere(nullptr);  // a full drive does not matter where no line goes
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
