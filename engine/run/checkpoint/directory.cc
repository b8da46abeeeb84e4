#include "engine/run/checkpoint/directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "engine/base/units.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "offload/nvme_files.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr const char* kAside = ".set-aside";

std::string numbered(const std::string& path, int number) {
  return number == 1 ? path : fmt::format("{}.{}", path, number);
}

bool is_taken(const std::string& path) {
  std::error_code missing;
  return fs::exists(fs::symlink_status(path, missing));
}

bool is_leftover(const std::string& name) {
  return name.starts_with(std::string(".") + kPrefix) && (name.ends_with(".tmp") || name.ends_with(".old"));
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) return names;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error == std::errc::filename_too_long)
    throw Error(ExitCode::environment, fmt::format("{} is too long a name.", printable(directory)),
                "Give a shorter one.");
  if (error)
    throw Error(ExitCode::environment,
                fmt::format("Cannot list {}: {}.", printable(directory), error.message()),
                "Make the directory readable for this user, and check the drive.");
  return names;
}

}  // namespace

std::string checkpoints_directory(const std::string& out_directory) {
  return (fs::path(out_directory) / "checkpoints").string();
}

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:09}", kPrefix, step); }

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = -1;
  std::from_chars(name.data() + std::strlen(kPrefix), name.data() + name.size(), step);
  if (step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

std::vector<CheckpointEntry> list_checkpoints(const std::string& directory) {
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : names_in(directory))
    if (const std::optional<int64_t> step = step_of(name))
      entries.push_back({*step, (fs::path(directory) / name).string()});
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step > b.step; });
  return entries;
}

std::string unused_name(const std::string& path) {
  int number = 1;
  while (is_taken(numbered(path, number))) ++number;
  return numbered(path, number);
}

void delete_checkpoint(const std::string& directory, int64_t step) {
  const fs::path from = fs::path(directory) / checkpoint_name(step);
  const fs::path to = fs::path(directory) / fmt::format(".{}.old", checkpoint_name(step));
  std::error_code error;
  fs::remove_all(to, error);
  fs::rename(from, to, error);
  if (error == std::errc::no_such_file_or_directory) return;
  if (error) throw checkpoint_error("remove", from.string(), error.value());
  sync_checkpoint_directory(directory);  // otherwise a crash could bring parts of it back under its name
  fs::remove_all(to, error);
}

void remove_leftovers(const std::string& directory) {
  std::error_code ignored;
  for (const std::string& name : names_in(directory))
    if (is_leftover(name)) fs::remove_all(fs::path(directory) / name, ignored);
}

Error checkpoint_error(const std::string& action, const std::string& path, int error_number) {
  const bool full = error_number == ENOSPC || error_number == EDQUOT;
  return Error::in_step(
      ExitCode::io, fmt::format("Cannot {} {}: {}.", action, printable(path), std::strerror(error_number)),
      full                     ? "Free some space."
      : error_number == EFBIG  ? "Raise the limit on the size of files (ulimit -f)."
      : error_number == EMFILE ? "Raise the limit on open files (ulimit -n)."
                               : "Check the drive.");
}

void sync_checkpoint_directory(const std::string& directory) {
  const FileDescriptor fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || fsync(fd.get()) != 0) throw checkpoint_error("sync directory", directory, errno);
}

DirectoryLock::DirectoryLock(const std::string& directory, const char* doing)
    : fd_(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_.get() < 0) throw checkpoint_error("open", directory, errno);
  int result;
  do {
    result = flock(fd_.get(), LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  // On a file system without locks (ENOLCK, EOPNOTSUPP, ENOSYS), nothing is locked.
  if (result != 0 && errno == EWOULDBLOCK)
    throw Error(ExitCode::environment,
                fmt::format("Another process is {} in {}.", doing, printable(directory)),
                "Let one run at a time use an --out directory.");
}

// LOCK_UN, not only close(): a process that was forked meanwhile would keep the lock by its copy of the
// descriptor.
void DirectoryLock::release() {
  if (fd_.get() < 0) return;
  flock(fd_.get(), LOCK_UN);
  fd_ = FileDescriptor();
}

OutDirectory::OutDirectory(const std::string& path) {
  fs::path normal = fs::absolute(path).lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();  // "runs/", "."
  first_ = path_ = normal.string();
  reopen();
}

void OutDirectory::reopen(int number) {
  path_ = numbered(path_, number);
  fd_ = FileDescriptor(open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (fd_.get() < 0)
    throw Error(ExitCode::environment,
                fmt::format("Cannot open {}: {}.", printable(path_), std::strerror(errno)),
                "Give an --out directory that this user may use.");
}

// What the system cannot tell at the moment counts as in place: the next write will tell.
OutDirectory::State OutDirectory::state() const {
  struct stat held, named;
  if (fstat(fd_.get(), &held) != 0) return errno == ESTALE ? State::removed : State::in_place;
  if (stat(path_.c_str(), &named) == 0) {
    if (held.st_dev == named.st_dev && held.st_ino == named.st_ino) return State::in_place;
  } else if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) {
    return State::in_place;
  }
  return held.st_nlink > 0 ? State::moved : State::removed;
}

std::optional<std::string> OutDirectory::where() const {
  const State now = state();
  if (now == State::in_place) return path_;
  if (now == State::removed) return std::nullopt;
  std::error_code error;
  const fs::path there = fs::read_symlink(fmt::format("/proc/self/fd/{}", fd_.get()), error);
  return error ? std::nullopt : std::optional(there.string());
}

std::optional<std::string> OutDirectory::elsewhere() const {
  const std::optional<std::string> now = where();
  return now && *now != first_ ? now : std::nullopt;
}

std::optional<std::string> OutDirectory::trouble() const {
  if (state() == State::in_place) return std::nullopt;
  const std::optional<std::string> now = where();
  return fmt::format("--out {} was {} while the run went on.", printable(path_),
                     now ? "moved to " + printable(*now) : "removed");
}

int OutDirectory::make_again() {
  for (int number = 1;; ++number) {
    const std::string name = numbered(path_, number);
    std::error_code error;
    if (is_taken(name) || (!fs::create_directories(name, error) && !error)) continue;
    if (error)
      throw Error(ExitCode::environment,
                  fmt::format("Cannot create {}: {}.", printable(name), error.message()),
                  "Start again with another --out.");
    reopen(number);
    return number;
  }
}

bool is_locked(const std::string& directory) {
  const FileDescriptor fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return false;
  int result;
  do {
    result = flock(fd.get(), LOCK_SH | LOCK_NB);  // shared: several processes may ask at once
  } while (result != 0 && errno == EINTR);
  return result != 0 && errno == EWOULDBLOCK;
}

std::optional<CheckpointReader> open_if_complete(const CheckpointEntry& entry, std::string* damage) {
  try {
    return CheckpointReader::open(entry.path);
  } catch (const Error& error) {
    // A file that vanishes while it is opened, since another process prunes, is reported as Error(usage).
    if (error.code() != ExitCode::malformed_file && error.code() != ExitCode::usage) throw;
    if (damage) *damage = error.what();
    return std::nullopt;
  }
}

bool is_complete(const CheckpointEntry& entry, std::string* damage) {
  return open_if_complete(entry, damage).has_value();
}

std::optional<std::string> newest_checkpoint(const std::string& out_directory,
                                             std::vector<std::string>* damaged) {
  for (const CheckpointEntry& entry : list_checkpoints(checkpoints_directory(out_directory))) {
    std::string damage;
    if (is_complete(entry, &damage)) return entry.path;
    if (damaged) damaged->push_back(damage);
  }
  return std::nullopt;
}

std::optional<std::string> checkpoint_before(const std::string& directory, int64_t step) {
  for (const CheckpointEntry& entry : list_checkpoints(directory))
    if (entry.step < step && is_complete(entry)) return entry.path;
  return std::nullopt;
}

std::optional<std::string> obstacle_to_checkpoint(const std::string& out_directory, CheckpointSpace space,
                                                  bool with_last) {
  const char* const takes = with_last ? "it and the last one take" : "it takes";
  if (with_last) space = {2 * space.bytes, 2 * space.files};
  const std::string directory = checkpoints_directory(out_directory);
  std::error_code error;
  const bool is_there = fs::is_directory(directory, error);
  if (!is_there && fs::is_symlink(fs::symlink_status(directory, error)))
    return printable(directory) + " is a link to a place that is not there";
  try {
    const std::string place = is_there ? directory : out_directory;
    if (const uint64_t bytes = free_bytes(place); bytes < space.bytes)
      return fmt::format("{} {}, and {} are free in {}", takes, format_size(space.bytes), format_size(bytes),
                         printable(out_directory));
    if (const uint64_t files = free_files(place); files < space.files)
      return fmt::format("{} {} files, and the file system has room for {} in {}", takes, space.files, files,
                         printable(out_directory));
  } catch (const Error&) {  // it cannot be looked at
  }
  return std::nullopt;
}

int64_t count_complete_checkpoints(const std::string& out_directory) {
  const std::vector<CheckpointEntry> entries = list_checkpoints(checkpoints_directory(out_directory));
  return std::ranges::count_if(entries, [](const CheckpointEntry& entry) { return is_complete(entry); });
}

std::optional<std::string> obstacle_on_the_way(const std::string& out_directory, const CheckpointSpace& space,
                                               int64_t keep, bool keep_best) {
  const bool adds = count_complete_checkpoints(out_directory) < keep + (keep_best ? 1 : 0);
  return obstacle_to_checkpoint(out_directory, space, adds);
}

std::optional<BestCheckpoint> best_checkpoint(const std::string& out_directory) {
  std::optional<ValidationRecord> newest;
  std::optional<BestCheckpoint> best;
  for (const CheckpointEntry& entry : list_checkpoints(checkpoints_directory(out_directory))) {
    const std::optional<CheckpointReader> checkpoint = open_if_complete(entry);
    if (!checkpoint || !checkpoint->state().validation) continue;
    const ValidationRecord& validation = *checkpoint->state().validation;
    if (!newest) newest = validation;
    if (!validation.is_over_same(*newest)) continue;
    if (!best || validation.loss <= best->validation.loss) best = {entry.step, entry.path, validation};
  }
  return best;
}

void prune_checkpoints(const std::string& out_directory, int64_t keep, bool keep_best) {
  const std::string directory = checkpoints_directory(out_directory);
  const std::optional<BestCheckpoint> best = keep_best ? best_checkpoint(out_directory) : std::nullopt;
  int64_t complete = 0;
  for (const CheckpointEntry& entry : list_checkpoints(directory))
    if (is_complete(entry) && ++complete > std::max<int64_t>(keep, 1) && !(best && best->step == entry.step))
      delete_checkpoint(directory, entry.step);
}

std::vector<std::string> retire_checkpoints_after(const std::string& out_directory, int64_t step) {
  const std::string directory = checkpoints_directory(out_directory);
  std::vector<std::string> notes;
  for (const CheckpointEntry& entry : list_checkpoints(directory)) {
    if (entry.step <= step) break;
    std::string damage;
    if (!is_complete(entry, &damage)) {
      notes.push_back(fmt::format("Kept, since it is no complete checkpoint: {}", damage));
      continue;
    }
    const std::string aside = unused_name(entry.path + kAside);
    if (rename(entry.path.c_str(), aside.c_str()) != 0) throw checkpoint_error("rename", entry.path, errno);
    notes.push_back(fmt::format(
        "The later checkpoint {} is now {}, until the next checkpoint, other than that of a stop.",
        printable(entry.path), fs::path(aside).filename().string()));
  }
  if (!notes.empty()) sync_checkpoint_directory(directory);
  return notes;
}

void delete_set_aside(const std::string& out_directory) {
  const std::string directory = checkpoints_directory(out_directory);
  std::error_code ignored;  // what cannot be deleted now is tried again with the next checkpoint
  for (const std::string& name : names_in(directory)) {
    const size_t end = name.find(kAside);
    if (end == std::string::npos || !step_of(name.substr(0, end))) continue;
    const std::string rest = name.substr(end + std::strlen(kAside));  // "" or ".2"
    const bool is_number =
        rest.size() > 1 && rest[0] == '.' && rest.find_first_not_of("0123456789", 1) == std::string::npos;
    if (rest.empty() || is_number) fs::remove_all(fs::path(directory) / name, ignored);
  }
}

}  // namespace sluice
