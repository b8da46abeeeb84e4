// The `sluice` binary as a user meets it: help, refusals with their exit codes and remedies, what it prints for programs,
// signals, full disks, and the way from training over export to evaluation elsewhere.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/program.h"
#include "tests/cli_support.h"

namespace sluice {
namespace {

using Words = std::vector<std::string>;
const std::string kFixtures = std::filesystem::absolute("tests/fixtures/").string();
constexpr const char* kTiny = "gpt2:layers=2,width=32,heads=2,vocab=256,context=32";

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    write_bytes(text, sample_text(4000));
    write_bytes(validation, sample_text(1000, 9));
  }
  Words train(const std::string& out, int64_t steps, const Words& more = {}) const {
    return Words{"train",   "--model", kTiny,       "--data",  text,         "--batch", "4", "--micro-batch", "2",
                 "--steps", std::to_string(steps),  "--out",   directory / out, "--threads", "2", "--lr", "2e-3"} +
           more;
  }
  CommandResult run(const Words& arguments) const { return sluice_command(directory, arguments); }

  // The command must end with `code` and an error of two lines, in which every one of `parts` occurs.
  void expect_refusal(const Words& arguments, int code, const Words& parts) const {
    const CommandResult result = run(arguments);
    std::string line;
    for (const std::string& word : arguments) line += word + " ";
    EXPECT_EQ(result.code, code) << line << "\n" << result.out << result.err;
    for (const std::string& part : parts) EXPECT_NE(result.err.find(part), std::string::npos) << line << "\n" << result.err;
    EXPECT_TRUE(result.err.starts_with("sluice: ")) << line << "\n" << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 2u) << line << "\n" << result.err;
  }
  void expect_refused_training(const Words& more, int code, const Words& parts) const {
    expect_refusal(train("refused", 2, more), code, parts);
    EXPECT_FALSE(std::filesystem::exists(directory / "refused/checkpoints"));
  }

  const DriveDirectory directory;
  const std::string text = directory / "train.txt", validation = directory / "val.txt";
};

nlohmann::json last_metrics(const std::string& file) {
  const auto lines = lines_of(read_text_file(file, 1 << 24));
  return lines.empty() ? nlohmann::json() : nlohmann::json::parse(lines.back());
}

TEST_F(Cli, HelpOfEveryVerb) {
  const CommandResult program = run({"--help"});
  EXPECT_EQ(program.code, 0);
  EXPECT_EQ(program.err, "");
  for (const std::string verb : {"train", "plan", "eval", "export", "profile", "bench", "doctor"}) {
    EXPECT_NE(program.out.find(verb), std::string::npos) << verb;
    const CommandResult help = run({verb, "--help"});
    EXPECT_EQ(help.code, 0) << verb;
    EXPECT_NE(help.out.find("sluice " + verb), std::string::npos) << help.out;
    EXPECT_EQ(help.err, "") << verb;
  }
  for (const std::string option : {"--host-mem", "--nvme-dir", "--resume", "--clip", "--checkpoint-every"})
    EXPECT_NE(run({"train", "--help"}).out.find(option), std::string::npos) << option;
}

TEST_F(Cli, MistypedCommands) {
  expect_refusal({}, 2, {"verb", "--help"});
  expect_refusal({"trian"}, 2, {"trian", "train"});
  expect_refused_training({"--clpi", "1"}, 2, {"--clpi", "--clip"});
  expect_refused_training({"--precision", "fp8"}, 2, {"fp8", "bf16"});
  for (const char* rate : {"-1", "0", "nan", "inf", "fast"})
    expect_refusal({"train", "--model", kTiny, "--data", text, "--out", directory / "refused", "--lr", rate}, 2, {"--lr"});
  for (const char* size : {"-1", "-5GiB", "12parsecs", "99999999999999999999GiB", "1e400", "GiB", "0x10", "101%", ""})
    expect_refusal(train("refused", 2, {std::string("--host-mem=") + size}), 2, {"host-mem"});
  expect_refused_training({"--micro-batch", "3"}, 2, {"batch"});
  expect_refused_training({"--threads", "0"}, 2, {"--threads"});
  expect_refused_training({"--seq", "64"}, 2, {"--seq", "32"});
  expect_refused_training({"--warmup", "-3"}, 2, {"--warmup"});
  expect_refused_training({"--machine", directory / "nowhere"}, 2, {"nowhere"});
  expect_refused_training({"--machine", text}, 5, {"train.txt"});
  expect_refusal({"train", "--model", "gpt2-xxl", "--data", text, "--out", directory / "refused"}, 2, {"gpt2-xxl", "gpt2-xl"});
  expect_refusal({"train", "--model", "gpt2:layers=2,widht=32", "--data", text, "--out", directory / "refused"}, 2, {"widht", "width"});
  expect_refusal({"train", "--model", kTiny, "--out", directory / "refused"}, 2, {"--data"});
  expect_refusal({"train", "--model", kTiny, "--data", text}, 2, {"--out"});
}

TEST_F(Cli, WhatIsPlannedSaysSo) {
  for (const std::string verb : {"profile", "bench", "doctor"}) expect_refusal({verb}, 2, {"planned"});
  expect_refused_training({"--device", "cuda"}, 2, {"planned"});
  expect_refused_training({"--gpus", "2"}, 2, {"planned"});
  expect_refused_training({"--zero", "1"}, 2, {"planned"});
}

TEST_F(Cli, BadConfigs) {
  const std::string good = read_text_file(kFixtures + "gpt2/config.json", 1 << 20);
  const auto refuse = [&](const std::string& key, const nlohmann::json& value, const Words& parts) {
    auto config = nlohmann::json::parse(good);
    if (value.is_discarded()) config.erase(key);
    else config[key] = value;
    write_bytes(directory / "config.json", config.dump());
    for (const char* verb : {"plan", "train"}) {
      Words arguments{verb, "--model", directory / "config.json", "--data", text};
      if (std::string(verb) == "train") arguments = arguments + Words{"--out", directory / "refused"};
      expect_refusal(arguments, 5, parts + Words{"config.json"});
    }
  };
  refuse("n_head", 7, {"7"});
  refuse("n_layer", 0, {"n_layer"});
  refuse("n_embd", int64_t{1} << 40, {"n_embd"});
  refuse("vocab_size", -3, {"vocab_size"});
  refuse("n_layer", "many", {"n_layer"});
  refuse("n_embd", nlohmann::json(nlohmann::json::value_t::discarded), {"n_embd"});
  write_bytes(directory / "config.json", good.substr(0, good.size() / 2));
  expect_refusal({"plan", "--model", directory / "config.json"}, 5, {"config.json"});
  write_bytes(directory / "config.json", "");
  expect_refusal({"plan", "--model", directory / "config.json"}, 5, {"config.json"});
}

// A safetensors file from a header and bytes of data.
std::string safetensors(const std::string& header, uint64_t claimed, size_t data) {
  std::string bytes(sizeof claimed, '\0');
  std::memcpy(bytes.data(), &claimed, sizeof claimed);
  return bytes + header + std::string(data, '\0');
}

TEST_F(Cli, BadWeights) {
  const std::string model = directory / "hf";
  std::filesystem::create_directory(model);
  std::filesystem::copy_file(kFixtures + "gpt2/config.json", model + "/config.json");
  const std::string file = model + "/model.safetensors";
  const std::string good = read_text_file(kFixtures + "gpt2/model.safetensors", 1 << 24);
  const auto refuse = [&](const std::string& bytes, const Words& parts) {
    std::filesystem::remove(file);
    write_bytes(file, bytes);
    expect_refusal({"train", "--model", model, "--data", kFixtures + "tokens.bin", "--seq", "37", "--out", directory / "refused"}, 5,
                   parts);
    EXPECT_FALSE(std::filesystem::exists(directory / "refused"));
  };
  refuse(good.substr(0, good.size() - 1), {"model.safetensors"});
  refuse(good.substr(0, 100), {"model.safetensors"});
  refuse("", {"model.safetensors"});
  refuse(safetensors("{}", uint64_t{1} << 60, 0), {"model.safetensors"});
  const std::string overlapping =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  refuse(safetensors(overlapping, overlapping.size(), 12), {"model.safetensors"});
  const std::string lying = R"({"a":{"dtype":"F32","shape":[1000000000,1000000000],"data_offsets":[0,8]}})";
  refuse(safetensors(lying, lying.size(), 8), {"model.safetensors"});
  const std::string stranger = R"({"stranger\u001b[2J":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  refuse(safetensors(stranger, stranger.size(), 8), {"missing", "wte.weight", "h.0.ln_1.weight", "stranger"});
  const CommandResult escaped = run({"train", "--model", model, "--data", kFixtures + "tokens.bin", "--seq", "37", "--out", directory / "x"});
  EXPECT_EQ(escaped.err.find('\x1b'), std::string::npos);  // names from files are shown escaped
}

TEST_F(Cli, BadData) {
  const Words model{"train", "--model", "gpt2:layers=1,width=32,heads=2,vocab=300,context=32"};
  const auto data = [&](const std::string& name, const std::string& bytes) {
    write_bytes(directory / name, bytes);
    return Words{"--data", directory / name, "--out", directory / ("run of " + name)};
  };
  expect_refusal(model + Words{"--data", text, "--out", directory / "refused"}, 5, {"train.txt", "256"});
  std::string tokens(2000, '\1');  // 0x0101 = 257
  tokens[1001] = '\2';             // token 500 is 0x0201 = 513
  expect_refusal(model + data("range.bin", tokens), 5, {"range.bin", "513", "500"});
  expect_refusal(model + data("empty.bin", ""), 5, {"empty.bin"});
  expect_refusal(model + data("odd.bin", "abc"), 5, {"odd.bin"});
  expect_refusal(model + data("short.bin", std::string(2 * 32, '\0')), 5, {"short.bin"});
  expect_refusal(model + Words{"--data", directory / "nowhere.bin", "--out", directory / "refused"}, 2, {"nowhere.bin"});
  std::string shard(1024 + 200, '\0');  // an llm.c header that promises more than there is
  const int32_t header[3] = {20240520, 1, 1000};
  std::memcpy(shard.data(), header, sizeof header);
  expect_refusal(model + data("shard.bin", shard), 5, {"shard.bin"});
  expect_refused_training({"--val-data", validation, "--val-batches", "100"}, 2, {"val"});
}

TEST_F(Cli, BadScratchDirectories) {
  expect_refused_training({"--nvme-dir", directory / "nowhere"}, 4, {"nowhere"});
  expect_refused_training({"--nvme-dir", text}, 4, {"train.txt"});
  expect_refused_training({"--nvme-dir", directory.path(), "--nvme-mem", "1000TiB"}, 4, {"nvme-mem"});
  if (is_memory("/dev/shm"))
    expect_refused_training({"--nvme-dir", "/dev/shm", "--host-mem", "67MiB", "--nvme-mem", "64MiB"}, 4, {"/dev/shm", "tmpfs"});
}

TEST_F(Cli, AReadOnlyScratchDirectory) {
  if (geteuid() == 0) GTEST_SKIP() << "read-only directories do not stop root";
  std::filesystem::create_directory(directory / "closed");
  std::filesystem::permissions(directory / "closed", std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  expect_refused_training({"--nvme-dir", directory / "closed", "--host-mem", "67MiB"}, 4, {"closed"});
}

TEST_F(Cli, InfeasibleBudgetsNameOnesToPaste) {
  const Words small{"--gpu-mem", "100KiB", "--host-mem", "67MiB", "--nvme-dir", directory.path()};
  const CommandResult refused = run(train("first", 1, small));
  EXPECT_EQ(refused.code, 3);
  const size_t begin = refused.err.find("--gpu-mem", refused.err.find("together"));
  ASSERT_NE(begin, std::string::npos) << refused.err;
  Words pasted;
  std::string word;
  for (const char c : refused.err.substr(begin) + " ") {
    if (c != ' ' && c != '\n') {
      word += c;
    } else if (!word.empty()) {
      if (word.back() == '.') word.pop_back();
      pasted.push_back(word);
      word.clear();
    }
  }
  ASSERT_EQ(pasted.size(), 6u) << refused.err;  // --gpu-mem N --host-mem N --nvme-mem N
  const CommandResult mended = run(train("second", 1, pasted + Words{"--nvme-dir", directory.path()}));
  EXPECT_EQ(mended.code, 0) << mended.err;
}

TEST_F(Cli, ALimitBelowTheReserveIsInfeasibleToo) {
  const CommandResult facts = run({"plan", "--model", kTiny, "--host-mem", "1", "--threads", "2", "--json"});
  EXPECT_EQ(facts.code, 3) << facts.err;
  const auto json = nlohmann::json::parse(facts.out);
  const uint64_t least = json["smallest_budgets"]["host"];
  EXPECT_GT(least, json["runtime_reserve"].get<uint64_t>());
  const std::string named = std::to_string(least);
  expect_refused_training({"--host-mem", "1MiB"}, 3, {"--host-mem"});
  const Words model{"plan", "--model", kTiny, "--threads", "2", "--host-mem"};
  EXPECT_EQ(run(model + Words{named}).code, 0);
  EXPECT_EQ(run(model + Words{std::to_string(least - (least - json["runtime_reserve"].get<uint64_t>()) / 100 - 1)}).code, 3);
}

TEST_F(Cli, PlanForProgramsAndPeople) {
  const Words model{"plan", "--model", kTiny, "--batch", "4", "--gpu-mem", "4MiB", "--host-mem", "80MiB", "--nvme-dir", directory.path(),
                    "--nvme-mem", "64MiB"};
  const CommandResult json = run(model + Words{"--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto facts = nlohmann::json::parse(json.out);
  EXPECT_EQ(facts["feasible"], true);
  EXPECT_GT(facts["seconds_predicted"].get<double>(), 0);
  for (const char* key : {"micro_batch", "recompute", "runtime_reserve", "checkpoint_bytes"}) EXPECT_TRUE(facts.contains(key)) << key;
  for (const char* tier : {"device", "host", "nvme"}) {
    EXPECT_LE(facts["arenas"][tier].get<uint64_t>(), facts["budgets"][tier].get<uint64_t>()) << tier;
    for (const char* kind : {"weights", "gradients", "state", "activations", "workspace"})
      EXPECT_TRUE(facts["homes"][kind].contains(tier)) << kind << tier;
  }
  EXPECT_EQ(facts["budgets"]["device"], 4 << 20);
  for (const char* key : {"moved_bytes", "lane_busy"})
    for (const char* lane : {"compute", "h2d", "d2h", "nvme_read", "nvme_write", "optimizer"})
      EXPECT_TRUE(facts[key].contains(lane)) << key << lane;
  // 2 layers of 12 w^2 + 13 w, tables of 256 + 32 rows, the last norm: 37,184 parameters
  EXPECT_EQ(facts["parameters"], 2 * (12 * 32 * 32 + 13 * 32) + (256 + 32) * 32 + 2 * 32);

  const CommandResult text_form = run(model + Words{"--text"});
  ASSERT_EQ(text_form.code, 0) << text_form.err;
  const Program program = program_from_text(text_form.out);
  EXPECT_EQ(to_text(program), text_form.out);
  EXPECT_EQ(program.arena_bytes[0], facts["arenas"]["device"].get<uint64_t>());
  EXPECT_EQ(program.arena_bytes[1], facts["arenas"]["host"].get<uint64_t>());

  const CommandResult people = run(model);
  EXPECT_EQ(people.code, 0);
  for (const char* word : {"device", "host", "nvme", "predicted", "checkpoint"})
    EXPECT_NE(people.out.find(word), std::string::npos) << people.out;
  const CommandResult none = run({"plan", "--model", "gpt2", "--host-mem", "80MiB", "--json"});
  EXPECT_EQ(none.code, 3);
  EXPECT_EQ(nlohmann::json::parse(none.out)["feasible"], false);
  EXPECT_GT(nlohmann::json::parse(none.out)["smallest_budgets"]["host"].get<uint64_t>(), uint64_t{1} << 30);
}

TEST_F(Cli, ADirectoryWithARunIsNotWrittenOver) {
  ASSERT_EQ(run(train("run", 2)).code, 0);
  expect_refusal(train("run", 2), 2, {"run", "--resume"});
  const CommandResult more = run(train("run", 3, {"--resume", "auto"}));
  EXPECT_EQ(more.code, 0) << more.err;
  EXPECT_NE(more.out.find("steps"), std::string::npos);
  EXPECT_EQ(lines_of(read_text_file(directory / "run/metrics.jsonl", 1 << 20)).size(), 3u);
  expect_refusal(train("run", 4, {"--resume", "auto", "--clip", "0.5"}), 2, {"--clip"});
  expect_refusal(train("run", 4, {"--resume", directory / "nowhere"}), 2, {"nowhere"});
}

TEST_F(Cli, TwoRunsDoNotShareADirectory) {
  const std::string metrics = directory / "run/metrics.jsonl";
  Command command(directory, train("run", 1000000));
  ASSERT_TRUE(command.until([&] { return std::filesystem::exists(metrics) && std::filesystem::file_size(metrics) > 0; }));
  const DriveDirectory other;  // for the second one's output
  const CommandResult second = sluice_command(other, train("run", 1000000, {"--resume", "auto"}));
  EXPECT_EQ(second.code, 4) << second.out << second.err;
  EXPECT_NE(second.err.find("another process is training"), std::string::npos) << second.err;
  command.send(SIGTERM);
  EXPECT_EQ(command.wait().code, 75);
  const int64_t step = last_metrics(metrics)["step"];
  EXPECT_EQ(run(train("run", step + 1, {"--resume", "auto"})).code, 0);
}

// A rate that throws the weights far away: the loss of step 2 is infinite or no number, and the checkpoint of step 1 stays.
TEST_F(Cli, ALossThatIsNotFiniteEndsTheRun) {
  for (const std::string precision : {"bf16", "fp16", "fp32"}) {
    Words arguments = train(precision, 5, {"--checkpoint-every", "1", "--precision", precision});
    *(std::find(arguments.begin(), arguments.end(), "--lr") + 1) = "1e30";
    expect_refusal(arguments, 8, {"step 2", "not finite"});
    const auto path = newest_checkpoint(directory / precision);
    ASSERT_TRUE(path);
    EXPECT_EQ(CheckpointReader::open(*path).state().step, 1);
    EXPECT_TRUE(last_metrics(directory / (precision + "/metrics.jsonl"))["loss"].is_null());
  }
}

TEST_F(Cli, ADamagedCheckpointIsNamed) {
  ASSERT_EQ(run(train("run", 2)).code, 0);
  const auto path = newest_checkpoint(directory / "run");
  ASSERT_TRUE(path);
  for (const auto& entry : std::filesystem::directory_iterator(*path)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) - 1);
    break;
  }
  expect_refusal({"eval", "--from", *path, "--data", text}, 5, {"safetensors"});
  expect_refusal({"export", "--from", *path, "--to", directory / "exported"}, 5, {"safetensors"});
}

TEST_F(Cli, ASignalEndsTheRunWithADurableCheckpoint) {
  for (const int number : {SIGTERM, SIGINT}) {
    const std::string name = "run" + std::to_string(number), metrics = directory / (name + "/metrics.jsonl");
    Command command(directory, train(name, 1000000));
    ASSERT_TRUE(command.until([&] { return std::filesystem::exists(metrics) && std::filesystem::file_size(metrics) > 2000; }));
    command.send(number);
    const CommandResult stopped = command.wait();
    EXPECT_EQ(stopped.code, 75) << stopped.err;
    const auto path = newest_checkpoint(directory / name);
    ASSERT_TRUE(path);
    const int64_t step = CheckpointReader::open(*path).state().step;
    EXPECT_EQ(last_metrics(metrics)["step"], step);
    EXPECT_NE(stopped.out.find("step " + std::to_string(step)), std::string::npos) << stopped.out;
    const CommandResult resumed = run(train(name, step + 2, {"--resume", "auto"}));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(last_metrics(metrics)["step"], step + 2);
    EXPECT_EQ(lines_of(read_text_file(metrics, 1 << 24)).size(), static_cast<size_t>(step + 2));
  }
}

// The reference device is slow enough to be caught in the middle of a step. Signals less than two seconds apart count as
// one, since terminals and timeout(1) send theirs to the process and to its group.
TEST_F(Cli, ASecondSignalEndsAtOnce) {
  const auto arguments = [&](int64_t steps, const Words& more) {
    return Words{"train", "--model", "gpt2:layers=2,width=128,heads=2,vocab=256,context=64", "--data", text, "--batch", "128",
                 "--micro-batch", "16", "--precision", "fp32", "--threads", "2", "--out", directory / "run", "--steps",
                 std::to_string(steps)} + more;
  };
  ASSERT_EQ(run(arguments(1, {})).code, 0);
  Command command(directory, arguments(1000, {"--resume", "auto", "--device", "reference"}));
  ASSERT_TRUE(command.until([&] { return read_text_file(directory / "stdout", 1 << 20).find("Resuming") != std::string::npos; }));
  command.send(SIGTERM);
  command.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  command.send(SIGTERM);
  const auto sent = std::chrono::steady_clock::now();
  EXPECT_EQ(command.wait().code, -SIGTERM);
  EXPECT_LT(std::chrono::steady_clock::now() - sent, std::chrono::seconds(1));
  const auto path = newest_checkpoint(directory / "run");
  ASSERT_TRUE(path);
  EXPECT_EQ(CheckpointReader::open(*path).state().step, 1);
  const CommandResult resumed = run(arguments(2, {"--resume", "auto"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(last_metrics(directory / "run/metrics.jsonl")["step"], 2);
}

TEST_F(Cli, FullDisks) {
  if (std::filesystem::exists("/dev/full")) expect_refusal(train("full", 2, {"--metrics", "/dev/full"}), 6, {"/dev/full"});
  const std::string small = directory / "small";
  std::filesystem::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=4m") != 0) GTEST_SKIP() << "a small file system cannot be mounted here";
  struct Unmount {
    const std::string& path;
    ~Unmount() { umount2(path.c_str(), MNT_DETACH); }
  } unmount{small};
  {  // a model of 3 million parameters: its checkpoint cannot fit, which is seen before training
    auto arguments = train("small/large", 2);
    arguments[2] = "gpt2:layers=4,width=256,heads=4,vocab=256,context=32";
    expect_refusal(arguments, 4, {"checkpoint", "free"});
  }
  // The space goes while the run trains: its last checkpoint cannot be written, the one before stays.
  const std::string metrics = directory / "metrics.jsonl";
  ASSERT_EQ(run(train("small/run", 2, {"--metrics", metrics})).code, 0);
  Command command(directory, train("small/run", 1000000, {"--metrics", metrics, "--resume", "auto"}));
  ASSERT_TRUE(command.until([&] { return last_metrics(metrics).value("step", 0) > 3; }));
  const std::string filler(1 << 16, 'x');
  {
    std::ofstream file(small + "/filler", std::ios::binary);
    while (file.write(filler.data(), static_cast<std::streamsize>(filler.size())).flush()) {
    }
  }
  command.send(SIGTERM);
  const CommandResult full = command.wait();
  EXPECT_EQ(full.code, 6) << full.err;
  EXPECT_NE(full.err.find("space"), std::string::npos) << full.err;
  const auto path = newest_checkpoint(small + "/run");
  ASSERT_TRUE(path);
  EXPECT_EQ(CheckpointReader::open(*path).state().step, 2);
  std::filesystem::remove(small + "/filler");
  EXPECT_EQ(run(train("small/run", 4, {"--metrics", metrics, "--resume", "auto"})).code, 0);
  EXPECT_EQ(last_metrics(metrics)["step"], 4);
}

// Trained from a Hugging Face directory, exported, and evaluated from the run, the checkpoint and the export alike.
TEST_F(Cli, FromTrainingOverExportToEvaluation) {
  const std::string model = directory / "hf";
  std::filesystem::copy(kFixtures + "llama", model);
  write_bytes(model + "/tokenizer.json", R"({"version": "1.0"})");
  const Words data{"--data", kFixtures + "tokens.bin", "--seq", "37", "--batch", "2"};
  const CommandResult trained = run(Words{"train", "--model", model, "--steps", "6", "--lr", "2e-3", "--precision", "fp32", "--out",
                                          directory / "run", "--val-data", kFixtures + "tokens.bin", "--val-batches", "4"} +
                                    data);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto lines = lines_of(read_text_file(directory / "run/metrics.jsonl", 1 << 20));
  ASSERT_EQ(lines.size(), 7u);
  const double validated = nlohmann::json::parse(lines.back())["val_loss"];
  EXPECT_EQ(nlohmann::json::parse(lines.back())["step"], 6);
  EXPECT_LT(validated, nlohmann::json::parse(lines.front())["loss"].get<double>());

  const auto evaluated = [&](const std::string& from, const Words& more = {}) {
    const CommandResult result = run(Words{"eval", "--from", from, "--json", "--val-batches", "4"} + data + more);
    EXPECT_EQ(result.code, 0) << from << ": " << result.err;
    return result.code == 0 ? nlohmann::json::parse(result.out)["val_loss"].get<double>() : 0.0;
  };
  EXPECT_EQ(evaluated(directory / "run"), validated);  // to the bit: the same body over the same weights
  const auto checkpoint = newest_checkpoint(directory / "run");
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(evaluated(*checkpoint), validated);
  EXPECT_EQ(evaluated(*checkpoint, {"--gpu-mem", "2MiB", "--host-mem", "70MiB", "--nvme-dir", directory.path(), "--threads", "1"}),
            validated);
  const CommandResult exported = run({"export", "--from", directory / "run", "--to", directory / "exported"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(read_text_file(directory / "exported/tokenizer.json", 1 << 20), R"({"version": "1.0"})");
  const HfWeights weights = HfWeights::open(directory / "exported", "llama");
  EXPECT_EQ(weights.names().size(), HfWeights::open(model, "llama").names().size());
  EXPECT_EQ(evaluated(directory / "exported", {"--precision", "fp32"}), validated);
  // bf16: 8 bits of mantissa in every weight move the mean loss by far less than a percent
  ASSERT_EQ(run({"export", "--from", *checkpoint, "--to", directory / "half", "--dtype", "bf16"}).code, 0);
  EXPECT_NEAR(evaluated(directory / "half", {"--precision", "fp32"}), validated, 0.01 * validated);
  expect_refusal({"export", "--from", directory / "run", "--to", directory / "exported"}, 2, {"exported"});
  expect_refusal({"export", "--from", directory / "nowhere", "--to", directory / "other"}, 2, {"nowhere"});
  // what was exported trains on
  const CommandResult again = run(Words{"train", "--model", directory / "exported", "--steps", "1", "--precision", "fp32", "--out",
                                        directory / "again"} + data);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_LT(last_metrics(directory / "again/metrics.jsonl")["loss"].get<double>(),
            nlohmann::json::parse(lines.front())["loss"].get<double>());
}

TEST_F(Cli, MetricsHoldWhatTheContractLists) {
  const CommandResult result = run(train("run", 3, {"--gpu-mem", "4MiB", "--host-mem", "80MiB", "--nvme-dir", directory.path(),
                                                    "--val-data", validation, "--val-every", "2", "--val-batches", "2"}));
  ASSERT_EQ(result.code, 0) << result.err;
  int64_t steps = 0, validations = 0;
  for (const std::string& line : lines_of(read_text_file(directory / "run/metrics.jsonl", 1 << 20))) {
    const auto m = nlohmann::json::parse(line);
    if (m.contains("val_loss")) {
      ++validations;
      EXPECT_EQ(m["step"], validations == 1 ? 2 : 3);
      continue;
    }
    EXPECT_EQ(m["step"], ++steps);
    for (const char* key : {"loss", "grad_norm", "seconds", "tokens_per_second", "loss_scale"}) EXPECT_GT(m[key].get<double>(), 0) << key;
    EXPECT_EQ(m["skipped"], false);
    EXPECT_EQ(m["micro_batch"], 2);
    for (const char* tier : {"device", "host", "nvme"}) EXPECT_TRUE(m["peak_bytes"].contains(tier)) << tier;
    EXPECT_GT(m["process_peak_bytes"].get<uint64_t>(), 0u);
    EXPECT_LE(m["process_peak_bytes"].get<uint64_t>(), (80u << 20) + m["peak_bytes"]["device"].get<uint64_t>());
    EXPECT_GT(m["lane_busy"]["compute"].get<double>(), 0);
    EXPECT_LE(m["lane_busy"]["compute"].get<double>(), m["seconds"].get<double>() * 3);
    EXPECT_GT(m["moved_bytes"]["h2d"].get<uint64_t>(), 0u);
  }
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(validations, 2);
}

TEST_F(Cli, OptionsFromAFile) {
  write_bytes(directory / "run.toml", "model = \"" + std::string(kTiny) + "\"\ndata = [\"" + text +
                                          "\"]\nsteps = 2\nbatch = 4\nhost-mem = \"1GiB\"\n");
  const CommandResult result = run({"train", "--config", directory / "run.toml", "--out", directory / "run", "--steps", "3"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(last_metrics(directory / "run/metrics.jsonl")["step"], 3);  // the command line wins
  write_bytes(directory / "bad.toml", "model = \"gpt2\"\nstpes = 2\n");
  expect_refusal({"train", "--config", directory / "bad.toml", "--out", directory / "x"}, 2, {"Line 2", "stpes", "steps"});
}

}  // namespace
}  // namespace sluice
