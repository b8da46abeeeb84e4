// A communicator between two processes of a test, without MPI: over a socket in the file system.
//
// Rank 0 listens, rank 1 connects. When one rank ends, its side closes, and that ends the other's calls.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include "gpu/ranks/communicator.h"

namespace sluice {

class SocketCommunicator final : public Communicator {
 public:
  SocketCommunicator(const std::string& path, int rank) : rank_(rank) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    const auto* const address = reinterpret_cast<const sockaddr*>(&name);
    socket_ = socket(AF_UNIX, SOCK_STREAM, 0);
    if (rank == 0) {
      const int listener = socket_;
      if (bind(listener, address, sizeof name) != 0 || listen(listener, 1) != 0) lose();
      socket_ = accept(listener, nullptr, nullptr);
      close(listener);
    } else {
      constexpr int kTries = 1000;  // ten seconds
      int tries = 0;
      while (connect(socket_, address, sizeof name) != 0 && ++tries < kTries)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (tries == kTries) lose();
    }
    if (socket_ < 0) lose();
  }
  ~SocketCommunicator() override { close(socket_); }
  SocketCommunicator(const SocketCommunicator&) = delete;
  SocketCommunicator& operator=(const SocketCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return 2; }
  std::string transport() const override { return "a socket, through host memory"; }

  void all_gather(const ProcessGroup&, const void* part, uint64_t bytes, void* all) override {
    std::byte* const to = static_cast<std::byte*>(all);
    swap(part, to + static_cast<uint64_t>(1 - rank_) * bytes, bytes);
    std::memmove(to + static_cast<uint64_t>(rank_) * bytes, part, bytes);
  }
  void all_to_all(const ProcessGroup&, const void* parts, uint64_t bytes, void* received) override {
    const uint64_t own = static_cast<uint64_t>(rank_) * bytes;
    const uint64_t other = static_cast<uint64_t>(1 - rank_) * bytes;
    const auto* const from = static_cast<const std::byte*>(parts);
    std::byte* const to = static_cast<std::byte*>(received);
    swap(from + other, to + other, bytes);
    std::memcpy(to + own, from + own, bytes);
  }
  void broadcast(void* data, uint64_t bytes, int root) override {
    rank_ == root ? put(data, bytes) : get(data, bytes);
  }
  void barrier() override {
    std::byte mine{}, other{};
    swap(&mine, &other, 1);
  }
  void send(const void* data, uint64_t bytes, int) override { put(data, bytes); }
  void receive(void* data, uint64_t bytes, int) override { get(data, bytes); }

  void throw_if_lost() override {
    pollfd look{socket_, POLLRDHUP, 0};
    if (poll(&look, 1, 0) > 0) lose();
  }
  void abort(const std::string&) noexcept override { shutdown(socket_, SHUT_RDWR); }

 private:
  [[noreturn]] static void lose() { throw lost_error("The other process of the test has ended."); }

  // One writes while the other reads. If both wrote first, full sockets could block both.
  void swap(const void* mine, void* other, uint64_t bytes) {
    if (rank_ == 0) put(mine, bytes);
    get(other, bytes);
    if (rank_ == 1) put(mine, bytes);
  }
  void put(const void* data, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t part =
          ::send(socket_, static_cast<const std::byte*>(data) + done, bytes - done, MSG_NOSIGNAL);
      if (part <= 0) lose();
      done += static_cast<uint64_t>(part);
    }
  }
  void get(void* data, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t part = recv(socket_, static_cast<std::byte*>(data) + done, bytes - done, 0);
      if (part <= 0) lose();
      done += static_cast<uint64_t>(part);
    }
  }

  int rank_, socket_ = -1;
};

}  // namespace sluice
