#include "models/text/records/record_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/units.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceBytes = 1 << 16;

// A part of the file in memory, so that neighbouring records need one read.
class Window {
 public:
  explicit Window(const InputFile& file) : file_(file) {}
  // Returns kPieceBytes bytes from `begin` on, or fewer if the file ends before.
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

// Position behind the first `mark` that begins at `from` or later; `end`, the file's end, if there is none.
uint64_t behind_mark(Window& window, uint64_t end, uint64_t from, const std::string& mark) {
  while (from < end) {
    const std::string_view piece = window.from(from);
    if (const size_t found = piece.find(mark); found != piece.npos) return from + found + mark.size();
    if (from + piece.size() == end) return end;
    from += piece.size() - (mark.size() - 1);
  }
  return end;
}

// The start of the first record that begins at `from` or behind it.
uint64_t next_begin(Window& window, uint64_t end, uint64_t from, Division division,
                    const std::string& separator) {
  // A record may begin at `at` itself, if a mark ends there.
  const auto behind = [&](uint64_t at) {
    return behind_mark(window, end, at - std::min<uint64_t>(at, separator.size()), separator);
  };
  if (from == 0) return 0;
  if (division != Division::stretches) return behind(from);
  // If `from` lies in the line that runs across `multiple`, the next record begins where that line ends.
  const uint64_t multiple = from / kTextBytes * kTextBytes;
  if (const uint64_t begin = multiple == 0 ? 0 : behind(multiple); begin >= from) return begin;
  return behind(multiple + kTextBytes);
}

// When the file was last changed. Returns the earliest time if there is no such file.
fs::file_time_type time_of_change(const std::string& path) {
  std::error_code ignored;
  return fs::last_write_time(path, ignored);
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_byte_order_mark(char c) { return c == '\xef' || c == '\xbb' || c == '\xbf'; }

// Finds the elements of a JSON list, byte by byte. Errors within an element are left to whoever parses it.
class ListScan {
 public:
  enum class Found : uint8_t { nothing, element, too_many_commas, no_list };

  // Takes the next byte. Returns `element` when an element, [begin(), end()), has ended before this byte.
  Found take(char c, uint64_t at) {
    switch (place_) {
      case Place::before:
        if (c == '[') place_ = Place::between;
        return c == '[' || is_blank(c) || is_byte_order_mark(c) ? Found::nothing : Found::no_list;
      case Place::between:
        if (is_blank(c)) return Found::nothing;
        if (c == ']' && elements_ == 0) {
          place_ = Place::behind;
          return Found::nothing;
        }
        if (c == ',' || c == ']') return Found::too_many_commas;
        place_ = Place::within;
        begin_ = at;
        return within(c, at);
      case Place::within:
        return within(c, at);
      case Place::behind:
        return is_blank(c) ? Found::nothing : Found::no_list;
    }
    check_failed("a place", __FILE__, __LINE__, "");
  }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  bool has_ended() const { return place_ == Place::behind; }

 private:
  enum class Place : uint8_t { before, between, within, behind };

  Found within(char c, uint64_t at) {
    if (quoted_) {
      quoted_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
    } else if (depth_ == 0 && (c == ',' || c == ']')) {
      place_ = c == ',' ? Place::between : Place::behind;
      ++elements_;
      return Found::element;
    } else {
      quoted_ = c == '"';
      if (c == '{' || c == '[') ++depth_;
      if ((c == '}' || c == ']') && depth_ > 0) --depth_;
    }
    if (!is_blank(c)) end_ = at + 1;
    return Found::nothing;
  }

  Place place_ = Place::before;
  uint64_t begin_ = 0, end_ = 0, elements_ = 0, depth_ = 0;
  bool quoted_ = false, escaped_ = false;
};

// The start of the file, without blanks and a byte order mark in front.
std::string head_of(const std::string& path) {
  const InputFile file(path);
  std::string head(std::min(kPieceBytes, file.bytes()), '\0');
  file.read(0, head.data(), head.size());
  const auto first =
      std::find_if(head.begin(), head.end(), [](char c) { return !is_blank(c) && !is_byte_order_mark(c); });
  head.erase(head.begin(), first);
  return head;
}

}  // namespace

Division division_of_json(const std::string& path) {
  return head_of(path).starts_with('[') ? Division::elements : Division::lines;
}

bool is_divided_object(const std::string& path) {
  const std::string head = head_of(path);
  const size_t end = head.find('\n');
  return end != head.npos && head.starts_with('{') &&
         std::all_of(head.begin() + 1, head.begin() + static_cast<std::ptrdiff_t>(end), is_blank);
}

bool begins_as_json(const std::string& path) {
  std::string head = head_of(path);
  std::erase_if(head, is_blank);
  return head.starts_with("{\"") || head.starts_with("[{\"");
}

RecordFile::RecordFile(const std::string& path, Division division, std::string separator,
                       const RecordLimit& limit)
    : file_(path),
      changed_(time_of_change(path)),
      division_(division),
      separator_(division == Division::separator ? std::move(separator) : std::string(1, '\n')),
      limit_(limit) {
  CHECK(!separator_.empty() && separator_.size() < kPieceBytes, "a separator has characters, and few");
}

bool RecordFile::is_as_opened() const {
  std::error_code ignored;
  return fs::file_size(path(), ignored) == bytes() && time_of_change(path()) == changed_;
}

void RecordFile::read(uint64_t begin, uint64_t end,
                      const std::function<bool(const std::string& text, uint64_t begin)>& record) const {
  if (division_ == Division::elements) return read_elements(begin, end, record);
  Window window(file_);
  const auto next_from = [&](uint64_t from) {
    return next_begin(window, file_.bytes(), from, division_, separator_);
  };
  std::string text;
  for (uint64_t at = next_from(begin); at < std::min(end, file_.bytes());) {
    const uint64_t next = next_from(at + 1);
    text = text_of(at, next);
    if (division_ != Division::stretches && text.ends_with(separator_))
      text.resize(text.size() - separator_.size());
    if (division_ == Division::lines && text.ends_with('\r')) text.pop_back();
    if (!record(text, at)) return;
    at = next;
  }
}

std::string RecordFile::text_of(uint64_t begin, uint64_t end) const {
  if (end - begin > kRecordBytesMax)
    throw Error(ExitCode::malformed_file,
                fmt::format("{}: a record of {} bytes is longer than the {} that are possible.", place(begin),
                            end - begin, kRecordBytesMax),
                "Divide it.");
  // What a process holds beside records differs by some MiB from run to run.
  constexpr uint64_t kMib = 1 << 20, kMargin = 4 * kMib;
  if (end - begin > limit_.longest)
    throw Error(
        ExitCode::infeasible,
        fmt::format("{}: a record has {}, and there is memory for one of {}.", place(begin),
                    format_size(end - begin), format_size(limit_.longest)),
        limit_.memory_a_byte == 0
            ? "Divide it."
            : fmt::format("Give --host-mem {}MiB, or divide the record.",
                          ((end - begin) * limit_.memory_a_byte + limit_.memory_beside + kMargin) / kMib));
  std::string text(end - begin, '\0');
  file_.read(begin, text.data(), text.size());
  return text;
}

void RecordFile::read_elements(
    uint64_t begin, uint64_t end,
    const std::function<bool(const std::string& text, uint64_t begin)>& record) const {
  const auto fault = [&](uint64_t at, const char* what) {
    throw Error(ExitCode::malformed_file,
                fmt::format("{}, line {}: {}.", printable(path()), line_of(at), what),
                "Give one JSON list of records, or one record a line.");
  };
  ListScan scan;
  Window window(file_);
  for (uint64_t at = 0; at < file_.bytes();) {
    const std::string_view piece = window.from(at);
    for (size_t i = 0; i < piece.size(); ++i) {
      const ListScan::Found found = scan.take(piece[i], at + i);
      if (found == ListScan::Found::too_many_commas) fault(at + i, "a comma has no element beside it");
      if (found == ListScan::Found::no_list) fault(at + i, "text stands outside of the list");
      if (found != ListScan::Found::element || scan.begin() < begin) continue;
      if (scan.begin() >= end || !record(text_of(scan.begin(), scan.end()), scan.begin())) return;
    }
    at += piece.size();
  }
  if (!scan.has_ended()) fault(file_.bytes(), "the list that the file begins with does not end");
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
  if (division_ == Division::lines) return fmt::format("{}, line {}", printable(path()), line_of(begin));
  if (division_ == Division::elements)
    return fmt::format("{}, the element from line {} on", printable(path()), line_of(begin));
  return fmt::format("{}, byte {}", printable(path()), begin);
}

}  // namespace sluice
