// NCCL itself: our declarations match its header, the library is found and tells its version, and
// communicators between GPUs do what every communicator must. Tests that need one GPU or several are skipped
// where these are missing.
#include <gtest/gtest.h>

#include <cstddef>
#include <thread>
#include <type_traits>

#include "gpu/cuda/device.h"
#include "gpu/cuda/gpu.h"
#include "gpu/cuda/nccl_communicator.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/cuda_communicator.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

namespace sluice {
namespace {

#if __has_include(<nccl.h>)
// Whether two functions take equally many arguments, pairwise of one size and both classes or neither.
template <typename R, typename... A, typename S, typename... B>
constexpr bool alike(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B))
    return false;
  else
    return sizeof(R) == sizeof(S) &&
           ((sizeof(A) == sizeof(B) && std::is_class_v<A> == std::is_class_v<B>)&&...);
}
#define EXPECT_ALIKE(name) static_assert(alike(decltype (&::name)(), decltype(NcclApi::name)()))
EXPECT_ALIKE(ncclGetVersion);
EXPECT_ALIKE(ncclGetErrorString);
EXPECT_ALIKE(ncclGetLastError);
EXPECT_ALIKE(ncclGetUniqueId);
EXPECT_ALIKE(ncclCommInitRankConfig);
EXPECT_ALIKE(ncclCommGetAsyncError);
EXPECT_ALIKE(ncclCommFinalize);
EXPECT_ALIKE(ncclCommDestroy);
EXPECT_ALIKE(ncclCommAbort);
EXPECT_ALIKE(ncclGroupStart);
EXPECT_ALIKE(ncclGroupEnd);
EXPECT_ALIKE(ncclAllGather);
EXPECT_ALIKE(ncclBroadcast);
EXPECT_ALIKE(ncclSend);
EXPECT_ALIKE(ncclRecv);
#undef EXPECT_ALIKE

TEST(NcclHeader, SaysWhatWeDeclare) {
  EXPECT_EQ(sizeof(NcclApi::UniqueId), sizeof(ncclUniqueId));
  EXPECT_EQ(offsetof(NcclApi::Config, magic), offsetof(ncclConfig_t, magic));
  EXPECT_EQ(offsetof(NcclApi::Config, version), offsetof(ncclConfig_t, version));
  EXPECT_EQ(offsetof(NcclApi::Config, blocking), offsetof(ncclConfig_t, blocking));
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(NcclApi::Config().magic, theirs.magic);
  EXPECT_EQ(static_cast<int>(NcclApi::kSuccess), static_cast<int>(ncclSuccess));
  EXPECT_EQ(static_cast<int>(NcclApi::kSystemError), static_cast<int>(ncclSystemError));
  EXPECT_EQ(static_cast<int>(NcclApi::kInvalidUsage), static_cast<int>(ncclInvalidUsage));
  EXPECT_EQ(static_cast<int>(NcclApi::kRemoteError), static_cast<int>(ncclRemoteError));
  EXPECT_EQ(static_cast<int>(NcclApi::kInProgress), static_cast<int>(ncclInProgress));
  EXPECT_EQ(static_cast<int>(NcclApi::kBytes), static_cast<int>(ncclUint8));
}
#endif

TEST(NcclLibrary, IsFoundAndTellsItsVersion) {
  const Known<NcclApi> api = open_nccl();
  if (!api.value) GTEST_SKIP() << api.reason;
  const Known<int> version = nccl_version(api);
  ASSERT_TRUE(version.value.has_value()) << version.reason;
  EXPECT_GE(*version.value, 22000);
  EXPECT_STREQ(api.value->ncclGetErrorString(NcclApi::kSuccess), "no error");
}

TEST(NcclLibrary, VersionsAreWrittenAsTheirPackagesAre) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(22005), "2.20.5");
}

void on_all_gpus(int count, const std::function<void(Communicator&)>& work) {
  const auto hosts = make_in_process_communicators(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      Communicator& host = *hosts[static_cast<size_t>(i)];
      cuda::choose_gpu(i);
      const cuda::Stream stream;
      const AcceleratorRanks ranks = cuda::connect_by_nccl(open_nccl(), i, stream, host);
      ASSERT_NE(ranks.communicator, nullptr) << ranks.reason;
      HostMemoryCommunicator on_host(*ranks.communicator);
      work(on_host);
    });
  for (std::thread& t : threads) t.join();
}

class SeveralGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaStatus first = cuda_status(0), last = cuda_status(gpus_ - 1);
    if (!first.available) GTEST_SKIP() << first.reason;
    if (!last.available) GTEST_SKIP() << last.reason;
    const Known<NcclApi> api = open_nccl();
    if (!api.value) GTEST_SKIP() << api.reason;
  }
  int gpus_ = 2;
};
class FourGpus : public SeveralGpus {
 protected:
  FourGpus() { gpus_ = 4; }
};

TEST_F(SeveralGpus, EveryCollectiveMovesWhatItSays) {
  for (const int ranks : {1, 2}) expect_collectives_move(on_all_gpus, ranks);
}
TEST_F(FourGpus, EveryCollectiveMovesWhatItSays) {
  for (const int ranks : {3, 4}) expect_collectives_move(on_all_gpus, ranks);
}
TEST_F(FourGpus, PartsOfAnyLengthArrive) { expect_parts_of_any_length_arrive(on_all_gpus); }
TEST_F(FourGpus, AnAllGatherInPlaceKeepsItsOwnPart) { expect_own_part_kept_in_place(on_all_gpus); }
TEST_F(FourGpus, GroupsKeepToThemselves) { expect_groups_keep_to_themselves(on_all_gpus); }
TEST_F(FourGpus, AnAbortEndsEveryCall) { expect_an_abort_ends_every_call(on_all_gpus, 15); }

}  // namespace
}  // namespace sluice
