// The verb `generate`: a text, a conversation, a file of prompts; a run that was trained; signals; what is
// refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/support/cli_support.h"
#include "tools/generate/line_reader.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

class Generate : public Cli {
 protected:
  Words generate(const Words& more) const {
    return Words{"generate", "--from", model, "--precision", "fp32", "--threads", "2", "--max-tokens", "12"} +
           more;
  }
  std::string spoken(const Words& more) const {
    const CommandResult result = run(generate(more));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  std::string file(const std::string& name, const std::string& content) const {
    write_bytes(directory / name, content);
    return directory / name;
  }
  // The command with `input` as its standard input.
  CommandResult chat(const std::string& input, const Words& more = {}) const {
    Words words = sluice_words(generate(Words{"--chat"} + more), "sluice");
    const std::string quoted = "exec \"$@\" < " + file("typed", input);
    return Command(directory / "", Words{"sh", "-c", quoted, "sh"} + words).wait();
  }

  const std::string model = kFixtures + "fine_tuning/model";
};

TEST_F(Generate, ATextGoesOn) {
  const std::string whole = spoken({"--prompt", "Hello there"});
  EXPECT_GT(whole.size(), 1u);
  EXPECT_TRUE(whole.ends_with('\n'));
  EXPECT_EQ(spoken({"--prompt", "Hello there", "--prompt-chunk", "2", "--max-context", "40"}), whole);
  const Words drawn = {"--prompt", "Hello there", "--temperature", "1.5", "--top-k", "40", "--top-p", "0.9"};
  const std::string one = spoken(drawn + Words{"--seed", "1"});
  EXPECT_EQ(spoken(drawn + Words{"--seed", "1", "--gpu-mem", "2MiB"}), one);
  EXPECT_NE(spoken(drawn + Words{"--seed", "2"}), one);
}

TEST_F(Generate, PromptsOfAFileAreAnsweredInOrder) {
  const std::string prompts =
      file("prompts.jsonl",
           "{\"prompt\": \"Hello there\"}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n"
           "{\"prompt\": \"a\"}\n");
  const std::string all = spoken({"--prompts", prompts});
  const std::vector<std::string> lines = lines_of(all);
  ASSERT_EQ(lines.size(), 3u);
  const Json first = Json::parse(lines[0]);
  EXPECT_EQ(first["ending"], "length");
  EXPECT_EQ(first["answer_tokens"], 12);
  EXPECT_EQ(first["answer"].get<std::string>() + "\n", spoken({"--prompt", "Hello there"}));
  for (const char* batch : {"1", "2"}) EXPECT_EQ(spoken({"--prompts", prompts, "--batch", batch}), all);
}

TEST_F(Generate, WhatPromptsHaveAndNothingReadsIsTold) {
  const CommandResult told = run(generate(
      {"--prompts", file("told.jsonl", "{\"prompt\": \"Hello there\", \"id\": 1, \"system\": \"s\"}\n")}));
  ASSERT_EQ(told.code, 0) << told.err;
  EXPECT_NE(told.err.find("Of the prompts: not read: id (1), system (1)\n"), std::string::npos) << told.err;
}

TEST_F(Generate, AConversationIsThatOfItsMessages) {
  const CommandResult talk = chat("Hi\n\nWho are you?\n");
  ASSERT_EQ(talk.code, 0) << talk.err;
  Json messages = {{{"role", "user"}, {"content", "Hi"}}};
  const auto answer = [&] {
    const std::string line = Json{{"messages", messages}}.dump() + "\n";
    return Json::parse(spoken({"--prompts", file("one.jsonl", line)}))["answer"].get<std::string>();
  };
  const std::string first = answer();
  messages.push_back({{"role", "assistant"}, {"content", first}});
  messages.push_back({{"role", "user"}, {"content", "Who are you?"}});
  EXPECT_EQ(talk.out, first + "\n" + answer() + "\n");
  EXPECT_EQ(chat("").out, "");
}

TEST_F(Generate, OneMessageOfAChat) {
  const std::string line = Json{{"messages", {{{"role", "user"}, {"content", "Hi"}}}}}.dump() + "\n";
  const Json one = Json::parse(spoken({"--prompts", file("one.jsonl", line)}));
  EXPECT_EQ(spoken({"--chat", "--prompt", "Hi"}), one["answer"].get<std::string>() + "\n");
}

TEST_F(Generate, AStopTextEndsTheAnswer) {
  const std::string whole = spoken({"--prompt", "Hello there"});
  const std::string stop = whole.substr(whole.size() - 4, 2);
  const std::string prompts = file("prompts.jsonl", "{\"prompt\": \"Hello there\"}\n");
  const Json answer = Json::parse(spoken({"--prompts", prompts, "--stop", "not there", stop}));
  const auto ended = answer["answer"].get<std::string>();
  EXPECT_EQ(answer["ending"], "stop");
  EXPECT_LT(answer["answer_tokens"], 12);
  EXPECT_TRUE(whole.starts_with(ended) && ended.find(stop) != std::string::npos) << ended << " of " << whole;
  EXPECT_EQ(spoken({"--prompt", "Hello there", "--stop", stop}), ended + "\n");
}

TEST_F(Generate, SettingsOfTheModelHoldUnlessOptionsDo) {
  const std::string copy = directory / "copy";
  std::filesystem::copy(model, copy, std::filesystem::copy_options::recursive);
  write_bytes(copy + "/generation_config.json",
              R"({"eos_token_id": 622, "do_sample": true, "temperature": 1.5, "top_k": 40, "top_p": 0.9,
                  "repetition_penalty": 1.3, "max_new_tokens": 7, "max_length": 9, "typical_p": 0.5})");
  const auto words = [](const std::string& from) {
    return Words{"generate",    "--from", from,        "--prompt", "Hello there",
                 "--precision", "fp32",   "--threads", "2"};
  };
  const Words settings = {"--temperature",        "1.5", "--top-k",      "40", "--top-p", "0.9",
                          "--repetition-penalty", "1.3", "--max-tokens", "7"};
  const CommandResult result = run(words(copy));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("generation_config.json sets temperature 1.5, top_k 40, top_p 0.9, "
                            "repetition_penalty 1.3, max_new_tokens 7.\n"
                            "generation_config.json also has typical_p 0.5, which is not applied.\n"),
            std::string::npos)
      << result.err;
  EXPECT_EQ(result.out, run(words(model) + settings).out);
  const CommandResult given =
      run(words(copy) + Words{"--temperature", "0", "--repetition-penalty", "1", "--max-tokens", "12"});
  EXPECT_EQ(given.out, spoken({"--prompt", "Hello there"}));
  EXPECT_EQ(given.err.find("sets"), std::string::npos) << given.err;
  // max_length bounds a conversation where nothing bounds an answer. A max_length beyond the context is not
  // applied.
  const auto with_length = [&](int length) {
    write_bytes(copy + "/generation_config.json",
                "{\"eos_token_id\": 622, \"max_length\": " + std::to_string(length) + "}");
    return run(words(copy) + Words{"--max-context", "32"}).err + run(words(copy)).err;
  };
  EXPECT_NE(with_length(16).find("generation_config.json sets max_length 16.\n"), std::string::npos);
  EXPECT_NE(with_length(100'000).find("generation_config.json also has max_length, which is not applied.\n"),
            std::string::npos);
}

TEST_F(Generate, ARunSpeaks) {
  const CommandResult trained = run({"train",
                                     "--model",
                                     model,
                                     "--data",
                                     kFixtures + "fine_tuning/chats.jsonl",
                                     "--out",
                                     directory / "out",
                                     "--steps",
                                     "1",
                                     "--batch",
                                     "2",
                                     "--seq",
                                     "64",
                                     "--precision",
                                     "fp32",
                                     "--threads",
                                     "2",
                                     "--cache",
                                     directory / "cache",
                                     "--lr",
                                     "1e-9"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::filesystem::path checkpoint = directory / "out/checkpoints";
  checkpoint = std::filesystem::directory_iterator(checkpoint)->path();
  const std::string wanted = spoken({"--prompt", "Hello there"});
  for (const std::string& from : {directory / "out", checkpoint.string()}) {
    const CommandResult result =
        run({"generate", "--from", from, "--prompt", "Hello there", "--max-tokens", "12", "--threads", "2"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, wanted) << from;  // so small a step changes no answer
  }
}

// The model knows only <|endoftext|>, and the answers end with <|im_end|>.
TEST_F(Generate, ARunEndsAsItsDataTaught) {
  const std::string base = directory / "base", out = directory / "out";
  std::filesystem::copy(model, base, std::filesystem::copy_options::recursive);
  write_bytes(base + "/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  write_bytes(base + "/generation_config.json", R"({"eos_token_id": 620, "top_p": 0.9})");
  const CommandResult trained = run(
      Words{"train", "--model", base, "--data", kFixtures + "fine_tuning/chats.jsonl", "--out", out,
            "--steps", "1", "--batch", "2", "--seq", "64", "--threads", "2", "--cache", directory / "cache"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("end with <|im_end|>, which is none of the model's ends"), std::string::npos)
      << trained.out;
  const auto settings = [](const std::string& of) {
    return Json::parse(read_text_file(of + "/generation_config.json", 1 << 20));
  };
  const Json wanted = {{"eos_token_id", {620, 622}}, {"top_p", 0.9}};
  EXPECT_EQ(settings(out + "/tokenizer"), wanted);
  ASSERT_EQ(run({"export", "--from", out, "--to", directory / "exported"}).code, 0);
  EXPECT_EQ(settings(directory / "exported"), wanted);
  const Words other = {"--eos-token", "<|im_start|>"};
  ASSERT_EQ(run(Words{"export", "--from", out, "--to", directory / "other"} + other).code, 0);
  EXPECT_EQ(settings(directory / "other")["eos_token_id"], 621);
  expect_refusal(generate({"--prompt", "a", "--eos-token", "<nothing>"}), static_cast<int>(ExitCode::usage),
                 {"--eos-token <nothing> is no token of the tokenizer"});
}

// The run's training data have no tokenizer, so each byte is a token.
TEST_F(Generate, ARunOnBytesSpeaks) {
  const std::string repeated = file("song.txt", [] {
    std::string rows;
    for (int i = 0; i < 300; ++i) rows += "row, row\n";
    return rows;
  }());
  Words words = train("bytes", 60, {"--precision", "fp32", "--val-data", repeated, "--sample-every", "60"});
  words = words + Words{"--sample-prompts", file("prompts.jsonl", "{\"prompt\": \"row\"}\n")};
  *std::ranges::find(words, text) = repeated;
  const CommandResult trained = run(words);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("sample after step 60: row | , row"), std::string::npos) << trained.out;
  const Words of_run = {"generate", "--from", directory / "bytes", "--max-tokens", "9", "--threads", "2"};
  const CommandResult result = run(of_run + Words{"--prompt", "row"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, ", row\nrow\n");
  const Words with_template = {
      "--chat-template", file("t.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}"), "--prompts",
      file("chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"row\"}]}\n")};
  const CommandResult chat = run(of_run + with_template);
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_EQ(Json::parse(chat.out)["answer"], ", row\nrow");
  expect_refusal(of_run + Words{"--chat"}, static_cast<int>(ExitCode::usage), {"has none"});
  // The tables of the bytes count for the budget: 5 MiB beside the arena and what libraries take.
  const CommandResult small = run(of_run + Words{"--prompt", "row", "--host-mem", "68MiB"});
  EXPECT_EQ(small.code, static_cast<int>(ExitCode::infeasible)) << small.out;
  EXPECT_EQ(run(of_run + Words{"--prompt", "row", "--host-mem", "76MiB"}).out, result.out);
  expect_refusal(of_run + Words{"--prompt", "a", "--tokenizer", kFixtures + "llama"},
                 static_cast<int>(ExitCode::usage), {"There is no tokenizer"});
}

// Each byte is a token also if only --data-type says that the data are text.
TEST_F(Generate, ARunKeepsTheTypeOfItsData) {
  Words words = train("typed", 1, {"--data-type", "text"});
  *std::ranges::find(words, text) = file("song", std::string(2000, 'a'));
  const CommandResult trained = run(words);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const CommandResult spoken =
      run({"generate", "--from", directory / "typed", "--prompt", "a", "--max-tokens", "1"});
  EXPECT_EQ(spoken.code, 0) << spoken.err;
  // The run's --data-type does not hold for other data.
  expect_refusal({"eval", "--from", directory / "typed", "--data", directory / "song"},
                 static_cast<int>(ExitCode::usage), {"is neither a .txt, a .md nor a .bin file"});
}

// A run of adapters answers as its base with the adapters merged does, and not as its base does.
TEST_F(Generate, ARunOfAdaptersSpeaks) {
  const std::string base = directory / "base", moved = directory / "moved", out = directory / "out";
  std::filesystem::copy(model, base, std::filesystem::copy_options::recursive);
  const CommandResult trained = run({"train",
                                     "--model",
                                     base,
                                     "--lora",
                                     "4",
                                     "--data",
                                     kFixtures + "fine_tuning/chats.jsonl",
                                     "--out",
                                     out,
                                     "--steps",
                                     "4",
                                     "--batch",
                                     "4",
                                     "--seq",
                                     "64",
                                     "--precision",
                                     "fp32",
                                     "--threads",
                                     "2",
                                     "--cache",
                                     directory / "cache",
                                     "--lr",
                                     "2e-2",
                                     "--val-split",
                                     "0%"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  ASSERT_EQ(run({"export", "--from", out, "--to", directory / "merged", "--merge"}).code, 0);
  std::filesystem::rename(base, moved);
  const auto answer = [&](const std::string& from, const Words& more) {
    const CommandResult result = run(
        Words{"generate", "--from", from, "--prompt", "Hello there", "--max-tokens", "12", "--threads", "2"} +
        more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string tuned = answer(out, {"--base", moved});
  EXPECT_EQ(answer(directory / "merged", {"--precision", "fp32"}), tuned);
  EXPECT_NE(spoken({"--prompt", "Hello there"}), tuned);
  expect_refusal({"generate", "--from", out, "--prompt", "a"}, static_cast<int>(ExitCode::usage),
                 {"base is no directory", "--base DIR"});
}

TEST_F(Generate, ASignalEndsItCleanly) {
  Words words = sluice_words({"generate", "--from", model, "--chat", "--threads", "2"}, "sluice");
  Command talk(directory / "", Words{"sh", "-c", "exec \"$@\" < " + file("fifo", ""), "sh"} + words);
  EXPECT_EQ(talk.wait().code, 0);  // the input has ended
  const std::string pipe = directory / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  Command waiting(directory / "", Words{"sh", "-c", "exec \"$@\" 0<> " + pipe, "sh"} + words);
  std::this_thread::sleep_for(std::chrono::seconds(2));  // it waits for a message
  waiting.send(SIGINT);
  const CommandResult result = waiting.wait();
  EXPECT_EQ(result.code, static_cast<int>(ExitCode::stopped)) << result.err;
  EXPECT_NE(result.err.find("stopping"), std::string::npos);
}

// Nothing is computed for output that nobody takes.
TEST_F(Generate, AnOutputThatFailsEndsIt) {
  std::string prompts;
  for (int i = 0; i < 20; ++i) prompts += "{\"prompt\": \"Hello there\"}\n";
  const auto unheard = [&](const Words& more) {
    const Words words = sluice_words(generate(more), "sluice");
    const std::string input = file("typed", "Hi\nHi\nHi\n");
    const CommandResult result =
        Command(directory / "", Words{"sh", "-c", "exec \"$@\" < " + input + " > /dev/full", "sh"} + words)
            .wait();
    EXPECT_EQ(result.code, static_cast<int>(ExitCode::io)) << result.err;
    return result.err;
  };
  const std::string all = unheard({"--prompts", file("many.jsonl", prompts), "--batch", "1"});
  EXPECT_NE(all.find(" and 12 written"), std::string::npos) << all;
  for (const Words& mode : {Words{"--prompt", "Hello there"}, Words{"--chat"}}) {
    const std::string one = unheard(mode);
    EXPECT_NE(one.find(" and 1 written"), std::string::npos) << one;
  }
}

TEST_F(Generate, TextsBeyondTheContextAreTold) {
  const CommandResult result = run(generate({"--prompt", "a", "--max-context", "300"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("--max-context 300 is longer than the model's context of 256 tokens: the model "
                            "has not learned positions beyond it, and no rope_scaling stretches them.\n"),
            std::string::npos)
      << result.err;
}

TEST_F(Generate, RefusesWhatItCannotAnswer) {
  const int usage = static_cast<int>(ExitCode::usage), malformed = static_cast<int>(ExitCode::malformed_file),
            infeasible = static_cast<int>(ExitCode::infeasible);
  expect_refusal(generate({}), usage, {"takes one of --prompt, --chat and --prompts"});
  expect_refusal(generate({"--prompt", "a", "--prompts", "b"}), usage, {"takes one of"});
  expect_refusal(generate({"--chat", "--prompts", "b"}), usage, {"takes one of"});
  expect_refusal(generate({"--prompt", ""}), usage, {"--prompt is empty"});
  expect_refusal(generate({"--prompt", std::string(2000, 'x')}), usage, {"have room for 256"});
  expect_refusal(generate({"--prompt", "a", "--gpu-mem", "1KiB"}), infeasible,
                 {"The budgets cannot work", "The least together"});
  expect_refusal({"generate", "--from", kFixtures + "llama", "--prompt", "a"}, usage,
                 {"There is no tokenizer", "--tokenizer"});
  expect_refusal({"generate", "--from", directory / "nothing", "--prompt", "a"}, usage, {"does not exist"});
  expect_refusal({"generate", "--prompt", "a"}, usage, {"needs --from"});
  const auto of_file = [&](const std::string& content, const Words& parts) {
    expect_refusal(generate({"--prompts", file("bad.jsonl", content)}), malformed, parts);
  };
  of_file("{\"prompt\": \"a\"}\n{\"prompt\": 3}\n", {"line 2", "no string"});
  of_file("{\"prompt\": \"a\"\n", {"line 1", "JSON"});
  of_file("{\"text\": \"a\"}\n", {"line 1", "neither or both"});
  of_file("{\"prompt\": \"\"}\n", {"line 1", "empty"});
  of_file("\n\n", {"has no prompts"});
}

// Prompts take host memory outside of the arena.
TEST_F(Generate, PromptsCountForTheBudget) {
  const Words budget = {"--host-mem", "80MiB"};
  EXPECT_EQ(run(generate(Words{"--prompt", "a"} + budget)).code, 0);
  std::string line = "{\"prompt\": \"";
  for (int i = 0; i < 60; ++i) line += "a b c ";
  line += "\"}\n";
  std::string prompts;
  for (int i = 0; i < 25000; ++i) prompts += line;
  expect_refusal(generate(Words{"--prompts", file("many.jsonl", prompts)} + budget),
                 static_cast<int>(ExitCode::infeasible), {"The budgets cannot work"});
}

// --host-mem bounds the process, and the tables of a tokenizer are part of it: here up to 256 MiB.
TEST_F(Generate, ATokenizerCountsAsHostMemory) {
  const std::string copy = directory / "copy";
  std::filesystem::copy(model, copy, std::filesystem::copy_options::recursive);
  const Words words = {"generate", "--from",     copy,     "--prompt",  "Hello", "--max-tokens",
                       "2",        "--host-mem", "192MiB", "--threads", "2"};
  const Words plan = {"plan", "--generate", "--model", copy, "--host-mem", "192MiB", "--threads", "2"};
  for (const Words& fits : {words, plan}) {
    const CommandResult result = run(fits);
    EXPECT_EQ(result.code, 0) << result.err;
  }
  std::ofstream(copy + "/tokenizer.json", std::ios::app) << std::string(32 << 20, '\n');
  for (const Words& refused : {words, plan})
    expect_refusal(refused, static_cast<int>(ExitCode::infeasible), {"--host-mem"});
}

TEST_F(Generate, PlansSayHowFast) {
  const Words plan = {"plan",  "--generate", "--model", "llama-8b", "--host-mem",
                      "40GiB", "--gpu-mem",  "4GiB",    "--batch",  "4"};
  const CommandResult planned = run(plan);
  ASSERT_EQ(planned.code, 0) << planned.err;
  for (const char* part :
       {"4 sequences of up to 4096 tokens at once, cached in 2.00 GiB",
        "predicted: decode 1 token of each sequence in", "predicted: prefill 128 tokens of each sequence in"})
    EXPECT_NE(planned.out.find(part), std::string::npos) << planned.out;
  const CommandResult facts = run(plan + Words{"--json"});
  const Json json = Json::parse(facts.out);
  const double seconds = json["readings"]["decode"]["seconds_predicted"];
  EXPECT_GT(seconds, 0);
  EXPECT_NEAR(json["readings"]["decode"]["tokens_per_second"].get<double>(), 4 / seconds, 1e-9 / seconds);
  const CommandResult refused = run(plan + Words{"--host-mem", "1GiB"});
  EXPECT_NE(refused.code, 0);
  EXPECT_EQ(run(plan + Words{"--sweep", "batch=1:4"}).code, static_cast<int>(ExitCode::usage));
}

// Memory stays bounded, and the time grows in proportion to the bytes.
TEST_F(Generate, AMessageWithoutEndIsRefused) {
  const CommandResult talk = chat(std::string(kLineBytesMax + 5000, 'a'));
  EXPECT_EQ(talk.code, static_cast<int>(ExitCode::malformed_file));
  EXPECT_NE(talk.err.find("A message has more than 16.0 MiB."), std::string::npos) << talk.err;
}

TEST_F(Generate, AMessageForWhichThereIsNoMemoryIsRefused) {
  const CommandResult talk = chat(std::string(2 << 20, 'a') + "\n", {"--host-mem", "90MiB"});
  EXPECT_EQ(talk.code, static_cast<int>(ExitCode::infeasible)) << talk.out;
  EXPECT_NE(talk.err.find("A message is longer than 1.25 MiB, and --host-mem has memory for no more."),
            std::string::npos)
      << talk.err;
  EXPECT_LT(talk.peak_bytes, 90u << 20);
}

TEST(LineReader, GivesLinesAsTheyCome) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::atomic<bool> stop{false};
  LineReader reader(ends[0], stop);
  const auto write_text = [&](const std::string& text) {
    ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  write_text("one\r\ntwo\nthr");
  EXPECT_EQ(reader.next(), "one");
  EXPECT_EQ(reader.next(), "two");
  write_text("ee\n\nlast");
  EXPECT_EQ(reader.next(), "three");
  EXPECT_EQ(reader.next(), "");
  close(ends[1]);
  EXPECT_EQ(reader.next(), "last");
  EXPECT_EQ(reader.next(), std::nullopt);
  close(ends[0]);
  ASSERT_EQ(pipe(ends), 0);
  LineReader stopped(ends[0], stop);
  stop = true;
  EXPECT_EQ(stopped.next(), std::nullopt);
  close(ends[0]), close(ends[1]);
}

}  // namespace
}  // namespace sluice
