// Names and upkeep of OUT/checkpoints, for the checkpoints' writer, reader and pruning.
//
// "step-000000123" is a checkpoint. Names that begin with a dot are not: ".step-000000123.tmp" is being
// written, ".step-000000123.old" is being deleted. The holder of the writer's lock may remove both.
// "step-000000123.set-aside" was a checkpoint of a later step than the one to which the run went back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"

namespace sluice {

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};

std::string checkpoints_directory(const std::string& out_directory);
std::string checkpoint_name(int64_t step);
std::optional<int64_t> step_of(const std::string& name);  // nullopt: no checkpoint's name

// All checkpoints, complete or not, newest first; empty if there is no such directory.
std::vector<CheckpointEntry> list_checkpoints(const std::string& directory);

// Whether a reader can open the checkpoint; if not, `damage` receives the sentence that says why.
bool is_complete(const CheckpointEntry& entry, std::string* damage = nullptr);

// The newest complete checkpoint of fewer than `step` steps; nullopt: there is none.
std::optional<std::string> checkpoint_before(const std::string& directory, int64_t step);

// The path if nothing has that name, else the path with the first of ".2", ".3", ... that makes a free name.
std::string unused_name(const std::string& path);

// Removes the checkpoint from the list at once and durably. Files that cannot be deleted are left to the next
// writer.
void delete_checkpoint(const std::string& directory, int64_t step);

// Deletes what writers and deletions left behind, except what the system refuses to delete.
void remove_leftovers(const std::string& directory);

// Error::in_step(io) for a failure while a checkpoint is written, naming `path` and errno.
Error checkpoint_error(const std::string& action, const std::string& path, int error_number);

void sync_checkpoint_directory(const std::string& directory);

// Held on OUT while a run trains, and on OUT/checkpoints while a checkpoint is written, so that two processes
// with one OUT never remove each other's files.
class DirectoryLock {
 public:
  // Throws Error(environment) when another process holds the lock; the message says what that process is
  // `doing`, such as "training".
  DirectoryLock(const std::string& directory, const char* doing);
  ~DirectoryLock() { release(); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  void release();

 private:
  FileDescriptor fd_;
};

// Follows the directory of a run if it is moved, since a run must not write into another directory that has
// taken the name. Every rank has an OutDirectory.
class OutDirectory {
 public:
  explicit OutDirectory(const std::string& path);  // throws Error(environment)

  std::optional<std::string> trouble() const;    // a sentence where it was moved or removed
  std::optional<std::string> where() const;      // nullopt: it was removed
  std::optional<std::string> elsewhere() const;  // nullopt: it was removed, or is where the run began

  // After a removal the first rank makes the directory again. If something else has its name by now, the new
  // one is named "NAME.2", "NAME.3", ... make_again() returns that number, or 1 for the name itself, and the
  // other ranks reopen the directory by that number. Both functions throw Error(environment).
  int make_again();
  void reopen(int number = 1);

 private:
  enum class State : uint8_t { in_place, moved, removed };
  State state() const;

  std::string first_, path_;  // at the start; after make_again() or reopen()
  FileDescriptor fd_;
};

// Whether any process holds the lock of the directory, which may be missing.
bool is_locked(const std::string& directory);

}  // namespace sluice
