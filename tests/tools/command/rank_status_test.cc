// Statuses of ranks: what a rank writes for another gives way to what that rank has written itself.
#include "tools/command/rank_status.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/test_directory.h"

namespace sluice {
namespace {

size_t files_in(const std::string& directory) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

TEST(RankStatus, ASilentRankGetsTheWordsOfAnother) {
  const TestDirectory out;
  write_status(out.path(), 1, no_word());
  write_status_for(out.path(), 1, "7 lost", 0);
  EXPECT_TRUE(has_status(out.path(), 1, "7 lost"));
  EXPECT_EQ(files_in(out.path()), 1u) << "nothing lies beside it";
}

TEST(RankStatus, ItsOwnWordsStay) {
  const TestDirectory out;
  write_status(out.path(), 1, "5 my drive is full");
  write_status_for(out.path(), 1, "7 lost", 0);
  EXPECT_TRUE(has_status(out.path(), 1, "5 my drive is full"));
  EXPECT_EQ(files_in(out.path()), 1u);
}

TEST(RankStatus, NothingIsWrittenWhereNothingHasBegun) {
  const TestDirectory out;
  write_status_for(out.path(), 1, "7 lost", 0);
  write_status(out.path() + "/none", 1, no_word());
  EXPECT_EQ(files_in(out.path()), 0u);
}

TEST(RankStatus, ThoseOfMoreRanksAreRemoved) {
  const TestDirectory out;
  for (int rank = 0; rank < 4; ++rank) write_status(out.path(), rank, no_word());
  remove_statuses(out.path(), 2);
  EXPECT_EQ(files_in(out.path()), 2u);
  EXPECT_TRUE(has_status(out.path(), 1, no_word()));
}

}  // namespace
}  // namespace sluice
