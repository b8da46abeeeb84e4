// Starts that cannot work, under a launcher: all ranks refuse before the first step, and the reason is
// printed once.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/mpi_support.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class MpiRefusals : public Mpi {
 protected:
  // Rank 1 also gets `more`, an option and its value.
  CommandResult second_with(const std::string& out, const Words& more) const {
    const Words words = sluice_words(train_rows(out, 4, 8), "sluice");
    const auto given = std::find(words.begin(), words.end(), more.front());
    if (given == words.end()) return mpirun_each({words, words + more});
    Words others = words;
    others[static_cast<size_t>(given - words.begin()) + 1] = more.at(1);
    return mpirun_each({words, others});
  }
  static void expect_once(const CommandResult& result, int code, const std::string& part) {
    EXPECT_EQ(result.code, code) << result.err;
    const size_t at = result.err.find("sluice: ");
    ASSERT_NE(at, std::string::npos) << result.err;
    EXPECT_EQ(at, result.err.rfind("sluice: ")) << "said more than once: " << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  }
  void expect_status(const std::string& out, int rank, const std::string& start) const {
    EXPECT_TRUE(status(out, rank).starts_with(start)) << status(out, rank);
  }
};

TEST_F(MpiRefusals, WhatAllRefuseIsSaidOnce) {
  fs::create_directory(directory / "odd");
  expect_once(mpirun(4, train_rows("odd", 2, 6)), 2,
              "--batch 6 is not a multiple of the 4 ranks.\n  The nearest multiple is --batch 8.");
  for (int rank = 0; rank < 4; ++rank) expect_status("odd", rank, "2 --batch 6 is not a multiple");
  expect_once(mpirun(2, train_rows("odd", 2, 8, {"--gpus", "2"})), 2, "--gpus asks for more in each");
  expect_once(mpirun(2, train_rows("odd", 2, 8, {"--setps", "4"})), 2, "--setps");
  for (int rank = 0; rank < 2; ++rank) expect_status("odd", rank, "2 ");
}

TEST_F(MpiRefusals, RanksThatDiffer) {
  write_bytes(directory / "other.txt", sample_text(4000, 9));
  struct Case {
    Words more;
    std::string part;
  };
  for (const Case& c :
       {Case{{"--seed", "7"}, "another --seed"}, Case{{"--zero", "1"}, "another --zero"},
        Case{{"--model", "gpt2:layers=1,width=32,heads=2,vocab=256,context=32"}, "another --model"},
        Case{{"--data", directory / "other.txt"}, "another --data"}}) {
    fs::create_directory(directory / "differs");
    expect_once(second_with("differs", c.more), 2, "Rank 1 was started with " + c.part + " than rank 0.");
    for (int rank = 0; rank < 2; ++rank)
      expect_status("differs", rank, "2 Rank 1 was started with " + c.part);
    EXPECT_FALSE(fs::exists(directory / "differs/checkpoints"));
    fs::remove_all(directory / "differs");
  }
  const auto divided = [&](const char* over) {
    return sluice_words(
        {"train", "--model",
         "gpt2-moe:layers=2,width=32,heads=2,vocab=256,context=32,experts=4,every=1,top=1", "--data", text,
         "--batch", "8", "--steps", "2", "--out", directory / "divided", "--experts-over", over},
        "sluice");
  };
  expect_once(mpirun_each({divided("2"), divided("1")}), 2,
              "Rank 1 was started with another --experts-over than rank 0.");
}

// Ranks that validate at different steps, or on different numbers of batches, would wait for each other or
// mistake one exchange for another.
TEST_F(MpiRefusals, ValidationsThatDiffer) {
  write_bytes(directory / "other.txt", sample_text(4000, 9));
  const auto start = [&](const Words& more) {
    Words first = sluice_words(train_rows("differs", 4, 8), "sluice");
    first = first + Words{"--val-data", text, "--val-every", "2", "--val-batches", "2"};
    Words second = first;
    if (more.empty()) second.resize(second.size() - 6);
    for (size_t i = 0; i + 1 < more.size(); i += 2)
      *(std::find(second.begin(), second.end(), more[i]) + 1) = more[i + 1];
    return mpirun_each({first, second});
  };
  const std::string another = "Rank 1 was started with another ";
  expect_once(start({"--val-every", "3"}), 2, another + "--val-every than rank 0.");
  expect_once(start({"--val-batches", "3"}), 2, another + "--val-batches than rank 0.");
  expect_once(start({"--val-data", directory / "other.txt"}), 2, another + "content of --val-data than");
  expect_once(start({}), 2, another + "content of --val-data than rank 0.");
}

// One of two ranks has no step left to do. It does not leave the other one waiting.
TEST_F(MpiRefusals, EndsThatDiffer) {
  ASSERT_EQ(mpirun(2, train_rows("done", 2, 8)).code, 0);
  const auto resume = [&](const char* steps) {
    return sluice_words({"train", "--resume", "auto", "--out", directory / "done", "--steps", steps},
                        "sluice");
  };
  for (const bool first : {true, false}) {
    expect_once(mpirun_each({resume(first ? "2" : "4"), resume(first ? "4" : "2")}), 2,
                "Rank 1 was started with another --steps than rank 0.");
    for (int rank = 0; rank < 2; ++rank) expect_status("done", rank, "2 Rank 1 was started with another");
  }
  EXPECT_EQ(numbers_of("done").size(), 2u);
}

// A second run into the same --out is refused. The statuses of the first run stay, whatever the reason and on
// whichever rank.
TEST_F(MpiRefusals, AnOutThatIsInUseKeepsItsStatuses) {
  Command first(directory / "", under_mpirun(2, endless("used")));
  ASSERT_TRUE(reaches(first, "used", 3)) << statuses("used");
  const std::string running = "7 This rank was ended from outside, before it could say why.\n";
  const DriveDirectory place;  // for the output of the second run
  const Words torchrun{"env", "RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=2"};
  struct Case {
    Words words;
    int code;
    std::string part;
  };
  for (const Case& c :
       {Case{under_mpirun(3, endless("used", {"--resume", "auto"})), 4, "Another process is training in"},
        Case{under_mpirun(3, endless("used", {"--setps", "4"})), 4, "Another process is training in"},
        Case{torchrun + sluice_words(endless("used"), "sluice"), 2, "torchrun has started 2 ranks"}}) {
    expect_once(Command(place / "", c.words).wait(), c.code, c.part);
    EXPECT_EQ(statuses("used"), running + running);
  }
  first.send(SIGUSR1);
  EXPECT_EQ(first.wait().code, 75);
  EXPECT_EQ(statuses("used"), "75 \n75 \n");
}

// Nodes without a common file system are refused before there is work to lose.
TEST_F(MpiRefusals, AnOutThatIsNotShared) {
  fs::create_directory(directory / "own");
  fs::create_directory(directory / "shared");
  const CommandResult result = second_with("shared", {"--out", directory / "own"});
  expect_once(result, 4, "Rank 1 does not see what rank 0 writes into --out " + (directory / "shared"));
  expect_status("shared", 0, "4 Rank 1 does not see what rank 0 writes into --out ");
  expect_status("own", 1, "4 Rank 1 does not see what rank 0 writes into --out ");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory / "shared"), {}), 1) << "the status alone";
  EXPECT_EQ(std::distance(fs::directory_iterator(directory / "own"), {}), 1);
}

TEST_F(MpiRefusals, AnOutThatOneRankCannotWrite) {
  if (Command(directory / "", {"unshare", "--mount", "true"}).wait().code != 0)
    GTEST_SKIP() << "mount namespaces are not permitted here";
  const std::string out = directory / "out";
  fs::create_directory(out);
  const Words own = sluice_words(train_rows("out", 2, 8), "sluice");
  const Words reads_only{"unshare",
                         "--mount",
                         "sh",
                         "-c",
                         R"(mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@")",
                         out};
  expect_once(mpirun_each({own, reads_only + own}), 4,
              "Rank 1 cannot write into --out " + out + ": Read-only file system.");
  expect_status("out", 0, "4 Rank 1 cannot write into --out ");
  EXPECT_FALSE(fs::exists(out + "/metrics.jsonl"));
}

// Each rank has budgets of its own. One here is too small for the plan, one is of a tier that rank 0 lacks.
TEST_F(MpiRefusals, BudgetsOfOneRank) {
  fs::create_directory(directory / "small");
  expect_once(second_with("small", {"--host-mem", "1MiB"}), 3, "Rank 1 ended: The budgets cannot work");
  expect_status("small", 0, "7 Rank 1 ended: ");
  expect_status("small", 1, "3 The budgets cannot work");
  EXPECT_EQ(second_with("disk", {"--nvme-dir", directory / ""}).code, 0);
}

// A rank that leaves the ZeRO stage to the planner takes the first rank's.
TEST_F(MpiRefusals, OneStageIsForAll) { EXPECT_EQ(second_with("follows", {"--zero", "auto"}).code, 0); }

// Files of one name with different content, as nodes may have them: the second rank sees another directory in
// place of the first rank's.
TEST_F(MpiRefusals, FilesThatDiffer) {
  if (Command(directory / "", {"unshare", "--mount", "true"}).wait().code != 0)
    GTEST_SKIP() << "mount namespaces are not permitted here";
  for (const char* seed : {"1", "2"}) {
    const std::string place = directory / ("files" + std::string(seed));
    ASSERT_EQ(run(train_rows("run" + std::string(seed), 1, 8, {"--seed", seed})).code, 0);
    fs::create_directory(place);
    ASSERT_EQ(
        run({"export", "--from", directory / ("run" + std::string(seed)), "--to", place + "/model"}).code, 0);
    write_bytes(place + "/data.txt", sample_text(4000, std::stoul(seed)));
  }
  const std::string first = directory / "files1", second = directory / "files2";
  const auto start = [&](const std::string& model, const std::string& data, const std::string& out) {
    const Words own = sluice_words({"train", "--model", model, "--data", data, "--batch", "8", "--steps", "2",
                                    "--threads", "2", "--out", directory / out},
                                   "sluice");
    const Words there{"unshare", "--mount", "sh", "-c", R"(mount --bind "$0" "$1" && shift && exec "$@")",
                      second,    first};
    return mpirun_each({own, there + own});
  };
  expect_once(start(kTiny, first + "/data.txt", "data"), 2, "another content of --data than rank 0.");
  expect_once(start(first + "/model", text, "model"), 2, "another content of --model than rank 0.");
  ASSERT_EQ(start(second + "/model", text, "same").code, 0);
  const Words threads{
      "train", "--model", second + "/model",     "--data", text, "--batch", "8", "--steps", "2", "--threads",
      "2",     "--out",   directory / "threads", "--gpus", "2"};
  ASSERT_EQ(run(threads).code, 0);
  EXPECT_EQ(numbers_of("same"), numbers_of("threads")) << "all ranks start from the directory's weights";
}

// A rank has the same options, but another build of the program, whose bytes differ.
TEST_F(MpiRefusals, AnotherProgram) {
  fs::copy_file(sluice_binary("sluice"), directory / "sluice");
  fs::create_symlink(sluice_binary("libsluice_mpi.so"), directory / "libsluice_mpi.so");
  std::ofstream(directory / "sluice", std::ios::app | std::ios::binary) << "another build";
  const Words own = sluice_words(train_rows("out", 2, 8), "sluice");
  Words other = own;
  other[0] = directory / "sluice";
  expect_once(mpirun_each({own, other}), 2, "Rank 1 runs another build of Sluice than rank 0.");
}

TEST_F(MpiRefusals, WhatOnlyOneRankHasWrong) {
  fs::create_directory(directory / "one");
  const CommandResult disk = second_with("one", {"--nvme-dir", directory / "missing"});
  expect_once(disk, 4, "Rank 1 ended: ");
  EXPECT_NE(disk.err.find("missing"), std::string::npos) << disk.err;
  expect_status("one", 0, "7 Rank 1 ended: ");
  expect_status("one", 1, "4 ");
  expect_once(second_with("one", {"--setps", "4"}), 2, "Rank 1 ended: ");
  expect_status("one", 0, "7 Rank 1 ended: ");
  expect_status("one", 1, "2 ");
}

TEST_F(MpiRefusals, NoMpi) {
  fs::copy_file(sluice_binary("sluice"), directory / "sluice");
  fs::create_directory(directory / "out");
  Words own = sluice_words(train_rows("out", 2, 8), "sluice");
  own[0] = directory / "sluice";
  expect_once(mpirun_each({own, own}), 4,
              "A launcher started several ranks, but libsluice_mpi.so is neither beside the command nor in "
              "../lib/sluice.");
  for (int rank = 0; rank < 2; ++rank) expect_status("out", rank, "4 A launcher started several ranks");
  write_bytes(directory / "libsluice_mpi.so", "no library");
  expect_once(
      mpirun_each({own, own}), 4,
      "A launcher started several ranks, but MPI cannot be loaded: " + (directory / "libsluice_mpi.so"));
}

TEST_F(MpiRefusals, VerbsOfOneProcess) {
  ASSERT_EQ(run(train_rows("run", 1, 8)).code, 0);
  const Words model{"--model", kTiny, "--batch", "8"};
  for (const Words& words : {Words{"export", "--from", directory / "run", "--to", directory / "model"},
                             Words{"eval", "--from", directory / "run", "--data", text, "--val-batches", "2"},
                             Words{"plan"} + model, Words{"doctor"}}) {
    const std::string part = "`sluice " + words[0] + "` runs in one process, and a launcher has started ";
    expect_once(mpirun(2, words), 2, part + "2.");
    const int alone = run(words).code;
    EXPECT_TRUE(alone == 0 || words[0] == "doctor") << words[0] << ": " << alone;
    const Words batch{"env", "SLURM_NTASKS=8", "SLURM_PROCID=0", "SLURM_LOCALID=0"};  // without srun
    fs::remove_all(directory / "model");
    EXPECT_EQ(Command(directory / "", batch + sluice_words(words, "sluice")).wait().code, alone) << words[0];
    const Words step{"env", "SLURM_STEP_NUM_TASKS=8", "SLURM_PROCID=0", "SLURM_LOCALID=0"};
    expect_once(Command(directory / "", step + sluice_words(words, "sluice")).wait(), 2, part + "8.");
  }
  EXPECT_EQ(mpirun(1, Words{"plan"} + model).code, 0);
}

// srun starts processes that find each other only if it was asked to start MPI, too.
TEST_F(MpiRefusals, SrunWithoutMpi) {
  fs::create_directory(directory / "out");
  const auto rank = [&](const std::string& number, const Words& more) {
    const Words variables{"env",
                          "SLURM_JOB_ID=7",
                          "SLURM_NTASKS=16",
                          "SLURM_STEP_ID=0",
                          "SLURM_STEP_NUM_TASKS=16",
                          "SLURM_PROCID=" + number,
                          "SLURM_LOCALID=" + number};
    return Command(directory / "", variables + more + sluice_words(train_rows("out", 2, 8), "sluice")).wait();
  };
  const std::string alone =
      "srun has started 16 processes, but without MPI, so each of them would train alone.";
  // First without a PMI, then with one that Open MPI does not speak.
  for (const Words& pmi : {Words{}, Words{"PMI_RANK=0", "PMI_SIZE=16"}}) {
    expect_once(rank("0", pmi), 4, alone + "\n  Add --mpi=pmix to srun (srun --mpi=list says what");
    expect_status("out", 0, "4 " + alone);
  }
  const CommandResult other = rank("3", {});
  EXPECT_EQ(other.code, 4);
  EXPECT_EQ(other.err, "");
  expect_status("out", 3, "4 " + alone);
}

// One process runs in a batch script, or below an mpirun of one rank, even if the job has more tasks.
TEST_F(MpiRefusals, ABatchScriptTrainsAlone) {
  const Words batch{"env", "SLURM_JOB_ID=7", "SLURM_NTASKS=16", "SLURM_PROCID=0", "SLURM_LOCALID=0"};
  EXPECT_EQ(Command(directory / "", batch + sluice_words(train_rows("out", 1, 8), "sluice")).wait().code, 0);
  const Words below{"env", "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=0", "SLURM_LOCALID=0",
                    "OMPI_COMM_WORLD_SIZE=1"};
  EXPECT_EQ(Command(directory / "", below + sluice_words(train_rows("below", 1, 8), "sluice")).wait().code,
            0);
}

// torchrun starts processes that know of each other through variables alone.
TEST_F(MpiRefusals, Torchrun) {
  fs::create_directory(directory / "out");
  const auto rank = [&](const std::string& number) {
    const Words variables{"env", "RANK=" + number, "LOCAL_RANK=" + number, "WORLD_SIZE=2"};
    return Command(directory / "", variables + sluice_words(train_rows("out", 2, 8), "sluice")).wait();
  };
  expect_once(rank("0"), 2, "torchrun has started 2 ranks");
  const CommandResult second = rank("1");
  EXPECT_EQ(second.code, 2);
  EXPECT_EQ(second.err, "");
  for (int r = 0; r < 2; ++r) expect_status("out", r, "2 torchrun has started 2 ranks");
}

}  // namespace
}  // namespace sluice
