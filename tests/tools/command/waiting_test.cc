// What is said while something takes long: nothing within a second, then a line in a file, then a line for
// each later text.
#include "tools/command/waiting.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace sluice {
namespace {

// What a Waiting prints within `time` and, if `later` is given, within as much time after that.
std::string said_within(std::chrono::milliseconds time, const std::string& later = "") {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* const file = open_memstream(&text, &bytes);
  {
    Waiting waiting(file, "planning");
    waiting.tell("planning 3 tasks");
    std::this_thread::sleep_for(time);
    if (!later.empty()) {
      waiting.tell(later);
      std::this_thread::sleep_for(time);
    }
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
  EXPECT_EQ(said_within(std::chrono::milliseconds(1500), "planning 4 tasks"),
            "sluice: planning 3 tasks.\nsluice: planning 4 tasks.\n");
}

}  // namespace
}  // namespace sluice
