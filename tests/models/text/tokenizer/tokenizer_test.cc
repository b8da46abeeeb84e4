// Tokenizers on small files that are written here, with the rules that random strings seldom reach.
#include "models/text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "models/text/tokenizer/counted_pattern.h"
#include "models/text/tokenizer/pattern.h"
#include "models/text/unicode.h"
#include "tests/models/text/tokenizer/small_tokenizer.h"
#include "tests/models/text/tokenizer/tokenizer_strings.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

using testing::added;
using testing::small_file;
using Json = nlohmann::json;
using Ids = std::vector<uint32_t>;

class TokenizerTest : public FormatTest {
 protected:
  Tokenizer open(const Json& file) { return Tokenizer::open(write_file("tokenizer.json", file.dump())); }
  Ids ids(const Json& file, const std::string& text, const std::vector<ByteRange>& plain = {}) {
    const Tokenizer tokenizer = open(file);
    return Encoder(tokenizer).encode(text, plain).ids;
  }
};

TEST_F(TokenizerTest, BytesAreTheirOwnIds) {
  const Tokenizer bytes = Tokenizer::of_bytes();
  const std::string text = "a \n\xC3\xA9\xF0\x9F\x98\x80";
  const Encoding found = Encoder(bytes).encode(text);
  EXPECT_EQ(found.ids, (Ids{'a', ' ', '\n', 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80}));
  EXPECT_EQ(found.unknown_characters, 0u);
  EXPECT_EQ(bytes.decode(found.ids, true), text);
  EXPECT_EQ(bytes.id_end(), 256u);
  EXPECT_TRUE(bytes.prefix().empty() && bytes.suffix().empty());
  Ids all(256);
  for (uint32_t id = 0; id < 256; ++id) {
    all[id] = id;
    EXPECT_TRUE(bytes.content_of(id)) << id;
    EXPECT_FALSE(bytes.is_special(id)) << id;
  }
  EXPECT_TRUE(bytes.decode(all, true).starts_with(std::string("\0\1\2", 3)));
  TextStream stream(bytes, true);
  std::string told;
  for (const uint32_t byte : {0xC3, 0xA9, 0xF0}) told += stream.push(byte);
  EXPECT_EQ(told, "\xC3\xA9");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

TEST_F(TokenizerTest, MergesInTheOrderOfTheList) {
  EXPECT_EQ(ids(small_file(), "abc"), (Ids{4}));
  EXPECT_EQ(ids(small_file(), "aabbc"), (Ids{0, 3, 1, 2}));
  Json late = small_file();
  late["model"]["merges"] = Json::parse(R"(["ab c", "a b"])");
  EXPECT_EQ(ids(late, "abcab"), (Ids{4, 3}));
  EXPECT_EQ(ids(small_file(), ""), Ids{});
}

TEST_F(TokenizerTest, APieceThatIsATokenStaysWholeIfMergesAreIgnored) {
  Json file = small_file();
  file["model"]["merges"] = Json::array();
  EXPECT_EQ(ids(file, "abc"), (Ids{0, 1, 2}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(ids(file, "abc"), (Ids{4}));
}

TEST_F(TokenizerTest, CharactersWithoutAnIdAreLeftOutUnknownOrBytes) {
  Json file = small_file();
  EXPECT_EQ(ids(file, "axb"), (Ids{3}));  // a and b meet
  file["model"]["unk_token"] = "<";
  EXPECT_EQ(ids(file, "axxb"), (Ids{0, 7, 7, 1}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(ids(file, "axxb"), (Ids{0, 7, 1}));
  file["model"]["byte_fallback"] = true;
  file["model"]["vocab"]["<0x78>"] = 9;
  EXPECT_EQ(ids(file, "axb"), (Ids{0, 9, 1}));
  file["model"]["vocab"]["<0xC3>"] = 10;  // one of the two bytes of e with acute
  EXPECT_EQ(ids(file, "aéb"), (Ids{0, 7, 1}));
  file["model"]["unk_token"] = "absent";
  const Tokenizer tokenizer = open(file);
  EXPECT_EQ(Encoder(tokenizer).encode("ab").ids, (Ids{3}));
  EXPECT_THROW(Encoder(tokenizer).encode("é"), Error);
}

TEST_F(TokenizerTest, ALongPieceIsThatOfItsParts) {
  // The whole text is one piece. The first text has characters that no merge joins, the second has none.
  Ids expected;
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text += "abcb a";
    expected.insert(expected.end(), {4, 1, 5});
    if (i < 999) text += "<", expected.insert(expected.end(), {0, 7});
  }
  expected.push_back(0);
  EXPECT_EQ(ids(small_file(), text), expected);
  Json same = small_file();
  same["model"]["vocab"]["aa"] = 9;
  same["model"]["merges"].push_back("a a");
  EXPECT_EQ(ids(same, std::string(100'000, 'a')), Ids(50'000, 9));
}

TEST_F(TokenizerTest, ControlTokensOfPlainTextAreText) {
  Json file = small_file();
  file["added_tokens"] = {added("<a>", 9, {{"special", true}}), added("<b>", 10, Json::object()),
                          added("<a>b", 11, {{"special", true}}), added("c<", 12, {{"special", true}})};
  EXPECT_EQ(ids(file, "<a><b>"), (Ids{9, 10}));
  EXPECT_EQ(ids(file, "<a><b>", {{0, 6}}), (Ids{7, 0, 8, 10}));
  EXPECT_EQ(ids(file, "<a><a>", {{3, 6}}), (Ids{9, 7, 0, 8}));
  // A token that lies partly in a user's text and partly outside is not recognized.
  EXPECT_EQ(ids(file, "<a>", {{2, 3}}), (Ids{7, 0, 8}));
  EXPECT_EQ(ids(file, "<a>", {{0, 1}}), (Ids{7, 0, 8}));
  // A control token is recognized if a user's text stands before or behind it, even if a longer one would
  // span both.
  EXPECT_EQ(ids(file, "<a>b", {{3, 4}}), (Ids{9, 1}));
  EXPECT_EQ(ids(file, "c<a>", {{0, 1}}), (Ids{2, 9}));
  EXPECT_EQ(ids(file, "c<a>"), (Ids{12, 0, 8}));
  // The rule holds for tokens that are looked for after the text is normalized, too.
  file["normalizer"] = {{"type", "Prepend"}, {"prepend", "a"}};
  for (Json& token : file["added_tokens"]) token["normalized"] = true;
  EXPECT_EQ(ids(file, "c<b>", {{0, 4}}), (Ids{0, 2, 7, 1, 8}));
}

TEST_F(TokenizerTest, ControlTokensThatPlainTextSpellsAreCounted) {
  Json file = small_file();
  file["added_tokens"] = {added("<a>", 9, {{"special", true}}), added("<b>", 10, Json::object()),
                          added("<c>", 11, {{"special", true}, {"normalized", true}})};
  const auto spelled = [&](const std::string& text, const std::vector<ByteRange>& plain) {
    const Tokenizer tokenizer = open(file);
    return Encoder(tokenizer).encode(text, plain).spelled_controls;
  };
  EXPECT_EQ(spelled("<a><b><c><a>", {}), 0u);
  EXPECT_EQ(spelled("<a><b><c><a>", {{0, 12}}), 3u);
  EXPECT_EQ(spelled("<a><b><c><a>", {{0, 9}}), 2u);
  EXPECT_EQ(spelled("<a><b><c><a>", {{2, 11}}),
            1u);  // what the border of plain text cuts is not spelled by it
  EXPECT_EQ(spelled("<b><b", {{0, 5}}), 0u);
}

// Each text begins as the one before it, whose tokens are reused. The ids are those that the text has alone.
TEST_F(TokenizerTest, TextsThatBeginAlikeHaveTheTokensThatTheyHaveAlone) {
  const std::vector<std::string> material{
      "<a>", "<b>", "<a>b", "c<", "<",        "a>",           ">", "a", "b", "c", "abc",
      " ",   "  ",  "\n",   "é",  "\xCC\x81", "\xE2\x96\x81", "y"};  // which has no token
  Json file = small_file();
  uint32_t id = 9;
  for (const char* character : {"é", "\n", "e", "\xCC\x81"}) file["model"]["vocab"][character] = id++;
  std::mt19937 random(3);
  const auto flags = [&](bool special) {
    Json all{{"special", special}};
    for (const char* flag : {"lstrip", "rstrip", "single_word", "normalized"}) all[flag] = random() % 4 == 0;
    return all;
  };
  size_t shared = 0, left_out = 0;
  for (int round = 0; round < 60; ++round) {
    file["added_tokens"] = {added("<a>", 13, round < 10 ? Json{{"special", true}} : flags(true)),
                            added("<b>", 14, flags(false)), added("<a>b", 15, flags(true)),
                            added("c<", 16, flags(true))};
    file["normalizer"] = round % 3 == 0   ? Json{{"type", "Prepend"}, {"prepend", "a"}}
                         : round % 3 == 1 ? Json{{"type", "NFC"}}
                                          : Json();
    file["pre_tokenizer"] =
        round % 2 == 0
            ? Json()
            : Json{{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", "first"}};
    const Tokenizer tokenizer = open(file);
    Encoder encoder(tokenizer);
    EncodedText last;
    std::vector<std::string> parts;
    std::vector<bool> are_plain;
    for (int step = 0; step < 60; ++step) {
      const size_t kept = parts.size() - std::min<size_t>(parts.size(), random() % 6);
      parts.resize(kept), are_plain.resize(kept);
      if (kept > 0 && random() % 8 == 0) are_plain[random() % kept].flip();
      for (uint32_t more = random() % 12; more > 0; --more) {
        parts.push_back(material[random() % material.size()]);
        are_plain.push_back(random() % 2);
      }
      std::string text;
      std::vector<ByteRange> plain;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (are_plain[i] && !plain.empty() && plain.back().end == text.size())
          plain.back().end += parts[i].size();
        else if (are_plain[i])
          plain.push_back({text.size(), text.size() + parts[i].size()});
        text += parts[i];
      }
      shared += last.borders.size();
      encoder.encode_next(text, plain, last);
      const Encoding alone = Encoder(tokenizer).encode(text, plain);
      ASSERT_EQ(last.encoding.ids, alone.ids) << text;
      ASSERT_EQ(last.encoding.begins, alone.begins) << text;
      ASSERT_EQ(last.encoding.left_out, alone.left_out) << text;
      left_out += alone.left_out.size();
      ASSERT_EQ(last.encoding.spelled_controls, alone.spelled_controls) << text;
      ASSERT_EQ(last.encoding.unknown_characters, alone.unknown_characters) << text;
    }
  }
  EXPECT_GT(shared, 1000u);
  EXPECT_GT(left_out, 1000u);
}

TEST_F(TokenizerTest, CharactersThatPatternsDoNotKnowAreCounted) {
  const auto unknown = [](const char* tokenizer, const std::string& text) {
    const Tokenizer opened = Tokenizer::open(std::string("tests/fixtures/tokenizers/") + tokenizer);
    return Encoder(opened).encode(text).unknown_characters;
  };
  // No Unicode version assigns U+FFFE and U+1FFFE, every one has U+E000, for private use.
  const std::string text = "a \uFFFEb\U0001FFFE\U0001FFFE \uE000\u00E9\u4E2D\U0001F600";
  for (const char* with_patterns : {"qwen2.json", "gpt2.json", "llama3.json", "smollm2.json"})
    EXPECT_EQ(unknown(with_patterns, text), 3u) << with_patterns;
  for (const char* without : {"llama2.json", "gemma.json", "mistral.json"})
    EXPECT_EQ(unknown(without, text), 0u) << without;
}

// Of 1,114,112 code points, Unicode 14 assigns 144,762, keeps 137,468 for private use and 2,048 as
// surrogates.
TEST_F(TokenizerTest, WhatIsNotAssignedDependsOnTheUnicodeVersion) {
  std::string all;
  for (char32_t c = 0; c <= 0x10FFFF; ++c)
    if (c < 0xD800 || c > 0xDFFF) append_code_point(all, c);
  const size_t unassigned = count_unassigned(all);
  EXPECT_LE(unassigned, 829'834u);  // of version 14; later ones have fewer
  EXPECT_GE(unassigned, 800'000u);
}

TEST_F(TokenizerTest, AddedTokensTakeWhiteSpaceAndWantBorders) {
  Json file = small_file();
  file["added_tokens"] = {added("<a>", 9, {{"lstrip", true}, {"rstrip", true}}),
                          added("b", 1, {{"single_word", true}})};
  const Tokenizer tokenizer = open(file);
  const Encoding encoding = Encoder(tokenizer).encode("a \u3000<a>\n b c");
  EXPECT_EQ(encoding.ids, (Ids{0, 9, 1, 5, 2}));
  EXPECT_EQ(encoding.begins, (std::vector<size_t>{0, 1, 10, 11, 12}));
  EXPECT_EQ(Encoder(tokenizer).encode("ab b").ids, (Ids{3, 5, 1}));
}

TEST_F(TokenizerTest, WhiteSpaceIsTakenOnce) {
  const auto encode = [&](const Json& file, const std::string& text) {
    const Tokenizer tokenizer = open(file);
    const Encoding encoding = Encoder(tokenizer).encode(text);
    EXPECT_EQ(encoding.ids.size(), encoding.begins.size());
    return std::pair(encoding.ids, encoding.begins);
  };
  using Begins = std::vector<size_t>;
  for (const bool normalized : {false, true}) {
    Json file = small_file();
    // "<" takes the white space behind it, so the tab in there is no token.
    file["added_tokens"] = {added("<", 7, {{"rstrip", true}, {"normalized", normalized}}),
                            added("\t", 9, {{"lstrip", true}, {"normalized", normalized}})};
    EXPECT_EQ(encode(file, "< \t  b"), std::pair(Ids({7, 1}), Begins({0, 5})));
    EXPECT_EQ(encode(file, "b \t< \t"), std::pair(Ids({1, 9, 7}), Begins({0, 1, 3})));
    // Blanks that are tokens stay tokens, as in Hugging Face tokenizers.
    file["added_tokens"] = {added(" ", 5, {{"rstrip", true}, {"normalized", normalized}})};
    EXPECT_EQ(encode(file, "   b"), std::pair(Ids({5, 5, 5, 1}), Begins({0, 1, 2, 3})));
  }
}

TEST_F(TokenizerTest, BeginsAreThoseOfTheInput) {
  Json file = small_file();
  file["normalizer"] =
      Json::parse(R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, {"type": "NFC"}]})");
  file["model"]["vocab"]["é"] = 9;
  const Tokenizer tokenizer = open(file);
  const Encoding encoding = Encoder(tokenizer).encode("ae\u0301 é");
  EXPECT_EQ(encoding.ids, (Ids{6, 0, 9, 6, 9}));
  EXPECT_EQ(encoding.begins, (std::vector<size_t>{0, 0, 1, 4, 5}));
}

TEST_F(TokenizerTest, TokensAreFoundByContentAndId) {
  Json file = small_file();
  file["added_tokens"] = {added("<s>", 9, {{"special", true}}), added("<t>", 10, Json::object())};
  const Json special = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json tokens = {{"<s>", {{"id", "<s>"}, {"ids", {9}}, {"tokens", {"<s>"}}}}};
  file["post_processor"] = {{"type", "Sequence"},
                            {"processors",
                             {{{"type", "ByteLevel"}},
                              {{"type", "TemplateProcessing"},
                               {"special_tokens", tokens},
                               {"single", {special, text, special, special}}}}}};
  const Tokenizer tokenizer = open(file);
  EXPECT_EQ(tokenizer.id_end(), 11u);
  EXPECT_EQ(tokenizer.id_of("<s>"), 9u);
  EXPECT_EQ(tokenizer.id_of("abc"), 4u);
  EXPECT_EQ(tokenizer.id_of("x"), std::nullopt);
  EXPECT_EQ(tokenizer.content_of(10), "<t>");
  EXPECT_EQ(tokenizer.content_of(3), "ab");
  EXPECT_EQ(tokenizer.content_of(11), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(9));
  EXPECT_FALSE(tokenizer.is_special(10));
  EXPECT_FALSE(tokenizer.is_special(0));
  EXPECT_EQ(tokenizer.prefix(), (Ids{9}));
  EXPECT_EQ(tokenizer.suffix(), (Ids{9, 9}));
  EXPECT_EQ(tokenizer.decode(Ids{9, 4, 10, 77}, false), "<s>abc<t>");
  EXPECT_EQ(tokenizer.decode(Ids{9, 4, 10, 77}, true), "abc<t>");
}

TEST_F(TokenizerTest, TextComesWhenItIsCertain) {
  Json file = small_file();
  file["model"]["vocab"].update({{"<0xC3>", 9}, {"<0xA9>", 10}});
  file["decoder"] = Json::parse(R"({"type": "Sequence", "decoders": [{"type": "Replace",
    "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  const Tokenizer tokenizer = open(file);
  TextStream stream(tokenizer, false);
  EXPECT_EQ(stream.push(6), "");
  EXPECT_EQ(stream.push(4), "abc");
  EXPECT_EQ(stream.push(6), " ");
  EXPECT_EQ(stream.push(9), "");
  EXPECT_EQ(stream.push(10), "");
  EXPECT_EQ(stream.push(0), "éa");
  EXPECT_EQ(stream.push(9), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST_F(TokenizerTest, BytesThatAreNoCharacterBecomeReplacements) {
  const Tokenizer tokenizer = Tokenizer::open(testing::kTokenizerFixtures + std::string("gpt2.json"));
  const auto bytes = [&](std::initializer_list<const char*> characters) {
    Ids all;
    for (const char* character : characters) all.push_back(*tokenizer.id_of(character));
    return tokenizer.decode(all, false);
  };
  EXPECT_EQ(bytes({"Ã", "©"}), "é");                        // 0xC3 0xA9
  EXPECT_EQ(bytes({"Ã", "a"}), "\uFFFDa");                  // the first of two bytes, alone
  EXPECT_EQ(bytes({"ð", "Ł", "ĺ"}), "\uFFFD");              // F0 9F 98: three of four bytes are one
  EXPECT_EQ(bytes({"í", "ł", "Ģ"}), "\uFFFD\uFFFD\uFFFD");  // ED A0 80: a surrogate
}

TEST_F(TokenizerTest, HostilePatternsEndInAnError) {
  Json file = small_file();
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(?:a|aa)+[b-z]"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const Tokenizer tokenizer = open(file);
  EXPECT_THROW(Encoder(tokenizer).encode(std::string(5000, 'a')), Error);
  // A limit holds for a whole text: it allows the pattern's steps at one place, but not at a hundred.
  file["pre_tokenizer"]["pattern"]["Regex"] = "(?:a|aa)+$|.";
  const Tokenizer slow = open(file);
  const std::string part = std::string(28, 'a') + 'b';
  std::string parts;
  for (int i = 0; i < 100; ++i) parts += part;
  Encoder encoder(slow);
  EXPECT_NO_THROW(encoder.encode(part));
  EXPECT_THROW(encoder.encode(parts), Error);
  EXPECT_NO_THROW(encoder.encode(part)) << "the limits are renewed for each text";
  // This pattern's matches overlap.
  file["pre_tokenizer"]["pattern"]["Regex"] = R"(ab|(?<=\Kab)b)";
  const Tokenizer odd = open(file);
  expect_error(ExitCode::malformed_file, {"cannot be matched: a match begins inside of the one before it."},
               [&] { Encoder(odd).encode("abb"); });
  file["pre_tokenizer"]["pattern"]["Regex"] = "(";
  expect_error(ExitCode::malformed_file, {"The tokenizer's pattern \"(\" cannot be used: "},
               [&] { open(file); });
}

// These loops never backtrack: Oniguruma makes the first one possessive, the second is an atomic group.
TEST_F(TokenizerTest, QuadraticPatternsAreBoundedOnLongWords) {
  Json file = small_file();
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "[a-z]+1"}}}, {"behavior", "Isolated"}, {"invert", false}};
  for (const char* pattern : {"[a-z]+1", "(?>[a-z]+)1"}) {
    file["pre_tokenizer"]["pattern"]["Regex"] = pattern;
    const Tokenizer tokenizer = open(file);
    Encoder encoder(tokenizer);
    EXPECT_EQ(encoder.encode("ab1ab").ids.size(), 2u);
    expect_error(ExitCode::malformed_file,
                 {std::string("pattern \"") + pattern +
                  "\" cannot be matched: it takes more than 45120512 steps for a text of 20002 bytes."},
                 [&] { encoder.encode(std::string(20000, 'a') + " 1"); });
  }
}

TEST(CountedPattern, CalloutsStandBehindLoopsAndInsideOfAtomicOnes) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(\p{L}+|\s+(?!\S)|[^a\]]{1,3}b)", R"(\p{L}+|\s+(?{n})(?!\S)|[^a\]]{1,3}(?{n})b)"},
      {"a?b*?1", "a?b*?(?{n})1"},
      {"a++b", "(?:(?{n})a)++(?{n})b"},
      {"(?>a+|b)1", "(?>(?:(?{n})a)+(?{n})|b)1"},
      {"(a+)++", "(?:(?{n})((?:(?{n})a)+(?{n})))++"},
      {"(?=a*)(?<=é?)(?<x>a+)", "(?=(?:(?{n})a)*(?{n}))(?<=(?:(?{n})é)?)(?<x>a+(?{n}))"},
      {R"((?>\x{61}+\041*[[:alpha:]a]+{1))",
       R"((?>(?:(?{n})\x{61})+(?{n})(?:(?{n})\041)*(?{n})(?:(?{n})[[:alpha:]a])+(?{n}){1))"},
      {"(?i)a+|(?i:b)+1", "(?i)a+|(?i:b)+(?{n})1"},
      {"a+)", "a+(?{n}))"},
      {"(a", "(a"},
  };
  for (const auto& [source, counted] : cases) EXPECT_EQ(counted_pattern(source), counted);
  const std::pair<const char*, const char*> refused[] = {
      {R"((a)\1)", "back-references"},
      {R"((?<n>a)\k<n>)", "back-references"},
      {R"((?<n>a)\g<n>)", "calls of groups"},
      {R"(\X+)", "text segments"},
      {"(?{x})", "callouts"},
      {"(*FAIL)", "callouts"},
      {"(?(a)b)", "conditions"},
      {"(?~a)", "absent groups"},
      {"(?i-x:a)", "extended syntax, (?x)"},
      {R"(\x{61 62}+)", "several characters in one escape"},
      {"[[:a]", "a class that begins with [:"},
  };
  for (const auto& [source, what] : refused)
    EXPECT_THROW(
        {
          try {
            counted_pattern(source);
          } catch (const std::invalid_argument& error) {
            EXPECT_STREQ(error.what(), what) << source;
            throw;
          }
        },
        std::invalid_argument)
        << source;
  std::string nested;
  for (int i = 0; i < 300; ++i) nested += '(';
  EXPECT_THROW(counted_pattern(nested), std::invalid_argument);
}

TEST_F(TokenizerTest, TextThatIsNotUtf8IsRefused) {
  const Tokenizer tokenizer = open(small_file());
  expect_error(ExitCode::malformed_file, {"A text to be tokenized is not UTF-8 at its byte 2."},
               [&] { Encoder(tokenizer).encode("ab\xFF"); });
}

TEST_F(TokenizerTest, SeveralThreadsMayUseOne) {
  const Tokenizer tokenizer = Tokenizer::open(testing::kTokenizerFixtures + std::string("qwen2.json"));
  const Json material = testing::read_tokenizer_fixture("strings.json");
  const auto encode_all = [&](std::vector<Ids>& all) {
    Encoder encoder(tokenizer);
    for (uint64_t seed = 0; seed < 300; ++seed)
      all.push_back(encoder.encode(testing::make_string(seed, material)).ids);
  };
  std::vector<Ids> first, second;
  std::thread other(encode_all, std::ref(first));
  encode_all(second);
  other.join();
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace sluice
