#include "models/text/records/record_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/base/error.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceBytes = 1 << 16;

// A part of the file, so that records next to each other need one read.
class Window {
 public:
  explicit Window(const InputFile& file) : file_(file) {}
  // Bytes from `begin` on: as many as kPieceBytes, or up to the file's end.
  std::string_view from(uint64_t begin) {
    const uint64_t wanted = std::min(kPieceBytes, file_.bytes() - begin);
    if (begin < begin_ || begin + wanted > begin_ + data_.size()) {
      begin_ = begin;
      data_.resize(std::min(4 * kPieceBytes, file_.bytes() - begin));
      file_.read(begin, data_.data(), data_.size());
    }
    return std::string_view(data_).substr(begin - begin_, wanted);
  }

 private:
  const InputFile& file_;
  std::string data_;
  uint64_t begin_ = 0;
};

// Position behind the first `mark` that begins at `from` or later; `end`, the file's, where there is none.
uint64_t behind_mark(Window& window, uint64_t end, uint64_t from, const std::string& mark) {
  while (from < end) {
    const std::string_view piece = window.from(from);
    if (const size_t found = piece.find(mark); found != piece.npos) return from + found + mark.size();
    if (from + piece.size() == end) return end;
    from += piece.size() - (mark.size() - 1);
  }
  return end;
}

// The begin of the first record that begins at `from` or behind it.
uint64_t next_begin(Window& window, uint64_t end, uint64_t from, Division division,
                    const std::string& separator) {
  // A record may begin at `at` itself, if a mark ends there.
  const auto behind = [&](uint64_t at) {
    return behind_mark(window, end, at - std::min<uint64_t>(at, separator.size()), separator);
  };
  if (from == 0) return 0;
  if (division != Division::stretches) return behind(from);
  // `from` may lie in the line that goes on behind a multiple, whose end is such a begin too.
  const uint64_t multiple = from / kTextBytes * kTextBytes;
  if (const uint64_t begin = multiple == 0 ? 0 : behind(multiple); begin >= from) return begin;
  return behind(multiple + kTextBytes);
}

// The earliest time where there is no such file.
fs::file_time_type time_of_change(const std::string& path) {
  std::error_code ignored;
  return fs::last_write_time(path, ignored);
}

}  // namespace

RecordFile::RecordFile(const std::string& path, Division division, std::string separator)
    : file_(path),
      changed_(time_of_change(path)),
      division_(division),
      separator_(division == Division::separator ? std::move(separator) : std::string(1, '\n')) {
  CHECK(!separator_.empty() && separator_.size() < kPieceBytes, "a separator has characters, and few");
}

bool RecordFile::is_as_opened() const {
  std::error_code ignored;
  return fs::file_size(path(), ignored) == bytes() && time_of_change(path()) == changed_;
}

void RecordFile::read(uint64_t begin, uint64_t end,
                      const std::function<bool(const std::string& text, uint64_t begin)>& record) const {
  Window window(file_);
  const auto next_from = [&](uint64_t from) {
    return next_begin(window, file_.bytes(), from, division_, separator_);
  };
  std::string text;
  for (uint64_t at = next_from(begin); at < std::min(end, file_.bytes());) {
    const uint64_t next = next_from(at + 1);
    if (next - at > kRecordBytesMax)
      throw Error(ExitCode::malformed_file,
                  fmt::format("{}: a record of {} bytes is longer than the {} that are possible.", place(at),
                              next - at, kRecordBytesMax),
                  "Divide it.");
    text.resize(next - at);
    file_.read(at, text.data(), text.size());
    if (division_ != Division::stretches && text.ends_with(separator_))
      text.resize(text.size() - separator_.size());
    if (division_ == Division::lines && text.ends_with('\r')) text.pop_back();
    if (!record(text, at)) return;
    at = next;
  }
}

uint64_t RecordFile::line_of(uint64_t begin) const {
  uint64_t lines = 1;
  std::vector<char> piece(kPieceBytes);
  for (uint64_t at = 0; at < begin;) {
    const uint64_t n = std::min<uint64_t>(piece.size(), begin - at);
    file_.read(at, piece.data(), n);
    lines += static_cast<uint64_t>(
        std::count(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n), '\n'));
    at += n;
  }
  return lines;
}

std::string RecordFile::place(uint64_t begin) const {
  return division_ == Division::lines ? fmt::format("{}, line {}", printable(path()), line_of(begin))
                                      : fmt::format("{}, byte {}", printable(path()), begin);
}

}  // namespace sluice
