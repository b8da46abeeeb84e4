// Run directories that tests of `sluice report` make, and the data in its pages.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/run/train/metrics.h"
#include "tests/support/cli_support.h"

namespace sluice {

inline double loss_at(int64_t step) { return 2 + 8 / (1 + static_cast<double>(step) / 100); }

inline StepMetrics step_at(int64_t step) {
  StepMetrics m;
  m.step = step;
  m.loss = loss_at(step);
  m.grad_norm = 0.5 + static_cast<double>(step % 7) / 10;
  m.learning_rate = 1e-3 / static_cast<double>(step);
  m.seconds = 0.5;
  m.tokens_per_second = 512;
  m.peak_bytes = {{"host", uint64_t{1} << 30}};
  m.process_peak_bytes = uint64_t{2} << 30;
  m.moved_bytes = {{"compute", 0}};
  m.lane_busy = {{"compute", 0.4}};
  return m;
}

// Lines of steps [first, last]; `more` is added to each loss.
inline std::string steps_text(int64_t first, int64_t last, double more = 0) {
  std::string text;
  for (int64_t step = first; step <= last; ++step) {
    StepMetrics m = step_at(step);
    m.loss += more;
    append_line(text, m, 1764024863);
  }
  return text;
}

inline std::string validation_text(int64_t step, double loss) {
  std::string text;
  append_line(text, ValidationMetrics{step, loss}, 1764024863);
  return text;
}

inline std::string samples_text(int64_t step, const std::string& text) {
  std::string line;
  append_line(line, SampleMetrics{step, {{"once", text}}}, 1764024863);
  return line;
}

inline void append_run(const std::string& directory, const std::string& metrics) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/metrics.jsonl", std::ios::binary | std::ios::app) << metrics;
}

inline void write_run(const std::string& directory, const std::string& metrics) {
  std::filesystem::remove_all(directory);
  append_run(directory, metrics);
}

// The JSON text of a page's runs.
inline std::string data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"runs\">";
  const size_t begin = html.find(open);
  EXPECT_NE(begin, std::string::npos);
  const size_t from = begin + open.size();
  return html.substr(from, html.find("</script>", from) - from);
}

}  // namespace sluice
