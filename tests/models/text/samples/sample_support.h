// What tests of samples share: model directories with a tokenizer of the fixtures, and conversations.
//
// Callers: tests of SampleMaker; they include nlohmann/json.hpp in front of this.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/text/samples/sample_maker.h"
#include "tests/support/format_test_support.h"

namespace sluice {

using Json = nlohmann::ordered_json;

class SampleMakerTest : public FormatTest {
 protected:
  // A model directory with a tokenizer of the fixtures.
  TextModel model(const std::string& tokenizer, const std::string& chat_template,
                  const Json& controls) const {
    std::filesystem::copy_file("tests/fixtures/tokenizers/" + tokenizer + ".json", path("tokenizer.json"),
                               std::filesystem::copy_options::overwrite_existing);
    Json config = controls;
    config["chat_template"] = chat_template;
    write_file("tokenizer_config.json", config.dump());
    return open_text_model(directory.string(), "");
  }
  static std::string marks(const Sample& sample) {
    std::string text;
    for (const bool trained : sample.trained) text += trained ? '1' : '0';
    return text;
  }
  // The part of the sample's text that is trained.
  static std::string trained_text(const TextModel& model, const Sample& sample) {
    std::vector<uint32_t> ids;
    for (size_t i = 0; i < sample.ids.size(); ++i)
      if (sample.trained[i]) ids.push_back(sample.ids[i]);
    return model.tokenizer.decode(ids, false);
  }
  static Conversation conversation(const Json& messages) {
    Conversation c{std::make_shared<const Json>(messages), nullptr, {}};
    for (const Json& m : messages) c.trained_messages.push_back(m["role"] == "assistant");
    return c;
  }
};

inline const Json kControls = {{"eos_token", "<|im_end|>"}, {"pad_token", "<|endoftext|>"}};
inline const char* const kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor "
    "%}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
inline const Json kTwoTurns =
    Json::parse(R"([{"role":"user","content":"One?"},{"role":"assistant","content":"Two."},)"
                R"({"role":"user","content":"Three?"},{"role":"assistant","content":"Four."}])");

}  // namespace sluice
