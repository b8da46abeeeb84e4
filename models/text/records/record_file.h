// Files of records, read in independent stretches, so that several threads can work on one file and a stop
// loses one stretch only.
//
// A record begins where the one before it ends: behind a line end, behind a separator, or, in a text without
// separators, at the first line that begins behind a multiple of kTextBytes. The records of a JSON list are
// its elements. A stretch of bytes has the records that begin in it, so any division of a file into stretches
// gives each record once. Reads are const and may come from any thread; memory is bounded by the longest
// record. A read of a list scans the file from its start, since only the text before a byte tells whether the
// byte is part of a string. So a list is best read in few stretches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "engine/base/file.h"

namespace sluice {

constexpr uint64_t kTextBytes = uint64_t{1} << 20;
constexpr uint64_t kRecordBytesMax = uint64_t{1} << 28;

struct RecordLimit {
  uint64_t longest = kRecordBytesMax;  // bytes of a record for which there is memory
  // A longer record needs a --host-mem of memory_a_byte for each of its bytes, plus memory_beside.
  // memory_a_byte 0: no --host-mem would suffice.
  uint64_t memory_a_byte = 0, memory_beside = 0;
};

enum class Division : uint8_t { lines, separator, stretches, elements };

// How the file of JSON is divided: `elements` if it begins with a list, else `lines`. Throws as InputFile.
Division division_of_json(const std::string& path);

// Whether the first line of the file opens an object and has nothing else. Throws as InputFile.
bool is_divided_object(const std::string& path);

// Whether the file begins with an object in JSON, or with a list of objects. Throws as InputFile.
bool begins_as_json(const std::string& path);

// In front of a text, this mark says that the text is UTF-8. It is no part of the text.
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

class RecordFile {
 public:
  // `separator` is used with Division::separator alone, and is not empty then.
  // Throws as InputFile.
  RecordFile(const std::string& path, Division division, std::string separator = "",
             const RecordLimit& limit = {});

  const std::string& path() const { return file_.path(); }
  uint64_t bytes() const { return file_.bytes(); }
  // Whether the path still names the file that was opened, unchanged as far as size and time of change tell.
  bool is_as_opened() const;
  Division division() const { return division_; }

  // Calls record(text, begin) for every record that begins in bytes [begin, end), in order; the text is
  // without line end or separator. Stops when `record` returns false. Throws Error(malformed_file) for a
  // record above kRecordBytesMax or a malformed list, Error(infeasible) for a record above `limit`,
  // Error(io) when reading fails.
  void read(uint64_t begin, uint64_t end,
            const std::function<bool(const std::string& text, uint64_t begin)>& record) const;

  // The number of the line that begins at `begin`, from 1.
  uint64_t line_of(uint64_t begin) const;
  // "FILE, line 12"; "FILE, the element from line 12 on"; or "FILE, byte 4096" where records are texts.
  std::string place(uint64_t begin) const;

 private:
  void read_elements(uint64_t begin, uint64_t end,
                     const std::function<bool(const std::string& text, uint64_t begin)>& record) const;
  std::string text_of(uint64_t begin, uint64_t end) const;

  InputFile file_;
  std::filesystem::file_time_type changed_;
  Division division_;
  std::string separator_;
  RecordLimit limit_;
};

}  // namespace sluice
