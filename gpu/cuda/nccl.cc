#include "gpu/cuda/nccl.h"

namespace sluice {
namespace {

constexpr int kVersionLeast = 22000;  // of CUDA 12.4's time, the oldest toolkit that the cuda device takes

}  // namespace

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Known<int> nccl_version(const Known<NcclApi>& api) {
  if (!api.value) return {{}, api.reason};
  int version = 0;
  const int result = api.value->ncclGetVersion(&version);
  if (result != NcclApi::kSuccess)
    return {{}, std::string("ncclGetVersion says: ") + api.value->ncclGetErrorString(result)};
  if (version < kVersionLeast)
    return {{},
            "NCCL is " + nccl_version_text(version) + ", and " + nccl_version_text(kVersionLeast) +
                " is the oldest that is used"};
  return {version, ""};
}

}  // namespace sluice
