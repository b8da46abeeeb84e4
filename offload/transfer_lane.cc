#include "offload/transfer_lane.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace sluice {
namespace {

// Sleeps of 10 us * 2^attempt: 14 attempts last 0.16 s, long enough for a momentary shortage.
constexpr uint32_t kAttemptsMax = 14;
constexpr std::chrono::microseconds kFirstSleep{10};

constexpr int64_t kDrainTimeout = 100'000;  // microseconds of one poll of a queue that is being drained

// Never 0: as a checksum, 0 marks what was never written.
uint64_t checksum(const std::byte* data, uint64_t bytes) {
  return std::max<uint64_t>(XXH3_64bits(data, bytes), 1);
}

const char* remedy(IoFault what) {
  switch (what) {
    case IoFault::no_space:
      return "Free space on that file system.";
    case IoFault::refused:
    case IoFault::failed:
    case IoFault::end_of_file:
      return "Look at the kernel's log and the drive's health.";
    case IoFault::checksum_mismatch:
      return "Check the drive, its link and the memory.";
    case IoFault::checksum_missing:
      return "This is a bug in Sluice; please report it.";
  }
  return "";
}

}  // namespace

Error to_error(const IoError& e) {
  const bool read = e.direction == IoDirection::read;
  const std::string where =
      std::to_string(e.bytes) + " bytes at offset " + std::to_string(e.offset) + " of " + printable(e.file);
  const std::string doing = (read ? "Reading " : "Writing ") + where;
  const std::string system =
      e.error ? std::string(std::strerror(e.error)) + " (errno " + std::to_string(e.error) + ")"
              : std::string("no progress");
  std::string text;
  switch (e.what) {
    case IoFault::failed:
      text = doing + " failed: " + system + ".";
      break;
    case IoFault::no_space:
      text = "No space is left for writing " + where + ": " + system + ".";
      break;
    case IoFault::refused:
      text = doing + " was refused " + std::to_string(kAttemptsMax + 1) + " times: " + system + ".";
      break;
    case IoFault::end_of_file:
      text = doing + " moved no bytes" + (read ? ": the file is shorter than it should be." : ".");
      break;
    case IoFault::checksum_mismatch:
      text = "Checksum mismatch: " + where + " are not what was written there.";
      break;
    case IoFault::checksum_missing:
      text = doing + " was asked for, but they were never written.";
      break;
  }
  if (e.what == IoFault::checksum_missing) return Error(ExitCode::bug, text, remedy(e.what));
  return Error::in_step(ExitCode::io, text, remedy(e.what));
}

TransferLane::TransferLane(std::unique_ptr<IoQueue> queue, uint32_t transfers_max, uint32_t alignment)
    : queue_(std::move(queue)), alignment_(alignment), transfers_(transfers_max) {
  CHECK(transfers_max > 0, "capacity of a transfer lane");
  CHECK(alignment > 0 && kRequestBytes % alignment == 0, "alignment of a transfer lane");
  // Twice the depth, so that the next reads are in flight while completed ones are verified.
  const uint32_t pieces = 2 * queue_->depth();
  pieces_.resize(pieces);
  free_.reserve(pieces);
  repeat_.reserve(pieces);
  verify_.reserve(pieces);
  for (uint32_t i = 0; i < pieces; ++i) free_.push_back(i);
  done_.resize(queue_->depth());
}

TransferLane::~TransferLane() { stop(); }

void TransferLane::start(const Transfer& t) {
  CHECK(can_start(), "a transfer lane is full or has ended");
  CHECK(t.offset % alignment_ == 0, "offset of a transfer: " + std::to_string(t.offset));
  CHECK(reinterpret_cast<uintptr_t>(t.memory) % alignment_ == 0, "memory address of a transfer");
  CHECK((t.checksums.empty() && !t.tier) || t.offset % kRequestBytes == 0,
        "offset of a transfer in whole requests: " + std::to_string(t.offset));
  CHECK(t.checksums.empty() || t.offset + t.bytes <= t.checksums.size() * kRequestBytes,
        "checksum slots end before the transfer");
  active(started_++) = {t, 0, 0};
}

void TransferLane::progress(int64_t timeout_microseconds) {
  if (error_ || stopped_) return;
  fill();
  const uint32_t count = queue_->poll(done_, timeout_microseconds);
  for (uint32_t i = 0; i < count && !error_; ++i) settle(done_[i]);
  fill();  // the drive works while checksums are verified
  for (const uint32_t index : verify_)
    if (!error_) verify(index);
  verify_.clear();
  while (!error_ && completed_ < started_ && active(completed_).finished == active(completed_).transfer.bytes)
    ++completed_;
  if (error_) await_all();
}

void TransferLane::stop() {
  stopped_ = true;
  await_all();
}

void TransferLane::fill() {
  while (!error_ && queue_->in_flight() < queue_->depth()) {
    if (!repeat_.empty()) {
      const uint32_t index = repeat_.back();
      repeat_.pop_back();
      const uint32_t attempts = pieces_[index].attempts;
      if (attempts > 0) std::this_thread::sleep_for(kFirstSleep * (1u << (attempts - 1)));
      issue(index);
      continue;
    }
    while (issuing_ < started_ && active(issuing_).issued == active(issuing_).transfer.bytes) ++issuing_;
    if (issuing_ == started_ || free_.empty()) break;
    Active& a = active(issuing_);
    const uint32_t index = free_.back();
    free_.pop_back();
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(kRequestBytes, a.transfer.bytes - a.issued));
    pieces_[index] = {issuing_, a.issued, bytes, 0, 0};
    a.issued += bytes;
    if (!checksum_before(pieces_[index])) return;
    issue(index);
  }
}

// For a write, stores the checksum. For a read, the lane fails if no checksum is stored. Returns false if the
// lane has failed.
bool TransferLane::checksum_before(const Piece& piece) {
  const Transfer& t = active(piece.transfer).transfer;
  if (t.checksums.empty()) return true;
  if (t.direction == IoDirection::write) slot(piece) = checksum(t.memory + piece.begin, piece.bytes);
  if (slot(piece) == 0) fail(piece, IoFault::checksum_missing, 0);
  return !error_;
}

void TransferLane::issue(uint32_t index) {
  const Piece& piece = pieces_[index];
  const Transfer& t = active(piece.transfer).transfer;
  const uint32_t rest = piece.bytes - piece.done;
  const uint32_t whole_blocks = (rest + alignment_ - 1) / alignment_ * alignment_;
  const Target to = target(piece);
  queue_->submit({t.direction, to.fd, to.offset, t.memory + piece.begin + piece.done, whole_blocks, index});
}

// The place in a file for the rest of a piece.
TransferLane::Target TransferLane::target(const Piece& piece) {
  const Transfer& t = active(piece.transfer).transfer;
  const uint64_t from = t.offset + piece.begin + piece.done;
  if (!t.tier) return {t.fd, from, t.file};
  const NvmeFiles::Location at = t.tier->locate(from, piece.bytes - piece.done);
  return {at.file->fd, at.offset, at.file->name.c_str()};
}

void TransferLane::settle(const IoCompletion& completion) {
  const auto index = static_cast<uint32_t>(completion.tag);
  CHECK(index < pieces_.size(), "tag of an I/O completion");
  Piece& piece = pieces_[index];
  const auto error = static_cast<int>(completion.result < 0 ? -completion.result : 0);
  if (error == 0 && piece.done + completion.result >= piece.bytes) {
    const Transfer& t = active(piece.transfer).transfer;
    if (t.direction == IoDirection::read && !t.checksums.empty())
      verify_.push_back(index);
    else
      finish(index);
    return;
  }
  const bool write = active(piece.transfer).transfer.direction == IoDirection::write;
  if (write && (error == ENOSPC || error == EDQUOT)) return fail(piece, IoFault::no_space, error);
  if (error != 0 && error != EAGAIN && error != EINTR) return fail(piece, IoFault::failed, error);
  if (error == 0 && completion.result == 0) return fail(piece, IoFault::end_of_file, 0);
  const auto progress =
      static_cast<uint32_t>(std::max<int64_t>(completion.result, 0)) / alignment_ * alignment_;
  piece.done += progress;
  piece.attempts = progress > 0 ? 0 : piece.attempts + 1;
  if (piece.attempts > kAttemptsMax) return fail(piece, IoFault::refused, error);
  repeat_.push_back(index);
}

void TransferLane::verify(uint32_t index) {
  const Piece& piece = pieces_[index];
  const Transfer& t = active(piece.transfer).transfer;
  if (checksum(t.memory + piece.begin, piece.bytes) != slot(piece))
    fail(piece, IoFault::checksum_mismatch, 0);
  else
    finish(index);
}

void TransferLane::finish(uint32_t index) {
  active(pieces_[index].transfer).finished += pieces_[index].bytes;
  free_.push_back(index);
}

void TransferLane::fail(const Piece& piece, IoFault what, int error) {
  if (error_) return;
  const Target at = target(piece);
  const IoDirection direction = active(piece.transfer).transfer.direction;
  error_ = IoError{what, direction, at.file, at.offset, piece.bytes - piece.done, error};
}

void TransferLane::await_all() {
  while (queue_->in_flight() > 0) queue_->poll(done_, kDrainTimeout);
}

uint64_t& TransferLane::slot(const Piece& piece) {
  const Transfer& t = active(piece.transfer).transfer;
  return t.checksums[(t.offset + piece.begin) / kRequestBytes];
}

}  // namespace sluice
