// The `sluice` command as a user meets it during and after a run: run directories in use, full drives,
// metrics, and the way from training over export to evaluation elsewhere.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/clock.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/train/schedule.h"
#include "models/weights/hf_weights.h"
#include "tests/support/cli_support.h"
#include "tests/support/last_metrics.h"

namespace sluice {
namespace {

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

// The plan of a resume has the run's options, and the budgets that the command gives.
TEST_F(Cli, PlanTakesOverARunsOptions) {
  expect_refusal({"plan", "--resume", "auto"}, 2, {"--out"});
  expect_refusal({"plan", "--resume", "auto", "--out", directory / "run"}, 2, {"no checkpoint", "--model"});
  ASSERT_EQ(run(train("run", 2, {"--precision", "fp32"})).code, 0);
  const Words resume{"plan", "--out",      directory / "run", "--resume",
                     "auto", "--host-mem", "128MiB",          "--json"};
  const CommandResult resumed = run(resume);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  const auto facts = nlohmann::json::parse(resumed.out);
  EXPECT_EQ(facts["micro_batch"], 2);
  const Words same{"plan",          "--model", kTiny,         "--batch", "4",          "--seq",  "32",
                   "--micro-batch", "2",       "--precision", "fp32",    "--host-mem", "128MiB", "--json"};
  EXPECT_EQ(nlohmann::json::parse(run(same).out)["arenas"], facts["arenas"]);
  expect_refusal(resume + Words{"--precision", "bf16"}, 2, {"--precision"});
  EXPECT_EQ(lines_of(read_text_file(directory / "run/metrics.jsonl", 1 << 20)).size(), 2u);
}

int64_t newest_step(const std::string& run) {
  const auto path = newest_checkpoint(run);
  return path ? CheckpointReader::open(*path).state().step : -1;
}

// A run that goes back to a checkpoint has gone back even if it is killed before it commits anything.
TEST_F(Cli, GoingBackIsDoneBeforeTheFirstStep) {
  const std::string out = directory / "run", metrics = out + "/metrics.jsonl";
  ASSERT_EQ(run(train("run", 6, {"--checkpoint-every", "2", "--keep", "9"})).code, 0);
  const Words back{"--resume", out + "/checkpoints/step-000000002"};
  // A failed start removes nothing.
  expect_refusal(train("run", 6, back + Words{"--host-mem", "66.1MiB"}), 3, {"budgets"});
  expect_refusal(train("run", 6, back + Words{"--nvme-dir", directory / "nowhere"}), 4, {"nowhere"});
  EXPECT_EQ(newest_step(out), 6);
  {
    Command command(directory, train("run", 1000000, back));
    ASSERT_TRUE(command.until([&] { return last_metrics(metrics)["step"] != 6; }));
    command.send(SIGKILL);
    command.wait();
  }
  EXPECT_EQ(newest_step(out), 2);
  ASSERT_EQ(run(train("run", 4, {"--resume", "auto"})).code, 0);
  EXPECT_EQ(newest_step(out), 4);
  EXPECT_EQ(lines_of(read_text_file(metrics, 1 << 20)).size(), 4u);
  // A checkpoint of another run begins a branch, in a run directory of its own.
  ASSERT_EQ(run(train("branch", 3, back)).code, 0);
  EXPECT_EQ(newest_step(directory / "branch"), 3);
  expect_refusal(train("branch", 5, back), 2, {"belongs to another run", "new --out"});
}

// --val-data none takes back the list that the run keeps. The output says which data are read.
TEST_F(Cli, ARunThatGoesOnNeedNotValidate) {
  ASSERT_EQ(run(train("run", 1, {"--val-data", validation, "--val-batches", "2"})).code, 0);
  std::filesystem::resize_file(validation, 100);
  const Words resumed = {"train", "--out", directory / "run", "--resume", "auto", "--steps", "2"};
  expect_refusal(resumed, 2, {"validation needs", "--val-data none"});
  const CommandResult result = run(resumed + Words{"--val-data", "none"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("--val-data is now none"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("  data: 4000 tokens, "), std::string::npos) << result.out;
}

TEST_F(Cli, NothingToDoIsSaid) {
  ASSERT_EQ(run(train("run", 3)).code, 0);
  const CommandResult done = run(train("run", 3, {"--resume", "auto"}));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(lines_of(done.out).back(),
            "All 3 steps are done: nothing to do. To go on, give a larger --steps.");
  expect_refusal(train("run", 2, {"--resume", "auto"}), 2,
                 {"--steps 2 is behind", "has done 3.\n  Give --steps above 3.\n"});
  EXPECT_EQ(lines_of(read_text_file(directory / "run/metrics.jsonl", 1 << 20)).size(), 3u);
  ASSERT_EQ(run(train("run", 5, {"--resume", "auto"})).code, 0);
  expect_refusal(train("run", 4, {"--resume", "auto"}), 2,
                 {"Give --steps above 5, or go back with --resume ", "/run/checkpoints/step-000000003."});
}

TEST_F(Cli, AStartThatFailsLeavesNothing) {
  const std::string out = "new/er/run";
  expect_refusal(train(out, 2, {"--nvme-dir", directory / "nowhere"}), 4, {"nowhere"});
  expect_refusal(train(out, 2, {"--metrics", directory / "no/where"}), 4, {"where"});
  write_bytes(directory / "other.jsonl", "not ours\n");
  expect_refusal(train(out, 2, {"--metrics", directory / "other.jsonl", "--resume", "auto"}), 5, {"Line 1"});
  EXPECT_FALSE(std::filesystem::exists(directory / "new"));
  std::filesystem::create_directory(directory / "mine");
  expect_refusal(train("mine", 2, {"--nvme-dir", directory / "nowhere"}), 4, {"nowhere"});
  EXPECT_TRUE(std::filesystem::is_empty(directory / "mine"));
  EXPECT_EQ(run(train("mine", 1)).code, 0);
  expect_refusal(train("train.txt", 2), 4, {"train.txt"});
}

TEST_F(Cli, ARunKilledBeforeItsFirstCheckpointStartsAfresh) {
  const std::string metrics = directory / "run/metrics.jsonl";
  {
    Command command(directory, train("run", 1000000));
    ASSERT_TRUE(command.until([&] { return last_metrics(metrics).value("step", 0) > 2; }));
    command.send(SIGKILL);
    command.wait();
  }
  expect_refusal(train("run", 2), 2, {"ended before its first checkpoint", "--resume auto"});
  expect_refusal({"train", "--out", directory / "run", "--resume", "auto"}, 2,
                 {"no checkpoint", "--model and --data"});
  const CommandResult afresh = run(train("run", 2, {"--resume", "auto"}));
  EXPECT_EQ(afresh.code, 0) << afresh.err;
  EXPECT_NE(afresh.out.find("a fresh start"), std::string::npos) << afresh.out;
  EXPECT_EQ(lines_of(read_text_file(metrics, 1 << 20)).size(), 2u);
}

TEST_F(Cli, TwoRunsDoNotShareADirectory) {
  const std::string metrics = directory / "run/metrics.jsonl";
  Command command(directory, train("run", 1000000));
  ASSERT_TRUE(command.until(
      [&] { return std::filesystem::exists(metrics) && std::filesystem::file_size(metrics) > 0; }));
  const DriveDirectory other;  // for the second command's output
  const CommandResult second = sluice_command(other, train("run", 1000000, {"--resume", "auto"}));
  EXPECT_EQ(second.code, 4) << second.out << second.err;
  EXPECT_NE(second.err.find("Another process is training"), std::string::npos) << second.err;
  command.send(SIGTERM);
  EXPECT_EQ(command.wait().code, 75);
  const int64_t step = last_metrics(metrics)["step"];
  EXPECT_EQ(run(train("run", step + 1, {"--resume", "auto"})).code, 0);
}

// A learning rate that throws the weights far away: the loss of step 2 is infinite or NaN, and the checkpoint
// of step 1 stays.
TEST_F(Cli, ALossThatIsNotFiniteEndsTheRun) {
  for (const std::string precision : {"bf16", "fp16", "fp32"}) {
    const auto far = [&](const std::string& out, const Words& more) {
      Words arguments = train(out, 5, more + Words{"--precision", precision});
      *(std::find(arguments.begin(), arguments.end(), "--lr") + 1) = "1e30";
      return arguments;
    };
    expect_refusal(far(precision + "-none", {}), 8, {"There is no checkpoint yet: repeat the command"});
    expect_refusal(far(precision, {"--checkpoint-every", "1"}), 8,
                   {"step 2", "not finite", "step-000000001, repeat the command with --resume auto",
                    "then start anew in another --out"});
    const auto path = newest_checkpoint(directory / precision);
    ASSERT_TRUE(path);
    EXPECT_EQ(CheckpointReader::open(*path).state().step, 1);
    EXPECT_TRUE(last_metrics(directory / (precision + "/metrics.jsonl"))["loss"].is_null());
  }
}

TEST_F(Cli, AResumeKnowsItsData) {
  const auto with_data = [&](int64_t steps, const Words& data) {
    return Words{
               "train",     "--resume", "auto", "--out", directory / "run", "--steps", std::to_string(steps),
               "--threads", "2"} +
           data;
  };
  const std::string relative = std::filesystem::relative(text).string(), moved = directory / "moved.txt";
  Words first = train("run", 1);
  *std::find(first.begin(), first.end(), text) = relative;
  ASSERT_EQ(run(first).code, 0);
  EXPECT_EQ(run(with_data(2, {"--data", relative})).code, 0);
  std::filesystem::rename(text, moved);
  expect_refusal(with_data(3, {}), 2, {text});
  const CommandResult again = run(with_data(3, {"--data", moved}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("--data is now " + moved + "; it was " + text), std::string::npos) << again.out;
  write_bytes(text, sample_text(4001));
  expect_refusal(with_data(4, {"--data", text}), 2, {"4001 tokens", "trained on 4000"});
  write_bytes(text, sample_text(4000, 2));
  expect_refusal(with_data(4, {"--data", text}), 2, {"other tokens"});
  expect_refusal(with_data(4, {"--device", "reference"}), 2, {"--device reference", "which is cpu"});
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

TEST_F(Cli, AFlippedBitOfACheckpointIsNotTrainedOn) {
  ASSERT_EQ(run(train("run", 2, {"--checkpoint-every", "1"})).code, 0);
  const std::string newest = directory / "run/checkpoints/step-000000002";
  std::string bytes = read_text_file(newest + "/master.safetensors", 1 << 24);
  bytes[bytes.size() / 2] ^= 4;
  write_bytes(newest + "/master.safetensors", bytes);
  const Words parts{"master.safetensors", "checksum", "checkpoints/step-000000001"};
  expect_refusal(train("run", 4, {"--resume", "auto"}), 5, parts);
  expect_refusal({"eval", "--from", newest, "--data", text}, 5, parts);
  expect_refusal({"export", "--from", newest, "--to", directory / "exported"}, 5, parts);
  EXPECT_EQ(run(train("run", 4, {"--resume", directory / "run/checkpoints/step-000000001"})).code, 0);
}

TEST_F(Cli, ARunOfDamagedCheckpointsIsNotStartedAfresh) {
  ASSERT_EQ(run(train("run", 1)).code, 0);
  const auto path = newest_checkpoint(directory / "run");
  ASSERT_TRUE(path);
  write_bytes(*path + "/manifest.json", read_text_file(*path + "/manifest.json", 1 << 20) + "x");
  const Words damaged{"Every checkpoint", "damaged"};
  expect_refusal(train("run", 2, {"--resume", "auto"}), 5, damaged);
  expect_refusal({"eval", "--from", directory / "run", "--data", text}, 5, damaged);
  expect_refusal({"export", "--from", directory / "run", "--to", directory / "exported"}, 5, damaged);
  EXPECT_TRUE(std::filesystem::exists(*path));
}

TEST_F(Cli, FullDisks) {
  if (std::filesystem::exists("/dev/full")) {  // metrics end no run
    const CommandResult full = run(train("full", 2, {"--metrics", "/dev/full"}));
    EXPECT_EQ(full.code, 0) << full.err;
    EXPECT_NE(full.out.find("The run goes on"), std::string::npos) << full.out;
    EXPECT_NE(full.out.find("of metrics could not be written"), std::string::npos) << full.out;
    EXPECT_TRUE(newest_checkpoint(directory / "full"));
  }
  const std::string small = directory / "small";
  std::filesystem::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=4m") != 0)
    GTEST_SKIP() << "a small file system cannot be mounted here";
  struct Unmount {
    const std::string& path;
    ~Unmount() { umount2(path.c_str(), MNT_DETACH); }
  } unmount{small};
  {  // its checkpoint cannot fit, which is found before training
    auto arguments = train("small/large", 2);
    arguments[2] = "gpt2:layers=4,width=256,heads=4,vocab=256,context=32";
    expect_refusal(arguments, 4, {"checkpoint", "free"});
  }
  // The drive fills up while the run trains. Its last checkpoint waits, a second signal ends the wait, and
  // the checkpoint before it stays.
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
  EXPECT_TRUE(command.until([&] {
    return read_text_file(directory / "stdout", 1 << 20).find("The run waits for it") != std::string::npos;
  }));
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // two within a second or two count as one
  command.send(SIGTERM);
  EXPECT_EQ(command.wait().code, -SIGTERM);
  const auto path = newest_checkpoint(small + "/run");
  ASSERT_TRUE(path);
  EXPECT_EQ(CheckpointReader::open(*path).state().step, 2);
  std::filesystem::remove(small + "/filler");
  EXPECT_EQ(run(train("small/run", 4, {"--metrics", metrics, "--resume", "auto"})).code, 0);
  EXPECT_EQ(last_metrics(metrics)["step"], 4);
}

// A model is trained from a Hugging Face directory and exported. Evaluations of the run, of the checkpoint
// and of the export agree.
TEST_F(Cli, FromTrainingOverExportToEvaluation) {
  const std::string model = directory / "hf";
  std::filesystem::copy(kFixtures + "llama", model);
  write_bytes(model + "/tokenizer.json", R"({"version": "1.0"})");
  write_bytes(model + "/chat_template.jinja", "{{ messages }}");
  write_bytes(directory / "own.jinja", "{{ messages | length }}");
  const Words data{"--data", kFixtures + "tokens.bin", "--seq", "37", "--batch", "2"};
  const CommandResult trained =
      run(Words{"train", "--model", model, "--steps", "6", "--lr", "2e-3", "--precision", "fp32", "--out",
                directory / "run", "--val-data", kFixtures + "tokens.bin", "--val-batches", "4",
                "--chat-template", directory / "own.jinja"} +
          data);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto lines = lines_of(read_text_file(directory / "run/metrics.jsonl", 1 << 20));
  ASSERT_EQ(lines.size(), 7u);
  const double validated = nlohmann::json::parse(lines.back())["val_loss"];
  EXPECT_EQ(nlohmann::json::parse(lines.back())["step"], 6);
  EXPECT_LT(validated, nlohmann::json::parse(lines.front())["loss"].get<double>());

  const auto evaluated = [&](const std::string& from, const Words& more = {}) {
    const CommandResult result =
        run(Words{"eval", "--from", from, "--json", "--val-batches", "4"} + data + more);
    EXPECT_EQ(result.code, 0) << from << ": " << result.err;
    return result.code == 0 ? nlohmann::json::parse(result.out)["val_loss"].get<double>() : 0.0;
  };
  EXPECT_EQ(evaluated(directory / "run"), validated);  // to the bit: the same body over the same weights
  const auto checkpoint = newest_checkpoint(directory / "run");
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(evaluated(*checkpoint), validated);
  EXPECT_EQ(evaluated(*checkpoint, {"--gpu-mem", "2MiB", "--host-mem", "66.1MiB", "--nvme-dir",
                                    directory.path(), "--threads", "1"}),
            validated);
  std::filesystem::rename(model, model + "-gone");  // the run has what the export needs
  std::filesystem::remove(directory / "own.jinja");
  const CommandResult exported = run({"export", "--from", directory / "run", "--to", directory / "exported"});
  std::filesystem::rename(model + "-gone", model);
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(read_text_file(directory / "exported/chat_template.jinja", 1 << 20), "{{ messages | length }}");
  EXPECT_EQ(read_text_file(directory / "exported/tokenizer.json", 1 << 20), R"({"version": "1.0"})");
  const HfWeights weights = HfWeights::open(directory / "exported", "llama");
  EXPECT_EQ(weights.names().size(), HfWeights::open(model, "llama").names().size());
  EXPECT_EQ(evaluated(directory / "exported", {"--precision", "fp32"}), validated);
  // bf16 rounds every weight to 8 bits of mantissa; that moves the mean loss by far less than a percent.
  ASSERT_EQ(run({"export", "--from", *checkpoint, "--to", directory / "half", "--dtype", "bf16"}).code, 0);
  EXPECT_NEAR(evaluated(directory / "half", {"--precision", "fp32"}), validated, 0.01 * validated);
  ASSERT_EQ(run({"export", "--from", *checkpoint, "--to", directory / "shards", "--shards", "2"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(directory / "shards/shard-00002-model-00001-of-00001.safetensors"));
  EXPECT_EQ(evaluated(directory / "shards", {"--precision", "fp32"}), validated);
  expect_refusal({"export", "--from", directory / "run", "--to", directory / "exported"}, 2, {"exported"});
  expect_refusal({"export", "--from", directory / "nowhere", "--to", directory / "other"}, 2, {"nowhere"});
  // What was exported can be trained further.
  const CommandResult again = run(Words{"train", "--model", directory / "exported", "--steps", "1",
                                        "--precision", "fp32", "--out", directory / "again"} +
                                  data);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_LT(last_metrics(directory / "again/metrics.jsonl")["loss"].get<double>(),
            nlohmann::json::parse(lines.front())["loss"].get<double>());
}

// While layers share weights, a checkpoint holds the shared weights for each of them.
TEST_F(Cli, ACheckpointOfSharedLayersIsEvaluatedAsItIs) {
  const Words data{"--data", text, "--batch", "4", "--val-batches", "2"};
  ASSERT_EQ(run(Words{"train", "--model", kTiny, "--steps", "4", "--val-data", text, "--precision", "fp32",
                      "--share-layers-until", "10", "--out", directory / "run"} +
                data)
                .code,
            0);
  const auto lines = lines_of(read_text_file(directory / "run/metrics.jsonl", 1 << 20));
  const CommandResult evaluated = run(Words{"eval", "--from", directory / "run", "--json"} + data);
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(nlohmann::json::parse(evaluated.out)["val_loss"],
            nlohmann::json::parse(lines.back())["val_loss"]);
}

TEST_F(Cli, MetricsHoldWhatTheContractLists) {
  const double started = std::floor(unix_seconds() * 1000) / 1000;  // as lines have it
  const CommandResult result =
      run(train("run", 3,
                {"--gpu-mem", "4MiB", "--host-mem", "80MiB", "--nvme-dir", directory.path(), "--val-data",
                 validation, "--val-every", "2", "--val-batches", "2"}));
  ASSERT_EQ(result.code, 0) << result.err;
  int64_t steps = 0, validations = 0;
  double time = started;
  OptimizerOptions options;
  options.learning_rate = 2e-3;  // as train() gives it
  for (const std::string& line : lines_of(read_text_file(directory / "run/metrics.jsonl", 1 << 20))) {
    const auto m = nlohmann::json::parse(line);
    EXPECT_GE(m["time"].get<double>(), time);
    time = m["time"];
    if (m.contains("val_loss")) {
      ++validations;
      EXPECT_EQ(m["step"], validations == 1 ? 2 : 3);
      continue;
    }
    EXPECT_EQ(m["step"], ++steps);
    EXPECT_EQ(m["learning_rate"].get<double>(), learning_rate(options, steps - 1, 3));
    for (const char* key : {"loss", "grad_norm", "seconds", "tokens_per_second", "loss_scale"})
      EXPECT_GT(m[key].get<double>(), 0) << key;
    EXPECT_EQ(m["skipped"], false);
    EXPECT_EQ(m["micro_batch"], 2);
    for (const char* tier : {"device", "host", "nvme"}) EXPECT_TRUE(m["peak_bytes"].contains(tier)) << tier;
    EXPECT_GT(m["process_peak_bytes"].get<uint64_t>(), 0u);
    EXPECT_LE(m["process_peak_bytes"].get<uint64_t>(),
              (80u << 20) + m["peak_bytes"]["device"].get<uint64_t>());
    EXPECT_GT(m["lane_busy"]["compute"].get<double>(), 0);
    EXPECT_LE(m["lane_busy"]["compute"].get<double>(), m["seconds"].get<double>() * 3);
    EXPECT_GT(m["moved_bytes"]["h2d"].get<uint64_t>(), 0u);
  }
  EXPECT_LE(time, unix_seconds() + 1e-3);
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(validations, 2);
}

TEST_F(Cli, OptionsFromAFile) {
  write_bytes(directory / "run.toml", "model = \"" + std::string(kTiny) + "\"\ndata = [\"" + text +
                                          "\"]\nsteps = 2\nbatch = 4\nhost-mem = \"1GiB\"\n");
  const CommandResult result =
      run({"train", "--config", directory / "run.toml", "--out", directory / "run", "--steps", "3"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(last_metrics(directory / "run/metrics.jsonl")["step"], 3);  // the command line wins
  write_bytes(directory / "bad.toml", "model = \"gpt2\"\nstpes = 2\n");
  expect_refusal({"train", "--config", directory / "bad.toml", "--out", directory / "x"}, 2,
                 {"Line 2", "stpes", "steps"});
}

}  // namespace
}  // namespace sluice
