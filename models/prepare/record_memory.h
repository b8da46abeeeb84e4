// Memory for the records that are being prepared, which threads share.
//
// A record takes memory in proportion to its bytes: for its JSON, the rendered text, the pieces of the text
// with their origins, and the tokens. So the memory limits the length of a record (longest()), and a thread
// waits until there is enough memory for its next record. Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "models/text/records/record_file.h"

namespace sluice {

class RecordMemory {
 public:
  // Bytes of memory for each byte of a record, at most. Measured: 39 for words, 52 for single letters, 75 for
  // digits, each of which is a token.
  static constexpr uint64_t kTimes = 80;
  // The least memory, also if less is given: enough for a piece of a text and the line that ends the piece.
  static constexpr uint64_t kLeast = kTimes * (kTextBytes + kTextBytes / 4);

  explicit RecordMemory(uint64_t bytes) : bytes_(bytes < kLeast ? kLeast : bytes), free_(bytes_) {}

  // `taken`: bytes of --host-mem that are taken by all but records.
  RecordLimit limit(uint64_t taken) const { return {longest(), kTimes, taken}; }
  // The most memory that a record has taken so far. It may exceed a given memory below kLeast.
  uint64_t most() const { return most_; }
  uint64_t longest() const { return bytes_ / kTimes < kRecordBytesMax ? bytes_ / kTimes : kRecordBytesMax; }

  class Share {
   public:
    Share(RecordMemory& of, uint64_t bytes) : of_(of), bytes_(bytes) {}
    ~Share() { of_.give_back(bytes_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

   private:
    RecordMemory& of_;
    uint64_t bytes_;
  };
  // Takes memory for a record of `record_bytes`, at most longest(). Waits until there is enough. A thread has
  // one share at a time.
  Share take(uint64_t record_bytes) {
    const uint64_t wanted = record_bytes * kTimes;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return wanted <= free_; });
    free_ -= wanted;
    most_ = std::max<uint64_t>(most_, wanted);
    return {*this, wanted};
  }

 private:
  void give_back(uint64_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      free_ += bytes;
    }
    changed_.notify_all();
  }

  const uint64_t bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t free_;
  std::atomic<uint64_t> most_{0};
};

}  // namespace sluice
