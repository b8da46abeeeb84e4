// What is added to a text where a tokenizer_config.json stands beside a tokenizer.json: what transformers
// adds (tools/fixtures/tokenizer_settings.py), that is, what the post_processor says, whatever add_bos_token
// and add_eos_token are.
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/text/samples/sample_maker.h"
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
      maker.make(Conversation{std::make_shared<const Json>(messages), nullptr, {false, true}}).front();
  EXPECT_EQ(sample.ids, Encoder(text.tokenizer).encode("user:aassistant:b").ids);
}

}  // namespace
}  // namespace sluice
