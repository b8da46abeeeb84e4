// Files for the readers and writers of formats: input by pread, output by a temporary file that is renamed
// when complete.
//
// InputFile: a regular file, opened once. Its size is taken when it is opened, and every read is checked
// against it, so a format's reader never trusts a length that the file states about itself. Reads are const
// and may come from any thread. OutputFile: writes to PATH.tmp; commit() makes that file durable and renames
// it to PATH. Without commit() the destructor removes PATH.tmp. Owner: one thread.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>

namespace sluice {

// Owns a file descriptor; -1 when empty.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  int release();

 private:
  int fd_;
};

class InputFile {
 public:
  // Throws Error: usage when there is no such file, environment when it cannot be opened, malformed_file
  // when it is not a regular file.
  explicit InputFile(const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  // Whether the file has been written to since it was opened.
  bool has_changed() const;

  // Reads exactly `bytes` from `offset`; the range must lie within the file. Throws Error(io) when the
  // system fails to deliver it or the file has shrunk since it was opened.
  void read(uint64_t offset, void* out, uint64_t bytes) const;

 private:
  std::string path_;
  FileDescriptor fd_;
  uint64_t bytes_ = 0;
  timespec written_{};  // time of the last write before the file was opened
};

class OutputFile {
 public:
  // Throws Error: environment when the directory is missing or cannot be written, io otherwise.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Appends. Throws Error(io) on a full drive or any other failure.
  void write(const void* data, uint64_t bytes);
  uint64_t written() const { return written_; }

  // Syncs the file, renames it to its path and syncs the directory. Throws Error(io).
  void commit();

 private:
  [[noreturn]] void fail(const char* action, int error_number) const;

  std::string path_, temporary_;
  FileDescriptor fd_;
  uint64_t written_ = 0;
  bool renamed_ = false;
};

// The whole of a small text file. Throws as InputFile does, and Error(malformed_file) when the file has more
// than `bytes_max` bytes.
std::string read_text_file(const std::string& path, uint64_t bytes_max);

}  // namespace sluice
