// Libraries opened at run time: functions that are found can be called, and missing ones are named.
#include "engine/base/shared_library.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(SharedLibrary, FunctionsThatAreFoundStayAfterIt) {
  double (*root)(double) = nullptr;
  {
    SharedLibrary library("libm.so.6");
    ASSERT_TRUE(library.is_open()) << library.failure();
    library.find(root, "sqrt");
    EXPECT_EQ(library.failure(), "");
    library.keep_open();
  }
  ASSERT_NE(root, nullptr);
  EXPECT_EQ(root(49.0), 7.0);
}

TEST(SharedLibrary, TheFirstThatIsMissingIsNamed) {
  SharedLibrary library("libm.so.6");
  void (*none)() = nullptr;
  double (*root)(double) = nullptr;
  library.find(none, "no_such_function");
  library.find(none, "nor_this");
  library.find(root, "sqrt");
  EXPECT_EQ(none, nullptr);
  EXPECT_NE(root, nullptr);
  EXPECT_EQ(library.failure(), "libm.so.6 has no no_such_function");
}

TEST(SharedLibrary, AMissingLibraryIsNamed) {
  SharedLibrary library("libno_such_library.so.1");
  EXPECT_FALSE(library.is_open());
  const std::string failure = library.failure();
  EXPECT_NE(failure.find("libno_such_library.so.1"), std::string::npos) << failure;
  void (*none)() = nullptr;
  library.find(none, "anything");
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(library.failure(), failure);
}

}  // namespace
}  // namespace sluice
