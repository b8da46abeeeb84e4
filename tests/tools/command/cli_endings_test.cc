// The `sluice` command when a run ends early and goes on: what a signal is answered with, what a resume takes
// over, how long a stop may take.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/checkpoint/directory.h"
#include "tests/support/cli_support.h"

namespace sluice {
namespace {

Words names_in(const std::string& directory) {
  Words names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// A resume takes over each option that it is not given: it validates, saves and keeps checkpoints as the run
// did.
TEST_F(Cli, AResumeTakesOverEveryOptionOfTheRun) {
  ASSERT_EQ(run(train("run", 4,
                      {"--checkpoint-every", "2", "--keep", "9", "--val-data", validation, "--val-every", "2",
                       "--val-batches", "2", "--host-mem", "100MiB", "--nvme-dir", directory.path()}))
                .code,
            0);
  const std::string out = directory / "run";
  const CommandResult resumed = run({"train", "--out", out, "--resume", "auto", "--steps", "8"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("--steps is now 8; it was 4.\nAs the run had it: --val-data " + validation +
                             " --val-every 2 --val-batches 2 --host-mem 100MiB --nvme-dir " +
                             directory.path() + " --threads 2 --checkpoint-every 2 --keep 9\n"),
            std::string::npos)
      << resumed.out;
  EXPECT_EQ(names_in(out + "/checkpoints"),
            (Words{"step-000000002", "step-000000004", "step-000000006", "step-000000008"}));
  const std::string metrics = read_text_file(out + "/metrics.jsonl", 1 << 20);
  int64_t validations = 0;
  for (const std::string& line : lines_of(metrics)) validations += line.find("val_loss") != std::string::npos;
  EXPECT_EQ(validations, 4);
  // An option that is given again holds from then on.
  const CommandResult other =
      run({"train", "--out", out, "--resume", "auto", "--steps", "10", "--keep", "1", "--val-every", "0"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_NE(other.out.find("--keep is now 1; it was 9."), std::string::npos) << other.out;
  EXPECT_EQ(names_in(out + "/checkpoints"), Words{"step-000000010"});
}

// The run's directory for the nvme tier is gone, so it is left out. The number of ranks, given by --gpus, is
// taken over.
TEST_F(Cli, AResumeLeavesOutWhatIsGone) {
  std::filesystem::create_directory(directory / "drive");
  ASSERT_EQ(run(train("run", 2, {"--nvme-dir", directory / "drive", "--gpus", "2"})).code, 0);
  std::filesystem::remove(directory / "drive");
  const CommandResult resumed =
      run({"train", "--out", directory / "run", "--resume", "auto", "--steps", "4"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("--nvme-dir " + (directory / "drive") + " of the run is gone: it is left out."),
            std::string::npos)
      << resumed.out;
  EXPECT_NE(resumed.out.find("2 ranks at ZeRO stage 3"), std::string::npos) << resumed.out;
}

// A branch in another run directory writes metrics of its own, not into the file that the run named.
TEST_F(Cli, ABranchHasMetricsOfItsOwn) {
  const std::string metrics = directory / "metrics.jsonl";
  ASSERT_EQ(run(train("run", 3, {"--metrics", metrics, "--checkpoint-every", "1", "--keep", "9"})).code, 0);
  const std::string before = read_text_file(metrics, 1 << 20);
  ASSERT_EQ(run({"train", "--out", directory / "branch", "--resume",
                 directory / "run/checkpoints/step-000000001", "--steps", "2"})
                .code,
            0);
  EXPECT_EQ(read_text_file(metrics, 1 << 20), before);
  EXPECT_EQ(lines_of(read_text_file(directory / "branch/metrics.jsonl", 1 << 20)).size(), 1u);
  // A resume in the run's own directory writes to the run's metrics file, however the checkpoint's path is
  // spelled.
  ASSERT_EQ(run({"train", "--out", directory / "run", "--resume",
                 directory / "run/checkpoints/step-000000001/", "--steps", "2"})
                .code,
            0);
  EXPECT_EQ(lines_of(read_text_file(metrics, 1 << 20)).size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(directory / "run/metrics.jsonl"));
}

TEST_F(Cli, ASignalIsAnsweredAtOnce) {
  for (const int number : {SIGHUP, SIGTERM}) {
    const std::string name = "run" + std::to_string(number);
    Command command(directory, train(name, 1000000, {"--gpus", number == SIGHUP ? "1" : "2"}));
    ASSERT_TRUE(command.until([&] {
      return std::filesystem::exists(directory / (name + "/metrics.jsonl")) &&
             std::filesystem::file_size(directory / (name + "/metrics.jsonl")) > 0;
    }));
    command.send(number);
    const CommandResult stopped = command.wait();
    EXPECT_EQ(stopped.code, 75) << stopped.err;
    const std::regex answer(
        R"(sluice: stopping after the step under way, with a checkpoint of \S+ KiB\. That takes about )"
        R"(\d+\.\d s, as steps of this run took, and \d+\.\d s for the first checkpoint, as predicted\. )"
        R"(A second signal ends the run at once, with the last checkpoint intact\.\n)");
    EXPECT_TRUE(std::regex_match(stopped.err, answer)) << stopped.err;
    EXPECT_TRUE(newest_checkpoint(directory / name));
  }
}

// nohup starts a command with SIGHUP ignored, as this test does.
TEST_F(Cli, AnIgnoredHangupStaysIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);  // the child inherits it
  Command command(directory, train("run", 1000000));
  std::signal(SIGHUP, before);
  const std::string metrics = directory / "run/metrics.jsonl";
  const auto bytes = [&] {
    return std::filesystem::exists(metrics) ? std::filesystem::file_size(metrics) : 0;
  };
  ASSERT_TRUE(command.until([&] { return bytes() > 0; }));
  command.send(SIGHUP);
  const uintmax_t then = bytes();
  EXPECT_TRUE(command.until([&] { return bytes() > then + 5000; }));
  command.send(SIGTERM);
  EXPECT_EQ(command.wait().code, 75);
}

TEST_F(Cli, AStopThatTakesTooLongIsRefused) {
  const Words model{"--model", "gpt2-medium", "--batch", "8", "--seq", "512"};
  const CommandResult plan = run(Words{"plan", "--json"} + model);
  ASSERT_EQ(plan.code, 0) << plan.err;
  const auto facts = nlohmann::json::parse(plan.out);
  EXPECT_GT(facts["checkpoint_seconds"].get<double>(), 0);
  EXPECT_EQ(facts["stop_seconds"].get<double>(),
            2 * facts["seconds_predicted"].get<double>() + facts["checkpoint_seconds"].get<double>());
  const Words hurried = model + Words{"--stop-within", "2s"};
  expect_refusal(Words{"plan"} + hurried, 3,
                 {"A stop may take ", "longer than --stop-within 2 s", "--batch"});
  // A batch of 1 cannot be smaller, so the refusal does not propose --batch.
  const CommandResult least =
      run(Words{"plan", "--model", "gpt2-medium", "--batch", "1", "--stop-within", "2s"});
  EXPECT_EQ(least.code, 3) << least.out;
  EXPECT_EQ(least.err.find("--batch"), std::string::npos) << least.err;
  EXPECT_EQ(run(Words{"plan"} + model + Words{"--stop-within", "2h"}).code, 0);
  expect_refused_training({"--stop-within", "1e-9s"}, 3, {"--stop-within"});
  EXPECT_EQ(run(Words{"plan"} + model + Words{"--stop-within", "1h30m"}).code, 0);
  for (const char* wrong : {"10min", "500ms", "90sec", "1h-1m", "0s", "m", "1.5", "-3s", "nans", "1e300h"})
    expect_refusal(Words{"plan"} + model + Words{"--checkpoint-every", wrong}, 2,
                   {"`" + std::string(wrong) + "` for --checkpoint-every is neither", "as 90s, 10m, 1h30m"});
  expect_refusal(Words{"plan"} + model + Words{"--stop-within", "90"}, 2,
                 {"`90` for --stop-within is no time", "with its unit, as 90s, 10m"});
}

// A token beyond the vocabulary is found while the run trains, long before the run reads it.
TEST_F(Cli, DataAreCheckedBesideTheRun) {
  std::string tokens(4'000'000, '\0');
  for (size_t i = 0; i < tokens.size(); i += 2) tokens[i] = static_cast<char>(1 + i % 100);
  constexpr size_t kBad = 1'984'000;  // between two stretches of TokenData::sample_checksum()
  tokens[2 * kBad + 1] = '\x7f';
  write_bytes(directory / "tokens.bin", tokens);
  const CommandResult result =
      run(train("run", 1'000'000, {"--data", directory / "tokens.bin", "--order", "sequential"}));
  EXPECT_EQ(result.code, 5) << result.out << result.err;
  EXPECT_NE(result.err.find("tokens.bin has token id 325"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(" is saved: then go on with --resume auto."), std::string::npos) << result.err;
  EXPECT_TRUE(newest_checkpoint(directory / "run"));
}

// A run closes the checkpoint that it went on from. Otherwise that checkpoint's files would still take space
// after they are pruned.
TEST_F(Cli, ARunHoldsNoPrunedCheckpoint) {
  const std::string out = directory / "run";
  ASSERT_EQ(run(train("run", 2)).code, 0);
  const Words more{"--resume", "auto", "--checkpoint-every", "50", "--keep", "1"};
  Command command(directory, train("run", 1'000'000, more));
  ASSERT_TRUE(command.until([&] {
    const std::vector<CheckpointEntry> all = list_checkpoints(checkpoints_directory(out));
    return !all.empty() && all.back().step >= 50;
  }));
  const auto holds_it = [&] {
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(command.process()) + "/fd")) {
      std::error_code gone;
      const std::string file = std::filesystem::read_symlink(entry.path(), gone).string();
      if (file.find("step-000000002") != std::string::npos) return true;
    }
    return false;
  };
  EXPECT_TRUE(command.until([&] { return !holds_it(); })) << "its deletion is soon done";
  command.send(SIGTERM);
  EXPECT_EQ(command.wait().code, 75);
}

// The run belongs to somebody else and may only be read.
TEST_F(Cli, CheckpointsThatCannotBeWrittenAreRefusedAtOnce) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  ASSERT_EQ(run(train("run", 2)).code, 0);
  std::filesystem::permissions(directory / "run/checkpoints",
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  expect_refusal(train("run", 4, {"--resume", "auto"}), 4,
                 {"Cannot write into ", "go on elsewhere, with --resume "});
  std::filesystem::permissions(directory / "run/checkpoints", std::filesystem::perms::owner_all);
}

// eval and export on a run that is training, before its first checkpoint and after it.
TEST_F(Cli, WeightsOfARunThatGoesOn) {
  const std::string out = directory / "run";
  Command command(directory, train("run", 1'000'000));
  ASSERT_TRUE(command.until([&] { return std::filesystem::exists(out + "/metrics.jsonl"); }));
  const Words eval{"eval", "--from", out, "--data", validation, "--val-batches", "1"};
  for (const Words& words : {eval, Words{"export", "--from", out, "--to", directory / "exported"}})
    expect_refusal(words, 2,
                   {"The run in " + out + " has no checkpoint yet: it is training.", "--checkpoint-every"});
  command.send(SIGTERM);
  EXPECT_EQ(command.wait().code, 75);
  EXPECT_EQ(run(eval).code, 0);
}

// A run directory with a checkpoint of another run is refused before anything is pruned.
TEST_F(Cli, ACheckpointOfAnotherRunIsTold) {
  namespace fs = std::filesystem;
  ASSERT_EQ(run(train("run", 2)).code, 0);
  ASSERT_EQ(run(train("other", 3)).code, 0);
  const std::string own = directory / "run/checkpoints/step-000000002",
                    foreign = directory / "run/checkpoints/step-000000003";
  fs::copy(directory / "other/checkpoints/step-000000003", foreign);
  for (const std::string& from : {std::string("auto"), own, foreign})
    expect_refusal({"train", "--out", directory / "run", "--resume", from, "--steps", "5"}, 2,
                   {foreign + " and " + own + " belong to two runs.", "Move the one that was copied there"});
  expect_refusal({"eval", "--from", directory / "run", "--data", validation}, 2, {" belong to two runs."});
  EXPECT_TRUE(fs::exists(own) && fs::exists(foreign));
  fs::remove_all(foreign);
  EXPECT_EQ(run({"train", "--out", directory / "run", "--resume", "auto", "--steps", "3"}).code, 0);
  // A run goes on under its own number; a branch has another.
  ASSERT_EQ(run({"train", "--out", directory / "branch", "--resume", directory / "run", "--steps", "4"}).code,
            0);
  const auto number = [&](const char* name) {
    return CheckpointReader::open(newest_checkpoint(directory / name).value()).state().run;
  };
  EXPECT_NE(number("run"), 0u);
  EXPECT_NE(number("run"), number("branch"));
}

// Metrics are not written through a link that lies in the run directory, nor by two runs at once.
TEST_F(Cli, MetricsAreOfOneRun) {
  write_bytes(directory / "mine.txt", "");
  std::filesystem::create_directory(directory / "run");
  std::filesystem::create_symlink(directory / "mine.txt", directory / "run/metrics.jsonl");
  expect_refusal(train("run", 2), 2, {"metrics.jsonl is a link.", "--metrics"});
  const std::string metrics = directory / "metrics.jsonl";
  ASSERT_EQ(run(train("one", 2, {"--metrics", metrics})).code, 0);
  std::filesystem::copy(directory / "one", directory / "copy", std::filesystem::copy_options::recursive);
  const auto bytes = std::filesystem::file_size(metrics);
  Command first(directory, {"train", "--out", directory / "one", "--resume", "auto", "--steps", "1000000"});
  ASSERT_TRUE(first.until([&] { return std::filesystem::file_size(metrics) > bytes; }));
  expect_refusal({"train", "--out", directory / "copy", "--resume", "auto", "--steps", "3"}, 4,
                 {"Another process is writing " + metrics, "--metrics"});
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().code, 75);
}

// After 20 steps, a run compares itself with its prediction.
TEST_F(Cli, ARunIsHeldAgainstItsPrediction) {
  const CommandResult shorter = run(train("shorter", 19));
  EXPECT_EQ(shorter.out.find("After 20 steps:"), std::string::npos) << shorter.out;
  const CommandResult whole = run(train("run", 21));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_TRUE(std::regex_search(
      whole.out, std::regex(R"(After 20 steps: \S+ \S+ a step, \d+\.\d\d times the predicted \S+ \S+\.)")))
      << whole.out;
}

// Weights of NaN: the loss is printed, and the exit code tells.
TEST_F(Cli, EvaluationOfWeightsThatAreNotFinite) {
  ASSERT_EQ(run(train("run", 1)).code, 0);
  ASSERT_EQ(run({"export", "--from", directory / "run", "--to", directory / "exported"}).code, 0);
  const std::string weights = directory / "exported/model.safetensors";
  std::string bytes = read_text_file(weights, 1 << 26);
  bytes.replace(bytes.size() - 4096, 4096, std::string(4096, '\xff'));
  write_bytes(weights, bytes);
  const CommandResult result = run(
      {"eval", "--from", directory / "exported", "--data", validation, "--batch", "2", "--val-batches", "1"});
  EXPECT_EQ(result.code, 8) << result.out << result.err;
  EXPECT_NE(result.err.find("The loss is not finite."), std::string::npos) << result.err;
}

// The batch scripts of docs/slurm.md, with the variables that Slurm sets for them and a stand-in for each of
// its commands. Slurm sends `B:` signals to the script, others to what srun has started.
TEST_F(Cli, BatchScriptsQueueAStoppedJobAgain) {
  const std::string page = read_text_file("docs/slurm.md", 1 << 20), tools = directory / "tools";
  std::filesystem::create_directory(tools);
  const std::string start = "until [ \"$1\" = sluice ]; do shift; done\nexec \"$@\"\n";
  for (const auto& [name, content] :
       {std::pair<std::string, std::string>{"mpirun", "export OMPI_COMM_WORLD_SIZE=1\n" + start},
        {"srun", "export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1\n" + start},
        {"scontrol", "echo \"$@\" > queued\n"}}) {
    write_bytes(tools + "/" + name, "#!/bin/sh\n" + content);
    std::filesystem::permissions(tools + "/" + name, std::filesystem::perms::owner_all);
  }
  write_bytes(directory / "train.toml",
              fmt::format("model = \"{}\"\ndata = \"{}\"\nbatch = 8\nmicro-batch = 1\nsteps = 1000000\n"
                          "device = \"cpu\"\nthreads = 1\n",
                          kTiny, text));
  const Words slurm{"env",
                    "-C",
                    directory.path(),
                    "PATH=" + tools + ":" + std::filesystem::path(sluice_binary()).parent_path().string() +
                        ":/usr/bin:/bin",
                    "SLURM_JOB_ID=7",
                    "SLURM_NTASKS=16",
                    "SLURM_PROCID=0",
                    "SLURM_LOCALID=0"};
  int scripts = 0;
  for (size_t at = 0; (at = page.find("#!/bin/bash", at)) != std::string::npos; ++scripts) {
    const size_t end = page.find("```", at);
    const std::string script = page.substr(at, end - at), metrics = directory / "run/metrics.jsonl";
    at = end;
    write_bytes(directory / "job.sh", script);
    for (const bool again : {false, true}) {  // the job as it is queued again goes on
      std::filesystem::remove(directory / "queued");
      Command command(directory / "", slurm + Words{"bash", "job.sh"});
      const auto bytes = [&] {
        return std::filesystem::exists(metrics) ? std::filesystem::file_size(metrics) : 0;
      };
      const auto before = bytes();
      ASSERT_TRUE(command.until([&] { return bytes() > before + 1000; })) << script;
      if (script.find("--signal=B:TERM@") != std::string::npos) {
        command.send(SIGTERM);
      } else {
        ASSERT_NE(script.find("--signal=USR1@"), std::string::npos);
        std::string child;
        std::ifstream(fmt::format("/proc/{0}/task/{0}/children", command.process())) >> child;
        ::kill(std::stoi(child), SIGUSR1);
      }
      const CommandResult stopped = command.wait();
      EXPECT_EQ(stopped.code, 75) << script << stopped.err;
      EXPECT_EQ(read_text_file(directory / "queued", 100), "requeue 7\n") << script;
      EXPECT_EQ(stopped.out.find("Resuming after step ") != std::string::npos, again) << stopped.out;
    }
    std::filesystem::remove_all(directory / "run");
  }
  EXPECT_EQ(scripts, 3);
}

}  // namespace
}  // namespace sluice
