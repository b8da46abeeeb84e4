// Files of records.
#include "models/text/records/record_file.h"

#include <random>

#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

class RecordFileTest : public FormatTest {
 protected:
  // Reads the stretches between neighbouring `cuts`. Returns the records that begin in them.
  std::vector<std::string> records(const RecordFile& file, const std::vector<uint64_t>& cuts) const {
    std::vector<std::string> all;
    for (size_t i = 0; i + 1 < cuts.size(); ++i)
      file.read(cuts[i], cuts[i + 1], [&](const std::string& record, uint64_t begin) {
        EXPECT_GE(begin, cuts[i]);
        EXPECT_LT(begin, cuts[i + 1]);
        all.push_back(record);
        return true;
      });
    return all;
  }
};

TEST_F(RecordFileTest, AnyDivisionGivesEveryRecordOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> lines;
    std::string text;
    const bool last_ends = random() % 2;
    for (uint32_t i = 0, n = 1 + random() % 8; i < n; ++i) {
      lines.emplace_back(random() % 5 == 0 ? 70'000 + random() % 9 : 1 + random() % 7, 'a' + i % 26);
      text += lines.back() + (i + 1 < n || last_ends ? "\n" : "");
    }
    const RecordFile file(write_file("a.jsonl", text), Division::lines);
    std::vector<uint64_t> cuts = {0, text.size()};
    for (int c = 0; c < 3; ++c) cuts.push_back(random() % (text.size() + 1));
    std::sort(cuts.begin(), cuts.end());
    ASSERT_EQ(records(file, cuts), lines) << round;
  }
}

TEST_F(RecordFileTest, Separators) {
  const RecordFile file(write_file("a.txt", "one<|end|>two\nlines<|end|>three"), Division::separator,
                        "<|end|>");
  const std::vector<std::string> all = {"one", "two\nlines", "three"};
  for (uint64_t cut = 0; cut <= file.bytes(); ++cut)
    EXPECT_EQ(records(file, {0, cut, file.bytes()}), all) << cut;
}

TEST_F(RecordFileTest, TextsAreDividedAtLines) {
  std::string text;
  while (text.size() < 3 * kTextBytes) text += "a line of some length\n";
  const RecordFile file(write_file("a.txt", text), Division::stretches);
  const std::vector<std::string> all = records(file, {0, 777, kTextBytes, file.bytes()});
  ASSERT_EQ(all.size(), 3u);
  std::string joined;
  for (const std::string& part : all) {
    EXPECT_TRUE(part.starts_with("a line") && part.ends_with("length\n"));
    joined += part;
  }
  EXPECT_EQ(joined, text);
}

// A cut may also lie between a multiple of kTextBytes and the line that begins after that multiple.
TEST_F(RecordFileTest, AnyDivisionOfATextGivesAllOfIt) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    std::string text;
    while (text.size() < 4 * kTextBytes)
      text += std::string(1 + random() % (round % 2 ? kTextBytes / 3 : 2 * kTextBytes), 'a') + "\n";
    const RecordFile file(write_file("a.txt", text), Division::stretches);
    const std::vector<std::string> whole = records(file, {0, file.bytes()});
    std::string joined;
    for (const std::string& record : whole) joined += record;
    ASSERT_TRUE(joined == text) << round;
    for (int c = 0; c < 10; ++c) {
      const uint64_t cut = random() % (text.size() + 1);
      ASSERT_TRUE(records(file, {0, cut, file.bytes()}) == whole) << round << ", cut at " << cut;
    }
  }
}

TEST_F(RecordFileTest, ListsAreDividedIntoTheirElements) {
  const std::string text =
      "\xef\xbb\xbf [\n {\"a\": \"],[\\\"\\\\\"},\n\n\t{\"b\":\n [1, {\"c\": []}] } , 7,\"x\"]\r\n";
  const std::vector<std::string> all = {R"({"a": "],[\"\\"})", "{\"b\":\n [1, {\"c\": []}] }", "7", "\"x\""};
  const std::string path = write_file("a.json", text);
  ASSERT_EQ(division_of_json(path), Division::elements);
  const RecordFile file(path, Division::elements);
  for (uint64_t cut = 0; cut <= file.bytes(); ++cut)
    EXPECT_EQ(records(file, {0, cut, file.bytes()}), all) << cut;
  EXPECT_TRUE(file.place(text.find("{\"b")).ends_with("a.json, the element from line 4 on"));
  // The elements are longer than what is read at once.
  const std::string longer = "{\"a\":\"" + std::string(300'000, ',') + "\"}";
  const RecordFile two(write_file("b.json", "[" + longer + "," + longer + "]"), Division::elements);
  EXPECT_EQ(records(two, {0, two.bytes()}), (std::vector<std::string>{longer, longer}));
  for (const char* empty : {"[]", " [ ]\n"})
    EXPECT_TRUE(records(RecordFile(write_file("c.json", empty), Division::elements), {0, 10}).empty());
  EXPECT_EQ(division_of_json(write_file("d.jsonl", "\n{\"text\": \"[\"}\n")), Division::lines);
}

TEST_F(RecordFileTest, ListsThatAreNoneAreRefused) {
  const std::vector<std::pair<const char*, const char*>> faults = {
      {"[1,\n2", "line 2: the list that the file begins with does not end"},
      {"[{\"a\": [1}]", "line 1: the list that the file begins with does not end"},
      {"[1]\n2", "line 2: text stands outside of the list"},
      {"[1,]", "line 1: a comma has no element beside it"},
      {"[1,\n,2]", "line 2: a comma has no element beside it"}};
  for (const auto& [text, words] : faults) {
    const RecordFile file(write_file("a.json", text), Division::elements);
    try {
      records(file, {0, 2, file.bytes()});
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::malformed_file);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
}

TEST_F(RecordFileTest, AnObjectOfSeveralLinesIsKnown) {
  EXPECT_TRUE(is_divided_object(write_file("a.json", "\xef\xbb\xbf{ \r\n \"text\": \"a\"}\n")));
  for (const char* lines : {"{\"text\":\n\"a\"}", "{", "[\n{\n", "", "\n"})
    EXPECT_FALSE(is_divided_object(write_file("b.json", lines))) << lines;
}

TEST_F(RecordFileTest, ARecordThatIsTooLongNamesTheMemoryThatSuffices) {
  const std::string path = write_file("a.jsonl", "{}\n" + std::string(1 << 20, ' ') + "\n");
  const auto refused = [&](const RecordLimit& limit, const std::string& remedy) {
    const RecordFile file(path, Division::lines, "", limit);
    try {
      file.read(0, file.bytes(), [](const std::string&, uint64_t) { return true; });
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::infeasible);
      EXPECT_EQ(error.what(),
                path + ", line 2: a record has 1.00 MiB, and there is memory for one of 1.00 KiB.");
      EXPECT_EQ(error.remedy(), remedy);
    }
  };
  refused({.longest = 1 << 10, .memory_a_byte = 80, .memory_beside = 20 << 20},
          "Give --host-mem 104MiB, or divide the record.");
  refused({.longest = 1 << 10}, "Divide it.");
}

TEST_F(RecordFileTest, PlacesAreLines) {
  const RecordFile file(write_file("a.jsonl", "x\r\nyy\n\nz"), Division::lines);
  std::vector<std::string> lines, places;
  file.read(0, file.bytes(), [&](const std::string& line, uint64_t begin) {
    lines.push_back(line);
    places.push_back(file.place(begin));
    return true;
  });
  EXPECT_EQ(lines, (std::vector<std::string>{"x", "yy", "", "z"}));
  EXPECT_TRUE(places.back().ends_with("a.jsonl, line 4")) << places.back();
}

}  // namespace
}  // namespace sluice
