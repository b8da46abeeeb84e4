// Reads a metrics file, also one that a run is writing or was killed while writing.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/run/train/metrics.h"

namespace sluice {

// The next line without its newline. Of a line that is longer than any metrics line, a call gives only the
// next part, so that memory stays small. False at the end of the file. If it returns true and in.eof() is
// set, the line has no newline.
bool read_line(std::istream& in, std::string& line);

// Whether a last line without a newline is the beginning of a metrics line. Where the power failed, a file
// system may have put zeros in place of the rest.
bool is_torn(std::string_view line);

// The error that says that line `number` (from 1) of the file `path` is no line of metrics.
Error foreign_line(const std::string& path, int64_t number, const std::string& remedy);

struct MetricsEvents {
  std::function<void(const StepMetrics&)> step;
  std::function<void(const ValidationMetrics&)> validation;
  std::function<void(const SampleMetrics&)> samples = {};  // empty: they are passed over
};

// Calls the event of each line, in the order of the file. A number that is null or missing is NaN, or 0 where
// it is an integer. Lines of kinds that are not known are passed over, and so is a torn last line. Throws
// Error(malformed_file) for any other line that is no metrics line, and as InputFile does for a file that
// cannot be read.
void read_metrics(const std::string& path, const MetricsEvents& events);

}  // namespace sluice
