// What strict JSON refuses, and lists that a reader takes entry by entry.
#include "engine/base/strict_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice {
namespace {

std::string failure(const std::string& text) {
  try {
    parse_strict_json(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(StrictJson, ValuesAreRead) {
  const std::string text = R"({"a": [1, -2, 3.5, "b", null, true, {}, []], "c": {"d": {"e": []}}})";
  EXPECT_EQ(parse_strict_json(text), nlohmann::json::parse(text));
  EXPECT_EQ(parse_strict_json(" 7 "), 7);
}

TEST(StrictJson, WhatIsWrongIsSaid) {
  EXPECT_EQ(failure(" \n"), "it is empty");
  EXPECT_EQ(failure("{\"a\": 1,"), "it ends in the middle of its JSON");
  EXPECT_EQ(failure("[1,\n2,\n}"), "line 3 is not valid JSON");
  EXPECT_EQ(failure(std::string("[1]\0", 4)), "line 1 is not valid JSON");
  EXPECT_EQ(failure("[1] 2"), "line 1 is not valid JSON");
  EXPECT_EQ(failure("[1e999]"), "it holds a number that is too large");
  EXPECT_EQ(failure(R"({"a": {"b\n": 1, "b\n": 2}})"), "\"b\\x0a\" is given twice");
  EXPECT_EQ(failure(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_EQ(failure(std::string(65, '[') + std::string(65, ']')), "it is nested too deeply");
}

// Each key is compared with few other keys. Comparing it with all keys would take a minute here.
TEST(StrictJson, ObjectsOfALineMayHaveManyKeys) {
  constexpr int kKeys = 200'000;
  std::string text = "{";
  for (int i = 0; i < kKeys; ++i) text += "\"key " + std::to_string(i) + "\": " + std::to_string(i) + ", ";
  const nlohmann::ordered_json object = parse_strict_json_line(text + "\"last\": [{}]}");
  EXPECT_EQ(object.size(), kKeys + 1u);
  int expected = 0;
  for (const auto& [key, value] : object.items())
    if (key != "last") {
      EXPECT_EQ(value, expected++) << "keys stay in their order";
    }
  for (const char* twice : {"key 0", "key 40", "key 199999"})
    EXPECT_THROW(parse_strict_json_line(text + '"' + twice + "\": 1}"), std::invalid_argument) << twice;
}

TEST(StrictJson, EntriesGoToTheirTaker) {
  std::vector<std::string> keys;
  std::vector<nlohmann::json> values;
  const auto take = [&](std::string&& key, nlohmann::json&& value) {
    keys.push_back(key);
    values.push_back(value);
  };
  const std::string text =
      R"({"list": [0], "m": {"list": [1, [2, 3]], "o": {"a": 4, "a": {"list": [5]}}, "z": 6}})";
  const auto result = parse_strict_json(text, {{"m.list", take}, {"m.o", take}});
  EXPECT_EQ(result, nlohmann::json::parse(R"({"list": [0], "m": {"list": [], "o": {}, "z": 6}})"));
  EXPECT_EQ(keys, (std::vector<std::string>{"", "", "a", "a"}));
  EXPECT_EQ(values, (std::vector<nlohmann::json>{1, {2, 3}, 4, {{"list", {5}}}}));
}

}  // namespace
}  // namespace sluice
