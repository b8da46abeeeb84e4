#include "tools/command/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/units.h"
#include "tools/command/screen.h"

namespace sluice {
namespace {

constexpr double kTerminalInterval = 0.1;  // seconds between two rewrites at least
constexpr double kPlainInterval = 10;      // seconds between two plain lines at least
constexpr double kRecent = 0.1;  // share of the newest step in the running mean, so about ten steps count

std::string format_rate(double per_second) {
  if (!std::isfinite(per_second)) return "?";
  if (per_second >= 99950) return fmt::format("{:.0f}k", per_second / 1000);
  if (per_second >= 9995) return fmt::format("{:.1f}k", per_second / 1000);
  return fmt::format("{:.0f}", per_second);
}

// The first fields of the line that fit into `columns`. Two blanks separate fields.
std::string fields_within(const std::string& line, size_t columns) {
  if (line.size() <= columns) return line;
  const size_t end = line.rfind("  ", columns);
  return end == std::string::npos ? "" : line.substr(0, end);
}

}  // namespace

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const auto s = static_cast<int64_t>(std::llround(seconds));
  constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (s < kMinute) return fmt::format("{}s", s);
  if (s < kHour) return fmt::format("{}m{:02}s", s / kMinute, s % kMinute);
  if (s < kDay) return fmt::format("{}h{:02}m", s / kHour, s % kHour / kMinute);
  return fmt::format("{}d{:02}h", s / kDay, s % kDay / kHour);
}

Progress::Progress(std::FILE* out, const Screen& screen, int64_t steps,
                   std::vector<std::pair<std::string, uint64_t>> budgets)
    : out_(out), screen_(screen), steps_(steps), budgets_(std::move(budgets)) {}

std::string Progress::describe(const StepMetrics& m) const {
  const double left = static_cast<double>(steps_ - m.step) * (step_seconds_ + between_seconds_);
  std::string line = fmt::format("step {}/{}  loss {:.4f}  {} tokens/s", m.step, steps_, m.loss,
                                 format_rate(m.tokens_per_second));
  if (m.trained_tokens_per_second < m.tokens_per_second)
    line += fmt::format(" ({} trained)", format_rate(m.trained_tokens_per_second));
  line += "  ETA " + format_duration(left);
  for (const auto& [tier, used] : m.peak_bytes) {
    const auto budget =
        std::find_if(budgets_.begin(), budgets_.end(), [&](const auto& b) { return b.first == tier; });
    if (budget == budgets_.end() || budget->second == 0) continue;  // a tier that the plan does not use
    line += fmt::format("  {} {} of {}", tier, format_size(used), format_size(budget->second));
  }
  return line;
}

void Progress::step(const StepMetrics& m, double now) {
  if (first_) {
    begin_ = {m.step, now};
    in_steps_ = 0;
  } else if (m.step > begin_.first) {
    in_steps_ += m.seconds;
    between_seconds_ =
        std::max(0.0, now - begin_.second - in_steps_) / static_cast<double>(m.step - begin_.first);
  }
  step_seconds_ = first_ ? m.seconds : step_seconds_ + kRecent * (m.seconds - step_seconds_);
  if (m.skipped)
    print_kept(
        fmt::format("step {}: update skipped, gradients overflowed at loss scale {}", m.step, m.loss_scale));
  // The last column would wrap on some terminals.
  if (screen_.is_terminal)
    newest_ = fields_within(describe(m), screen_.columns > 0 ? screen_.columns - 1 : 0);
  const double interval = screen_.is_terminal ? kTerminalInterval : kPlainInterval;
  if (!first_ && m.step != steps_ && now - shown_at_ < interval) return;
  first_ = false;
  shown_at_ = now;
  if (screen_.is_terminal)
    draw_newest();
  else
    print_kept(describe(m));
}

void Progress::draw_newest() {
  write(over_last(newest_));
  line_ = newest_;
}

void Progress::validation(const ValidationMetrics& m) {
  print_kept(fmt::format("step {}/{}  validation loss {:.4f}", m.step, steps_, m.val_loss));
}

void Progress::note(const std::string& sentence) { print_kept(sentence); }

void Progress::finish() {
  if (line_ != newest_) draw_newest();
  write(line_.empty() ? "" : "\n");
  line_.clear();
  newest_.clear();
}

// On a terminal the line replaces the progress line, which is drawn again below it.
void Progress::print_kept(const std::string& line) {
  const std::string whole = shown(line, screen_);
  write(line_.empty() ? whole + "\n" : over_last(whole) + "\n");
  if (line_.empty()) return;
  line_ = newest_;
  write(line_);
}

// Begins at the left of the terminal's last line, and covers what stands there.
std::string Progress::over_last(std::string line) const {
  const size_t end = std::min(line.find('\n'), line.size());
  if (end < line_.size()) line.insert(end, line_.size() - end, ' ');
  return "\r" + line;
}

// fmt::print would throw where the terminal is gone.
void Progress::write(const std::string& text) {
  std::fputs(text.c_str(), out_);
  std::fflush(out_);
}

Progress progress_of(const Program& program, int64_t steps, std::FILE* out) {
  std::vector<std::pair<std::string, uint64_t>> tiers;
  for (size_t t = 0; t < program.arena_bytes.size(); ++t)
    tiers.emplace_back(program.machine.tiers[t].name, program.arena_bytes[t]);
  return Progress(out, screen_of(out), steps, tiers);
}

}  // namespace sluice
