// Reads all tokens of some data once, in the background, so that a wrong id is found in the first minutes of
// a run, not on its last day.
//
// Its thread takes time of a processor, and of a drive whose scheduler has idle classes, only while these
// have nothing else to do. It needs 64 KiB and allocates nothing after the start. Owner: the trainer's
// thread.
#pragma once

#include <atomic>
#include <exception>
#include <span>
#include <thread>

#include "models/data/token_data.h"

namespace sluice {

class RangeCheck {
 public:
  // Checks the elements of `data` one after the other. These must outlive the RangeCheck.
  explicit RangeCheck(std::span<const TokenData* const> data);
  ~RangeCheck();  // ends the check, finished or not
  RangeCheck(const RangeCheck&) = delete;
  RangeCheck& operator=(const RangeCheck&) = delete;

  uint64_t tokens() const { return tokens_; }  // that were checked so far
  // What TokenData::read() threw, or nullptr so far.
  std::exception_ptr fault() const { return found_.load(std::memory_order_acquire) ? fault_ : nullptr; }

 private:
  void run(const std::vector<const TokenData*>& data);

  std::atomic<bool> ends_{false}, found_{false};
  std::atomic<uint64_t> tokens_{0};
  std::exception_ptr fault_;  // written before found_ is set
  std::thread thread_;
};

}  // namespace sluice
