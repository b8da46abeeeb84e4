// The main of every test program, which holds the tests of one folder of tests/.
//
// usage: PROGRAM [SOURCE] [--update] [googletest's options]
//   SOURCE     runs only the tests of this source, given as its path below tests/ without .cc, such as
//              engine/plan/golden_test. The tests in tests/support/NAME.h belong to every source NAME_test.
//              googletest's filter chooses among these tests.
//   --update   writes golden files anew instead of comparing with them (tests/support/golden.h)
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "tests/support/golden.h"
#include "tests/support/test_filter.h"

namespace sluice {
namespace {

bool belongs(std::string_view file, const std::string& source) {
  const std::string shared = "/support/" + source.substr(source.rfind('/') + 1);
  constexpr std::string_view kTest = "_test";
  return file.ends_with("/tests/" + source + ".cc") ||
         (shared.ends_with(kTest) && file.ends_with(shared.substr(0, shared.size() - kTest.size()) + ".h"));
}

// A googletest filter for those tests of `source` that the filter `chosen` chooses. Empty if there are none.
std::string filter_of(const std::string& source, const std::string& chosen) {
  std::string filter;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      const std::string name = std::string(suite.name()) + "." + test.name();
      if (test.file() && belongs(test.file(), source) && chooses(chosen, name))
        filter += (filter.empty() ? "" : ":") + name;
    }
  }
  return filter;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  // A sanitizer replaces glibc's allocator. Then glibc's allocator sets itself up in the first call that
  // still reaches it, which would be planning's malloc_trim. If two threads made that call at once, the
  // process would end.
  malloc_trim(0);
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--update") {
      sluice::updates_golden_files() = true;
      continue;
    }
    const std::string filter = sluice::filter_of(argv[i], testing::GTEST_FLAG(filter));
    if (filter.empty()) {
      std::fprintf(stderr, "This program has no tests of %s that the filter chooses.\n", argv[i]);
      return 2;
    }
    testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
