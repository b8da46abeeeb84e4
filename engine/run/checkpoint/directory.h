// Names and upkeep of OUT/checkpoints: what the checkpoints' writer, reader and pruning share.
//
// "step-000000123" is a checkpoint. Names that begin with a dot are not: ".step-000000123.tmp" is being
// written, ".step-000000123.old" is being deleted; whoever holds the writer's lock may remove them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "models/files/file.h"

namespace sluice {

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};

std::string checkpoints_directory(const std::string& out_directory);
std::string checkpoint_name(int64_t step);
std::optional<int64_t> step_of(const std::string& name);  // nullopt: no checkpoint's name

// Complete or not, newest first; empty if there is no such directory.
std::vector<CheckpointEntry> list_checkpoints(const std::string& directory);

// Whether it can be opened; if not, `damage` receives the sentence that says why.
bool is_complete(const CheckpointEntry& entry, std::string* damage = nullptr);

// The checkpoint disappears from the list at once and durably; what cannot be deleted is left for the next
// writer.
void delete_checkpoint(const std::string& directory, int64_t step);

// Deletes temporaries, except for what the system refuses to delete.
void remove_leftovers(const std::string& directory);

// Error(io) for what fails while a checkpoint is written, naming `path` and errno.
Error checkpoint_error(const std::string& action, const std::string& path, int error_number);

void sync_checkpoint_directory(const std::string& directory);

// Held on OUT while a run trains, and on OUT/checkpoints while a checkpoint is written, so that two processes
// with one OUT never remove each other's files.
class DirectoryLock {
 public:
  // `doing` is for the message of who comes second: "training". Throws Error(environment) when it is held.
  DirectoryLock(const std::string& directory, const char* doing);
  ~DirectoryLock() { release(); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  void release();

 private:
  FileDescriptor fd_;
};

// Whether somebody holds the lock of the directory, which may be missing.
bool is_locked(const std::string& directory);

}  // namespace sluice
