// Carries out the transfers of a lane between memory and files, in order, over an IoQueue, with checksums.
//
// 1. A transfer is cut into requests of at most kRequestBytes, from its start. In the nvme tier each request
//    goes to the file that holds its stripe.
// 2. Requests are handed over in order while fewer than the queue's depth are in flight. A request does not
//    wait until the transfer before its own has completed.
// 3. A request that moved too few bytes is continued from the last aligned byte. A request that was refused
//    for the moment (EAGAIN, EINTR) is repeated with growing sleeps, a bounded number of times.
// 4. Checksums (XXH3-64, one a request) are computed before a write is handed over, verified after a read.
// 5. completed() counts transfers whose every byte was moved and verified, in order: n only after n-1.
// 6. After the first error nothing more is handed over, and progress() returns when nothing is in flight.
//
// Two transfers in flight together may be carried out in any order: the caller avoids hazards between them.
// Owner: one lane's thread (see offload/io/queue.h). After construction nothing is allocated but an error's
// text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "offload/io/queue.h"
#include "offload/nvme_files.h"

namespace sluice {

constexpr uint32_t kRequestBytes = kStripeBytes;

// The depth that a lane's queue should have: 16 requests for each directory. A drive reaches its rates with
// that many (16 MiB cover 2 ms at 8 GB/s). Requests go out in order of address, whatever their directory, and
// only their total is bounded, so requests to a slow directory take places of other requests. With d
// directories, each served at a rate in proportion to its share, and n requests among them, each directory is
// busy at least n / (n + d - 1) of the time: 94 % with 16 for each. This is a balanced closed network with
// exponential service (Lazowska et al., Quantitative System Performance, 1984, 5.4); service that varies less
// does better.
constexpr uint32_t requests_in_flight(size_t directories) { return static_cast<uint32_t>(16 * directories); }

// Memory and offset are multiples of the lane's alignment; `bytes` need not be. O_DIRECT moves whole blocks,
// so a transfer owns memory and file up to the next multiple of the alignment: it may read or overwrite
// these bytes. With checksums or in the nvme tier, the offset is a multiple of kRequestBytes. With
// checksums, bytes are read back in the pieces in which they were written.
struct Transfer {
  IoDirection direction = IoDirection::read;
  int fd = -1;
  uint64_t offset = 0;  // in the file, or an address of the tier
  std::byte* memory = nullptr;
  uint64_t bytes = 0;
  // Checksums of the file or tier, by offset / kRequestBytes; 0: never written. Empty: there are none.
  std::span<uint64_t> checksums;
  const char* file = "";            // for messages; outlives the lane
  const NvmeFiles* tier = nullptr;  // instead of fd and file; outlives the lane
};

enum class IoFault : uint8_t {
  failed,             // the system said `error`
  no_space,           // ENOSPC or EDQUOT
  refused,            // EAGAIN, EINTR or less than one aligned block, too many times
  end_of_file,        // no bytes came or went
  checksum_mismatch,  // what was read is not what was written
  checksum_missing,   // a piece is read that was never written: a bug of the caller
};

struct IoError {
  IoFault what = IoFault::failed;
  IoDirection direction = IoDirection::read;
  const char* file = "";
  uint64_t offset = 0, bytes = 0;
  int error = 0;  // errno, where there is one
};

// Exit code io (bug for checksum_missing), with file, offset, bytes and errno in the sentence.
Error to_error(const IoError& error);

class TransferLane {
 public:
  // At most `transfers_max` transfers are under way. `alignment`: of memory, offsets and request sizes.
  TransferLane(std::unique_ptr<IoQueue> queue, uint32_t transfers_max, uint32_t alignment);
  ~TransferLane();  // waits for what is in flight
  TransferLane(const TransferLane&) = delete;
  TransferLane& operator=(const TransferLane&) = delete;

  bool can_start() const { return !error_ && !stopped_ && started_ - completed_ < transfers_.size(); }
  void start(const Transfer& transfer);  // requires can_start(); begins with the next progress()

  // Hands over requests, takes completions, and hands over again. Waits for a completion at most
  // `timeout_microseconds` (0: not at all), and only while requests are in flight. After an error it waits
  // for all that are in flight.
  void progress(int64_t timeout_microseconds);

  uint64_t started() const { return started_; }      // transfers, since construction
  uint64_t completed() const { return completed_; }  // in order
  bool idle() const { return started_ == completed_; }
  const IoError* error() const { return error_ ? &*error_ : nullptr; }

  // Hands over nothing more and waits for what is in flight; no transfer can be started afterwards.
  void stop();

 private:
  struct Active {
    Transfer transfer;
    uint64_t issued = 0, finished = 0;  // bytes
  };
  struct Piece {
    uint64_t transfer = 0;  // number, from 0
    uint64_t begin = 0;     // in the transfer
    uint32_t bytes = 0;
    uint32_t done = 0;      // a multiple of the alignment
    uint32_t attempts = 0;  // that made no progress, in a row
  };

  struct Target {
    int fd;
    uint64_t offset;
    const char* file;
  };

  Active& active(uint64_t number) { return transfers_[number % transfers_.size()]; }
  Target target(const Piece& piece);
  void fill();
  void issue(uint32_t index);
  bool checksum_before(const Piece& piece);
  void settle(const IoCompletion& completion);
  void verify(uint32_t index);
  void finish(uint32_t index);
  void fail(const Piece& piece, IoFault what, int error);
  void await_all();
  uint64_t& slot(const Piece& piece);

  std::unique_ptr<IoQueue> queue_;
  const uint32_t alignment_;
  std::vector<Active> transfers_;  // ring: number modulo size
  uint64_t started_ = 0, completed_ = 0;
  uint64_t issuing_ = 0;                          // transfer whose requests are handed over next
  std::vector<Piece> pieces_;                     // in flight, to be repeated, or to be verified
  std::vector<uint32_t> free_, repeat_, verify_;  // indices of pieces
  std::vector<IoCompletion> done_;
  std::optional<IoError> error_;
  bool stopped_ = false;
};

}  // namespace sluice
