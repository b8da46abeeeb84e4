// What --data names: files, folders, and weights behind them.
#include "models/files/data_source.h"

#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

using Strings = std::vector<std::string>;

class DataSourceTest : public FormatTest {
 protected:
  const std::string a = write_file("a.jsonl", "{}"), b = write_file("b.jsonl", "{}");
};

TEST_F(DataSourceTest, WithoutWeightsAllFilesAreOneSource) {
  std::filesystem::create_directories(directory / "folder");
  const std::string c = write_file("folder/c.txt", "c");
  const std::vector<DataSource> sources = sources_of({b, path("folder"), a});
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_EQ(sources[0].files, (Strings{b, c, a}));
  EXPECT_EQ(sources[0].weight, 0u);
  EXPECT_EQ(sources[0].path, "");
  EXPECT_FALSE(are_weighted(sources));
  EXPECT_EQ(files_of(sources), (Strings{b, c, a}));
}

TEST_F(DataSourceTest, WeightsAreSharesOfEach) {
  std::filesystem::create_directories(directory / "folder");
  const std::string c = write_file("folder/c.txt", "c"), d = write_file("folder/d.txt", "d");
  const std::vector<DataSource> sources = sources_of({a + "=0.7", path("folder") + "=3e-1", b + "=2"});
  ASSERT_EQ(sources.size(), 3u);
  EXPECT_TRUE(are_weighted(sources));
  EXPECT_EQ(sources[0].path, a);
  EXPECT_EQ(sources[1].path, path("folder"));
  EXPECT_EQ(sources[0].files, Strings{a});
  EXPECT_EQ(sources[1].files, (Strings{c, d}));
  EXPECT_EQ(files_of(sources), (Strings{a, c, d, b}));
  EXPECT_EQ(sources[0].weight, 7u);
  EXPECT_EQ(sources[1].weight, 3u);
  EXPECT_EQ(sources[2].weight, 20u);
  const std::vector<DataSource> thirds = sources_of({a + "=0.3333333333333333", b + "=0.6666666666666666"});
  EXPECT_EQ(thirds[0].weight, 333333u);
  EXPECT_EQ(thirds[1].weight, 666667u);
  EXPECT_EQ(sources_of({a + "=1e9", b + "=0.000001"})[0].weight, 1'000'000'000'000'000u);
}

TEST_F(DataSourceTest, AFileOfTheWholeNameIsThatFile) {
  const std::string file = write_file("x=0.5", "text");
  EXPECT_FALSE(has_weight(file));
  EXPECT_EQ(files_of(sources_of({file, a})), (Strings{file, a}));
  const std::vector<DataSource> weighted = sources_of({file + "=0.5", a + "=0.5"});
  EXPECT_EQ(weighted[0].path, file);
  EXPECT_EQ(weighted[0].weight, 1u);
  EXPECT_FALSE(has_weight(path("missing=file.jsonl")));  // a message names the whole as missing
  EXPECT_TRUE(has_weight(path("missing.jsonl=2")));
  EXPECT_EQ(sources_of({path("missing.jsonl=2")})[0].files, Strings{path("missing.jsonl")});
}

TEST_F(DataSourceTest, RefusesWhatIsNoWeight) {
  for (const char* weight :
       {"0", "-1", "nan", "inf", "-inf", "1e-7", "1.5e9", "1e400", "", "half", "+1", "1 "})
    expect_error(ExitCode::usage, {"` is no weight for ", "a.jsonl of --data."}, [&] {
      sources_of({a + "=" + weight, b + "=1"});
    });
}

TEST_F(DataSourceTest, RefusesWeightsOfSomeOnly) {
  expect_error(ExitCode::usage, {"--data gives ", "b.jsonl a weight, and ", "a.jsonl none."}, [&] {
    sources_of({a, b + "=1"});
  });
}

}  // namespace
}  // namespace sluice
