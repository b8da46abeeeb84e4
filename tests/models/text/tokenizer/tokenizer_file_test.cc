// tokenizer.json: what is not supported is refused by name, what is damaged is named, and nothing crashes.
#include "models/text/tokenizer/tokenizer_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "models/text/tokenizer/tokenizer.h"
#include "tests/models/text/tokenizer/small_tokenizer.h"
#include "tests/models/text/tokenizer/tokenizer_strings.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

using testing::added;
using testing::small_file;
using Json = nlohmann::json;

class TokenizerFile : public FormatTest {
 protected:
  void expect_refusal(const Json& file, const std::string& clause) const {
    expect_error(ExitCode::malformed_file, {clause},
                 [&] { read_tokenizer_file(write_file("tokenizer.json", file.dump())); });
  }
};

TEST_F(TokenizerFile, ComponentsThatAreNotSupportedAreNamed) {
  const struct {
    const char *key, *component, *clause;
  } cases[] = {
      {"normalizer", R"({"type": "NFKC"})",
       "tokenizer.json, normalizer: normalizer \"NFKC\" is not supported."},
      {"normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]})",
       "normalizer, normalizers: normalizer \"Lowercase\" is not supported."},
      {"normalizer", R"({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"})",
       "a pattern that is a regular expression is not supported."},
      {"normalizer", R"({"type": "Replace", "pattern": {"String": ""}, "content": "b"})",
       "an empty pattern is not supported."},
      {"pre_tokenizer", R"({"type": "BertPreTokenizer"})",
       "pre-tokenizer \"BertPreTokenizer\" is not supported."},
      {"pre_tokenizer", R"({"type": "Punctuation", "behavior": "Isolated"})",
       "pre-tokenizer \"Punctuation\""},
      {"decoder", R"({"type": "WordPiece"})", "decoder \"WordPiece\" is not supported."},
      {"post_processor", R"({"type": "BertProcessing"})",
       "post-processor \"BertProcessing\" is not supported."},
      {"model", R"({"type": "Unigram", "vocab": [["a", -1.5]], "unk_id": 0})",
       "model \"Unigram\" is not supported."},
      {"version", R"("2.0")", "version \"2.0\" is not supported."},
  };
  for (const auto& c : cases) {
    Json file = small_file();
    file[c.key] = Json::parse(c.component);
    expect_refusal(file, c.clause);
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    Json file = small_file();
    file["model"][key] = "";
    EXPECT_NO_THROW(read_tokenizer_file(write_file("tokenizer.json", file.dump())));
    file["model"][key] = "##";
    expect_refusal(file, std::string("tokenizer.json, model: ") + key + " is not supported.");
  }
  // Sequences of steps that could fill the memory or the stack are refused.
  const auto sequence = [](const char* list, const std::string& step, size_t count) {
    Json steps = {{"type", "Sequence"}, {list, Json::array()}};
    for (size_t i = 0; i < count; ++i) steps[list].push_back(Json::parse(step));
    return steps;
  };
  const std::string replace =
      R"({"type": "Replace", "pattern": {"String": "a"}, "content": ")" + std::string(60, 'a') + R"("})";
  const std::string bytes = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  const std::tuple<const char*, Json, size_t> sequences[] = {
      {"normalizer", sequence("normalizers", replace, 2), 100},
      {"pre_tokenizer", sequence("pretokenizers", bytes, 7), 100},
      {"decoder", sequence("decoders", replace, 2), 100},
      {"decoder", sequence("decoders", R"({"type": "Fuse"})", 65), 64},
      {"decoder", sequence("decoders", sequence("decoders", R"({"type": "Fuse"})", 9).dump(), 8), 64}};
  for (const auto& [key, steps, limit] : sequences) {
    Json file = small_file();
    file[key] = steps;
    expect_refusal(file, limit == 64 ? "decoder: a sequence of more than 64 steps is not supported."
                                     : ": what can make more than 100 bytes of one is not supported.");
  }
  Json file = small_file();
  file["pre_tokenizer"] = sequence("pretokenizers", bytes, 6);
  EXPECT_NO_THROW(read_tokenizer_file(write_file("tokenizer.json", file.dump())));
  file["model"]["dropout"] = 0.1;
  expect_refusal(file, "model: dropout is not supported.");
}

TEST_F(TokenizerFile, DamageIsNamed) {
  const struct {
    const char *pointer, *value, *clause;
  } cases[] = {
      {"/model/vocab/a", "1", "\"b\" is given twice, or has the id of another."},
      {"/model/vocab/a", "-1", "token \"a\" has no id from 0 to 16777215."},
      {"/model/vocab/a", "16777216", "token \"a\" has no id from 0 to 16777215."},
      {"/model/vocab", "null", "model: \"vocab\" is missing."},
      {"/model/merges", "\"a b\"", "model: \"merges\" is not a list."},
      {"/model/merges/0", "\"a b c\"", "merge 1 is not a pair of tokens."},
      {"/model/merges/1", "[\"a\"]", "merge 2 is not a pair of tokens."},
      {"/model/merges/0", "\"a x\"", "model: a merge needs token \"ax\", which the vocabulary lacks."},
      {"/model/ignore_merges", "1", "model: \"ignore_merges\" is neither true nor false."},
      {"/model", "null", "\"model\" is missing."},
      {"/normalizer", "[]", "normalizer: it is not an object."},
      {"/decoder", R"({"type": "Strip", "content": "ab", "start": 1, "stop": 0})",
       "decoder: \"content\" is not one character."},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Cut", "invert": false})",
       "pre_tokenizer: behavior \"Cut\" is unknown."},
      {"/pre_tokenizer",
       R"({"type": "Metaspace", "replacement": "_", "add_prefix_space": false, "prepend_scheme": "first"})",
       "add_prefix_space contradicts prepend_scheme."},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
           {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {}})",
       "post_processor: special_tokens lacks \"<s>\"."},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
           {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"ids": [99]}}})",
       "post_processor adds id 99, which no token has."},
  };
  for (const auto& c : cases) {
    Json file = small_file();
    file[Json::json_pointer(c.pointer)] = Json::parse(c.value);
    expect_refusal(file, c.clause);
  }
}

TEST_F(TokenizerFile, AddedTokensHaveTheirIds) {
  Json file = small_file();
  file["added_tokens"] = {added("<s>", 9, Json::object()), added("abc", 4, Json::object()),
                          added("<t>", 10, Json::object())};
  EXPECT_NO_THROW(read_tokenizer_file(write_file("tokenizer.json", file.dump())));
  file["added_tokens"][2]["id"] = 11;
  expect_refusal(file, "token \"<t>\" has id 11, but the next that is free is 10.");
  file["added_tokens"][2] = added("ab", 10, Json::object());
  expect_refusal(file, "token \"ab\" has id 10, but the model's is 3.");
  file["added_tokens"][2] = added("abc", 4, Json::object());
  expect_refusal(file, "added token \"abc\" is given twice.");
  file["added_tokens"][2] = added("", 10, Json::object());
  expect_refusal(file, "added token \"\" is empty.");
  file["added_tokens"][2] = {{"content", "<t>"}};
  expect_refusal(file, "\"id\" is missing.");
  file["normalizer"] = Json::parse(R"({"type": "Replace", "pattern": {"String": "x"}, "content": "a"})");
  file["added_tokens"][2] = added("<x>", 10, {{"normalized", true}});
  file["added_tokens"].push_back(added("<a>", 11, {{"normalized", true}}));
  expect_refusal(file, "added token \"<a>\" is the same as another when normalized.");
}

TEST_F(TokenizerFile, MissingFilesAreUsageErrors) {
  expect_error(ExitCode::usage, {"has neither tokenizer.json nor tokenizer.model."},
               [&] { Tokenizer::open(directory.string()); });
  expect_error(ExitCode::usage, {"tokenizer.json"}, [&] { Tokenizer::open(path("tokenizer.json")); });
  const std::string whole = small_file().dump();
  write_file("tokenizer.json", whole);
  EXPECT_EQ(Tokenizer::open(directory.string()).id_end(), 9u);
  write_file("tokenizer.json", whole.substr(0, whole.size() / 2));
  expect_error(ExitCode::malformed_file, {"tokenizer.json: it ends in the middle of its JSON."},
               [&] { Tokenizer::open(directory.string()); });
}

// A changed byte gives another tokenizer or an Error, and neither crashes.
TEST_F(TokenizerFile, ChangedBytesAreHarmless) {
  size_t opened = 0, refused = 0;
  testing::SplitMix random(1);
  const Json material = testing::read_tokenizer_fixture("strings.json");
  for (const char* name : {"flags.json", "metaspace.json", "deepseek.json", "llama2.json"}) {
    const std::string whole = testing::read_tokenizer_fixture(name).dump();
    for (int trial = 0; trial < 100; ++trial) {
      std::string text = whole;
      // Half of the changes are outside the vocabulary, which is most of the file.
      const size_t end = trial % 2 == 0 ? text.size() : text.find("\"model\"");
      text[random.below(end)] = static_cast<char>(random.below(128));
      try {
        const Tokenizer tokenizer = Tokenizer::open(write_file("tokenizer.json", text));
        const auto ids = Encoder(tokenizer).encode(testing::make_string(random.below(1000), material)).ids;
        tokenizer.decode(ids, false);
        ++opened;
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(opened, 20u);
  EXPECT_GT(refused, 20u);
}

}  // namespace
}  // namespace sluice
