// Files of prompts. Their conversations are read as those of training data are.
#include "models/text/samples/prompt_file.h"

#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

class PromptFileTest : public FormatTest {
 protected:
  PromptFileTest() {
    model.chat.emplace(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.name is defined %} by {{ m.name }}"
        "{% endif %}{% endfor %}{% if tools %} {{ tools[0].name }}{% endif %}");
  }
  // The text of each prompt in a file with this content, as the model gets it.
  std::vector<std::string> texts(const std::string& content) {
    SampleMaker maker(model, {});
    std::vector<std::string> all;
    for (const auto& tokens : read_prompts(write_file("prompts.jsonl", content), maker))
      all.push_back(model.tokenizer.decode(tokens, false));
    return all;
  }
  TextModel model{.tokenizer = Tokenizer::open("tests/fixtures/tokenizers/qwen2.json")};
};

TEST_F(PromptFileTest, LinesAreTextsOrMessages) {
  EXPECT_EQ(
      texts(
          "{\"prompt\": \"go on\"}\r\n\n"
          R"({"messages": [{"role": "human", "content": "q", "name": null, "weight": 0}]})"
          "\n"
          R"({"messages": [{"content": "q", "role": "user", "name": "x"}], "tools": "[{\"name\":\"f\"}]"})"),
      (std::vector<std::string>{"go on", "<user>q", "<user>q by x f"}));
}

TEST_F(PromptFileTest, WhatIsNotReadIsNoted) {
  SampleMaker maker(model, {});
  read_prompts(
      write_file(
          "prompts.jsonl",
          R"({"prompt":"p","system":"s","id":1,"x":null})"
          "\n"
          R"({"id":2,"messages":[{"role":"user","content":"q","rating":"good"}],"tools":[{"title":"t"}]})"),
      maker);
  EXPECT_EQ(maker.take_notes().unread,
            (SampleNotes::ByName{{"id", 2}, {"message.rating", 1}, {"system", 1}, {"tools", 1}}));
}

TEST_F(PromptFileTest, FaultsHaveTheirLine) {
  const auto refused = [&](const std::string& line, const std::string& clause) {
    expect_error(ExitCode::malformed_file, {"prompts.jsonl, line 2: " + clause},
                 [&] { texts("{\"prompt\": \"a\"}\n" + line); });
  };
  refused("[]", "it is no JSON object.");
  refused("{\"prompt\": \"a\", \"messages\": []}", "it has neither or both of");
  refused("{\"messages\": []}", "the conversation is empty.");
  refused("{\"messages\": [3]}", "a message is no object.");
  refused("{\"messages\": [{\"role\": \"user\"}]}", "message 1 has no \"content\".");
}

}  // namespace
}  // namespace sluice
