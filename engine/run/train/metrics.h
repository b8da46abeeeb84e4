// The metrics file: one JSON object a line, one line a step, flushed as written, so that plots can follow a
// live run.
//
// Floats read back to the same bits; a number that is not finite is null, since JSON has no other word for
// it. Lines of training steps, validations and samples share the file and are told apart by their keys.
// Caller: the trainer's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/run/generate/samples.h"
#include "engine/run/train/growing_file.h"

namespace sluice {

// How a step's weights came: from updates that waited for the norm, from a right guess of the update, or from
// a repair after a wrong one.
enum class StepOrder : uint8_t { plain, guessed, repaired };

struct LayerTokens {  // of a layer with a mixture of experts
  int64_t layer = 0;
  std::vector<uint64_t> tokens;     // by expert: how many of the step's tokens chose it
  std::optional<uint64_t> dropped;  // how many of these choices no expert took; none: all are taken
};

struct StepMetrics {
  int64_t step = 0;                   // from 1
  double loss = 0;                    // mean over the step's valid tokens, before the update
  std::optional<double> router_loss;  // the routers' part of `loss`; none: the model has none
  double grad_norm = 0;               // before clipping, without loss scale
  double learning_rate = 0;
  double seconds = 0;  // from the end of the norm of the step before to the end of this step's norm, less
                       // validations, samples and checkpoints
  double tokens_per_second = 0;
  double trained_tokens_per_second = 0;  // of positions with a label
  StepOrder order = StepOrder::plain;
  bool skipped = false;  // fp16 overflow: this step's update was left out
  int64_t micro_batch = 0;
  double loss_scale = 1;
  std::vector<std::pair<std::string, uint64_t>> peak_bytes;  // by tier: high-water mark of its arena
  uint64_t process_peak_bytes = 0;
  std::vector<std::pair<std::string, uint64_t>> moved_bytes;  // by lane
  std::vector<std::pair<std::string, double>> lane_busy;      // by lane: seconds
  std::vector<LayerTokens> expert_tokens;                     // by layer with experts; empty: there is none
};

struct ValidationMetrics {
  int64_t step = 0;  // after this many updates
  double val_loss = 0;
  std::optional<double> router_loss;  // the routers' part of `val_loss`; none: the model has none
};

struct SampleMetrics {
  int64_t step = 0;                // after this many updates
  std::vector<SampledText> texts;  // by prompt
};
// The most bytes of a prompt's end, and of a text's start, that a line holds.
constexpr size_t kSamplePromptBytes = 2000, kSampleTextBytes = 8000;

// Append the line, with its newline, to `out`. `time`: as unix_seconds() gives it. Names of tiers and lanes
// are plain words.
void append_line(std::string& out, const StepMetrics& metrics, double time);
void append_line(std::string& out, const ValidationMetrics& metrics, double time);
void append_line(std::string& out, const SampleMetrics& metrics, double time);

class MetricsFile : public GrowingFile {
 public:
  // Opens for appending, creates if needed. Throws Error(environment), also where another process writes the
  // file.
  explicit MetricsFile(const std::string& path);

  void write(const StepMetrics& metrics, double time);
  void write(const ValidationMetrics& metrics, double time);
  void write(const SampleMetrics& metrics, double time);

 private:
  std::string line_;  // keeps its capacity
};

// The file to which truncate_after_step() moves lines of a metrics file. It lies beside the metrics file or,
// if that is a link, beside what the link leads to.
std::string set_aside_of(const std::string& metrics);

// For a resume from a checkpoint taken after `step` updates: takes every line of a later step, and a last
// line without its newline, from the file, and appends them to the file set_aside_of(path). The file at
// `path` is replaced in one rename, or left alone when no line goes. A kill may leave lines in both files. A
// file that is missing or not regular is left alone. Returns the number of lines taken. Throws
// Error(malformed_file) for any other line that is no metrics line, Error(environment, io) when a file cannot
// be read, written or replaced.
int64_t truncate_after_step(const std::string& path, int64_t step);

}  // namespace sluice
