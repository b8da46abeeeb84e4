// The training loop: issues bodies, feeds tokens and learning rates, reads losses, validates, writes samples,
// saves, stops.
//
// It runs at most two bodies ahead of what it reads, so reading a loss never stalls a lane. A long step is
// issued only when a lane has nothing else to do, so that a stop need not wait for it. Owner: the verb's
// thread.
//
// If a run has to end while all lanes are well, because of a signal, of data that cannot be read or are found
// to be bad, of a validation that fails, or of a run directory that was moved, a checkpoint is written first.
// All ranks agree before that. With a single rank, a stop that would take longer than --stop-within drops
// the steps under way: no result depends on a step whose update has not begun. A checkpoint comes before the
// validation and the samples of its step, and records them as pending until they are done, so that a run that
// goes on from it makes up for what a stop or a kill has left out. Numbers that are not finite end a run
// without a checkpoint. If a checkpoint at an interval finds no room, or its drive is away, the run goes on
// and tries again after every step. The last checkpoint waits for room. Without room, the checkpoint of the
// best validation (--keep-best) is left out, since the next step changes its weights.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/checkpoint/directory.h"
#include "engine/run/checkpoint/spare_descriptors.h"
#include "engine/run/execute/session.h"
#include "engine/run/generate/samples.h"
#include "engine/run/options/options.h"
#include "engine/run/train/expert_tokens.h"
#include "engine/run/train/guess_choice.h"
#include "engine/run/train/metrics.h"
#include "engine/run/train/stop_forecast.h"
#include "models/data/range_check.h"
#include "models/data/row_source.h"

namespace sluice {

class Recorder;

struct TrainEvents {  // all called on the trainer's thread
  std::function<void(const StepMetrics&)> step;
  std::function<void(const ValidationMetrics&)> validation;
  std::function<void(const SampleMetrics&)> samples;
  std::function<void(const std::string& path)> checkpoint;
  std::function<void(const std::string& sentences)> trouble;  // the run goes on
  Recorder* recorder = nullptr;      // gets the trace of every step, including failed ones
  StopForecast* forecast = nullptr;  // is told what steps and checkpoints take
  bool not_finite_goes_on = false;   // numbers that are not finite end no run: only its speed matters
};

struct TrainData {  // of one rank
  std::unique_ptr<RowSource> train;
  std::unique_ptr<RowSource> validation;  // nullptr: no validation
  int64_t validation_batches = 0;
  std::function<uint64_t()> validation_checksum;  // of the data of `validation`; reads all these data
  const SamplePrompts* samples = nullptr;         // nullptr: none are written
  const RangeCheck* check = nullptr;              // of all data; nullptr: what is wrong shows when it is read
};

enum class AtEnd : uint8_t { checkpoint, nothing };  // nothing: the run only measures

struct TrainResult {
  int64_t step = 0;      // updates done
  bool stopped = false;  // the flag ended the run before the last step or after it
};

class Trainer {
 public:
  // `options` are resolved (sequence, micro-batch). `start` is a checkpoint's state, or the first step's.
  // `stop` may be set from a signal handler at any time.
  Trainer(Session& session, const Options& options, const TrainData& data, const CheckpointState& start,
          const std::atomic<bool>& stop, TrainEvents events);
  ~Trainer() { session_.executor().set_meanwhile({}); }

  // Trains until options.batch.steps updates are done or `stop` is set, then drains. Throws Error(io,
  // environment, numerics, malformed_file); the last durable checkpoint is then intact.
  TrainResult run(AtEnd at_end = AtEnd::checkpoint);

 private:
  struct Pending : IssuedWave {  // a body that has not been read
    int64_t step = 0;
    bool ends_step = false;
    uint64_t wave = 0;  // its position in kWaveRing
  };
  TrainResult train();
  TrainResult train_on_lanes();   // as run(), but throws a failed lane's error
  bool stops();                   // sets saves_by_time_, steps_are_long_ and failed_ too
  const BodyIds& bodies() const;  // of phase_
  void enter_next_phase();
  bool issue_step();               // false where a rank could not read its tokens: nothing was issued
  void read_bodies(size_t leave);  // reads the oldest pending bodies until `leave` are left
  void read_step(const Pending& last_wave);
  const OutDirectory* directory() const { return out_ ? &*out_ : nullptr; }
  double norm_time(const Pending& pending) const;
  void record(int64_t step, uint64_t ticket, BodyId body);
  void record_failed();
  void note(const char* what) const;
  void drain();  // leads to the clean state, with all steps read
  // Carries out the step's pending validation and samples. Returns false if these were cut short, or failed.
  // `saved`: the step's weights are on the drive.
  bool run_pending(bool saved);
  void record_done(bool& pending);
  void cut_short(const char* what, const char* are);
  bool validate();  // validate() and sample(): false if cut short, or failed
  bool sample();
  std::string place_of_checkpoint();
  std::exception_ptr moved_directory() const;  // nullptr: it is in its place
  bool is_saved();  // on the first rank, whether the run has a checkpoint of state_
  bool save();      // writes a checkpoint; false if its directory was moved, which ends the run
  bool save_on_the_way();
  // Whether the first rank finds that a checkpoint can be written now. If it cannot, a warning says why,
  // once, and ends with `then`, which says what the run does. `on_the_way`: room for the last checkpoint must
  // be left.
  bool can_save(const char* then, bool on_the_way = false);
  void await_place();  // waits until a checkpoint can be written, or a signal comes
  // Whether the weights that were just validated are the best of the run so far, and can be saved now. The
  // first rank looks at what is on the drive, and decides for all.
  bool saves_best();
  void checkpoint();
  [[noreturn]] void tell_failure(const std::string& unsaved) const;
  void allow_drop();
  void consider_drop();  // while it waits for lanes: drops what is under way if a stop would take too long
  void take_back();      // removes dropped steps from pending_: the last step is the last one that was read
  bool due(int64_t every) const { return every > 0 && step_ % every == 0; }

  Session& session_;
  const Options& options_;
  const TrainData& data_;
  CheckpointState state_;
  const std::atomic<bool>& stop_;
  TrainEvents events_;
  AtEnd at_end_ = AtEnd::checkpoint;
  std::optional<OutDirectory> out_;  // these three: where and with what checkpoints are written
  std::optional<SpareDescriptors> spare_;
  CheckpointSpace checkpoint_space_;
  int64_t step_ = 0;             // issued
  size_t phase_ = 0;             // index into Lowering::phases
  bool pending_update_ = false;  // rounded gradients wait for their update
  GuessChoice guess_choice_;
  std::vector<Pending> pending_;  // oldest first
  double last_norm_ = 0;          // when task `norm` ended in the last step that was read
  double excluded_ = 0;           // seconds of validations, samples and checkpoints since last_norm_
  int64_t saved_ = -1;            // the step whose checkpoint has state_; -1: none is known
  double saved_at_ = 0;           // when the run began or the last checkpoint ended
  bool saves_by_time_ = false;    // by saved_at_, a checkpoint is due
  bool steps_are_long_ = false;   // on some rank; all ranks then read steps at the same place
  bool overdue_ = false;          // a checkpoint could not be written
  std::vector<std::vector<uint64_t>> fixed_bytes_;  // by body, lane
  StepMetrics metrics_;                             // of the last step that was read
  // Bytes moved and busy seconds, by lane, of the waves that were read since that step.
  std::vector<uint64_t> moved_;
  std::vector<double> busy_;
  ExpertTokens expert_tokens_;
  std::optional<StepOrder> order_;  // of the step, if its first wave tells it
  bool may_drop_ = false;           // steps are under way, and the executor can drop them
  bool allows_drop_ = false;        // the executor can drop at all
  double asked_at_ = 0;             // when the flag was first seen to be set; 0: it was not
  std::optional<Kept> kept_;        // what is left after a drop
  bool passes_over_ = false;        // the next body `drain` has nothing to do, after a drop
  bool cut_short_ = false;          // the flag ended a validation or samples
  bool failed_ = false;         // a rank could not read its data, found them bad, or has lost its directory
  std::exception_ptr failure_;  // on that rank, what it throws
};

// Bytes that bodies move, by lane; for collectives, the bytes that this rank sends. Rows that travel to
// experts count as if all experts had equally many rows. fixed_bytes() leaves out these rows.
std::vector<uint64_t> moved_bytes(const Plan& plan, std::span<const BodyId> bodies);
std::vector<uint64_t> fixed_bytes(const Plan& plan, std::span<const BodyId> bodies);

// A step that takes more seconds than this is long. After a long step, the next one is issued only when a
// lane has nothing else to do. After a shorter step, the next one is issued early, so that no lane ever waits
// for the trainer.
constexpr double kLongStep = 0.5;
// How many steps end after a signal at most, if a step takes `seconds`: those under way, and one more that is
// issued.
constexpr int steps_before_stop(double seconds) { return seconds > kLongStep ? 2 : 3; }

}  // namespace sluice
