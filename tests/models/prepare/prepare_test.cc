// Preparing data: the same set whatever the threads, kills and what was there before.
#include "models/prepare/prepare.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "models/files/data_path.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

const char* const kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor "
    "%}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

class PrepareTest : public FormatTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(path("model"));
    std::filesystem::copy_file("tests/fixtures/tokenizers/qwen2.json", path("model/tokenizer.json"));
    write_file("model/tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\"}");
    write_file("model/chat_template.jinja", kChatMl);
  }
  std::string write_chats(const char* name, size_t bytes) const {
    std::mt19937 random(1);
    std::string text;
    while (text.size() < bytes)
      text += fmt::format(
          "{{\"messages\":[{{\"role\":\"user\",\"content\":\"What is {}?\"}},"
          "{{\"role\":\"assistant\",\"content\":\"{}\"}}]}}\n",
          random() % 1000, std::string(1 + random() % 79, 'a'));
    return write_file(name, text);
  }
  PrepareRequest request(const std::vector<std::string>& files, int threads = 1) const {
    return {.files = files, .tokenizer = path("model"), .threads = threads};
  }
  std::string made(const Preparation& preparation, const char* name) const {
    std::filesystem::create_directory(path(name));
    EXPECT_TRUE(preparation.make(path(name), never_, [](const PrepareProgress&) {}));
    return path(name);
  }
  static std::string name_of(const Preparation& preparation) {
    return preparation.name([](const PrepareProgress&) {});
  }
  static uint64_t checksum(const std::string& directory) {
    return PreparedSet::open(directory, 1 << 20).checksum();
  }
  const std::atomic<bool> never_{false};
};

TEST_F(PrepareTest, AnyNumberOfThreadsMakesTheSameSet) {
  const std::string chats = write_chats("chats.jsonl", 3 << 20);
  const std::string one = made(Preparation(request({chats}, 1)), "one");
  const std::string three = made(Preparation(request({chats}, 3)), "three");
  EXPECT_EQ(checksum(one), checksum(three));
  const PreparedCounts counts = PreparedSet::open(one, 1 << 20).counts();
  EXPECT_EQ(counts, PreparedSet::open(three, 1 << 20).counts());
  EXPECT_GT(counts.records, 10'000u);
  EXPECT_EQ(counts.samples, counts.records);
  EXPECT_EQ(counts.bad + counts.untrained + counts.divided + counts.texts, 0u);
}

TEST_F(PrepareTest, WhatUsersSpellAndPatternsDoNotKnowIsCounted) {
  // Nothing is counted in a sample that is left out.
  const std::string chats =
      write_file("chats.jsonl",
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\\ufffe\"},"
                 "{\"role\":\"assistant\",\"content\":\"a<|im_end|>b<|im_start|>\"}]}\n"
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\\ufffe\"}]}\n"
                 "{\"text\":\"\\ufffe<|im_end|>.\"}\n");
  const PreparedCounts counts =
      PreparedSet::open(made(Preparation(request({chats})), "set"), 1 << 20).counts();
  EXPECT_EQ(counts.untrained, 1u);
  EXPECT_EQ(counts.unknown_characters, 2u);
  EXPECT_EQ(counts.spelled_controls, 4u);
  EXPECT_EQ(remarks_on(counts, {}).size(), 3u);
  PrepareRequest anywhere = request({chats});
  anywhere.choices.control_tokens = ControlTokens::anywhere;
  const PreparedCounts other = PreparedSet::open(made(Preparation(anywhere), "other"), 1 << 20).counts();
  EXPECT_EQ(other.unknown_characters, 2u);
  EXPECT_EQ(other.spelled_controls, 0u);
}

TEST_F(PrepareTest, RemarksAreMadeWhereThereIsSomethingToSay) {
  EXPECT_TRUE(remarks_on({}, {}).empty());
  EXPECT_EQ(
      remarks_on({.unknown_characters = 1, .spelled_controls = 1}, {}),
      (std::vector<std::string>{
          "1 character is unknown to the installed Oniguruma, and transformers may cut "
          "the text around it otherwise",
          "1 control token that text of users spells stays text (but with --control-tokens anywhere)"}));
  EXPECT_EQ(remarks_on({.unknown_characters = 3}, {}),
            std::vector<std::string>{
                "3 characters are unknown to the installed Oniguruma, and transformers may cut "
                "the text around them otherwise"});
  EXPECT_EQ(remarks_on({.untrained = 2, .divided = 1}, {}),
            (std::vector<std::string>{"1 conversation is a sample for each answer, since the chat template "
                                      "renders earlier turns otherwise",
                                      "2 samples without trained tokens are left out"}));
  EXPECT_EQ(remarks_on({.spelled_controls = 2}, {}),
            std::vector<std::string>{
                "2 control tokens that text of users spells stay text (but with --control-tokens anywhere)"});
}

TEST_F(PrepareTest, NotesOfPartsAddUpAndAreTold) {
  const std::string chats = write_chats("chats.jsonl", 3 << 20);
  std::string lines;
  for (const char* id : {"1", "2"})
    lines += fmt::format(
        "{{\"id\":{},\"messages\":[{{\"role\":\"Narrator\",\"content\":\"n\"}},{{\"role\":\"user\","
        "\"content\":\"q\"}},"
        "{{\"role\":\"assistant\",\"content\":\"a\",\"name\":\"Ada\"}}]}}\n",
        id);
  const std::string other = write_file("other.jsonl", lines);
  const PreparedSet set = PreparedSet::open(made(Preparation(request({chats, other}, 2)), "set"), 1 << 20);
  const SampleNotes notes = notes_of(set);
  EXPECT_GT(set.notes().size(), 1u);
  EXPECT_EQ(notes.unread, (SampleNotes::ByName{{"id", 2}, {"message.name", 2}}));
  EXPECT_EQ(notes.unknown_roles, (SampleNotes::ByName{{"Narrator", 2}}));
  ASSERT_EQ(notes.ends.size(), 1u);
  EXPECT_EQ(notes.ends.begin()->second, set.samples());
  EXPECT_EQ(remarks_on(set.counts(), notes),
            (std::vector<std::string>{"not read: id (2), message.name (2)",
                                      "roles not known, whose messages are no answers: Narrator (2)"}));
}

TEST_F(PrepareTest, RemarksOnAnswers) {
  SampleNotes notes;
  notes.cut = 1, notes.opened = 2, notes.rendered = 3, notes.endless = 4, notes.empty = 5, notes.masked = 6;
  notes.whole = 7, notes.refusal = "it is empty";
  notes.opening = "<think>\n", notes.no_end = "there is no eos_token";
  EXPECT_EQ(
      remarks_on({.bad = 2}, notes),
      (std::vector<std::string>{
          "1 answer lacks a part, which the chat template leaves out", "5 answers are empty",
          "6 answers are trained by --train-on all although the record says that it is not to be",
          "2 answers do not begin with <think>, with which the chat template's prompt ends",
          "7 texts are trained as a whole, since --train-on last is about conversations",
          "3 texts were rendered by a chat template before: their control tokens are control tokens",
          "4 answers and texts do not end with a control token, so that the model does not learn to stop "
          "there (there is no eos_token); --eos-token TOKEN says which token ends them, if one does",
          "2 malformed records are left out (the first: it is empty)"}));
  EXPECT_EQ(notes_of_json(json_of(notes)), notes);
}

TEST_F(PrepareTest, WhatIsDoneIsKept) {
  const std::string chats = write_chats("chats.jsonl", 3 << 20);
  const Preparation preparation(request({chats}));
  std::filesystem::create_directory(path("set"));
  std::atomic<bool> stop{false};
  EXPECT_FALSE(preparation.make(path("set"), stop, [&](const PrepareProgress& p) {
    if (p.bytes > p.all / 2) stop = true;
  }));
  EXPECT_FALSE(is_complete_set(path("set")));
  const std::string first = path("set/" + part_name(0));
  ASSERT_TRUE(part_counts(first).has_value());
  const auto written = std::filesystem::last_write_time(first);
  // A part that a kill left damaged is made anew.
  const std::string second = path("set/" + part_name(1));
  if (std::filesystem::exists(second)) std::filesystem::resize_file(second, 100);
  EXPECT_TRUE(preparation.make(path("set"), never_, [](const PrepareProgress&) {}));
  EXPECT_EQ(std::filesystem::last_write_time(first), written);
  EXPECT_EQ(checksum(path("set")), checksum(made(preparation, "whole")));
}

TEST_F(PrepareTest, DamagedFilesAreFoundAndMadeAnew) {
  const std::string chats = write_chats("chats.jsonl", 3 << 20);
  const Preparation preparation(request({chats}, 2));
  const std::string set = made(preparation, "set");
  const uint64_t whole = checksum(set);
  const auto damaged = [&] { return preparation.damaged_files(set, [](const PrepareProgress&) {}); };
  EXPECT_TRUE(damaged().empty());
  const std::string part = read_text_file(path("set/part-000001"), 1 << 26);
  std::string changed = part;
  changed[changed.size() / 2] ^= 4;
  write_file("set/part-000001", changed);
  std::filesystem::remove(path("set/part-000002"));
  write_file("set/set.json", "{\"format\": \"sluice-prepared-4\", \"parts\": 1}");  // fewer than it has
  EXPECT_EQ(damaged(), (std::vector<std::string>{"part-000001", "part-000002", "set.json"}));
  EXPECT_TRUE(preparation.make(set, never_, [](const PrepareProgress&) {}));
  EXPECT_TRUE(damaged().empty());
  EXPECT_EQ(read_text_file(path("set/part-000001"), 1 << 26), part);
  EXPECT_EQ(checksum(set), whole);
}

TEST_F(PrepareTest, ARecordForWhichThereIsNoMemoryIsRefused) {
  const std::string big =
      write_file("big.jsonl", "{\"text\":\"a\"}\n{\"text\":\"" + std::string(1'500'000, 'a') + "\"}\n");
  PrepareRequest tight = request({big});
  tight.memory = 64 << 20;
  std::filesystem::create_directory(path("set"));
  expect_error(ExitCode::infeasible,
               {"big.jsonl, line 2: a record has 1.43 MiB, and there is memory for one of 1.25 MiB."},
               [&] { Preparation(tight).make(path("set"), never_, [](const PrepareProgress&) {}); });
  tight.memory = 2 * RecordMemory::kLeast;
  EXPECT_TRUE(Preparation(tight).make(path("set"), never_, [](const PrepareProgress&) {}));
}

TEST_F(PrepareTest, ThreadsShareTheMemoryForRecords) {
  RecordMemory memory(0);
  EXPECT_EQ(memory.longest(), RecordMemory::kLeast / RecordMemory::kTimes);
  EXPECT_EQ(RecordMemory(UINT64_MAX).longest(), kRecordBytesMax);
  std::atomic<bool> is_second{false};
  std::thread second;
  {
    const RecordMemory::Share first = memory.take(memory.longest());
    second = std::thread([&] {
      const RecordMemory::Share share = memory.take(1);
      is_second = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(is_second);
  }
  second.join();
  EXPECT_TRUE(is_second);
}

// A set is named by its data. A part made of other data would be taken for one of the named data.
TEST_F(PrepareTest, DataThatChangeMeanwhileLeaveNoPart) {
  const std::string chats = write_chats("chats.jsonl", 1 << 12);
  const std::string before = read_text_file(chats, 1 << 20);
  std::filesystem::create_directory(path("set"));
  const auto expect_refusal_of = [&](const Preparation& preparation) {
    expect_error(ExitCode::io, {"chats.jsonl was changed or removed while it was read"},
                 [&] { preparation.make(path("set"), never_, [](const PrepareProgress&) {}); });
    EXPECT_TRUE(std::filesystem::is_empty(path("set")));
  };
  const Preparation changed(request({chats}));
  std::filesystem::last_write_time(chats, std::filesystem::last_write_time(chats) + std::chrono::seconds(1));
  expect_refusal_of(changed);
  const Preparation grown(request({chats}));
  const auto time = std::filesystem::last_write_time(chats);
  write_file("chats.jsonl", before + before);
  std::filesystem::last_write_time(chats, time);
  expect_refusal_of(grown);
  const Preparation gone(request({chats}));
  std::filesystem::remove(chats);
  expect_refusal_of(gone);
}

// Alpaca and other data are published as one list.
TEST_F(PrepareTest, AListGivesTheSamplesOfItsLines) {
  const std::string chats = write_chats("chats.jsonl", 3 << 20);
  std::string list = read_text_file(chats, 1 << 24);
  for (size_t end = list.find('\n'); end + 1 < list.size(); end = list.find('\n', end + 1)) list[end] = ',';
  const std::string json = write_file("chats.json", "[" + list + "]");
  const std::string lines = made(Preparation(request({chats})), "lines");
  const std::string one = made(Preparation(request({json}, 1)), "one");
  EXPECT_EQ(PreparedSet::open(one, 1 << 20).counts(), PreparedSet::open(lines, 1 << 20).counts());
  EXPECT_EQ(checksum(made(Preparation(request({json}, 3)), "three")), checksum(one));
}

TEST_F(PrepareTest, RefusalsSayWhatHelps) {
  const auto remedy = [&](const std::string& file) -> std::string {
    try {
      made(Preparation(request({file})), "set");
    } catch (const Error& error) {
      return error.remedy();
    }
    return "";
  };
  const auto has = [&](const std::string& file, const char* words) {
    const std::string found = remedy(file);
    EXPECT_NE(found.find(words), std::string::npos) << found;
  };
  has(write_file("a.jsonl", R"({"question":"a","answer":"b"})"),
      "--data-keys prompt=question,completion=answer");
  has(write_file("b.jsonl", R"({"text":1})"), "Correct it, or leave out what is malformed");
  has(write_file("c.csv", "a,b\n"), "Convert it to JSON lines");
  has(write_file("e.json", "{\n\"text\": \"a\"\n}\n"), "Convert the file to one record a line: jq -c . ");
  std::filesystem::remove(path("model/chat_template.jinja"));
  has(write_chats("d.jsonl", 1), "Give --chat-template FILE");
}

TEST_F(PrepareTest, TheFirstRefusalOfWhatIsLeftOutIsTold) {
  PrepareRequest skipping = request({write_file("a.jsonl", "{\"text\":\"a\"}\n{\"text\":1}\n{\"text\":\n")});
  skipping.skips_bad = true;
  const PreparedSet set = PreparedSet::open(made(Preparation(skipping), "set"), 1 << 20);
  EXPECT_EQ(remarks_on(set.counts(), notes_of(set)),
            std::vector<std::string>{"2 malformed records are left out (the first: \"text\" is no string)"});
}

TEST_F(PrepareTest, AByteOrderMarkIsNoText) {
  const auto ids = [&](const std::string& text) {
    return Preparation(request({write_file("a.txt", text)})).first_samples(2).at(0).ids;
  };
  EXPECT_EQ(ids("\xef\xbb\xbfsome text"), ids("some text"));
}

TEST_F(PrepareTest, AnEndThatNoAnswerTeachesIsTold) {
  TextModel model = open_text_model(path("model"), "");
  const uint32_t end = *model.tokenizer.id_of("<|im_end|>"), other = *model.tokenizer.id_of("<|endoftext|>");
  SampleNotes notes;
  notes.ends = {{end, 2}};
  set_end_token(model, "<|endoftext|>");
  EXPECT_EQ(
      unlearned_end(model, {}, notes),
      "No answer of the data ends with <|endoftext|>, the end that --eos-token names: a run on these data "
      "does not learn to stop. Answers end with <|im_end|>.");
  notes.ends[other] = 3;
  EXPECT_EQ(unlearned_end(model, {}, notes), "");
  EXPECT_NE(unlearned_end(model, {.texts = 3}, notes), "") << "these are ends of texts";
  notes.ends.erase(end);
  EXPECT_EQ(unlearned_end(model, {.texts = 3}, notes), "") << "there is no answer";
  notes.ends.clear();
  notes.endless = 1;
  EXPECT_EQ(
      unlearned_end(model, {}, notes),
      "No answer of the data ends with <|endoftext|>, the end that --eos-token names: a run on these data "
      "does not learn to stop.");
}

TEST_F(PrepareTest, NamesTellWhatASetDependsOn) {
  const std::string chats = write_chats("chats.jsonl", 1 << 12);
  const std::string name = name_of(Preparation(request({chats})));
  EXPECT_EQ(name.size(), 32u);
  EXPECT_EQ(name_of(Preparation(request({chats}, 2))), name);
  std::filesystem::copy_file(chats, path("copy.jsonl"));
  EXPECT_EQ(name_of(Preparation(request({path("copy.jsonl")}))), name) << "content, not place";
  std::vector<PrepareRequest> others(6, request({chats}));
  others[0].choices.train_on = TrainOn::all;
  others[1].choices.control_tokens = ControlTokens::anywhere;
  others[2].choices.template_values = "{\"x\":1}";
  others[3].form = RecordForm::messages;
  others[4].names.emplace("user", "kunde");
  others[5].skips_bad = true;
  for (const PrepareRequest& other : others) EXPECT_NE(name_of(Preparation(other)), name);
  write_file("model/chat_template.jinja", std::string(kChatMl) + " ");
  EXPECT_NE(name_of(Preparation(request({chats}))), name);
  write_file("model/chat_template.jinja", kChatMl);
  write_chats("copy.jsonl", 1 << 13);
  EXPECT_NE(name_of(Preparation(request({path("copy.jsonl")}))), name);
  // Files beside the tokenizer's own add tokens, or change their flags.
  std::set<std::string> names = {name_of(Preparation(request({chats})))};
  write_file("model/added_tokens.json", "{\"<|new|>\": 626}");
  names.insert(name_of(Preparation(request({chats}))));
  for (const char* flag : {"lstrip", "rstrip", "single_word", "normalized"}) {
    write_file("model/tokenizer_config.json",
               fmt::format("{{\"eos_token\": \"<|im_end|>\", \"added_tokens_decoder\": {{\"626\": {{"
                           "\"content\": \"<|new|>\", \"{}\": true, \"special\": true}}}}}}",
                           flag));
    names.insert(name_of(Preparation(request({chats}))));
  }
  EXPECT_EQ(names.size(), 6u);
}

// Beside a tokenizer.model, tokenizer_config.json says what is added around a text.
TEST_F(PrepareTest, NamesTellWhatTheTokenizerAdds) {
  const auto field = [](int number, const std::string& payload) {  // protobuf's, of type block
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(payload.size())} + payload;
  };
  std::string model;
  for (const auto& [content, type] : {std::pair{"<unk>", 2}, {"<s>", 3}, {"</s>", 3}, {"a", 1}})
    model += field(1, field(1, content) + '\x18' + static_cast<char>(type));
  std::filesystem::remove(path("model/tokenizer.json"));
  write_file("model/tokenizer.model", model + field(2, "\x18\x02") + field(3, {'\x20', '\0'}));
  const std::string texts = write_file("a.txt", "a");
  std::set<std::string> names;
  for (const char* config : {"{}", R"({"add_bos_token": false})", R"({"add_eos_token": true})",
                             R"({"add_bos_token": false, "add_eos_token": true})"}) {
    write_file("model/tokenizer_config.json", config);
    names.insert(name_of(Preparation(request({texts}))));
  }
  EXPECT_EQ(names.size(), 4u);
}

TEST_F(PrepareTest, BadRecordsAreRefusedOrCounted) {
  std::string text;
  for (int i = 1; i <= 70'000; ++i) text += "{\"text\":\"a\"}\n";
  text += "{\"text\":\"a\n{\"text\": 1}\n\n{\"prompt\":\"p\",\"completion\":\"\"}\n";
  const std::string file = write_file("bad.jsonl", text);
  std::filesystem::create_directory(path("set"));
  expect_error(ExitCode::malformed_file, {"bad.jsonl, line 70001: ", "ends in the middle of its JSON"}, [&] {
    Preparation(request({file})).make(path("set"), never_, [](const PrepareProgress&) {});
  });
  PrepareRequest skips = request({file});
  skips.skips_bad = true;
  const PreparedCounts counts = PreparedSet::open(made(Preparation(skips), "skips"), 1 << 20).counts();
  EXPECT_EQ(counts.records, 70'003u);
  EXPECT_EQ(counts.bad, 2u);
  EXPECT_EQ(counts.samples, 70'001u);
  EXPECT_EQ(counts.texts, 70'000u);
}

TEST_F(PrepareTest, TokensBeyondTheEmbeddingAreRefused) {
  PrepareRequest small = request({write_chats("chats.jsonl", 1 << 12)});
  small.vocabulary = 300;
  std::filesystem::create_directory(path("set"));
  expect_error(ExitCode::malformed_file, {"chats.jsonl, line 1", "the model's embedding has 300 rows"},
               [&] { Preparation(small).make(path("set"), never_, [](const PrepareProgress&) {}); });
}

TEST_F(PrepareTest, FilesThatCannotBeRead) {
  expect_error(ExitCode::usage, {"gone.jsonl"}, [&] { Preparation(request({path("gone.jsonl")})); });
  expect_error(ExitCode::malformed_file, {"empty.jsonl is empty"},
               [&] { Preparation(request({write_file("empty.jsonl", "")})); });
  expect_error(ExitCode::usage, {"a.parquet is a Parquet file"},
               [&] { Preparation(request({write_file("a.parquet", "PAR1")})); });
}

TEST_F(PrepareTest, FilesOfOtherKindsAreNamedWithTheCommandThatHelps) {
  const auto expect = [&](const char* name, const std::string& content, const char* kind,
                          const char* command) {
    const std::string file = write_file(name, content);
    try {
      Preparation(request({file}));
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), file + " is " + kind + ", which is not read.");
      EXPECT_NE(error.remedy().find(command + std::string(" ") + file), std::string::npos) << error.remedy();
    }
  };
  using namespace std::string_literals;
  expect("a.jsonl", "\x1f\x8b\x08 more", "a gzip file", "zcat <");
  expect("a.jsonl.gz", "\x1f\x8b\x08 more", "a gzip file", "zcat <");
  expect("b.jsonl", "\xff\xfe{\0"s, "text in UTF-16", "iconv -f UTF-16 -t UTF-8");
  expect("b.txt", "\xff\xfe\0\0a\0\0\0"s, "text in UTF-32", "iconv -f UTF-32 -t UTF-8");
  expect("c.txt", "T\0e\0x\0t\0"s, "text in UTF-16LE", "iconv -f UTF-16LE -t UTF-8");
  expect("c.jsonl", "\0{\0\"\0t\0e"s, "text in UTF-16BE", "iconv -f UTF-16BE -t UTF-8");
  expect("d.jsonl", "\x28\xb5\x2f\xfd...", "a Zstandard file", "zstdcat <");
  expect("e.jsonl", "version https://git-lfs.github.com/spec/v1\n",
         "a pointer of Git LFS, not the file that it stands for", "git lfs pull --include");
}

TEST_F(PrepareTest, WhatIsConvertedKeepsAnEndingThatIsKnown) {
  const auto remedy = [&](const char* name) {
    try {
      Preparation(request({write_file(name, "BZh9")}));
    } catch (const Error& error) {
      return error.remedy();
    }
    return std::string();
  };
  EXPECT_EQ(remedy("a.txt.bz2"), "Unpack it: bzcat < " + path("a.txt.bz2") + " > OUT.txt");
  EXPECT_EQ(remedy("a.json"), "Unpack it: bzcat < " + path("a.json") + " > OUT.json");
  EXPECT_EQ(remedy("a"), "Unpack it: bzcat < " + path("a") + " > OUT.jsonl");
}

TEST_F(PrepareTest, JsonInAFileOfTextIsNotTrainedAsItIsSpelled) {
  for (const char* json : {"\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n", "{\n  \"a\": 1}", "[\n {\"a\": 1}]"})
    expect_error(ExitCode::usage, {"a.txt holds JSON"},
                 [&] { Preparation(request({write_file("a.txt", json)})); });
  for (const char* text : {"{a} {\"text\": 1}\n", "[1]\n", "\"a\"\n", "{\n"})
    Preparation(request({write_file("b.txt", text)}));
}

TEST_F(PrepareTest, FoldersAreTheirFiles) {
  std::filesystem::create_directories(path("data/b"));
  std::filesystem::create_directories(path("data/.ipynb_checkpoints/b"));
  for (const char* name : {"data/b/1.jsonl", "data/a.txt", "data/c.md", "data/README.md", "data/.hidden",
                           "data/x.csv", "data/.ipynb_checkpoints/b/1.jsonl"})
    write_file(name, "x");
  // Links to files are read. Links to folders, which may lead back, and to nothing are told, not read.
  std::filesystem::create_symlink(path("data/a.txt"), path("data/d.txt"));
  std::filesystem::create_directory_symlink(path("data"), path("data/b/up"));
  std::filesystem::create_symlink(path("data/gone.txt"), path("data/e.txt"));
  const DataFiles found = files_of({path("one.txt"), path("data")});
  EXPECT_EQ(found.files,
            (std::vector<std::string>{path("one.txt"), path("data/a.txt"), path("data/b/1.jsonl"),
                                      path("data/c.md"), path("data/d.txt")}));
  EXPECT_EQ(found.left_out, (std::vector<std::string>{path("data/.hidden"), path("data/.ipynb_checkpoints"),
                                                      path("data/README.md"), path("data/b/up"),
                                                      path("data/e.txt"), path("data/x.csv")}));
  EXPECT_EQ(left_out_of_folders({{}, {"/d/x.csv", "/d/y.csv"}}),
            "Not read, as they do not look like data: /d/x.csv, /d/y.csv.");
  std::filesystem::create_directory(path("none"));
  expect_error(ExitCode::usage, {"none is a folder without data"}, [&] { files_of({path("none")}); });
}

TEST_F(PrepareTest, TextsByTheirSeparator) {
  PrepareRequest texts = request({write_file("a.txt", "first one##second##")});
  texts.separator = "##";
  const Preparation preparation(texts);
  const std::vector<Sample> samples = preparation.first_samples(10);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(preparation.text_model().tokenizer.decode(samples[0].ids, false), "first one<|im_end|>");
  EXPECT_EQ(preparation.text_model().tokenizer.decode(samples[1].ids, false), "second<|im_end|>");
}

TEST_F(PrepareTest, NothingBetweenSeparatorsIsNoRecord) {
  PrepareRequest texts = request({write_file("a.txt", "first\n\n\n\n\nsecond\n\n \n\n")});
  texts.separator = "\n\n";
  const PreparedCounts counts = PreparedSet::open(made(Preparation(texts), "set"), 1 << 20).counts();
  EXPECT_EQ(counts.records, 2u);
  EXPECT_EQ(counts.samples, 2u);
  EXPECT_EQ(counts.untrained, 0u);
}

// Token 7 is a known end; tokens 8 and 9 are control tokens.
TEST(LearnedEnds, AreThoseOfAnswersWithoutAKnownOne) {
  using Ids = std::vector<uint32_t>;
  EXPECT_EQ(ends_with({7}, {{8, 20}}, 0), (Ids{7, 8}));
  EXPECT_EQ(ends_with({}, {{8, 20}, {9, 1}}, 0), (Ids{8, 9}));
  EXPECT_EQ(ends_with({7}, {{7, 20}}, 0), Ids{7});
  EXPECT_EQ(ends_with({7}, {}, 0), Ids{7});
  // As in harmony, earlier turns end with another token than the last turn, whose token ends all.
  EXPECT_EQ(ends_with({7}, {{7, 20}, {8, 60}}, 0), Ids{7});
  // The known end is that of 20 texts beside the conversations.
  EXPECT_EQ(ends_with({7}, {{7, 20}, {8, 60}}, 20), (Ids{7, 8}));
  // If all are texts, the token with which most of them end decides.
  EXPECT_EQ(ends_with({7}, {{7, 27}, {8, 1}}, 28), Ids{7});
  EXPECT_EQ(ends_with({7}, {{7, 1}, {8, 27}}, 28), (Ids{7, 8}));
}

}  // namespace
}  // namespace sluice
