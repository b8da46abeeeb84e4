#include "engine/run/start/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "engine/base/file.h"
#include "engine/run/train/metrics.h"
#include "models/files/tokenizer_files.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

bool has_checkpoints(const std::string& run) { return !list_checkpoints(checkpoints_directory(run)).empty(); }

// Throws when the directory holds a run, which is never written over, or --metrics names a file with content.
void check_unused(const std::string& run, const std::string& metrics) {
  if (has_checkpoints(run))
    throw Error(ExitCode::usage, "--out " + printable(run) + " holds a run already.",
                "Add --resume auto to go on with it, or name another --out.");
  std::error_code missing;
  const uintmax_t bytes = fs::file_size(fs::path(run) / "metrics.jsonl", missing);
  if (!missing && bytes > 0)
    throw Error(ExitCode::usage,
                "--out " + printable(run) + " holds a run that ended before its first checkpoint.",
                "Add --resume auto to start it afresh, or name another --out.");
  if (std::error_code special; fs::is_regular_file(metrics, special) && !fs::is_empty(metrics, special))
    throw Error(ExitCode::usage, "--metrics " + printable(metrics) + " is not empty.",
                "Name a new file: a run's metrics are not mixed with anything else.");
}

// A run that goes on outside the directory of its checkpoint is a branch, and needs a directory of its own.
void check_not_mixed(const std::string& checkpoint, const std::string& run) {
  if (!has_checkpoints(run)) return;
  std::error_code error;
  if (fs::equivalent(fs::canonical(checkpoint, error).parent_path(), checkpoints_directory(run), error))
    return;
  throw Error(ExitCode::usage,
              "--resume " + printable(checkpoint) + " belongs to another run than the one in --out " +
                  printable(run) + ".",
              "Name a new --out to branch off, or resume from a checkpoint of the run in it.");
}

// Throws where a checkpoint of another run was copied into the directory. The user decides which of them to
// go on from, and which to delete.
void check_one_run(const std::string& run) {
  std::optional<CheckpointEntry> first;
  uint64_t first_run = 0;
  for (const CheckpointEntry& entry : list_checkpoints(checkpoints_directory(run))) {
    const std::optional<CheckpointReader> checkpoint = open_if_complete(entry);
    const uint64_t number = checkpoint ? checkpoint->state().run : 0;
    if (number == 0) continue;  // by an older version, which numbered no runs
    if (first && number != first_run)
      throw Error(ExitCode::usage,
                  printable(first->path) + " and " + printable(entry.path) + " belong to two runs.",
                  "Move the one that was copied there to another place.");
    first = entry;
    first_run = number;
  }
}

// The error for a run whose every checkpoint is damaged. `damaged`: sentences that say how.
Error only_damaged(const std::string& run, const std::vector<std::string>& damaged) {
  return Error(ExitCode::malformed_file,
               "Every checkpoint of " + printable(run) + " is damaged: " + damaged.front(),
               "Restore one from a copy, or train anew into another --out.");
}

// Adds a note for each damaged checkpoint. All of them are newer than the checkpoint `taken`.
void note_passed_over(const std::vector<std::string>& damaged, const std::string& taken,
                      std::vector<std::string>& notes) {
  for (const std::string& sentence : damaged)
    notes.push_back("A newer checkpoint is damaged, and passed over: " + sentence);
  if (!damaged.empty()) notes.push_back("The newest one that is whole is " + printable(taken) + ".");
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path) : path_(path) {
  if (std::error_code ignored; fs::is_directory(path, ignored)) lock_.emplace(path, "training");
}

RunDirectory::~RunDirectory() {
  std::error_code ignored;  // a directory that is not empty stays
  for (; !made_.empty(); made_.pop_back())
    if (fs::is_directory(made_.back(), ignored) || fs::is_empty(made_.back(), ignored))
      fs::remove(made_.back(), ignored);
}

void RunDirectory::create() {
  if (!made_.empty()) return;
  std::vector<std::string> missing;  // innermost first
  std::error_code error;
  for (fs::path p = fs::absolute(path_).lexically_normal(); !fs::exists(p, error); p = p.parent_path())
    missing.push_back(p.string());
  made_.assign(missing.rbegin(), missing.rend());
  fs::create_directories(path_, error);
  if (error)
    throw Error(ExitCode::environment, "Cannot create " + printable(path_) + ": " + error.message() + ".",
                "Name a directory that can be written.");
  // If a directory was made here, an earlier lock belongs to a directory that was removed meanwhile, so the
  // lock is taken anew. `made_` is set only once the lock is held: a run that is refused must not remove
  // another's directory.
  std::vector<std::string> made = std::exchange(made_, {});
  if (!lock_ || !made.empty()) lock_.emplace(path_, "training");
  made_ = std::move(made);
}

MetricsFile RunDirectory::open_metrics(const std::string& path) {
  std::error_code error;
  const bool is_new = !fs::exists(path, error);
  if (fs::path(path) == fs::path(path_) / "metrics.jsonl" && fs::is_symlink(path, error))
    throw Error(ExitCode::usage, printable(path) + " is a link.",
                "Remove it, or name the file that it leads to with --metrics.");
  MetricsFile file(path);  // before `made_`: a run that is refused must not remove another's file
  if (is_new) made_.push_back(path);
  return file;
}

std::string run_of(const std::string& checkpoint) {
  return fs::canonical(checkpoint).parent_path().parent_path().string();
}

std::string tokenizer_directory(const std::string& out) { return (fs::path(out) / "tokenizer").string(); }

std::string chat_template_file(const std::string& out) {
  return (fs::path(out) / "chat_template.jinja").string();
}

void adopt_kept_text(Options& options, const std::string& checkpoint) {
  std::error_code ignored;
  const std::string run = run_of(checkpoint), chat_template = chat_template_file(run);
  if (!is_given(options, "tokenizer") && fs::is_directory(tokenizer_directory(run), ignored))
    options.text.tokenizer.clear();
  if (!is_given(options, "chat-template") && fs::exists(chat_template, ignored))
    options.text.chat_template = chat_template;
}

void keep_text(const Options& options, const KeptText& text, bool is_kept) {
  const std::string& out = options.run.out;
  const std::string to = tokenizer_directory(out), fresh = to + ".tmp";
  const std::string &given = options.text.chat_template, kept = chat_template_file(out);
  std::error_code ignored;
  if (!is_kept || is_given(options, "tokenizer")) {
    fs::remove_all(fresh, ignored);
    const bool has_files = copy_tokenizer(text.tokenizer, fresh) > 0;
    // What lies in `to` is left over from an attempt without a checkpoint, or from another --tokenizer.
    if (has_files || !is_kept) fs::remove_all(to, ignored);
    if (std::error_code error; has_files && (fs::rename(fresh, to, error), error))
      throw Error(
          ExitCode::environment,
          fmt::format("{} cannot be renamed to {}: {}.", printable(fresh), printable(to), error.message()),
          "See who may write to the run's directory.");
  }
  if (!text.ends.empty() && fs::is_directory(to, ignored)) replace_ends(to, text.ends, text.special_tokens);
  if (given == kept) return;
  if (fs::is_regular_file(given, ignored))
    write_text_file(kept, read_text_file(given, kTemplateBytesMax));
  else if (!is_kept || is_given(options, "chat-template"))
    fs::remove(kept, ignored);
}

void check_shared(const std::string& out, const Ranks& ranks) {
  struct Marker {  // a new name, since a machine may remember which names did not exist
    std::string path;
    FileDescriptor file;
    bool made = false;
    ~Marker() {
      if (made) ::unlink(path.c_str());
    }
  } marker{(fs::path(out) / ".shared-XXXXXX").string(), FileDescriptor()};
  if (ranks.is_first()) {
    marker.file = FileDescriptor(::mkstemp(marker.path.data()));
    marker.made = marker.file.get() >= 0;
    if (!marker.made)
      throw Error(ExitCode::environment,
                  "Cannot write into " + printable(out) + ": " + std::strerror(errno) + ".",
                  "Name an --out directory that can be written, on a drive with some space.");
  }
  std::array<char, 6> ending{};
  std::copy(marker.path.end() - ending.size(), marker.path.end(), ending.begin());
  ending = ranks.all(ending).front();
  std::copy(ending.begin(), ending.end(), marker.path.end() - ending.size());
  if (!ranks.is_first()) marker.file = FileDescriptor(::open(marker.path.c_str(), O_WRONLY | O_CLOEXEC));
  const std::vector<int> refusals = ranks.all(marker.file.get() < 0 ? errno : 0);
  for (size_t rank = 0; rank < refusals.size(); ++rank) {
    if (refusals[rank] == 0) continue;
    const std::string who = "Rank " + std::to_string(rank), where = " into --out " + printable(out);
    throw Error(ExitCode::environment,
                refusals[rank] == ENOENT
                    ? who + " does not see what rank 0 writes" + where + "."
                    : who + " cannot write" + where + ": " + std::strerror(refusals[rank]) + ".",
                "Give all ranks one --out, in a directory that their machines share and each may write.");
  }
}

std::optional<std::string> find_checkpoint(const std::string& path, std::vector<std::string>& notes) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(std::filesystem::path(path) / "manifest.json", ignored)) return path;
  std::vector<std::string> damaged;
  const std::optional<std::string> newest = newest_checkpoint(path, &damaged);
  if (!newest && !damaged.empty()) throw only_damaged(path, damaged);
  if (!newest) return newest;
  check_one_run(path);
  note_passed_over(damaged, *newest, notes);
  return newest;
}

std::string best_words(const BestCheckpoint& best) {
  return fmt::format("The best checkpoint is {}, with a validation loss of {:.4f}.", printable(best.path),
                     best.validation.loss);
}

std::optional<std::string> find_source(const TransferOptions& transfer, std::vector<std::string>& notes) {
  const std::string& from = transfer.from;
  const std::optional<std::string> newest = find_checkpoint(from, notes);
  if (!transfer.best) return newest;
  if (!newest) check_not_before_first(from);
  if (!newest)
    throw Error(ExitCode::usage,
                "--best chooses a checkpoint of a run, and --from " + printable(from) + " holds none.",
                "Name a run directory, or leave out --best.");
  if (*newest == from)
    throw Error(ExitCode::usage,
                "--best chooses a checkpoint of a run, and --from " + printable(from) + " is one already.",
                "Name the run directory, or leave out --best.");
  const std::optional<BestCheckpoint> best = best_checkpoint(from);
  if (!best)
    throw Error(
        ExitCode::usage, "No checkpoint of " + printable(from) + " has a validation loss.",
        "Leave out --best for the newest one. A run with --val-data and --keep-best keeps its best one.");
  notes.push_back(best_words(*best));
  return best->path;
}

void check_not_before_first(const std::string& run) {
  if (is_locked(run))
    throw Error(
        ExitCode::usage, "The run in " + printable(run) + " has no checkpoint yet: it is training.",
        "Wait for its first checkpoint: --checkpoint-every of the run says when; without it, at the end.");
}

std::optional<CheckpointReader> open_resume(const RunOptions& run, std::vector<std::string>& notes) {
  if (run.resume.empty()) {
    check_unused(run.out, run.metrics);
    return std::nullopt;
  }
  std::vector<std::string> damaged;
  const bool automatic = run.resume == "auto";
  const std::optional<std::string> path =
      automatic ? newest_checkpoint(run.out, &damaged) : find_checkpoint(run.resume, notes);
  if (!path && automatic && damaged.empty()) return std::nullopt;
  if (!path && automatic) throw only_damaged(run.out, damaged);
  if (!path)
    throw Error(ExitCode::usage,
                "--resume " + printable(run.resume) + " is neither a checkpoint nor a run with one.",
                "Name a run directory, one of its checkpoints, or auto.");
  note_passed_over(damaged, *path, notes);
  check_not_mixed(*path, run.out);
  check_one_run(run.out);
  return CheckpointReader::open(*path);
}

void go_back_to(int64_t step, const RunOptions& run, const std::string& metrics, const Say& say) {
  truncate_after_step(metrics, std::numeric_limits<int64_t>::max());  // throws before anything is removed
  for (const std::string& note : retire_checkpoints_after(run.out, step)) say(note + "\n");
  if (const int64_t lines = truncate_after_step(metrics, step))
    say(std::to_string(lines) + (lines == 1 ? " line" : " lines") + " of metrics beyond step " +
        std::to_string(step) + " moved to " + printable(set_aside_of(metrics)) + ".\n");
}

}  // namespace sluice
