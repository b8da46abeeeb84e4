// The word on what takes long: none within a second, then a line in a file, and one more for more.
#include "tools/command/waiting.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace sluice {
namespace {

// Clauses come at the begin, and after so much time.
std::string said_within(std::chrono::milliseconds time, const std::string& later = "") {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* const file = open_memstream(&text, &bytes);
  {
    Waiting waiting(file, "planning");
    waiting.add(" 3 tasks");
    std::this_thread::sleep_for(time);
    waiting.add(later);
    if (!later.empty()) std::this_thread::sleep_for(time);
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

TEST(Waiting, WhatIsKnownLaterIsSaidLater) {
  EXPECT_EQ(said_within(std::chrono::milliseconds(1500), "; 4 MiB"),
            "sluice: planning 3 tasks.\nsluice: planning 3 tasks; 4 MiB.\n");
}

}  // namespace
}  // namespace sluice
