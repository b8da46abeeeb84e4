// A communicator between GPUs for tests whose operands lie in host memory: each call copies them to the
// calling thread's GPU and, once its work is done, back. Works on a GPU and on its emulation.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "gpu/cuda/owned.h"
#include "gpu/ranks/communicator.h"

namespace sluice {

class HostMemoryCommunicator final : public Communicator {
 public:
  explicit HostMemoryCommunicator(Communicator& gpus) : gpus_(gpus) {}

  int rank() const override { return gpus_.rank(); }
  int size() const override { return gpus_.size(); }
  std::string transport() const override { return gpus_.transport(); }

  void all_gather(const ProcessGroup& among, const void* part, uint64_t bytes, void* all) override {
    const uint64_t whole = bytes * static_cast<uint64_t>(among.count);
    const cuda::GpuBytes gpu_part(bytes), gpu_all(whole);
    const auto offset = static_cast<const std::byte*>(part) - static_cast<const std::byte*>(all);
    const bool in_place = offset >= 0 && offset < static_cast<int64_t>(whole);
    to_gpu(gpu_part.data, part, bytes);
    to_gpu(gpu_all.data, all, whole);
    const void* const from = in_place ? static_cast<std::byte*>(gpu_all.data) + offset : gpu_part.data;
    gpus_.all_gather(among, from, bytes, gpu_all.data);
    gpus_.finish();
    from_gpu(all, gpu_all.data, whole);
  }
  void all_to_all(const ProcessGroup& among, const void* parts, uint64_t bytes, void* received) override {
    const uint64_t whole = bytes * static_cast<uint64_t>(among.count);
    const cuda::GpuBytes from(whole), to(whole);
    to_gpu(from.data, parts, whole);
    gpus_.all_to_all(among, from.data, bytes, to.data);
    gpus_.finish();
    from_gpu(received, to.data, whole);
  }
  void exchange(const ProcessGroup& among, std::span<const std::span<const std::byte>> parts,
                std::span<const std::span<std::byte>> received) override {
    const cuda::GpuBytes from(bytes_of(parts)), to(bytes_of(received));
    std::vector<std::span<const std::byte>> gpu_parts;
    std::vector<std::span<std::byte>> gpu_received;
    auto* next = static_cast<std::byte*>(from.data);
    for (const std::span<const std::byte> part : parts) {
      to_gpu(next, part.data(), part.size());
      gpu_parts.emplace_back(next, part.size());
      next += part.size();
    }
    next = static_cast<std::byte*>(to.data);
    for (const std::span<std::byte> part : received) {
      gpu_received.emplace_back(next, part.size());
      next += part.size();
    }
    gpus_.exchange(among, gpu_parts, gpu_received);
    gpus_.finish();
    for (size_t i = 0; i < received.size(); ++i)
      from_gpu(received[i].data(), gpu_received[i].data(), received[i].size());
  }
  void broadcast(void* data, uint64_t bytes, int root) override {
    on_gpu(data, bytes, [&](void* gpu) { gpus_.broadcast(gpu, bytes, root); });
  }
  void barrier() override { gpus_.barrier(); }
  void send(const void* data, uint64_t bytes, int to) override {
    on_gpu(const_cast<void*>(data), bytes, [&](void* gpu) { gpus_.send(gpu, bytes, to); });
  }
  void receive(void* data, uint64_t bytes, int from) override {
    on_gpu(data, bytes, [&](void* gpu) { gpus_.receive(gpu, bytes, from); });
  }
  void throw_if_lost() override { gpus_.throw_if_lost(); }
  void abort(const std::string& reason) noexcept override { gpus_.abort(reason); }

 private:
  static uint64_t bytes_of(const auto& parts) {
    uint64_t bytes = 1;  // an allocation has at least one byte
    for (const auto part : parts) bytes += part.size();
    return bytes;
  }
  static void to_gpu(void* gpu, const void* host, uint64_t bytes) {
    cuda::check_setup(cudaMemcpy(gpu, host, bytes, cudaMemcpyHostToDevice), "Copying to the GPU");
    // The communicator's stream is not ordered after this one, and the copy may still be under way.
    cuda::check_setup(cudaStreamSynchronize(nullptr), "Copying to the GPU");
  }
  static void from_gpu(void* host, const void* gpu, uint64_t bytes) {
    cuda::check_setup(cudaMemcpy(host, gpu, bytes, cudaMemcpyDeviceToHost), "Copying from the GPU");
  }
  void on_gpu(void* host, uint64_t bytes, const std::function<void(void*)>& work) {
    const cuda::GpuBytes gpu(bytes);
    to_gpu(gpu.data, host, bytes);
    work(gpu.data);
    gpus_.finish();
    from_gpu(host, gpu.data, bytes);
  }

  Communicator& gpus_;
};

}  // namespace sluice
