#include "engine/run/train/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "engine/base/crc32c.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";

// The first whole second that is not before `time` and is later than the seconds in the name of each event
// file of the directory.
int64_t next_second(const std::string& directory, double time) {
  auto second = static_cast<int64_t>(time);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int64_t other = 0;
    const auto [end, wrong] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), other);
    if (wrong == std::errc{} && other < INT64_MAX) second = std::max(second, other + 1);
  }
  return second;
}

std::string new_path(const std::string& directory, double time) {
  std::array<char, HOST_NAME_MAX + 1> host{};
  CHECK(::gethostname(host.data(), host.size()) == 0, "a host name is longer than HOST_NAME_MAX");
  return (fs::path(directory) /
          fmt::format("{}{:010}.{}", kPrefix, next_second(directory, time), host.data()))
      .string();
}

FileDescriptor make_file(const std::string& path) {
  FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC | O_NONBLOCK, 0666));
  if (file.get() < 0)
    throw Error(ExitCode::environment,
                fmt::format("Making `{}` failed: {}.", printable(path), std::strerror(errno)),
                "Mend what stands in the way, or leave out --tensorboard.");
  return file;
}

// ---- The wire format of protocol buffers: a key (field << 3 | type), then the value ----

void append_varint(std::string& out, uint64_t value) {  // 7 bits a byte, lowest first; no 0x80 in the last
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void append_fixed(std::string& out, uint64_t bits, int bytes) {  // lowest byte first
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(bits >> (8 * i));
}

void append_key(std::string& out, int field, int type) {
  append_varint(out, static_cast<uint64_t>(field << 3 | type));
}

void append_integer(std::string& out, int field, int64_t value) {
  append_key(out, field, 0);
  append_varint(out, static_cast<uint64_t>(value));
}

void append_double(std::string& out, int field, double value) {
  append_key(out, field, 1);
  append_fixed(out, std::bit_cast<uint64_t>(value), 8);
}

void append_float(std::string& out, int field, float value) {
  append_key(out, field, 5);
  append_fixed(out, std::bit_cast<uint32_t>(value), 4);
}

void append_bytes(std::string& out, int field, std::string_view bytes) {  // texts and messages, too
  append_key(out, field, 2);
  append_varint(out, bytes.size());
  out += bytes;
}

// Fields of event.proto and summary.proto.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;  // of Event
constexpr int kStatus = 1, kStart = 1;     // of SessionLog: a field and its value
constexpr int kValue = 1;                  // of Summary
constexpr int kTag = 1, kSimpleValue = 2;  // of Summary.Value

// A checksum that is stored beside its data is masked, since a checksum of data that hold their own checksum
// is weak.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

}  // namespace

EventFile::EventFile(const std::string& directory, int64_t done, double time)
    : EventFile(new_path(directory, time)) {
  content_ = "brain.Event:2";
  write_event(0, time, kFileVersion);
  append_integer(content_, kStatus, kStart);
  write_event(done + 1, time, kSessionLog);
}

EventFile::EventFile(const std::string& path) : GrowingFile(path, make_file(path), "events") {}

void EventFile::write(const StepMetrics& m, double time) {
  add("loss/", "train", m.loss);
  if (m.router_loss) add("loss/", "routers", *m.router_loss);
  add("step/", "learning_rate", m.learning_rate);
  add("step/", "grad_norm", m.grad_norm);
  add("step/", "tokens_per_second", m.tokens_per_second);
  add("step/", "trained_tokens_per_second", m.trained_tokens_per_second);
  for (const auto& [tier, bytes] : m.peak_bytes) add("peak_bytes/", tier.c_str(), static_cast<double>(bytes));
  add("peak_bytes/", "process", static_cast<double>(m.process_peak_bytes));
  for (const auto& [lane, seconds] : m.lane_busy) add("lane_busy/", lane.c_str(), seconds);
  write_event(m.step, time, kSummary);
}

void EventFile::write(const ValidationMetrics& m, double time) {
  add("loss/", "validation", m.val_loss);
  write_event(m.step, time, kSummary);
}

// Adds a scalar to the next event.
void EventFile::add(const char* group, const char* name, double value) {
  tag_ = group;
  tag_ += name;
  value_.clear();
  append_bytes(value_, kTag, tag_);
  append_float(value_, kSimpleValue, static_cast<float>(value));
  append_bytes(content_, kValue, value_);
}

// Writes an event whose field `field` is `content_`.
void EventFile::write_event(int64_t step, double time, int field) {
  event_.clear();
  append_double(event_, kWallTime, time);
  append_integer(event_, kStep, step);
  append_bytes(event_, field, content_);
  content_.clear();
  record_.clear();
  append_fixed(record_, event_.size(), 8);
  append_fixed(record_, masked(crc32c(record_)), 4);
  record_ += event_;
  append_fixed(record_, masked(crc32c(event_)), 4);
  append(record_);
}

}  // namespace sluice
