// Records of each form.
#include "models/text/records/record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/text/records/calls.h"
#include "tests/support/record_support.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

const Json kTwoTurns = Json::parse(R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])");

TEST(RecordTest, Messages) {
  const Conversation c =
      chat(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"tools":[]})");
  EXPECT_EQ(*c.messages, kTwoTurns);
  EXPECT_TRUE(c.tools == nullptr);
  EXPECT_EQ(c.trained_messages, (std::vector{false, true}));
  const Conversation weighed =
      chat(R"({"messages":[{"role":"assistant","content":"a","weight":0},{"role":"assistant",)"
           R"("content":"b","train":false},)"
           R"({"content":"c","role":"assistant","weight":1,"name":null,"reasoning_content":"r"}],)"
           R"("tools":[{"name":"f"}]})");
  EXPECT_EQ(weighed.trained_messages, (std::vector{false, false, true}));
  EXPECT_EQ(weighed.messages->at(0).dump(), R"({"role":"assistant","content":"a"})");
  EXPECT_EQ(weighed.messages->at(2).dump(), R"({"role":"assistant","content":"c","reasoning_content":"r"})");
  EXPECT_EQ(weighed.tools->dump(), R"([{"name":"f"}])");
}

// The time is proportional to the number of keys. If it were not, this would take half a minute.
TEST(RecordTest, MessagesMayHaveManyKeys) {
  std::string message = R"({"name":null,"content":"a","role":"assistant")";
  for (int i = 0; i < 100'000; ++i) message += ",\"k" + std::to_string(i) + "\":1";
  const Conversation c = chat(R"({"messages":[)" + message + "}]}");
  EXPECT_EQ(c.messages->at(0).size(), 100'002u);
  EXPECT_EQ(c.messages->at(0).begin().key(), "role");
}

TEST(RecordTest, ShareGpt) {
  const Conversation c =
      chat(R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}],"system":"s",)"
           R"("tools":"[{\"n\":1}]"})");
  EXPECT_EQ(c.messages->at(0).dump(), R"({"role":"system","content":"s"})");
  EXPECT_EQ(c.messages->at(1), kTwoTurns[0]);
  EXPECT_EQ(c.messages->at(2), kTwoTurns[1]);
  EXPECT_EQ(c.trained_messages, (std::vector{false, false, true}));
  EXPECT_EQ(c.tools->dump(), R"([{"n":1}])");
}

TEST(RecordTest, Alpaca) {
  const Conversation c =
      chat(R"({"instruction":"do","input":"this","output":"done","history":[["h","i"]],"system":""})");
  EXPECT_EQ(c.messages->dump(),
            R"([{"role":"user","content":"h"},{"role":"assistant","content":"i"},)"
            R"({"role":"user","content":"do\nthis"},{"role":"assistant","content":"done"}])");
  EXPECT_EQ(c.trained_messages, (std::vector{false, true, false, true}));
  EXPECT_EQ(chat(R"({"instruction":"do","input":"","output":"done"})").messages->at(0)["content"], "do");
  EXPECT_EQ(chat(R"({"instruction":"","input":"this","output":"done"})").messages->at(0)["content"], "this");
}

TEST(RecordTest, CompletionAndText) {
  const PlainText completion = text(R"({"prompt":"p","completion":"c"})");
  EXPECT_EQ(completion.prompt, "p");
  EXPECT_EQ(completion.text, "c");
  EXPECT_FALSE(completion.whole);
  const Conversation lists =
      chat(R"({"prompt":[{"role":"assistant","content":"hello"},{"role":"user","content":"q"}],)"
           R"("completion":[{"role":"assistant","content":"a"}]})");
  EXPECT_EQ(lists.trained_messages, (std::vector{false, false, true})) << "prompts are not trained";
  const PlainText whole = text(R"({"text":"all \u00e9","prompt":"left"})");
  EXPECT_EQ(whole.text, "all \xC3\xA9");
  EXPECT_TRUE(whole.whole);
}

TEST(RecordTest, NamesAreMapped) {
  const Conversation c =
      chat(R"({"dialog":[{"who":"kunde","says":"q"},{"who":"bot2","says":"a"}]})", RecordForm::automatic,
           {{"messages", "dialog"},
            {"role", "who"},
            {"content", "says"},
            {"user", "kunde"},
            {"assistant", "bot2"}});
  EXPECT_EQ(*c.messages, kTwoTurns);
  const Conversation several =
      chat(R"({"messages":[{"role":"q","content":"q"},{"role":"alice","content":"a"},)"
           R"({"role":"bob","content":"b"}]})",
           RecordForm::automatic, {{"user", "q"}, {"assistant", "alice"}, {"assistant", "bob"}});
  EXPECT_EQ(several.trained_messages, (std::vector{false, true, true}));
}

TEST(RecordTest, MappedNamesCountBeforeOthers) {
  const Conversation c = chat(R"({"conversations":[{"from":"human","role":"assistant","value":"q"},)"
                              R"({"content":7,"from":"gpt","value":"a"}]})");
  EXPECT_EQ(*c.messages, kTwoTurns);
  EXPECT_EQ(c.trained_messages, (std::vector{false, true}));
}

// In some files, the lists have the name of one form and the keys of another.
TEST(RecordTest, ListsMayHaveTheKeysOfTheOtherForm) {
  EXPECT_EQ(*chat(R"({"conversations":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})")
                 .messages,
            kTwoTurns);
  EXPECT_EQ(*chat(R"({"messages":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]})").messages,
            kTwoTurns);
  EXPECT_EQ(fault(R"({"conversations":[{"role":"user","content":"q"},{"from":"gpt","value":"a"}]})"),
            "message 2 has no \"role\"")
      << "within a list, keys are of one form";
  EXPECT_EQ(fault(R"({"conversations":[{"who":"user","content":"q"}]})"), "message 1 has no \"from\"");
  EXPECT_THROW(parse_record(R"({"question":"q"})", RecordForm::automatic, {}), RefusedRecord);
}

TEST(RecordTest, RolesOfOtherToolsInAnyCase) {
  const auto role = [](const std::string& given) {
    return (*chat(R"({"messages":[{"role":")" + given + R"(","content":"x"}]})").messages)[0]["role"]
        .get<std::string>();
  };
  for (const char* user : {"user", "User", "human", "HUMAN", "prompter"})
    EXPECT_EQ(role(user), "user") << user;
  for (const char* assistant :
       {"Assistant", "gpt", "GPT", "bot", "Chatbot", "chatgpt", "bing", "Bard", "model"})
    EXPECT_EQ(role(assistant), "assistant") << assistant;
  EXPECT_EQ(role("System"), "system");
  EXPECT_EQ(role("Tool"), "tool");
  EXPECT_EQ(role("observation"), "tool");
  EXPECT_EQ(role("Narrator"), "Narrator");
}

TEST(RecordTest, ASystemPromptBesideMessagesIsTheFirst) {
  const Json three = Json::parse(R"([{"role":"system","content":"s"},{"role":"user","content":"q"},)"
                                 R"({"role":"assistant","content":"a"}])");
  const std::string two = R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";
  const Conversation c = chat(R"({"system":"s","messages":)" + two + "}");
  EXPECT_EQ(*c.messages, three);
  EXPECT_EQ(c.trained_messages, (std::vector{false, false, true}));
  EXPECT_EQ(*chat(R"({"system":"s","messages":)" + three.dump() + "}").messages, three);
  EXPECT_EQ(*chat(R"({"system":"s","conversations":)" + two + "}").messages, three);
  EXPECT_EQ(*chat(R"({"system":"s","prompt":[{"role":"user","content":"q"}],)"
                  R"("completion":[{"role":"assistant","content":"a"}]})")
                 .messages,
            three);
  EXPECT_EQ(*chat(R"({"system":"s","prompt":[{"role":"user","content":"q"}],"completion":"a"})").messages,
            three);
  EXPECT_EQ(text(R"({"system":"s","prompt":"q","completion":"a"})").system, "s");
  EXPECT_EQ(fault(R"({"system":"other","messages":)" + three.dump() + "}"),
            "it has two system prompts, \"system\" and its first message");
}

TEST(RecordTest, VariablesOfTheTemplate) {
  const auto values = [](const std::string& keys) {
    const Conversation c = chat("{" + keys + R"("messages":[{"role":"user","content":"q"}]})");
    return c.template_values ? c.template_values->dump() : "";
  };
  EXPECT_EQ(values(""), "");
  EXPECT_EQ(values(R"("enable_thinking":false,)"), R"({"enable_thinking":false})");
  EXPECT_EQ(values(R"("chat_template_kwargs":{"a":1},"enable_thinking":true,)"),
            R"({"a":1,"enable_thinking":true})");
  EXPECT_EQ(fault(R"({"chat_template_kwargs":{"messages":[]},"messages":[{"role":"user","content":"q"}]})"),
            "\"chat_template_kwargs\" sets messages, which the record says");
  EXPECT_EQ(fault(R"({"enable_thinking":"no","messages":[{"role":"user","content":"q"}]})"),
            "\"enable_thinking\" is neither true nor false");
}

TEST(RecordTest, KeysThatNothingReadsAreTold) {
  const std::vector<std::string> two{"id", "images"};
  EXPECT_EQ(
      chat(R"({"id":7,"messages":[{"role":"user","content":"q"}],"images":["a.png"],"system":"","x":[]})")
          .unread_keys,
      two);
  EXPECT_EQ(text(R"({"id":7,"text":"t","images":["a.png"],"y":null})").unread_keys, two);
  EXPECT_EQ(chat(R"({"prompt":"p","messages":[{"role":"user","content":"q"}]})").unread_keys,
            std::vector<std::string>{"prompt"});
}

TEST(RecordTest, MasksThatDoNothingAreKept) {
  const Conversation c =
      chat(R"({"messages":[{"role":"user","content":"q","train":true},)"
           R"({"role":"assistant","content":"a","weight":0},)"
           R"({"role":"tool","content":"t","weight":1},{"role":"user","content":"q","train":false},)"
           R"({"role":"assistant","content":"b","train":true}]})");
  EXPECT_EQ(c.masked, 1u);
  EXPECT_EQ(c.asked, (std::vector<std::string>{"train of a message of user", "weight of a message of tool"}));
  EXPECT_EQ(c.trained_messages, (std::vector{false, false, false, false, true}));
  const Conversation prompt =
      chat(R"({"prompt":[{"role":"assistant","content":"p","train":true}],"completion":"c"})");
  EXPECT_EQ(prompt.asked, std::vector<std::string>{"train of a message of assistant"})
      << "a prompt is not trained";
  const std::string part =
      R"({"messages":[{"role":"assistant","content":[{"type":"text","text":"a","train":)";
  EXPECT_EQ(fault(part + "false}]}]}"),
            "a part of an answer is not to be trained (\"train\"), and answers are trained as a whole");
  EXPECT_EQ(remedy(part + "false}]}]}"),
            "Give the whole message \"train\": 0, or leave such records out with --bad-records skip.");
  EXPECT_EQ(chat(part + "true}]}]}").trained_messages, std::vector{true});
}

TEST(RecordTest, MasksOfOtherToolsCount) {
  const auto trained = [](const std::string& mark) -> bool {
    return chat(R"({"messages":[{"role":"assistant","content":"a",)" + mark + "}]}").trained_messages[0];
  };
  for (const std::string key :
       {"weight", "train", "training", "loss", "loss_scale", "loss_mask", "trainable"})
    for (const std::string value :
         {"0", "1", "true", "false", "0.0", "1.0", "\"0\"", "\"False\"", "\"true\""})
      EXPECT_EQ(trained("\"" + key + "\":" + value), value.find_first_of("1tT") != value.npos)
          << key << value;
  EXPECT_TRUE(trained(R"("loss":2.5)"));
  EXPECT_FALSE(trained(R"("weight":0,"train":false)"));
  EXPECT_EQ(fault(R"({"messages":[{"role":"assistant","content":"a","train":true,"weight":0}]})"),
            R"("train" of message 1 contradicts its "weight")");
  const std::string of_call = R"({"messages":[{"role":"assistant","content":"a","tool_calls":)"
                              R"([{"weight":0,"function":{"name":"f"}}]}]})";
  EXPECT_EQ(fault(of_call),
            "a call of an answer is not to be trained (\"weight\"), and answers are trained as a whole");
  EXPECT_EQ(remedy(of_call),
            "Give the whole message \"weight\": 0, or leave such records out with --bad-records skip.");
}

TEST(RecordTest, FieldsThatTheNamesOfTheDataHideAreTold) {
  EXPECT_EQ(chat(R"({"conversations":[{"from":"human","value":"q","content":"LOST","role":"system"}]})")
                .unread_keys,
            (std::vector<std::string>{"message.content", "message.role"}));
  EXPECT_EQ(chat(R"({"messages":[{"role":"user","text":"q","content":"LOST"}]})", RecordForm::automatic,
                 {{"content", "text"}})
                .unread_keys,
            std::vector<std::string>{"message.content"});
  EXPECT_TRUE(chat(R"({"conversations":[{"from":"gpt","value":"q","content":"q","role":"assistant"}]})")
                  .unread_keys.empty())
      << "they say the same";
}

TEST(RecordTest, ArgumentsInAStringBecomeAnObject) {
  const auto arguments = [](const std::string& given) {
    return (*chat(R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" +
                  given + "}}]}]}")
                 .messages)[0]["tool_calls"][0]["function"]["arguments"]
        .dump();
  };
  EXPECT_EQ(arguments(R"("{\"b\":1,\"a\":2}")"), R"({"b":1,"a":2})");
  EXPECT_EQ(arguments(R"({"a":2})"), R"({"a":2})");
  EXPECT_EQ(arguments(R"("")"), "{}");
  EXPECT_EQ(arguments(R"("{\"f\":1.0,\"e\":1e3,\"p\":0.10}")"), R"({"f":1.0,"e":1000.0,"p":0.1})");
  const auto refused = [&](const std::string& given) {
    return fault(R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":)" + given +
                 "}}]}]}");
  };
  const std::string what = "the arguments of a call are a string that is no JSON object, ";
  EXPECT_EQ(refused(R"("{a}")"), what + "{a}: column 2 is not valid JSON");
  EXPECT_EQ(refused(R"("[1, 2]")"), what + "[1, 2]");
  EXPECT_EQ(refused(R"("\"{}\"")"), what + "\"{}\"") << "encoded twice";
  for (const char* bad : {R"("{'a': 1}")", R"("{\"a\": NaN}")", R"("{\"a\": 1")", R"("{\"a\":1,\"a\":2}")",
                          R"("{\"a\":123456789012345678901234567890}")"})
    EXPECT_TRUE(refused(bad).starts_with(what)) << refused(bad);
  EXPECT_EQ(refused(R"({"a":123456789012345678901234567890})"), "it holds an integer beyond 64 bits");
  const Conversation c =
      chat(R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":{"a":1}}},)"
           R"({"function":{"arguments":"{\"b\": 2}"}}],"function_call":{"arguments":"{ }"}}]})");
  const Json as_given = (*with_arguments(c, Arguments::as_given).messages)[0];
  EXPECT_EQ(as_given["tool_calls"].dump(),
            R"([{"function":{"arguments":{"a":1}}},{"function":{"arguments":"{\"b\": 2}"}}])");
  EXPECT_EQ(as_given["function_call"]["arguments"], "{ }");
  EXPECT_EQ((*with_arguments(c, Arguments::as_strings).messages)[0]["tool_calls"].dump(),
            R"([{"function":{"arguments":"{\"a\":1}"}},{"function":{"arguments":"{\"b\": 2}"}}])");
}

TEST(RecordTest, FunctionsMayBePutIntoTools) {
  const Conversation c = chat(R"({"messages":[{"role":"user","content":"q"}],)"
                              R"("tools":[{"type":"function","name":"f","parameters":{}},)"
                              R"({"type":"function","function":{"name":"g"}}]})");
  EXPECT_TRUE(has_bare_functions(c));
  const Conversation wrapped = with_functions_in_tools(c);
  EXPECT_FALSE(has_bare_functions(wrapped));
  EXPECT_EQ(wrapped.tools->dump(), R"([{"type":"function","function":{"name":"f","parameters":{}}},)"
                                   R"({"type":"function","function":{"name":"g"}}])");
}

// Data that come from tables have every key in every row, so that keys without a value are null.
TEST(RecordTest, NullsOfPartsAreDropped) {
  EXPECT_EQ(chat(R"({"messages":[{"role":"user","content":[{"type":"text","text":"q","image":null}]}]})")
                .messages->dump(),
            R"([{"role":"user","content":[{"type":"text","text":"q"}]}])");
}

TEST(RecordTest, AListInAStringIsToBeConverted) {
  const std::string line = R"({"messages":"[{\"role\":\"user\"}]"})";
  EXPECT_EQ(fault(line), "\"messages\" is no list, but a string");
  EXPECT_EQ(remedy(line),
            "If that is JSON, convert the file: jq -c '.[\"messages\"] |= fromjson' FILE > OUT.jsonl");
}

TEST(RecordTest, ToolsInStringsBecomeObjects) {
  const std::string begin = R"({"messages":[{"role":"user","content":"q"}],"tools":)";
  EXPECT_EQ(chat(begin + R"(["{\"n\":1}",{"n":2}]})").tools->dump(), R"([{"n":1},{"n":2}])");
  EXPECT_EQ(fault(begin + R"(["find_city"]})"),
            "tools are a string that is no JSON object, find_city: column 2 is not valid JSON");
}

TEST(RecordTest, CallsInStringsBecomeLists) {
  const auto calls = [](const std::string& given) {
    const Conversation c =
        chat(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a",)"
             R"("tool_calls":)" +
             given + "}]}");
    const Json& message = (*c.messages)[1];
    return message.contains("tool_calls") ? message["tool_calls"].dump() : "";
  };
  const std::string one = R"([{"function":{"name":"f","arguments":{"x":1}}}])";
  EXPECT_EQ(calls(one), one);
  EXPECT_EQ(calls(Json(one).dump()), one);
  EXPECT_EQ(calls(one.substr(1, one.size() - 2)), one) << "an object alone";
  EXPECT_EQ(calls("[" + Json(one.substr(1, one.size() - 2)).dump() + "]"), one) << "a list of strings";
  EXPECT_EQ(calls("\"\""), "");
  EXPECT_EQ(calls("\"null\""), "");
  EXPECT_EQ(calls("[]"), "");
  for (const char* wrong : {"\"f(1)\"", "7", "[null]", "[7]", "[\"f\"]", "\"7\""})
    EXPECT_THROW(calls(wrong), std::invalid_argument) << wrong;
  EXPECT_EQ(fault(R"({"messages":[{"role":"assistant","content":"","tool_calls":[null]}]})"),
            "\"tool_calls\" of message 1 are no list of objects");
  EXPECT_EQ(fault(R"({"messages":[{"role":"assistant","content":"","function_call":"f"}]})"),
            "\"function_call\" of message 1 is no object");
}

// ShareGPT and ms-swift write calls as messages of their own.
TEST(RecordTest, MessagesOfCallsBecomeCalls) {
  const Conversation c =
      chat(R"({"conversations":[{"from":"human","value":"q"},)"
           R"({"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"a\":1}}"},)"
           R"({"from":"function_call","value":"[{\"name\":\"g\",\"arguments\":\"{}\"}]"},)"
           R"({"from":"observation","value":"r"},{"from":"gpt","value":"a"}]})");
  EXPECT_EQ(c.messages->size(), 4u);
  EXPECT_EQ(c.messages->at(1).dump(), R"({"role":"assistant","tool_calls":[)"
                                      R"({"type":"function","function":{"name":"f","arguments":{"a":1}}},)"
                                      R"({"type":"function","function":{"name":"g","arguments":{}}}]})");
  EXPECT_EQ(c.trained_messages, (std::vector{false, true, false, true}));
  const Conversation masked =
      chat(R"({"messages":[{"role":"user","content":"q"},)"
           R"({"role":"tool_call","content":"{\"name\":\"f\"}","loss":false},)"
           R"({"role":"Tool_Call","content":"{\"name\":\"g\"}"},{"role":"tool_response","content":"r"}]})");
  EXPECT_EQ(masked.trained_messages, (std::vector{false, false, true, false}));
  EXPECT_EQ(masked.messages->at(3)["role"], "tool");
  const std::string as_text = R"({"conversations":[{"from":"function_call","value":"f of 1"}]})";
  EXPECT_EQ(fault(as_text),
            R"(message 1 of function_call is no call in JSON, as {"name": ..., "arguments": {...}})");
  EXPECT_EQ(remedy(as_text),
            "Correct it, or train all such messages as the texts that they are with --data-keys "
            "assistant=function_call.");
  EXPECT_EQ(chat(as_text, RecordForm::automatic, {{"assistant", "function_call"}}).messages->dump(),
            R"([{"role":"assistant","content":"f of 1"}])");
}

TEST(RecordTest, CallsMayHaveOtherShapes) {
  const auto call = [](const std::string& value) {
    const Json from = {{"from", "function_call"}, {"value", value}};
    return (*chat(Json{{"conversations", {from}}}.dump()).messages)[0].dump();
  };
  const std::string begin = R"({"role":"assistant","tool_calls":[{"type":"function","function":)",
                    end = "}]}";
  EXPECT_EQ(call(R"({"name":"f"})"), begin + R"({"name":"f","arguments":{}})" + end);
  EXPECT_EQ(call(R"({"name":"f","parameters":{"a":1}})"),
            begin + R"({"name":"f","arguments":{"a":1}})" + end);
  EXPECT_EQ(call(R"({"id":"1","function":{"name":"f","arguments":"{}"}})"),
            begin + R"({"name":"f","arguments":{}})" + end);
  EXPECT_EQ(call("<think>t</think>\n{\"name\":\"f\"}"),
            R"({"role":"assistant","content":"<think>t</think>","tool_calls":[{"type":"function","function":)"
            R"({"name":"f","arguments":{}}}]})");
}

// In ms-swift's form, calls that follow an answer belong to it.
TEST(RecordTest, CallsBelongToTheAnswerBeforeThem) {
  const std::string call = R"({"role":"tool_call","content":"{\"name\":\"f\"}"})";
  const Conversation c =
      chat(R"({"messages":[{"role":"assistant","content":"a"},)" + call + "," + call + "]}");
  EXPECT_EQ(c.messages->dump(), R"([{"role":"assistant","content":"a","tool_calls":[)"
                                R"({"type":"function","function":{"name":"f","arguments":{}}},)"
                                R"({"type":"function","function":{"name":"f","arguments":{}}}]}])");
  EXPECT_EQ(c.trained_messages, std::vector{true});
  const Conversation masked =
      chat(R"({"messages":[{"role":"assistant","content":"a","loss":0},)" + call + "]}");
  EXPECT_EQ(masked.trained_messages, (std::vector{false, true}));
}

// If the two messages became one, the other fields of the second one would be lost.
TEST(RecordTest, CallsWithMoreThanACallAreNotJoined) {
  const Conversation c =
      chat(R"({"messages":[{"role":"tool_call","content":"{\"name\":\"f\"}"},)"
           R"({"role":"tool_call","content":"{\"name\":\"g\"}","reasoning_content":"r"}]})");
  EXPECT_EQ(c.messages->size(), 2u);
  EXPECT_TRUE(fault(R"({"messages":[{"role":"tool_call","content":"{\"name\":\"f\"}","tool_calls":[{}]}]})")
                  .starts_with("message 1 of tool_call is no call in JSON"));
}

TEST(RecordTest, AContentUnderAnotherKeyIsNamedInTheRemedy) {
  EXPECT_EQ(remedy(R"({"messages":[{"role":"user","value":"q"}]})"),
            "If \"value\" is that, give --data-keys content=value. Or leave out what is malformed with "
            "--bad-records "
            "skip.");
  EXPECT_EQ(
      remedy(R"({"conversations":[{"speaker":"user","text":"q"}]})"),
      "If \"speaker\" and \"text\" are that, give --data-keys from=speaker,value=text. Or leave out what is "
      "malformed with --bad-records skip.");
}

// The remedy repeats the names that were given, since some messages of the record need them.
TEST(RecordTest, RemediesKeepTheNamesThatWereGiven) {
  const std::string line = R"({"messages":[{"role":"user","content":"q"},{"speaker":"bot","text":"a"}]})";
  const auto help = [&](const NameMap& names) {
    try {
      parse_record(line, RecordForm::automatic, names);
    } catch (const RefusedRecord& error) {
      return error.remedy.substr(0, error.remedy.find(". Or"));
    }
    return std::string("none");
  };
  EXPECT_EQ(help({}),
            "If \"speaker\" and \"text\" are that, give --data-keys "
            "role=role,role=speaker,content=content,content=text");
  EXPECT_EQ(help({{"role", "role"}, {"role", "speaker"}}),
            "If \"text\" is that, give --data-keys role=role,role=speaker,content=content,content=text");
  const NameMap all{{"role", "role"}, {"role", "speaker"}, {"content", "content"}, {"content", "text"}};
  EXPECT_EQ(*chat(line, RecordForm::automatic, all).messages, kTwoTurns);
  EXPECT_EQ(data_keys_option({{"role", "who"}}, "assistant=the answer"),
            "--data-keys 'role=who,assistant=the answer'");
  EXPECT_EQ(shell_word("it's"), R"('it'\''s')");
}

TEST(RecordTest, AnAnswerMayBeWithoutAContent) {
  const Conversation c = chat(R"({"messages":[{"role":"user","content":"q"},)"
                              R"({"role":"assistant","content":null,"reasoning_content":"r"}]})");
  EXPECT_EQ(c.messages->at(1).dump(), R"({"role":"assistant","content":"","reasoning_content":"r"})");
  EXPECT_EQ(fault(R"({"messages":[{"role":"assistant","content":null}]})"), "message 1 has no \"content\"");
}

TEST(RecordTest, FaultsAreNamed) {
  EXPECT_EQ(fault(R"({"text":null})"), "\"text\" is null");
  EXPECT_EQ(fault(R"({"instruction":"q","output":null})"), "\"output\" is null");
  EXPECT_EQ(fault(R"({"messages":[{"role":"user","content":"q"}],"enable_thinking":true,)"
                  R"("chat_template_kwargs":{"enable_thinking":false}})"),
            "\"enable_thinking\" contradicts that of \"chat_template_kwargs\"");
  EXPECT_EQ(fault(R"({"messages": [}])"), "column 15 is not valid JSON");
  EXPECT_EQ(fault("{\"text\": \"\xFF\"}"), "column 11 is not UTF-8, which JSON is in");
  EXPECT_EQ(fault(R"({"text": "a)"), "it ends in the middle of its JSON");
  EXPECT_EQ(fault(R"({"text": "a", "text": "b"})"), "\"text\" is given twice");
  EXPECT_EQ(fault("[1]"), "it is no JSON object");
  EXPECT_EQ(fault(R"({"messages": "x"})"), "\"messages\" is no list");
  EXPECT_EQ(fault(R"({"messages": []})"), "the conversation is empty");
  EXPECT_EQ(fault(R"({"messages": [{"role": "user"}]})"), "message 1 has no \"content\"");
  EXPECT_EQ(fault(R"({"messages": [{"content": "x"}]})"), "message 1 has no \"role\"");
  EXPECT_EQ(fault(R"({"messages": [{"role": 1, "content": "x"}]})"), "\"role\" is no string");
  EXPECT_EQ(fault(R"({"messages": [{"role": "assistant", "content": "x", "weight": 2}]})"),
            "\"weight\" of message 1 is neither 0 nor 1, true nor false");
  EXPECT_EQ(fault(R"({"text": 7})"), "\"text\" is no string");
  EXPECT_EQ(fault(R"({"instruction": "a"})").substr(0, 35), "it has none of the keys that are kn");
  EXPECT_EQ(fault(R"({"text": "a"})", RecordForm::messages), "\"messages\" is missing");
  EXPECT_EQ(fault(R"({"conversations": [{"from":"gpt","value":"a"}], "tools": "{"})"),
            "\"tools\" is no list in JSON");
  EXPECT_EQ(fault(R"({"conversations": [3]})"), "a message is no object");
  EXPECT_EQ(fault(std::string(70, '[') + std::string(70, ']')), "it is nested too deeply");
  EXPECT_EQ(chat(R"({"messages":[{"role":"assistant","tool_calls":[]}]})").messages->size(), 1u)
      << "a message of calls alone has no content";
}

}  // namespace
}  // namespace sluice
