#include "engine/base/shared_library.h"
#include "gpu/cuda/nccl.h"

namespace sluice {

Known<NcclApi> open_nccl() {
  SharedLibrary library("libnccl.so.2");
  if (!library.is_open()) return {{}, "libnccl.so.2, NVIDIA's package libnccl2, is not there"};
  NcclApi api;
#define FIND(name) library.find(api.name, #name)
  FIND(ncclGetVersion);
  FIND(ncclGetErrorString);
  FIND(ncclGetLastError);
  FIND(ncclGetUniqueId);
  FIND(ncclCommInitRankConfig);
  FIND(ncclCommGetAsyncError);
  FIND(ncclCommFinalize);
  FIND(ncclCommDestroy);
  FIND(ncclCommAbort);
  FIND(ncclGroupStart);
  FIND(ncclGroupEnd);
  FIND(ncclAllGather);
  FIND(ncclBroadcast);
  FIND(ncclSend);
  FIND(ncclRecv);
#undef FIND
  if (!library.failure().empty()) return {{}, library.failure()};
  library.keep_open();
  api.file = library.file();
  return {api, ""};
}

}  // namespace sluice
