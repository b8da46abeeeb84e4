// The word on what takes long: none within a second, then one line in a file.
#include "tools/command/waiting.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace sluice {
namespace {

std::string said_within(std::chrono::milliseconds time) {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* const file = open_memstream(&text, &bytes);
  {
    Waiting waiting(file, "planning");
    waiting.add(" 3 tasks");
    std::this_thread::sleep_for(time);
  }
  std::fclose(file);
  const std::string said(text, bytes);
  std::free(text);
  return said;
}

TEST(Waiting, SaysSomethingAfterASecondOnly) {
  EXPECT_EQ(said_within(std::chrono::milliseconds(0)), "");
  EXPECT_EQ(said_within(std::chrono::milliseconds(2500)), "sluice: planning 3 tasks.\n");
}

}  // namespace
}  // namespace sluice
