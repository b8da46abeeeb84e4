// Which records are recognised, which are refused, and that remedies do what they say.
#include "models/text/records/recognise.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/record_support.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

const Json kTwo = Json::parse(R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])");

TEST(RecogniseTest, WhatWouldTeachTheOppositeIsRefused) {
  const std::string label = R"({"prompt":"p","completion":"c","label":)";
  EXPECT_EQ(fault(label + "false}"),
            "its answer is marked as a bad one (\"label\": false), and only good ones can be trained");
  EXPECT_EQ(text(label + "true}").text, "c");
  for (const char* bad : {"0", "0.0", "\"False\"", "\"0\"", "\"False \""})
    EXPECT_EQ(fault(label + bad + "}"), std::string("its answer is marked as a bad one (\"label\": ") + bad +
                                            "), and only good ones can be trained");
  EXPECT_TRUE(text(label + "1}").unread_keys.empty());
  EXPECT_EQ(text(label + "2}").unread_keys, std::vector<std::string>{"label"});
  EXPECT_EQ(text(R"({"text":"t","label":false})").unread_keys, std::vector<std::string>{"label"})
      << "it classifies the text";
  const std::string kto = R"({"instruction":"i","output":"o","kto_tag":)";
  EXPECT_EQ(fault(kto + "false}"),
            "its answer is marked as a bad one (\"kto_tag\": false), and only good ones can be trained");
  EXPECT_TRUE(chat(kto + "true}").unread_keys.empty());
  EXPECT_EQ(chat(R"({"instruction":"i","output":"o","label":0})").unread_keys,
            std::vector<std::string>{"label"});
  EXPECT_EQ(fault(R"({"instruction":"i","output":"o","label":false})"),
            "its answer is marked as a bad one (\"label\": false), and only good ones can be trained");
  EXPECT_EQ(fault(R"({"messages":[{"role":"user","content":"q"},)"
                  R"({"role":"assistant","content":"a","label":false}]})"),
            "an answer is marked as a bad one (\"label\": false), and only good ones can be trained");
  for (const char* mark : {R"("label":0)", R"("label":"False")", R"("kto_tag":false)"}) {
    const std::string answer = std::string(R"({"role":"assistant","content":"a",)") + mark;
    EXPECT_TRUE(fault(R"({"messages":[)" + answer + "}]}").starts_with("an answer is marked as a bad one"));
    for (const char* mask : {R"("weight":0)", R"("train":false)"})
      EXPECT_EQ(chat(R"({"messages":[)" + answer + "," + mask + "}]}").trained_messages, std::vector{false});
  }
  EXPECT_TRUE(fault(R"({"question":"q","answer":"a"})").ends_with("It has question, answer"));
  const std::string pair = R"({"prompt":"p","chosen":"c","rejected":"r"})";
  EXPECT_EQ(fault(pair),
            "it prefers one answer to another (\"chosen\", \"rejected\"), and preferences are not trained");
  const auto chosen =
      std::get<PlainText>(parse_record(pair, RecordForm::automatic, {{"completion", "chosen"}}));
  EXPECT_EQ(chosen.text, "c");
  EXPECT_EQ(chosen.unread_keys, std::vector<std::string>{"rejected"});
}

// The options that a remedy names train the question once and the chosen answer once.
TEST(RecogniseTest, PreferencesAreTrainedAsTheRemedySays) {
  const std::string question = R"({"role":"user","content":"q"})",
                    answer = R"({"role":"assistant","content":"a"})",
                    whole = "[" + question + "," + answer + "]", rest = R"(,"rejected":"r"})";
  const std::vector<std::string> records = {
      R"({"prompt":"q","chosen":"a")" + rest,
      R"({"prompt":"q","chosen":)" + whole + rest,
      R"({"prompt":"q","messages":)" + whole + R"(,"chosen":)" + whole + rest,
      R"({"prompt":[)" + question + R"(],"chosen":[)" + answer + "]" + rest,
      R"({"messages":[)" + question + R"(],"chosen":)" + answer + rest,
      R"({"conversations":[{"from":"human","value":"q"}],"chosen":{"from":"gpt","value":"a"})" + rest,
      R"({"conversations":[{"from":"human","value":"q"}],"chosen":)" + whole + rest,
      R"({"instruction":"q","input":"","chosen":"a")" + rest,
      R"({"question":"q","chosen":"a")" + rest,
      R"({"chosen":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}])" + rest,
  };
  for (const std::string& record : records) {
    std::smatch said;
    const std::string help = remedy(record);
    ASSERT_TRUE(
        std::regex_match(help, said,
                         std::regex("To train the chosen answers alone, give "
                                    "(?:--format (\\w+) )?--data-keys (\\w+)=(\\w+)(?:,(\\w+)=(\\w+))?\\.")))
        << help;
    NameMap names{{said[2], said[3]}};
    if (said[4].matched) names.emplace(said[4], said[5]);
    const RecordForm form = said[1] == "messages"     ? RecordForm::messages
                            : said[1] == "completion" ? RecordForm::completion
                                                      : RecordForm::automatic;
    const Record trained = parse_record(record, form, names);
    if (const auto* plain = std::get_if<PlainText>(&trained))
      EXPECT_EQ(plain->prompt + plain->text, "qa") << record;
    else
      EXPECT_EQ(*std::get<Conversation>(trained).messages, kTwo) << record;
  }
}

TEST(RecogniseTest, PreferencesBesideMessagesAreTrainedAsTheRemedySays) {
  const std::string line =
      R"({"messages":[{"role":"user","content":"q"}],"chosen":[{"role":"assistant","content":"a"}],)"
      R"("rejected":[]})";
  EXPECT_EQ(remedy(line),
            "To train the chosen answers alone, give --format completion --data-keys "
            "prompt=messages,completion=chosen.");
  EXPECT_EQ(*chat(line, RecordForm::completion, {{"prompt", "messages"}, {"completion", "chosen"}}).messages,
            kTwo);
  const Conversation other =
      chat(R"({"conversations":[{"from":"human","value":"q"}],"chosen":{"from":"gpt","value":"a"}})",
           RecordForm::completion, {{"prompt", "conversations"}, {"completion", "chosen"}});
  EXPECT_EQ(*other.messages, kTwo);
  EXPECT_EQ(other.trained_messages, (std::vector{false, true}));
}

// The conversation ends with another answer, or the record has no question apart from it.
TEST(RecogniseTest, ChosenAnswersBesideAWholeConversation) {
  const std::string whole = R"({"messages":)" + kTwo.dump() + R"(,"chosen":"c","rejected":"r")";
  EXPECT_EQ(remedy(whole + R"(,"prompt":"p"})"),
            "To train the chosen answers alone, give --format completion --data-keys completion=chosen.");
  EXPECT_EQ(remedy(whole + "}"),
            "To train its conversation as it stands: jq -c 'del(.chosen, .rejected)' FILE > OUT.jsonl");
}

TEST(RecogniseTest, RatedAnswersAreNotTrainedTogether) {
  const std::string rated = R"({"prompt":"q","responses":[{"text":"a","score":1},{"text":"b","score":2}]})";
  EXPECT_EQ(fault(rated),
            "\"responses\" has several answers, each with a score, and preferences are not trained");
  EXPECT_EQ(remedy(rated),
            "To train the one that is rated highest: jq -c '{prompt, completion: (.[\"responses\"] | "
            "max_by(.score) | .text)}' FILE > OUT.jsonl");
}

TEST(RecogniseTest, OtherPreferencesAreToBeConverted) {
  const std::string beside = R"({"messages":[{"role":"user","content":"q"}],"rejected":"r"})";
  EXPECT_EQ(fault(beside),
            "it prefers one answer to another (\"rejected\"), and preferences are not trained");
  EXPECT_EQ(remedy(beside), "To train the other answers: jq -c 'del(.rejected)' FILE > OUT.jsonl");
  const std::string of_openai =
      R"({"input":{"messages":[]},"preferred_output":[],"non_preferred_output":[1]})";
  EXPECT_EQ(fault(of_openai),
            "it prefers one answer to another (\"non_preferred_output\"), and preferences are not trained");
  EXPECT_EQ(remedy(of_openai),
            "To train the preferred answers alone: jq -c '{messages: (.input.messages + .preferred_output), "
            "tools: .input.tools}' FILE > OUT.jsonl");
  EXPECT_EQ(
      remedy(R"({"chosen":"Human: q Assistant: a","rejected":"r"})"),
      "To train the chosen answers alone, give --data-keys text=chosen, which trains questions with them.");
}

// A remedy names the keys that the record has.
TEST(RecogniseTest, OtherKeysAreNamedInTheRemedy) {
  const auto help = [](const std::string& keys) {
    return "Say what its keys are called" + keys +
           ", or leave out what is malformed with --bad-records skip.";
  };
  EXPECT_EQ(remedy(R"({"instruction":"i","context":"c","response":"r"})"),
            help(": --data-keys output=response,input=context"));
  EXPECT_EQ(remedy(R"({"question":"q","answer":"a"})"),
            help(": --data-keys prompt=question,completion=answer"));
  EXPECT_EQ(remedy(R"({"question":"q","system_prompt":"s","response":"a"})"),
            help(": --data-keys prompt=question,completion=response,system=system_prompt"));
  EXPECT_EQ(remedy(R"({"conversation":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})"),
            help(": --data-keys messages=conversation"));
  EXPECT_EQ(fault(R"({"prompt":{"text":"q","role":"prompter","replies":[]}})"),
            "\"prompt\" is a tree of messages and replies");
  EXPECT_EQ(remedy(R"({"problem":"q","solution":"s","answer":"a"})"),
            help(": --data-keys prompt=problem,completion=solution"));
  EXPECT_EQ(remedy(R"({"prompt":"q","query":"i","response":"a","history":[]})"),
            help(": --data-keys instruction=prompt,output=response,input=query"));
  EXPECT_EQ(remedy(R"({"query":"q","response":"a","history":[["b","c"]]})"),
            help(": --data-keys instruction=query,output=response"));
  EXPECT_EQ(remedy(R"({"prompt":"q","response":"a"})"), help(": --data-keys completion=response"));
  EXPECT_EQ(remedy(R"({"human":"q","assistant":"a"})"),
            help(": --data-keys prompt=human,completion=assistant"));
  EXPECT_EQ(remedy(R"({"conversation_a":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],)"
                   R"("conversation_b":[{"role":"user",)"
                   R"("content":"q"}]})"),
            help(": --data-keys messages=conversation_a (which trains that one of conversation_a, "
                 "conversation_b)"));
  EXPECT_EQ(remedy(R"({"q":"q","a":"a"})"), help(", as in --data-keys prompt=question,completion=answer"));
  const Conversation dolly = chat(R"({"instruction":"i","context":"c","response":"r"})",
                                  RecordForm::automatic, {{"output", "response"}, {"input", "context"}});
  EXPECT_EQ((*dolly.messages)[0]["content"], "i\nc");
}

TEST(RecogniseTest, FilesThatAreNoRecordsAreToBeConverted) {
  const std::string nested = R"({"data":[{"messages":[{"role":"user","content":"q"}]}]})";
  EXPECT_EQ(fault(nested), "what it holds stands within \"data\"");
  EXPECT_EQ(remedy(nested),
            R"(Convert the file to one record a line: jq -c '(.["data"] // [.])[]' FILE > OUT.jsonl)");
  EXPECT_EQ(remedy(R"({"row":{"text":"t"}})"),
            R"(Convert the file to one record a line: jq -c '.["row"] // .' FILE > OUT.jsonl)");
  EXPECT_EQ(remedy(R"({"1":{"text":"t"},"2":{"text":"u"}})"),
            "Convert the file to one record a line: jq -c '.[]' FILE > OUT.jsonl");
  EXPECT_TRUE(fault(R"({"question":"q","meta":{"id":1}})").starts_with("it has none of the keys"));
  const std::string strings = R"({"conversations":["q","a"]})";
  EXPECT_EQ(fault(strings), "a message is a string, which does not tell who says it");
  EXPECT_EQ(remedy(strings),
            "Convert the file: a message is an object, as {\"role\": \"user\", \"content\": \"Hello\"}.");
}

// In a file that is one list, the elements are the records, so the conversion begins with `.[]`.
TEST(RecogniseTest, ConversionsAreForTheFileAsItIs) {
  const RefusedRecord refused("why", "Convert it", ".a");
  EXPECT_EQ(remedy_of(refused, "", "my file.json", true),
            "Convert it: jq -c '.[] | .a' 'my file.json' > OUT.jsonl");
  EXPECT_EQ(remedy_of(refused, "", "f.jsonl", false), "Convert it: jq -c '.a' f.jsonl > OUT.jsonl");
}

TEST(RecogniseTest, WhatAConversionLeavesOutIsSaid) {
  EXPECT_TRUE(
      remedy(R"({"input":{"messages":[],"parallel_tool_calls":true},"id":"x","non_preferred_output":[1]})")
          .starts_with("To train the preferred answers alone, which leaves out what else a record has (id, "
                       "parallel_tool_calls): jq -c"));
  EXPECT_EQ(remedy(R"({"request":{"messages":[]},"response":{"choices":[]}, "id":""})"),
            R"(Convert the file to one record a line, which leaves out what else a record has (response): )"
            R"(jq -c '.["request"] // .' FILE > OUT.jsonl)");
  EXPECT_TRUE(fault(R"({"question":"q","answers":{"text":["a"]}})").starts_with("it has none of the keys"));
}

// axolotl writes such segments.
TEST(RecogniseTest, SegmentsWithLabelsAreRefused) {
  const std::string segments = R"({"segments":[{"label":false,"text":"q"},{"label":true,"text":"a"}]})";
  EXPECT_EQ(fault(segments), "\"segments\" has a label for each part of a text, and such masks are not read");
  EXPECT_EQ(remedy(segments),
            "To train the last part, with the others as its prompt, of records where that has a true label: "
            "jq -c 'select(.[\"segments\"][-1].label) "
            "| {prompt: "
            "([.[\"segments\"][:-1][].text] | add // \"\"), completion: .[\"segments\"][-1].text}' "
            "FILE > OUT.jsonl");
}

// A label may be a class, or the mark of a whole record. Such labels do not make segments.
TEST(RecogniseTest, RecordsWithLabelsWithinAKeyAreNoSegments) {
  for (const char* line : {R"({"data":[{"text":"t","label":1}]})",
                           R"({"data":[{"prompt":"q","completion":"a","label":true}]})"}) {
    EXPECT_EQ(fault(line), "what it holds stands within \"data\"") << line;
    EXPECT_EQ(remedy(line),
              R"(Convert the file to one record a line: jq -c '(.["data"] // [.])[]' FILE > OUT.jsonl)");
  }
}

TEST(RecogniseTest, AMessageOfATreeIsNoText) {
  EXPECT_EQ(fault(R"({"message_id":"1","parent_id":null,"text":"q","role":"prompter"})"),
            "it is a message of a tree, of which \"role\" says who says it");
  EXPECT_EQ(text(R"({"text":"q","role":"prompter"})").unread_keys, std::vector<std::string>{"role"});
}

TEST(RecogniseTest, ARecordThatIsNotToBeTrainedIsRefused) {
  EXPECT_EQ(fault(R"({"text":"a","weight":0})"), "it says that it is not to be trained (\"weight\": 0)");
  EXPECT_EQ(fault(R"({"prompt":"a","completion":"b","train":false})"),
            "it says that it is not to be trained (\"train\": false)");
  EXPECT_EQ(text(R"({"text":"a","weight":0.5})").unread_keys, std::vector<std::string>{"weight"});
  EXPECT_TRUE(text(R"({"text":"a","train":true})").unread_keys.empty());
}

// Conversations whose turns have other keys, or whose questions and answers are lists.
TEST(RecogniseTest, ConversationsUnderOtherNamesAreNamed) {
  const auto keys = [](const std::string& line) {
    const std::string help = remedy(line);
    const size_t begin = help.find("--data-keys "), end = help.find(", or leave out");
    return begin == help.npos ? help : help.substr(begin + 12, end - begin - 12);
  };
  EXPECT_EQ(keys(R"({"conversation":[{"speaker":"human","text":"q"},{"speaker":"bot","text":"a"}]})"),
            "messages=conversation,role=speaker,content=text");
  EXPECT_EQ(
      keys(R"({"input":[{"role":"user","content":"q"}],"output":[{"role":"assistant","content":"a"}]})"),
      "prompt=input,completion=output");
  EXPECT_EQ(keys(R"({"prompt":[{"role":"user","content":"q"}]})"), "prompt=question,completion=answer");
}

TEST(RecogniseTest, RejectedMayBeAMark) {
  EXPECT_EQ(remedy(R"({"messages":[{"role":"user","content":"q"}],"rejected":true})"),
            "To train those that are not: jq -c 'select(.rejected | not) | del(.rejected)' FILE > OUT.jsonl");
}

}  // namespace
}  // namespace sluice
