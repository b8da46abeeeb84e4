// No part of a record is lost unseen: a sample has it, or a note tells of it, or the record is refused.
#include <nlohmann/json.hpp>

#include "tests/models/text/samples/sample_support.h"

namespace sluice {
namespace {

TEST_F(SampleMakerTest, OfTwoReasoningsTheOneThatIsLostIsTold) {
  const auto unread = [&](const char* field, const Json& fields) {
    const TextModel text = model("qwen2",
                                 std::string("{% for m in messages %}<|im_start|>{{ m.") + field +
                                     " }}{{ m.content }}<|im_end|>{% endfor %}"
                                     "{% if add_generation_prompt %}<|im_start|>{% endif %}",
                                 kControls);
    Json messages = kTwoTurns;
    messages[1].update(fields);
    SampleMaker maker(text, {});
    maker.make(conversation(messages));
    return maker.take_notes().unread;
  };
  const Json two = {{"reasoning_content", "first"}, {"thinking", "other"}};
  EXPECT_EQ(unread("reasoning_content", two), (SampleNotes::ByName{{"message.thinking", 1}}));
  EXPECT_EQ(unread("thinking", two), (SampleNotes::ByName{{"message.reasoning_content", 1}}));
  EXPECT_EQ(unread("role", {{"thinking", "other"}}), (SampleNotes::ByName{{"message.thinking", 1}}))
      << "by the name that the data have";
  EXPECT_TRUE(unread("thinking", {{"reasoning_content", "same"}, {"thinking", "same"}}).empty());
}

// The last message is in no sample, and a note says so: strings that the template writes of the tools are not
// taken for it.
TEST_F(SampleMakerTest, StringsOfToolsCountForNoMessage) {
  const TextModel text =
      model("qwen2",
            "{{ tools | tojson }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + "
            "m.content }}{% if loop.last and m.role == 'assistant' %}{{ ' (now)' }}{% endif %}"
            "{{ '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
            kControls);
  Json messages = kTwoTurns;
  messages.push_back({{"role", "user"}, {"content", "Thanks!"}, {"name", "Ada"}});
  Conversation c = conversation(messages);
  c.tools = std::make_shared<const Json>(
      Json::parse(R"([{"name":"get_weather","description":"What the weather is","of":["a city","a day"]}])"));
  SampleMaker maker(text, {});
  EXPECT_EQ(maker.make(c).size(), 2u);
  EXPECT_EQ(maker.take_notes().unread, (SampleNotes::ByName{{"message of user", 1}, {"message.name", 1}}));
}

// A template knows a role if it compares a message's role with that word. That the word occurs is not enough.
TEST_F(SampleMakerTest, RolesThatATemplateDoesNotCompareAreNotKnown) {
  const auto outcome = [&](const std::string& condition, const std::string& role) {
    const TextModel text =
        model("qwen2",
              "{% for m in messages %}{% set tool_call = 1 %}{{ '<|im_start|>' + m.role + '\n' }}"
              "{% if " +
                  condition +
                  " %}{{ 'x' }}{% endif %}{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
              kControls);
    Json messages = kTwoTurns;
    messages[1]["role"] = role;
    SampleMaker maker(text, {});
    try {
      maker.make(conversation(messages));
    } catch (const RefusedRecord&) {
      return std::string("refused");
    }
    return std::string(maker.take_notes().unknown_roles.empty() ? "known" : "told");
  };
  EXPECT_EQ(outcome("tool_call == 1 and m.role == 'developer'", "developer"), "known");
  EXPECT_EQ(outcome("m['role'] in [\"a\", 'developer']", "developer"), "known");
  EXPECT_EQ(outcome("m.role == 'a' and tool_call == 'tool_call'", "tool_call"), "refused");
  EXPECT_EQ(outcome("m['role'] == 'a'", "content"), "refused") << "the name of another field";
  EXPECT_EQ(outcome("m['role'] == m['name']", "name"), "refused") << "a key beside it";
  EXPECT_EQ(outcome("m['role'] != ''", ""), "refused");
  EXPECT_EQ(outcome("m.role == 'a'", "user"), "known");
}

TEST_F(SampleMakerTest, AnswersThatSayNothingInTextAreRefused) {
  const TextModel text = model("qwen2", kChatMl, kControls);
  const auto fault = [&](const Json& answer) {
    Json messages = kTwoTurns;
    messages[1] = answer;
    messages[1]["role"] = "assistant";
    try {
      SampleMaker(text, {}).make(conversation(messages));
    } catch (const RefusedRecord& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string begin = "message 2 is an answer that is to be trained, and nothing of it but ",
                    end = " is given, which is not read";
  EXPECT_EQ(fault({{"content", {{{"type", "tool_use"}, {"input", "x"}}}}}), begin + "part tool_use" + end);
  EXPECT_EQ(fault({{"content", {{{"functionCall", "f"}}}}}), begin + "part of functionCall" + end);
  EXPECT_EQ(fault({{"content", {{{"type", "text"}, {"content", "a"}}}}}), begin + "part text" + end);
  EXPECT_EQ(fault({{"content", ""}, {"refusal", "I cannot."}}), begin + "refusal" + end);
  EXPECT_EQ(fault({{"content", ""}, {"function_calls", "f()"}}), begin + "function_calls" + end);
  EXPECT_EQ(fault({{"content", ""}, {"name", "Ada"}}), "") << "an empty answer is told";
  EXPECT_EQ(fault({{"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "image"}}}}}), "");
}

// A prompt is read as a text of the data is.
TEST_F(SampleMakerTest, PromptsThatWereRenderedHaveControlTokens) {
  const TextModel text = model("qwen2", kChatMl, kControls);
  SampleMaker maker(text, {});
  const uint32_t start = *text.tokenizer.id_of("<|im_start|>");
  const std::vector<uint32_t> rendered =
      maker.prompt("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(std::count(rendered.begin(), rendered.end(), start), 2);
  EXPECT_EQ(maker.take_notes().rendered, 1u);
  const std::vector<uint32_t> spelled = maker.prompt("What is <|im_start|> for?");
  EXPECT_EQ(std::count(spelled.begin(), spelled.end(), start), 0);
  EXPECT_EQ(maker.take_notes().rendered, 0u);
  Json messages = kTwoTurns;
  messages[2]["role"] = "tutor";
  maker.prompt(conversation(messages));
  EXPECT_EQ(maker.take_notes().unknown_roles, (SampleNotes::ByName{{"tutor", 1}}));
}

// The template has these keys, but for something else, or it reads only some kinds of their values.
TEST_F(SampleMakerTest, NumbersThatChangeNothingAreTold) {
  const TextModel text =
      model("qwen2",
            "{% for tool in tools %}{{ tool.function.name + (' strict' if tool.function.strict else '') }}"
            "{% for name, p in tool.function.parameters.properties | items %}{{ name + p.type | upper }}"
            "{% if p.default is string %}{{ p.default }}{% endif %}{% endfor %}{% endfor %}"
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
            "{% if loop.index == 1 and tools | length > 9 %}{{ 'many' }}{% endif %}{{ m.content }}"
            "{% for call in m.tool_calls or [] %}{{ call.function.name ~ (call.function.arguments | tojson) "
            "}}{% endfor %}"
            "{{ '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
            kControls);
  Json messages = Json::parse(
      R"([{"role":"user","content":"q","index":0,"length":{"of":1}},{"role":"assistant","content":"a",)"
      R"("tool_calls":[{"index":0,"type":"function","function":{"name":"f","arguments":{"city":3}}}]}])");
  Conversation c = conversation(messages);
  c.tools = std::make_shared<const Json>(Json::parse(
      R"([{"type":"function","function":{"name":"f","strict":false,"parameters":{"type":"object",)"
      R"("properties":{"city":{"type":"integer","default":10,"enum":[10,20]},)"
      R"("day":{"type":"string","default":"today"}}},"response":{"type":"string"}}}])"));
  SampleMaker maker(text, {});
  maker.make(c);
  EXPECT_EQ(maker.take_notes().unread,
            (SampleNotes::ByName{{"message.index", 1},
                                 {"message.length", 1},
                                 {"message.tool_calls[].index", 1},
                                 {"tools[].function.parameters.properties.*.default", 1},
                                 {"tools[].function.parameters.properties.*.enum", 1},
                                 {"tools[].function.response", 1}}));
}

// Here a thought would be trained as part of the answer.
TEST_F(SampleMakerTest, PartsThatAreReadWhateverTheirTypeAreTold) {
  const TextModel text =
      model("qwen2",
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
            "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
            "{% if part.type == 'note' or 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
            "{{ '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
            kControls);
  SampleMaker maker(text, {});
  const Json messages =
      Json::parse(R"([{"role":"user","content":[{"type":"note","text":"q"}]},{"role":"assistant","content":)"
                  R"([{"type":"reasoning","text":"Hm."},{"type":"text","text":"a"}]}])");
  EXPECT_EQ(trained_text(text, maker.make(conversation(messages))[0]), "Hm.a<|im_end|>");
  EXPECT_EQ(maker.take_notes().unread, (SampleNotes::ByName{{"type of part reasoning", 1}}));
}

// Some templates refuse bare functions or arguments that are objects. For these, a function is put into a
// tool, and arguments become a string.
TEST_F(SampleMakerTest, TemplatesGetToolsAndArgumentsInTheWayThatTheyAccept) {
  const TextModel text = model(
      "qwen2",
      "{% for tool in tools %}{{ tool.function.name + '\n' }}{% endfor %}"
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content %}{{ m.content }}{% endif "
      "%}"
      "{% for call in m.tool_calls or [] %}{{ call.function.name + call.function.arguments }}{% endfor %}"
      "{{ '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
      kControls);
  Conversation c = conversation(
      Json::parse(R"([{"role":"user","content":"q"},)"
                  R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}])"));
  c.tools = std::make_shared<const Json>(Json::parse(R"([{"name":"f","description":"d"}])"));
  SampleMaker maker(text, {});
  const Sample sample = maker.make(c)[0];
  EXPECT_EQ(text.tokenizer.decode(sample.ids, false),
            "f\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nf{\"a\":1}<|im_end|>\n");
  EXPECT_EQ(maker.take_notes().unread, (SampleNotes::ByName{{"tools[].function.description", 1}}));
}

TEST_F(SampleMakerTest, AnswersOutsideOfGenerationMarksAreTold) {
  const auto unmarked = [&](const std::string& answer) {
    const TextModel text = model("qwen2",
                                 "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
                                 "{% if m.role != 'assistant' %}{{ m.content }}{% else %}" +
                                     answer + "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}",
                                 kControls);
    Json messages = kTwoTurns;
    messages[1]["reasoning_content"] = "Hm.";
    SampleMaker maker(text, {});
    maker.make(conversation(messages));
    return maker.take_notes().unmarked;
  };
  EXPECT_EQ(unmarked("{% generation %}{{ m.content }}{% endgeneration %}"), 0u)
      << "what is not read is told otherwise";
  EXPECT_EQ(unmarked("{{ m.reasoning_content }}{% generation %}{{ m.content }}{% endgeneration %}"), 1u);
  EXPECT_EQ(unmarked("{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}"
                     "{{ m.content }}{% endif %}"),
            1u);
}

// Gemma 3's template reads parts by their type, as this one does.
TEST_F(SampleMakerTest, PartsWithATextReachTemplatesThatReadParts) {
  const TextModel text =
      model("qwen2",
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
            "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
            "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
            "{{ '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
            kControls);
  const Json messages =
      Json::parse(R"([{"role":"user","content":["One",{"text":"two"},{"type":"input_text","text":"three"},)"
                  R"({"type":"image","text":"four"}]},{"role":"assistant","content":[)"
                  R"({"type":"output_text","text":"five","annotations":["six"]},)"
                  R"({"type":"refusal","refusal":"seven"}]}])");
  SampleMaker maker(text, {});
  const Sample sample = maker.make(conversation(messages))[0];
  EXPECT_EQ(text.tokenizer.decode(sample.ids, false),
            "<|im_start|>user\nOnetwothree<|im_end|>\n<|im_start|>assistant\nfive<|im_end|>\n");
  EXPECT_EQ(trained_text(text, sample), "five<|im_end|>");
  EXPECT_EQ(maker.take_notes().unread,
            (SampleNotes::ByName{{"part image", 1}, {"part refusal", 1}, {"part.annotations", 1}}));
  const TextModel joined = model("qwen2", kChatMl, kControls);
  SampleMaker joining(joined, {});
  EXPECT_EQ(trained_text(joined, joining.make(conversation(messages))[0]), "five<|im_end|>");
  EXPECT_EQ(joining.take_notes().unread,
            (SampleNotes::ByName{{"part image", 1}, {"part refusal", 1}, {"part.annotations", 1}}));
}

const char* const kFirstCall =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments | tojson "
    "}}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST_F(SampleMakerTest, WhatIsReadInPartIsToldByItsPath) {
  const TextModel text = model("qwen2", kFirstCall, kControls);
  Json messages = kTwoTurns;
  messages[1]["tool_calls"] = Json::parse(
      R"([{"type":"function","function":{"name":"find","arguments":{"city":"Oslo"},"thought":"Hm.",)"
      R"("result":{"n":[3]},"strict":null}},)"
      R"({"type":"function","function":{"name":"second","arguments":{"city":"Rome"}}}])");
  SampleMaker maker(text, {});
  maker.make(conversation(messages));
  EXPECT_EQ(maker.take_notes().unread, (SampleNotes::ByName{{"message.tool_calls[]", 1},
                                                            {"message.tool_calls[].function.result", 1},
                                                            {"message.tool_calls[].function.thought", 1}}));
}

TEST_F(SampleMakerTest, AnswersOfCallsThatTheTemplateLeavesOutAreRefused) {
  Json messages = kTwoTurns;
  messages[1]["content"] = "";
  messages[1]["tool_calls"] = Json::parse(R"([{"function":{"name":"find","arguments":{}}}])");
  const TextModel text = model("qwen2", kChatMl, kControls);
  SampleMaker maker(text, {});
  try {
    maker.make(conversation(messages));
    FAIL();
  } catch (const RefusedRecord& error) {
    EXPECT_EQ(error.what(), std::string("message 2 calls tools, which the chat template does not render"));
  }
  const TextModel calls = model("qwen2", kFirstCall, kControls);
  SampleMaker of_calls(calls, {});
  EXPECT_EQ(trained_text(calls, of_calls.make(conversation(messages))[0]), "find{}<|im_end|>Four.<|im_end|>");
  EXPECT_EQ(of_calls.take_notes().empty, 0u);
}

TEST_F(SampleMakerTest, EmptyAnswersAreCounted) {
  const TextModel text = model("qwen2", kChatMl, kControls);
  Json messages = kTwoTurns;
  messages[1]["content"] = " \n";
  SampleMaker maker(text, {});
  EXPECT_EQ(trained_text(text, maker.make(conversation(messages))[0]), " \n<|im_end|>Four.<|im_end|>");
  EXPECT_EQ(maker.take_notes().empty, 1u);
}

TEST_F(SampleMakerTest, MasksHoldOrAreTold) {
  const TextModel text = model("qwen2", kChatMl, kControls);
  Conversation c = conversation(kTwoTurns);
  c.trained_messages[3] = false;
  c.masked = 1;
  c.asked = {"train of a message of user"};
  const auto made = [&](TrainOn train_on) {
    SampleChoices choices;
    choices.train_on = train_on;
    SampleMaker maker(text, choices);
    const Sample sample = maker.make(c)[0];
    return std::pair{trained_text(text, sample), maker.take_notes()};
  };
  const auto [last, notes_of_last] = made(TrainOn::last);
  EXPECT_EQ(last, "") << "the last answer is masked, and no other is the last";
  EXPECT_EQ(notes_of_last.unread, (SampleNotes::ByName{{"train of a message of user", 1}}));
  EXPECT_EQ(notes_of_last.masked, 0u);
  EXPECT_EQ(made(TrainOn::answers).first, "Two.<|im_end|>");
  const SampleNotes all = made(TrainOn::all).second;
  EXPECT_EQ(all.masked, 1u);
  EXPECT_TRUE(all.unread.empty()) << "all of it is trained";
}

TEST_F(SampleMakerTest, TextsAreTrainedAsAWhole) {
  const TextModel text = model("qwen2", kChatMl, kControls);
  SampleChoices choices;
  choices.train_on = TrainOn::last;
  SampleMaker maker(text, choices);
  maker.make(PlainText{"", "some text", true});
  EXPECT_EQ(maker.take_notes().whole, 1u);
  maker.make(PlainText{"p", "text", false});
  EXPECT_EQ(maker.take_notes().whole, 0u);
}

// DeepSeek-V3's template takes arguments as a string.
TEST_F(SampleMakerTest, TemplatesMayTakeArgumentsAsTheyAreGiven) {
  const auto chat_template = [](const std::string& arguments) {
    return "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
           "{% if m.content is not none %}{{ '' + m.content }}{% endif %}"
           "{% if m.tool_calls %}{{ 'call ' + m.tool_calls[0].function.arguments" +
           arguments +
           " }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  };
  const std::string begin =
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,)"
      R"("tool_calls":[{"function":{"arguments":)";
  const auto trained = [&](const std::string& arguments, const std::string& given = R"("{ \"a\":1 }")") {
    const Record record = parse_record(begin + given + "}}]}]}", RecordForm::automatic, {});
    const TextModel text = model("qwen2", chat_template(arguments), kControls);
    return trained_text(text, SampleMaker(text, {}).make(record)[0]);
  };
  EXPECT_EQ(trained(""), "call { \"a\":1 }<|im_end|>");
  EXPECT_EQ(trained(" | tojson"), "call {\"a\": 1}<|im_end|>") << "it refuses only the missing content";
  EXPECT_EQ(trained(" | tojson", R"({"a":1})"), "call {\"a\": 1}<|im_end|>");
}

TEST_F(SampleMakerTest, AnswersWithoutAPromptAreRefusedWithWhatHelps) {
  const TextModel text =
      model("qwen2",
            "{{ messages[0].role }}{% for m in messages %}{{ '<|im_start|>' + m.content + "
            "'<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}",
            kControls);
  Json messages = kTwoTurns;
  messages.erase(0);
  try {
    SampleMaker(text, {}).make(conversation(messages));
    FAIL();
  } catch (const RefusedRecord& error) {
    EXPECT_TRUE(std::string(error.what())
                    .starts_with("what stands before message 1, an answer, is no prompt: the chat template "
                                 "refuses it"))
        << error.what();
    EXPECT_EQ(error.remedy,
              "Train every token with --train-on all, or only the last answer with --train-on last, or leave "
              "such records out with --bad-records skip.");
  }
  SampleChoices choices;
  choices.train_on = TrainOn::last;
  EXPECT_EQ(trained_text(text, SampleMaker(text, choices).make(conversation(messages))[0]),
            "Four.<|im_end|>");
}

// This tokenizer has no token for x and leaves it out. The marks of other characters do not move, and no text
// begins there.
TEST_F(SampleMakerTest, CharactersThatTheTokenizerLeavesOut) {
  Json file = Json::parse(
      R"({"version":"1.0","added_tokens":[{"id":4,"content":"<e>","single_word":false,"lstrip":false,)"
      R"("rstrip":false,"normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":null,)"
      R"("post_processor":null,"decoder":{"type":"Fuse"},"model":{"type":"BPE",)"
      R"("vocab":{"a":0,"b":1,"c":2,"ab":3},"merges":["a b"]}})");
  write_file("tokenizer.json", file.dump());
  write_file("tokenizer_config.json", R"({"eos_token":"<e>"})");
  const TextModel text = open_text_model(directory.string(), "");
  const auto trained = [&](const PlainText& given, ControlTokens where) {
    SampleChoices choices;
    choices.control_tokens = where;
    return trained_text(text, SampleMaker(text, choices).make(given)[0]);
  };
  for (const ControlTokens where : {ControlTokens::of_template, ControlTokens::anywhere}) {
    EXPECT_EQ(trained({"xxxb", "c", false}, where), "c<e>");
    EXPECT_EQ(trained({"b", "xxc", false}, where), "c<e>");
    EXPECT_EQ(trained({"bx", "xaxb", false}, where), "ab<e>");
    EXPECT_EQ(trained({"", "xxab", true}, where), "ab<e>");
  }
  SampleMaker maker(text, {});
  EXPECT_EQ(maker.make(PlainText{"", "x<e>", true})[0].ids, (std::vector<uint32_t>{4}));
  const Encoding encoding = Encoder(text.tokenizer).encode("xaxbcx");
  EXPECT_EQ(encoding.begins, (std::vector<size_t>{1, 4}));
  EXPECT_EQ(encoding.left_out, (std::vector<ByteRange>{{0, 1}, {5, 6}}));
}

}  // namespace
}  // namespace sluice
