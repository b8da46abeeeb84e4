// Events for TensorBoard: a file events.out.tfevents.SECONDS.HOST in the run directory, beside the metrics
// file and with the same figures.
//
// The form is TensorFlow's. A file has records (tsl/lib/io/record_writer.h): the length of the data in 8
// bytes, its masked CRC-32C, the data, their masked CRC-32C. The data of a record are an `Event`
// (tensorflow/core/util/event.proto) in the wire format of protocol buffers. The first two events give the
// version of the form, and the step at which the run begins or goes on. TensorBoard leaves out that step and
// later ones of older files. Caller: the trainer's thread.
#pragma once

#include <cstdint>
#include <string>

#include "engine/run/train/growing_file.h"
#include "engine/run/train/metrics.h"

namespace sluice {

class EventFile : public GrowingFile {
 public:
  // Makes a new file for the steps after the first `done`. The names of files sort in the order in which the
  // files were made, even where the clock has gone back. `time`: as unix_seconds(). Throws
  // Error(environment).
  EventFile(const std::string& directory, int64_t done, double time);

  void write(const StepMetrics& metrics, double time);
  void write(const ValidationMetrics& metrics, double time);

 private:
  explicit EventFile(const std::string& path);
  void add(const char* group, const char* name, double value);
  void write_event(int64_t step, double time, int field);

  std::string tag_, value_, content_, event_, record_;  // keep their capacity
};

}  // namespace sluice
