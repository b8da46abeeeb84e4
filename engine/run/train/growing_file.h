// A file that grows by a record at a time while a run goes on: metrics, and events for TensorBoard.
//
// A record is one write to the operating system. Records that the system refuses, as on a full drive or where
// a pipe's reader stands still, are kept and written with the next record. So a record is never torn for
// long, and such a file neither ends a run nor holds it up. Caller: the trainer's thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/file.h"

namespace sluice {

class GrowingFile {
 public:
  // Tries again to write what is kept. Waits up to a second where a pipe's reader is slow.
  void finish();
  // Says once, in a printable sentence, that the file was moved or removed, or that writing fails. If writing
  // works again and then fails, it says so once more.
  std::optional<std::string> trouble();
  // Records that are not in the file, in bytes.
  size_t unwritten() const { return waiting_.size(); }

 protected:
  // `file` is open for appending, with O_NONBLOCK. `records`: what messages call the records, a literal.
  GrowingFile(std::string path, FileDescriptor file, const char* records)
      : path_(std::move(path)), file_(std::move(file)), records_(records) {}

  // Appends a record. If the file is gone from its path, makes it anew there.
  void append(std::string_view record);
  int descriptor() const { return file_.get(); }

 private:
  void flush();
  void shorten();
  void follow_path();

  std::string path_;
  FileDescriptor file_;
  const char* records_;
  // Records that are kept. waiting_ and sizes_ keep their capacity: while records can be written, nothing is
  // allocated.
  std::string waiting_;
  std::vector<size_t> sizes_;  // bytes of each record in waiting_; of the first, those not written yet
  int error_ = 0;              // errno of the last write; 0: it succeeded
  bool is_told_ = false;       // trouble() has told this error
  bool is_new_ = false;        // the file was made anew, which trouble() has yet to tell
};

}  // namespace sluice
