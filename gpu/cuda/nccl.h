// NVIDIA's collective communication library (NCCL), which moves bytes between the GPUs of ranks.
//
// libnccl.so.2 is large (218 MB) and only needed where there are several ranks, so it is opened at run time
// and never linked. Tests put functions of their own in place of the library's
// (tests/emulation/nccl_emulation.cc). Callers: set-up code of one thread a rank.
#pragma once

#include <cstddef>
#include <string>

#include "gpu/cuda/nvml.h"

namespace sluice {

// The functions of the library that are used, with its names and signatures. They are declared here after
// NCCL's published interface, which is kept stable (tests/gpu/cuda/nccl_test.cc holds them against nccl.h).
struct NcclApi {
  enum Result { kSuccess = 0, kSystemError = 2, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7 };
  enum DataType { kBytes = 1 };  // ncclUint8
  using Rank = struct ncclComm*;
  using Stream = void*;  // a cudaStream_t
  struct UniqueId {      // of one communicator, made by one rank and told to the others
    char bytes[128];
  };
  // ncclConfig_t of version 2.14, as `version` says; later versions read it too. `blocking` zero: calls
  // return before their work is enqueued, and ncclCommGetAsyncError tells when it is.
  struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef, version = 21400;
    int blocking = 0;
  };

  int (*ncclGetVersion)(int* version) = nullptr;
  const char* (*ncclGetErrorString)(int result) = nullptr;
  const char* (*ncclGetLastError)(Rank rank) = nullptr;
  int (*ncclGetUniqueId)(UniqueId* id) = nullptr;
  int (*ncclCommInitRankConfig)(Rank* made, int ranks, UniqueId id, int rank, Config* config) = nullptr;
  int (*ncclCommGetAsyncError)(Rank rank, int* result) = nullptr;
  int (*ncclCommFinalize)(Rank rank) = nullptr;
  int (*ncclCommDestroy)(Rank rank) = nullptr;
  int (*ncclCommAbort)(Rank rank) = nullptr;
  int (*ncclGroupStart)() = nullptr;
  int (*ncclGroupEnd)() = nullptr;
  int (*ncclAllGather)(const void* part, void* all, size_t count, int type, Rank rank,
                       Stream stream) = nullptr;
  int (*ncclBroadcast)(const void* from, void* to, size_t count, int type, int root, Rank rank,
                       Stream stream) = nullptr;
  int (*ncclSend)(const void* data, size_t count, int type, int to, Rank rank, Stream stream) = nullptr;
  int (*ncclRecv)(void* data, size_t count, int type, int from, Rank rank, Stream stream) = nullptr;
  std::string file;  // of the library
};

// Opens the library that the loader finds. It stays open until the process ends.
Known<NcclApi> open_nccl();

// The version that ncclGetVersion tells; a reason where it is too old or the library does not answer.
Known<int> nccl_version(const Known<NcclApi>& api);
std::string nccl_version_text(int version);  // "2.28.9"

}  // namespace sluice
