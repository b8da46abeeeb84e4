// What a tokenizer adds to a text if a tokenizer_config.json stands beside its tokenizer.json. As in
// transformers (tools/fixtures/tokenizer_settings.py), the post_processor decides, whatever add_bos_token and
// add_eos_token are.
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/text/samples/sample_maker.h"
#include "models/text/tokenizer/added_tokens.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

class TokenizerSettings : public FormatTest {
 protected:
  TextModel model(const std::string& tokenizer, const Json& config) const {
    std::filesystem::copy_file("tests/fixtures/tokenizers/" + tokenizer + ".json", path("tokenizer.json"),
                               std::filesystem::copy_options::overwrite_existing);
    write_file("tokenizer_config.json", config.dump());
    return open_text_model(directory.string(), "");
  }
};

TEST_F(TokenizerSettings, ThePostProcessorSaysWhatIsAdded) {
  std::ifstream file("tests/fixtures/tokenizer_settings.json");
  const Json cases = Json::parse(file);
  ASSERT_EQ(cases.size(), 108u);
  size_t added = 0;
  for (const Json& c : cases) {
    SCOPED_TRACE(c.dump());
    const TextModel text = model(c["tokenizer"], c["config"]);
    EXPECT_EQ(text.tokenizer.prefix(), c["around"][0].get<std::vector<uint32_t>>());
    EXPECT_EQ(text.tokenizer.suffix(), c["around"][1].get<std::vector<uint32_t>>());
    added += !text.tokenizer.prefix().empty();
  }
  EXPECT_EQ(added, 72u);
}

TEST_F(TokenizerSettings, NothingIsAddedToWhatATemplateRenders) {
  const Json config = {{"bos_token", "<bos>"},
                       {"eos_token", "<eos>"},
                       {"add_bos_token", true},
                       {"add_eos_token", true},
                       {"chat_template",
                        "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}"
                        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"}};
  const TextModel text = model("gemma", config);
  ASSERT_FALSE(text.tokenizer.prefix().empty() || text.tokenizer.suffix().empty());
  const Json messages = Json::parse(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])");
  SampleMaker maker(text, {});
  const Sample sample =
      maker.make(Conversation{std::make_shared<const Json>(messages), nullptr, {false, true}})[0];
  EXPECT_EQ(sample.ids, Encoder(text.tokenizer).encode("user:aassistant:b").ids);
}

// Added tokens, with their flags and names, if other files beside the tokenizer's own change them. The
// results are those of transformers (tools/fixtures/added_tokens.py).
class AddedTokensBesideIt : public FormatTest {
 protected:
  Tokenizer open(const Json& c) const {
    for (const char* name : {"special_tokens_map.json", "added_tokens.json", "tokenizer_config.json"}) {
      std::filesystem::remove(path(name));
      if (c["files"].contains(name)) write_file(name, c["files"][name].dump());
    }
    if (c.contains("pieces")) {
      std::filesystem::remove(path("tokenizer.json"));
      std::string bytes;
      const std::string hex = c["pieces"];
      for (size_t i = 0; i < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
      write_file("tokenizer.model", bytes);
    } else {
      std::ifstream file("tests/fixtures/tokenizers/qwen2.json");
      Json tokenizer = Json::parse(file);
      tokenizer["added_tokens"] = c["added_tokens"];
      write_file("tokenizer.json", tokenizer.dump());
    }
    return Tokenizer::open(directory.string());
  }
};

TEST_F(AddedTokensBesideIt, AreThoseOfTransformers) {
  std::ifstream file("tests/fixtures/added_tokens.json");
  const Json cases = Json::parse(file);
  ASSERT_EQ(cases.size(), 46u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["files"].dump());
    const Tokenizer tokenizer = open(c);
    EXPECT_EQ(tokenizer.added().size(), c["added"].size());
    for (const AddedToken& token : tokenizer.added()) {
      const Json& expected = c["added"][std::to_string(token.id)];
      ASSERT_FALSE(expected.is_null()) << token.id;
      EXPECT_EQ(token.content, expected[0]);
      EXPECT_EQ(token.single_word, expected[1]) << token.content;
      EXPECT_EQ(token.lstrip, expected[2]) << token.content;
      EXPECT_EQ(token.rstrip, expected[3]) << token.content;
      EXPECT_EQ(token.normalized, expected[4]) << token.content;
      // A token that was special stays out of decoded text, even if a file makes it ordinary.
      EXPECT_TRUE(token.special || !expected[5]) << token.content;
      EXPECT_EQ(tokenizer.is_numbered(token.id), token.numbered);
    }
    Json named = Json::object();
    for (const auto& [name, content] : tokenizer.controls()) named[name] = content;
    EXPECT_EQ(nlohmann::json(named), nlohmann::json(c["named"]));
    const std::vector<uint32_t> ids = c["ids"];
    EXPECT_EQ(Encoder(tokenizer).encode(c["text"].get<std::string>()).ids, ids);
    EXPECT_EQ(tokenizer.decode(ids, true), c["decoded"]);
  }
}

TEST_F(AddedTokensBesideIt, IdsThatContradictAreRefused) {
  const Json start = {{"added_tokens", Json::array()}};
  const struct {
    const char *files, *clause;
  } cases[] = {
      {R"({"tokenizer_config.json": {"added_tokens_decoder": {"621": {"content": "<n>"}}}})",
       "tokenizer_config.json, added_tokens_decoder: token \"<n>\" has id 621, but the next that is free is "
       "620."},
      {R"({"tokenizer_config.json": {"added_tokens_decoder": {"620": {"content": "a"}}}})",
       "token \"a\" has id 620, but the model's is 64."},
      {R"({"tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "a"}}}})",
       "added_tokens_decoder: \"x\" is not an id from 0 to 16777215."},
      {R"({"tokenizer_config.json": {"added_tokens_decoder": {"620": {"content": "b", "lstrip": 1}}}})",
       "\"lstrip\" is neither true nor false."},
      {R"({"tokenizer_config.json": {"added_tokens_decoder": []}})",
       "added_tokens_decoder: it is not an object."},
      {R"({"added_tokens.json": {"<n>": 620, "<m>": 622}})",
       "added_tokens.json: token \"<m>\" has id 622, but the next that is free is 621."},
      {R"({"added_tokens.json": {"<n>": "620"}})", "added_tokens.json: \"\" is not an id from 0 to"},
      {R"({"added_tokens.json": [1]})", "added_tokens.json: it is not an object."},
  };
  for (const auto& c : cases) {
    Json given = start;
    given["files"] = Json::parse(c.files);
    expect_error(ExitCode::malformed_file, {c.clause}, [&] { open(given); });
  }
}

}  // namespace
}  // namespace sluice
