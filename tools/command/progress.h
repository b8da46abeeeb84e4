// What a user sees while a run trains: one line that is rewritten on a terminal, plain lines at intervals
// elsewhere. Blanks cover what is left of a longer line: no escape codes are written.
//
// Writes are not checked: a closed terminal must not end a run. Caller: the trainer's thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "engine/program/program.h"
#include "engine/run/train/metrics.h"
#include "tools/command/screen.h"

namespace sluice {

class Progress {
 public:
  // `steps` is the length of the run; `budgets` are bytes by name of a tier, as in StepMetrics::peak_bytes.
  // `out` must outlive this. On a terminal, lines that are too long to be rewritten in place lose fields.
  Progress(std::FILE* out, const Screen& screen, int64_t steps,
           std::vector<std::pair<std::string, uint64_t>> budgets);

  // A finished step; `now` is any clock in seconds that does not run backwards. The first and the last
  // step, and skipped ones, are always shown.
  void step(const StepMetrics& metrics, double now);
  void validation(const ValidationMetrics& metrics);  // a line of its own that stays
  void note(const std::string& sentence);             // likewise
  void finish();                                      // ends the last line, which stays

 private:
  std::string describe(const StepMetrics& metrics) const;
  void print_kept(const std::string& line);
  std::string over_last(std::string line) const;
  void draw_newest();
  void write(const std::string& text);

  std::FILE* out_;
  Screen screen_;
  int64_t steps_;
  std::vector<std::pair<std::string, uint64_t>> budgets_;
  double step_seconds_ = 0;                // running mean of recent steps
  double between_seconds_ = 0;             // mean of what validations, samples and checkpoints take, by step
  std::pair<int64_t, double> begin_ = {};  // step and time of the first step
  double in_steps_ = 0;                    // seconds of the steps after the first
  double shown_at_ = 0;
  bool first_ = true;
  std::string line_;    // what the terminal shows in its last line, without a line break
  std::string newest_;  // what the terminal would show of the newest step
};

// The progress of a run of `steps` steps, on the screen of `out`. Budgets are the program's arenas.
Progress progress_of(const Program& program, int64_t steps, std::FILE* out);

// "42s", "2m10s", "3h05m", "2d04h"; "?" when not finite or negative.
std::string format_duration(double seconds);

}  // namespace sluice
