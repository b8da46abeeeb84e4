// Chats, a model directory as transformers saves it, and the command: what is trained, that packing changes
// no loss, that budgets, ranks and stops change no bit, and what bad input gets.
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/support/cli_support.h"

namespace sluice {
namespace {

class FineTuning : public Cli {
 protected:
  Words text_options(const Words& more = {}) const { return Words{"--cache", directory / "cache"} + more; }
  Words tune(const std::string& out, const Words& more = {}) const {
    return Words{
               "train", "--model",   model, "--data", chats,  "--out",       directory / out, "--batch",
               "2",     "--seq",     "128", "--lr",   "1e-2", "--precision", "fp32",          "--micro-batch",
               "1",     "--threads", "2"} +
           text_options(more);
  }
  CommandResult prepare(const std::string& data, const Words& more = {}) const {
    return run(Words{"prepare", "--data", data, "--tokenizer", model} + text_options(more));
  }
  // Losses and norms of all steps, and of validations.
  std::string numbers(const std::string& out) const {
    std::string all;
    for (const std::string& line : lines_of(read_text_file(directory / out + "/metrics.jsonl", 1 << 24))) {
      const auto m = nlohmann::json::parse(line);
      all += m.contains("val_loss") ? "val " + m["val_loss"].dump() + "\n"
                                    : m["loss"].dump() + " " + m["grad_norm"].dump() + "\n";
    }
    return all;
  }

  const std::string folder = kFixtures + "fine_tuning/";
  const std::string model = folder + "model", chats = folder + "chats.jsonl";
};

TEST_F(FineTuning, LossesAreThoseOfTransformersPackedOrNot) {
  const auto expected = nlohmann::json::parse(read_text_file(folder + "expected.json", 1 << 16))["train_on"];
  for (const char* train_on : {"answers", "all"}) {
    double unpacked = 0;
    for (const char* packing : {"none", "auto"}) {
      const CommandResult result =
          run(Words{"eval", "--from", model, "--data", chats, "--precision", "fp32", "--seq", "256",
                    "--batch", "2", "--json", "--train-on", train_on, "--packing", packing} +
              text_options());
      ASSERT_EQ(result.code, 0) << result.err;
      const auto facts = nlohmann::json::parse(result.out);
      EXPECT_EQ(facts["tokens"], expected[train_on]["tokens"]);
      const double loss = facts["val_loss"], wanted = expected[train_on]["loss"];
      EXPECT_NEAR(loss, wanted, 1e-6 * wanted) << train_on << " " << packing;
      if (unpacked > 0) {
        EXPECT_NEAR(loss, unpacked, 1e-6 * unpacked);
      }
      unpacked = loss;
    }
  }
}

TEST_F(FineTuning, AccuracyIsThatOfTransformers) {
  const auto expected = nlohmann::json::parse(read_text_file(folder + "expected.json", 1 << 16))["guessed"];
  const double tokens = expected["tokens"], right = expected["right"];
  ASSERT_EQ(tokens, 8 * 32);
  for (const char* device : {"cpu", "reference"}) {
    const CommandResult result =
        run({"eval", "--from", model, "--data", folder + "guessed.bin", "--precision", "fp32", "--seq", "32",
             "--batch", "2", "--val-batches", "4", "--device", device, "--json"});
    ASSERT_EQ(result.code, 0) << result.err;
    const auto facts = nlohmann::json::parse(result.out);
    EXPECT_EQ(facts["tokens"], expected["tokens"]);
    EXPECT_EQ(facts["accuracy"], right / tokens) << device;
  }
}

// Validation rows keep documents apart, whatever the run trains on.
TEST_F(FineTuning, ARunOnTokensValidatesOnChats) {
  const Words same{"--precision",   "fp32", "--seq",     "128", "--batch", "2",
                   "--val-batches", "4",    "--threads", "2",   "--cache", directory / "cache"};
  const CommandResult trained = run(Words{"train", "--model", model, "--data", kFixtures + "tokens.bin",
                                          "--val-data", chats, "--steps", "1", "--out", directory / "run"} +
                                    same);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string records = read_text_file(directory / "run/metrics.jsonl", 1 << 20);
  const nlohmann::json last = nlohmann::json::parse(lines_of(records).back());
  const CommandResult evaluated =
      run(Words{"eval", "--from", directory / "run", "--data", chats, "--json"} + same);
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(last["val_loss"], nlohmann::json::parse(evaluated.out)["val_loss"]);
}

TEST_F(FineTuning, BudgetsRanksAndStopsChangeNothing) {
  const Words epochs{"--epochs", "4", "--val-split", "10%", "--val-every", "3", "--warmup", "20%"};
  const CommandResult whole = run(tune("whole", epochs));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_NE(whole.out.find("16 samples in "), std::string::npos) << whole.out;
  EXPECT_NE(whole.out.find("233 of 2253 tokens (10.3 %) held out by --val-split"), std::string::npos)
      << whole.out;
  const std::string expected = numbers("whole");
  EXPECT_NE(expected.find("val "), std::string::npos);
  ASSERT_EQ(run(tune("small", epochs + Words{"--gpu-mem", "2MiB", "--host-mem", "80MiB", "--nvme-dir",
                                             directory / ""}))
                .code,
            0);
  EXPECT_EQ(numbers("small"), expected);
  // Two epochs and then two more give what four give: the rate does not depend on the number of epochs.
  ASSERT_EQ(run(tune("first", {"--epochs", "2", "--lr-schedule", "constant"})).code, 0);
  const std::string half = numbers("first");
  ASSERT_EQ(run({"train", "--out", directory / "first", "--resume", "auto", "--epochs", "4"}).code, 0);
  ASSERT_EQ(run(tune("constant", {"--epochs", "4", "--lr-schedule", "constant"})).code, 0);
  EXPECT_EQ(numbers("first"), numbers("constant"));
  EXPECT_EQ(numbers("constant").substr(0, half.size()), half);
  // Two ranks read the same rows; sums of gradients are rounded in another order.
  ASSERT_EQ(run(tune("ranks", epochs + Words{"--gpus", "2"})).code, 0);
  const std::string ranks = numbers("ranks");
  EXPECT_NEAR(std::stod(ranks), std::stod(expected), 1e-6 * std::stod(expected));
  EXPECT_EQ(lines_of(ranks).size(), lines_of(expected).size());
}

// On a resume, --steps counts, whatever --epochs the run had. The output says how to go on with either.
TEST_F(FineTuning, ARunOfEpochsGoesOnBySteps) {
  const CommandResult first = run(tune("run", {"--epochs", "1"}));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("updates, of 2 sequences of 128 tokens: a smaller --seq"), std::string::npos)
      << first.out;
  const size_t steps = lines_of(numbers("run")).size();
  const auto resumed = [&](const Words& more) {
    return run(Words{"train", "--out", directory / "run", "--resume", "auto"} + more);
  };
  EXPECT_NE(resumed({}).out.find("To go on, give more --epochs than 1, or --steps."), std::string::npos);
  const CommandResult longer = resumed({"--steps", std::to_string(steps + 2)});
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_NE(longer.out.find("--steps counts; the run had --epochs 1."), std::string::npos) << longer.out;
  EXPECT_EQ(longer.out.find("updates, of"), std::string::npos) << longer.out;
  EXPECT_EQ(lines_of(numbers("run")).size(), steps + 2);
  EXPECT_NE(resumed({}).out.find("To go on, give a larger --steps."), std::string::npos);
  expect_refusal({"train", "--out", directory / "run", "--resume", "auto", "--epochs", "1"}, 2,
                 {"--epochs 1, which is step ", "Give more --epochs, or --steps above "});
}

TEST_F(FineTuning, PrepareShowsWhatIsTrained) {
  const CommandResult shown = prepare(chats, {"--show", "1"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_NE(shown.out.find("20 samples of 20 records: "), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("906 of them trained"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("<|im_start|>assistant\n[["), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("<|im_end|>]]\n"), std::string::npos) << shown.out;
  const CommandResult last = prepare(chats, {"--train-on", "last", "--json"});
  ASSERT_EQ(last.code, 0) << last.err;
  const auto facts = nlohmann::json::parse(last.out);
  EXPECT_LT(facts["trained"], 906);
  EXPECT_TRUE(std::filesystem::exists(facts["directory"].get<std::string>() + "/set.json"));
}

// The default of --lr would spoil weights that were trained before.
TEST_F(FineTuning, ALearningRateThatWasNotChosenIsSaid) {
  const auto says = [&](const std::string& out, const Words& more) {
    const CommandResult result = run(Words{"train", "--model", model, "--data", chats, "--out",
                                           directory / out, "--batch", "2", "--seq", "128", "--steps", "1"} +
                                     text_options(more));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.find("--lr is 0.0003, as for new weights: ") != std::string::npos;
  };
  EXPECT_TRUE(says("default", {}));
  EXPECT_FALSE(says("chosen", {"--lr", "3e-4"}));
  EXPECT_FALSE(says("adapters", {"--lora", "4"}));
  EXPECT_FALSE(says("new", {"--from-scratch"}));
}

TEST_F(FineTuning, WhatIsUnusualIsSaidByPrepareAndTrain) {
  const std::string unknown = " unknown to the installed Oniguruma", spelled = " that text of users spells ";
  const CommandResult usual = prepare(chats);
  ASSERT_EQ(usual.code, 0) << usual.err;
  EXPECT_EQ(usual.out.find(unknown) & usual.out.find(spelled), usual.out.npos) << usual.out;
  std::string records = read_text_file(chats, 1 << 20);
  records +=
      "{\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|> \\ufffe <|im_start|>\"},"
      "{\"role\":\"assistant\",\"content\":\"one\"}]}\n";
  const std::string file = directory / "unusual.jsonl";
  write_bytes(file, records);
  const Words remarks{"1 character is" + unknown,
                      "2 control tokens" + spelled + "stay text (but with --control-tokens anywhere)\n"};
  const CommandResult shown = prepare(file), facts = prepare(file, {"--json"});
  EXPECT_EQ(nlohmann::json::parse(facts.out)["unknown_characters"], 1);
  EXPECT_EQ(nlohmann::json::parse(facts.out)["spelled_control_tokens"], 2);
  const CommandResult trained = run(tune("unusual", {"--data", file, "--steps", "1"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  for (const std::string& remark : remarks) {
    EXPECT_NE(shown.out.find("\n" + remark), std::string::npos) << shown.out;
    EXPECT_NE(trained.out.find("\n  " + remark), std::string::npos) << trained.out;
  }
  const CommandResult plain = run(tune("usual", {"--steps", "1"}));
  EXPECT_EQ(plain.out.find(unknown) & plain.out.find(spelled), plain.out.npos) << plain.out;
}

TEST_F(FineTuning, TextIsReadByTheTokenizer) {
  write_bytes(directory / "two.txt", std::string("first text##second text"));
  const CommandResult result = prepare(directory / "two.txt", {"--separator", "##", "--show", "2"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("2 samples of 2 records"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("second text<|im_end|>]]"), std::string::npos) << result.out;
}

TEST_F(FineTuning, KillsLoseAPartAtMostAndTwoMayPrepareTheSame) {
  std::string many;
  const std::string some = read_text_file(chats, 1 << 20);
  while (many.size() < (6u << 20)) many += some;
  write_bytes(directory / "many.jsonl", many);
  const Words words = Words{"prepare", "--data", directory / "many.jsonl", "--tokenizer", model, "--json"} +
                      text_options({"--threads", "1"});
  const auto parts = [&] {
    size_t count = 0;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory / "cache", ignored))
      count += entry.path().filename().string().starts_with("part-") && entry.path().extension().empty();
    return count;
  };
  {
    Command killed(directory, words);
    ASSERT_TRUE(killed.until([&] { return parts() >= 2; }));
    killed.send(SIGKILL);
    EXPECT_EQ(killed.wait().code, -SIGKILL);
  }
  const size_t done = parts();
  EXPECT_LT(done, 6u);
  std::filesystem::create_directories(directory / "other");
  CommandResult first, second;
  {
    Command one(directory, words);
    Command two(directory / "other", sluice_words(words, "sluice"));
    first = one.wait();
    second = two.wait();
  }
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(first.out, second.out);
  // Preparing the data in one go, in another cache, gives the same set.
  const CommandResult again = run(Words{"prepare", "--data", directory / "many.jsonl", "--tokenizer", model,
                                        "--json", "--cache", directory / "another"});
  auto a = nlohmann::json::parse(first.out), b = nlohmann::json::parse(again.out);
  a.erase("directory");
  b.erase("directory");
  EXPECT_EQ(a, b);
}

// Whether the run is stopped or killed, no process goes on preparing, and the prepared parts are kept.
TEST_F(FineTuning, ThePreparationEndsWithTheRun) {
  std::string many;
  const std::string some = read_text_file(chats, 1 << 20);
  while (many.size() < (12u << 20)) many += some;
  write_bytes(directory / "many.jsonl", many);
  const auto parts_in = [&](const char* ending) {
    int count = 0;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory / "cache", ignored))
      count += entry.path().filename().string().find(ending) != std::string::npos;
    return count;
  };
  const Words words{"train", "--model",         model,     "--data",    directory / "many.jsonl",
                    "--out", directory / "run", "--steps", "1",         "--batch",
                    "2",     "--seq",           "128",     "--threads", "1"};
  for (const int number : {SIGTERM, SIGKILL}) {
    Command command(directory, words + text_options());
    const int before = parts_in("part-");
    ASSERT_TRUE(command.until([&] { return parts_in("part-") > before + 1; }));
    command.send(number);
    const CommandResult ended = command.wait();
    if (number == SIGTERM) {
      EXPECT_EQ(ended.code, 75) << ended.err;
      EXPECT_EQ(
          ended.err,
          "sluice: stopped before the first step, with nothing to save. Start it again in the same way.\n");
    }
    std::string lock;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory / "cache"))
      if (entry.path().filename() == "lock") lock = entry.path();
    const FileDescriptor held(open(lock.c_str(), O_RDWR | O_CLOEXEC));
    bool is_free = false;  // a process that was killed may take a moment to end
    for (int i = 0; i < 1000 && !is_free; ++i) {
      is_free = flock(held.get(), LOCK_EX | LOCK_NB) == 0;
      if (!is_free) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(is_free) << number;
    EXPECT_EQ(parts_in("set.json"), 0) << "it was not done";
  }
}

TEST_F(FineTuning, AParentThatIgnoresEndsOfChildrenIsNamed) {
  const Words words =
      Words{"env", "--ignore-signal=CHLD"} + sluice_words(tune("run", {"--steps", "1"}), "sluice");
  const CommandResult result = Command(directory / "", words).wait();
  EXPECT_EQ(result.code, static_cast<int>(ExitCode::environment)) << result.out;
  EXPECT_NE(result.err.find("Cannot wait for `sluice prepare`: No child processes.\n  Let the program that "),
            std::string::npos)
      << result.err;
}

// A limit on the size of files ends a write as a full drive does.
TEST_F(FineTuning, AFullDriveLosesNothing) {
  std::string many;
  const std::string some = read_text_file(chats, 1 << 20);
  while (many.size() < (3u << 20)) many += some;
  write_bytes(directory / "many.jsonl", many);
  const Words words = sluice_words(
      Words{"prepare", "--data", directory / "many.jsonl", "--tokenizer", model} + text_options(), "sluice");
  Command limited(directory / "", Words{"sh", "-c", "ulimit -f 500 && exec \"$@\"", "sh"} + words);
  const CommandResult full = limited.wait();
  EXPECT_EQ(full.code, static_cast<int>(ExitCode::io)) << full.out << full.err;
  EXPECT_NE(full.err.find("/part-00000"), std::string::npos) << full.err;
  EXPECT_NE(full.err.find("ulimit -f"), std::string::npos) << full.err;
  const CommandResult again = Command(directory / "", words).wait();
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find(" samples of "), std::string::npos) << again.out;
}

// Prepared data may belong to another user, or lie on a drive that cannot be written.
TEST_F(FineTuning, PreparedDataAreUsedWithoutWriting) {
  const CommandResult first = prepare(chats, {"--json"});
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string lock = nlohmann::json::parse(first.out)["directory"].get<std::string>() + "/lock";
  std::filesystem::remove(lock);
  std::filesystem::create_directory(lock);  // cannot be opened as a file
  const CommandResult again = prepare(chats, {"--json"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, first.out);
}

TEST_F(FineTuning, ADamagedPartIsMadeAnew) {
  const Words steps{"--steps", "2"};
  const CommandResult whole = run(tune("whole", steps));
  ASSERT_EQ(whole.code, 0) << whole.err;
  const std::string set = nlohmann::json::parse(prepare(chats, {"--json"}).out)["directory"];
  const std::string part = read_text_file(set + "/part-000000", 1 << 26);
  std::string changed = part;
  changed[20] ^= 1;  // a bit of a token's id
  write_bytes(set + "/part-000000", changed);
  const CommandResult mended = run(tune("mended", steps));
  ASSERT_EQ(mended.code, 0) << mended.err;
  EXPECT_EQ(mended.err, "sluice: 1 file of the prepared set in " + set +
                            " (part-000000) made anew, since the checksums refuse what is there\n");
  EXPECT_EQ(read_text_file(set + "/part-000000", 1 << 26), part);
  EXPECT_EQ(numbers("mended"), numbers("whole"));
}

// The run says where its tokenizer, template and cache are, wherever it is resumed.
TEST_F(FineTuning, ARunMayBeResumedFromAnywhere) {
  std::filesystem::create_directories(directory / "elsewhere");
  Words words = sluice_words(
      Words{"train", "--model", model, "--tokenizer", "model", "--data", chats, "--out", directory / "run",
            "--batch", "2", "--seq", "128", "--steps", "2", "--cache", "cache", "--threads", "2"},
      "sluice");
  std::filesystem::copy(model, directory / "model", std::filesystem::copy_options::recursive);
  const Words here{"sh", "-c", "cd \"$0\" && exec \"$@\"", directory / ""};
  const CommandResult first = Command(directory / "", here + words).wait();
  ASSERT_EQ(first.code, 0) << first.err;
  const CommandResult more = run({"train", "--out", directory / "run", "--resume", "auto", "--steps", "4"});
  EXPECT_EQ(more.code, 0) << more.err;
  EXPECT_EQ(lines_of(numbers("run")).size(), 4u);
}

TEST_F(FineTuning, ARunDoesNotGoOnWithOtherData) {
  ASSERT_EQ(run(tune("run", {"--steps", "1"})).code, 0);
  const std::string other = directory / "other.jsonl";
  write_bytes(other, read_text_file(chats, 1 << 20) + read_text_file(chats, 1 << 20));
  expect_refusal({"train", "--out", directory / "run", "--resume", "auto", "--steps", "2", "--data", other},
                 2, {"The prepared set ", "; the run trained on ", "Give the run's own --data"});
}

// With the two commands of a user, a model with random weights learns chats that nothing else tells, and says
// them word for word.
TEST_F(FineTuning, FiftyChatsAreLearnedWordForWord) {
  const std::string here = kFixtures + "fifty_chats/";
  const CommandResult trained = run(Words{"train", "--model", here + "model", "--data", here + "chats.jsonl",
                                          "--out", directory / "run", "--epochs", "60", "--batch", "2",
                                          "--seq", "64", "--lr", "3e-3", "--warmup", "5%"} +
                                    text_options());
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Words chat = sluice_words({"generate", "--from", directory / "run", "--chat"}, "sluice");
  int answered = 0;
  for (const std::string& line : lines_of(read_text_file(here + "chats.jsonl", 1 << 20))) {
    const auto messages = nlohmann::json::parse(line)["messages"];
    const std::string question = messages[0]["content"], answer = messages[1]["content"];
    const Words words = Words{"sh", "-c", "echo \"$0\" | exec \"$@\"", question} + chat;
    const CommandResult said = Command(directory / "", words).wait();
    EXPECT_EQ(said.code, 0) << said.err;
    EXPECT_EQ(said.out, answer + "\n") << question;
    ++answered;
  }
  EXPECT_EQ(answered, 50);
}

TEST_F(FineTuning, BadInputIsRefused) {
  const auto refused = [&](const Words& words, int code, const Words& parts) {
    expect_refusal(words + text_options(), code, parts);
  };
  const auto write = [&](const char* name, const std::string& bytes) {
    write_bytes(directory / name, bytes);
    return directory / name;
  };
  refused({"prepare", "--data", chats}, 2, {"no tokenizer", "--tokenizer DIR"});
  refused({"prepare", "--data", chats, "--tokenizer", directory / ""}, 2, {"tokenizer.json"});
  refused({"train", "--model", kTiny, "--data", chats, "--out", directory / "run"}, 2,
          {"--data needs a tokenizer", "--tokenizer DIR"});
  refused({"train", "--model", model, "--data", chats, kFixtures + "tokens.bin", "--out", directory / "run"},
          2, {"names text, ", ".jsonl, and tokens, "});
  const std::string packed = write("more.jsonl.gz", "\x1f\x8b\x08 more");
  for (const Words& data : {Words{packed}, Words{chats, packed}})
    refused(Words{"train", "--model", model, "--data"} + data + Words{"--out", directory / "run"}, 2,
            {"more.jsonl.gz is a gzip file", "zcat <"});
  refused(
      {"prepare", "--data", write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n"), "--tokenizer", model},
      5, {"bad.jsonl, line 2: \"text\" is no string", "--bad-records skip"});
  refused({"train", "--model", model, "--data", directory / "bad.jsonl", "--out", directory / "run"}, 5,
          {"bad.jsonl, line 2"});
  refused(
      {"prepare", "--data", write("none.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}\n"),
       "--tokenizer", model},
      5, {"Of 1 sample, 1 has no trained token", "--show"});
  EXPECT_TRUE(prepare(directory / "none.jsonl")
                  .out.starts_with("0 samples of 1 record: 0 tokens, 0 of them trained (0.0 %)\n"));
  refused({"prepare", "--data", directory / "bad.jsonl", "--tokenizer", model, "--format", "messages",
           "--bad-records", "skip"},
          5, {"Every record is left out. The first is refused: \"messages\" is missing."});
  refused({"prepare", "--data", write("empty.jsonl", "\n\n"), "--tokenizer", model}, 5, {"hold no sample"});
  refused({"prepare", "--data", chats, "--tokenizer", model, "--data-keys", "colour=x"}, 2,
          {"`colour` of --data-keys"});
  refused({"prepare", "--data", chats, "--tokenizer", model, "--template-values", "x=}"}, 2, {"no JSON"});
  refused({"train", "--model", model, "--data", kFixtures + "tokens.bin", "--out", directory / "run",
           "--val-split", "5%"},
          2, {"--val-split"});
  write("endless.jinja", "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}");
  refused({"prepare", "--data", chats, "--tokenizer", model, "--chat-template", directory / "endless.jinja"},
          5, {"chats.jsonl, line 1: the chat template refuses it"});
  write("lacking.jinja", "{{ mark.strip() }}");
  refused({"prepare", "--data", chats, "--tokenizer", model, "--chat-template", directory / "lacking.jinja"},
          5, {"the chat template refuses it: ", "'mark' is undefined", "--template-values, as 'mark=\"\"'"});
  EXPECT_FALSE(std::filesystem::exists(directory / "run"));
}

TEST_F(FineTuning, RecordsMaySayThatNothingOfThemIsTrained) {
  const auto chat = [](const char* mask) {
    return std::string(
               "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
               "{\"role\":\"assistant\",\"content\":\"a\"") +
           mask + "}]}\n";
  };
  const std::string masked = chat(",\"train\":false") + chat(",\"loss\":0") + "{\"text\":\"\"}\n";
  write_bytes(directory / "most.jsonl", masked + chat(""));
  write_bytes(directory / "all.jsonl", masked);
  const CommandResult most = prepare(directory / "most.jsonl"), all = prepare(directory / "all.jsonl");
  EXPECT_EQ(most.code, 0) << most.err;
  EXPECT_NE(most.out.find("1 sample of 4 records"), std::string::npos) << most.out;
  EXPECT_NE(most.out.find("3 samples without trained tokens are left out"), std::string::npos) << most.out;
  EXPECT_EQ(all.code, 5);
  EXPECT_NE(all.err.find("All texts are empty, or say of the answers that are asked for that they are not"),
            std::string::npos)
      << all.err;
}

TEST_F(FineTuning, OptionsWithoutEffectAreTold) {
  write_bytes(directory / "a.txt", "one two");
  write_bytes(directory / "a.jsonl", "{\"text\": \"one two\"}\n");
  const CommandResult format = prepare(directory / "a.txt", {"--format", "messages"}),
                      separator = prepare(directory / "a.jsonl", {"--separator", "x"}),
                      none = prepare(directory / "a.txt", {"--separator", "x"}),
                      both = prepare(directory / "a.txt", {"--separator", " "});
  EXPECT_EQ(format.err, "sluice: --format has no effect: none of the files has records\n");
  EXPECT_EQ(separator.err, "sluice: --separator has no effect: none of the files is a .txt or .md file\n");
  EXPECT_EQ(none.err, "sluice: --separator divides none of the files: each is one document\n");
  EXPECT_EQ(both.err, "");
  const CommandResult trained = run(tune("run", {"--steps", "2", "--warmup", "4", "--rank-timeout", "60"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(
      trained.out.find("the learning rate still rises at the end, to 0.005 of 0.01: --warmup 4 is longer "
                       "than the run\n"),
      std::string::npos)
      << trained.out;
  EXPECT_NE(trained.out.find("--rank-timeout has no effect: there is one rank\n"), std::string::npos)
      << trained.out;
}

TEST_F(FineTuning, APlanWithoutDataSaysSo) {
  const Words plan{"plan",        "--model", model, "--device", "cpu",
                   "--no-advice", "--seq",   "128", "--batch",  "2"};
  const std::string note = "Without --data, no chats or texts are planned for";
  EXPECT_NE(run(plan).out.find(note), std::string::npos);
  const CommandResult with_data = run(plan + Words{"--data", chats});
  EXPECT_EQ(with_data.code, 0) << with_data.err;
  EXPECT_EQ((with_data.out + with_data.err).find(note), std::string::npos);
}

}  // namespace
}  // namespace sluice
