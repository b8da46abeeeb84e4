// The run directory of `sluice train`: its lock, the checkpoint that a run goes on from, and a start that
// leaves nothing behind when it fails.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/checkpoint/directory.h"
#include "engine/run/options/options.h"
#include "engine/run/ranks/ranks.h"
#include "engine/run/start/say.h"
#include "engine/run/train/metrics.h"

namespace sluice {

// Holds the lock of --out; made before the checkpoints are looked at. The destructor removes the directories
// and the file that create() and open_metrics() made, as far as they are empty, unless keep() was called.
class RunDirectory {
 public:
  explicit RunDirectory(const std::string& path);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  bool is_locked() const { return lock_.has_value(); }  // false while the directory does not exist
  void create();  // makes a directory that is missing; throws Error(environment)
  // Makes a file that is missing. Throws as MetricsFile does, and Error(usage) for a link in --out.
  MetricsFile open_metrics(const std::string& path);
  void keep() { made_.clear(); }

 private:
  std::string path_;
  std::optional<DirectoryLock> lock_;
  std::vector<std::string> made_;  // outermost first
};

// The run directory of a checkpoint, however its path is written.
std::string run_of(const std::string& checkpoint);

// Where a run keeps the files of its tokenizer, which an export needs when the model's directory may be gone.
std::string tokenizer_directory(const std::string& out);
// Where a run keeps the text of its --chat-template, if it had one.
std::string chat_template_file(const std::string& out);

// Takes the tokenizer and the chat template that the checkpoint's run keeps, where this command names none:
// those that the manifest names may be gone, or changed.
void adopt_kept_text(Options& options, const std::string& checkpoint);

// What a run keeps to read and write text.
struct KeptText {
  std::string tokenizer;       // the directory that has its files; empty: there is none
  std::vector<uint32_t> ends;  // of answers, to replace those in generation_config.json; empty: none
  std::map<std::string, std::string> special_tokens;  // for generation_config.json, if the tokenizer has none
};
// Keeps the tokenizer, and the chat template of the options, in --out. `is_kept`: the run goes on in the same
// directory. A kill leaves all of a tokenizer or nothing.
void keep_text(const Options& options, const KeptText& text, bool is_kept);

// Checks that all ranks see, and may change, what the first rank writes into --out, since ranks write a
// checkpoint together. All ranks call it, once the directory exists. Throws Error(environment) on every rank.
void check_shared(const std::string& out, const Ranks& ranks);

// The checkpoint that `path` means: itself, or the newest complete one of a run directory; nullopt if it is
// neither. Throws Error(malformed_file) for a run whose every checkpoint is damaged, Error(usage) where a
// checkpoint of another run was copied into it. `notes` receives a sentence for each newer checkpoint that is
// passed over, since it is damaged.
std::optional<std::string> find_checkpoint(const std::string& path, std::vector<std::string>& notes);

// A sentence that names the checkpoint and its loss.
std::string best_words(const BestCheckpoint& best);

// The checkpoint that --from means; with --best, the best one of the run. nullopt (only without --best):
// --from is neither a checkpoint nor a run that has one. `notes` receives what find_checkpoint() says and,
// with --best, which one is the best. Throws as find_checkpoint() does, and Error(usage) where --best has no
// checkpoint to choose.
std::optional<std::string> find_source(const TransferOptions& transfer, std::vector<std::string>& notes);

// Throws Error(usage) if another process trains in the directory, in which no checkpoint was found.
void check_not_before_first(const std::string& run);

// The checkpoint to go on from; nullopt: a fresh start. `notes` as for find_checkpoint(). Throws Error(usage)
// rather than write over a run or mix two in one directory.
std::optional<CheckpointReader> open_resume(const RunOptions& run, std::vector<std::string>& notes);

// Makes `step` the last of the run: sets complete checkpoints of later steps aside, newest first, then the
// later lines of the metrics file. A kill in between leaves a shorter run; --resume auto then cuts the
// metrics to the run's end. Says a line for each checkpoint that was set aside, or that stays since it is
// damaged, and one for the metrics.
void go_back_to(int64_t step, const RunOptions& run, const std::string& metrics, const Say& say);

}  // namespace sluice
