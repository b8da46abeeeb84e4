// The directory of a run's checkpoints: which is the newest, which are removed, who may write. A crash, a
// failed commit or a full drive at any moment leaves the newest complete checkpoint readable.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "tests/support/checkpoint_support.h"

namespace sluice {
namespace {

TEST_F(CheckpointTest, NewestPassesOverDamageAndTemporaries) {
  EXPECT_EQ(newest_checkpoint(out()), std::nullopt);  // nothing there at all
  const Model model = tiny_model();
  for (const int64_t step : {2, 10, 30}) save(model, step);
  for (const char* name : {"step-40", "step-000000050.bak", "other", ".step-000000060.old"})
    fs::create_directories(out() + "/checkpoints/" + name);
  fs::copy(checkpoint(30), out() + "/checkpoints/.step-000000070.tmp");
  std::vector<std::string> damaged;
  EXPECT_EQ(newest_checkpoint(out(), &damaged), checkpoint(30));
  EXPECT_TRUE(damaged.empty());
  fs::resize_file(checkpoint(30) + "/exp_avg.safetensors", 5000);
  EXPECT_EQ(newest_checkpoint(out(), &damaged), checkpoint(10));
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_NE(damaged[0].find("it has 5000 bytes, the manifest says"), std::string::npos) << damaged[0];
  fs::remove(checkpoint(10) + "/manifest.json");
  EXPECT_EQ(newest_checkpoint(out()), checkpoint(2));
  expect_content(CheckpointReader::open(checkpoint(2)), model, 2);
  fs::remove(checkpoint(2) + "/master.safetensors");
  EXPECT_EQ(newest_checkpoint(out()), std::nullopt);
}

TEST_F(CheckpointTest, PruningKeepsTheNewestCompleteOnes) {
  const Model model = tiny_model();
  for (const int64_t step : {1, 2, 3, 4, 5}) save(model, step);
  fs::remove(checkpoint(4) + "/manifest.json");
  prune_checkpoints(out(), 2);
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000003", "step-000000004", "step-000000005"}));
  prune_checkpoints(out(), 0);  // never the last one
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000004", "step-000000005"}));
  prune_checkpoints(path("elsewhere"), 1);
}

// A validation of 100 tokens of data 7, unless the test says otherwise.
ValidationRecord validated(double loss, int64_t tokens = 100, uint64_t data = 7) {
  return {loss, tokens, data};
}

TEST_F(CheckpointTest, TheBestHasTheLowestLossOverTheTokensOfTheNewestThatHasOne) {
  EXPECT_FALSE(best_checkpoint(out()));  // nothing there at all
  const Model model = tiny_model();
  save(model, 1);
  EXPECT_FALSE(best_checkpoint(out()));
  save(model, 2, validated(0.5, 99));      // fewer tokens
  save(model, 3, validated(0.5, 100, 8));  // other data
  save(model, 4, validated(2.25));
  save(model, 5, validated(2));
  save(model, 6, validated(2));
  save(model, 7, validated(-1e300));
  save(model, 8, validated(3));
  save(model, 9);
  fs::resize_file(checkpoint(7) + "/exp_avg.safetensors", 5000);  // damaged: it does not count
  const std::optional<BestCheckpoint> best = best_checkpoint(out());
  ASSERT_TRUE(best);
  EXPECT_EQ(best->step, 5);  // the oldest of equals
  EXPECT_EQ(best->path, checkpoint(5));
  EXPECT_EQ(best->validation.loss, 2);
  save(model, 10, validated(9, 99));
  EXPECT_EQ(best_checkpoint(out())->step, 2);
  save(model, 11, validated(9, 99, 9));
  EXPECT_EQ(best_checkpoint(out())->step, 11);
}

TEST_F(CheckpointTest, PruningLeavesTheBestBesideTheNewest) {
  const Model model = tiny_model();
  save(model, 1, validated(3));
  save(model, 2, validated(1));
  save(model, 3, validated(2));
  save(model, 4);
  save(model, 5);
  prune_checkpoints(out(), 1, true);
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000002", "step-000000005"}));
  prune_checkpoints(out(), 1, true);  // again: it stays
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000002", "step-000000005"}));
  save(model, 6, validated(0.5));
  prune_checkpoints(out(), 2, true);  // one of the newest is the best now
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000005", "step-000000006"}));
  prune_checkpoints(out(), 1, false);
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000006"}));
}

TEST_F(CheckpointTest, OneOnTheWayLeavesRoomForTheLast) {
  const Model model = tiny_model();
  save(model, 1);
  save(model, 2);
  const CheckpointSpace large{free_bytes(out()) / 3 * 2, 1};  // one fits, two do not
  EXPECT_FALSE(obstacle_to_checkpoint(out(), large));
  EXPECT_TRUE(obstacle_on_the_way(out(), large, 3, false));
  EXPECT_FALSE(obstacle_on_the_way(out(), large, 2, false));  // an older one goes
  EXPECT_TRUE(obstacle_on_the_way(out(), large, 2, true));    // the best may stay beside two others
  fs::remove(checkpoint(1) + "/manifest.json");
  EXPECT_EQ(count_complete_checkpoints(out()), 1);
  EXPECT_TRUE(obstacle_on_the_way(out(), large, 2, false));
}

// The commit deletes nothing of other steps. Of its own step it deletes only a complete checkpoint.
TEST_F(CheckpointTest, GoingBackRetiresWhatLaterStepsLeft) {
  const Model model = tiny_model();
  for (const int64_t step : {5, 10, 15}) save(model, step);
  CheckpointWriter writer(out(), model, state_at(10));
  ASSERT_TRUE(write_shards(writer, model, 77, kShard, 0));
  writer.commit();
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000005", "step-000000010", "step-000000015"}));
  expect_content(CheckpointReader::open(checkpoint(10)), model, 77);

  fs::create_directories(checkpoint(20) + "/of somebody else");
  EXPECT_EQ(retire_checkpoints_after(out(), 15).size(), 1u);
  const std::vector<std::string> notes = retire_checkpoints_after(out(), 5);
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_TRUE(notes[0].starts_with("Kept, since it is no complete checkpoint: ")) << notes[0];
  EXPECT_EQ(notes[1],
            "The later checkpoint " + checkpoint(15) +
                " is now step-000000015.set-aside, until the next checkpoint, other than that of a stop.");
  EXPECT_TRUE(notes[2].starts_with("The later checkpoint " + checkpoint(10))) << notes[2];
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000005", "step-000000010.set-aside",
                                                 "step-000000015.set-aside", "step-000000020"}));
  save(model, 15);  // going back once more keeps both
  EXPECT_EQ(retire_checkpoints_after(out(), 5).size(), 2u);
  expect_content(CheckpointReader::open(newest_checkpoint(out()).value()), model, 5);
  fs::rename(checkpoint(10) + ".set-aside", checkpoint(10));  // as a user would who takes it back
  expect_content(CheckpointReader::open(newest_checkpoint(out()).value()), model, 77);
  delete_set_aside(out());
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000005", "step-000000010", "step-000000020"}));
  fs::remove_all(checkpoint(10));
  for (const char* aside : {"step-000000020.damaged", "step-000000020.damaged.2"}) {
    save(model, 20);
    EXPECT_TRUE(fs::exists(out() + "/checkpoints/" + aside)) << aside;
    fs::remove(checkpoint(20) + "/manifest.json");
  }
  EXPECT_TRUE(fs::exists(checkpoint(20) + ".damaged/of somebody else"));
}

// Whatever already has the name of a checkpoint that is written stays under another name.
TEST_F(CheckpointTest, AFileOrLinkOfTheNameIsKeptAside) {
  const Model model = tiny_model();
  save(model, 1);
  std::ofstream(checkpoint(2)) << "of somebody else";
  fs::create_symlink("nowhere", checkpoint(3));
  fs::create_directory_symlink(checkpoint(1), checkpoint(4));
  for (const int64_t step : {2, 3, 4}) {
    save(model, step);
    expect_content(CheckpointReader::open(checkpoint(step)), model, step);
    EXPECT_FALSE(fs::is_symlink(checkpoint(step)));
    EXPECT_TRUE(fs::exists(fs::symlink_status(checkpoint(step) + ".damaged"))) << step;
  }
  expect_content(CheckpointReader::open(checkpoint(1)), model, 1);
}

TEST_F(CheckpointTest, AnUncommittedWriterLeavesNothingAndLocksOthersOut) {
  const Model model = tiny_model();
  save(model, 1);
  fs::create_directories(out() + "/checkpoints/.step-000000007.tmp/x");  // of a process that was killed
  fs::create_directories(out() + "/checkpoints/.step-000000003.old");
  {
    const CheckpointWriter writer(out(), model, state_at(2));
    EXPECT_EQ(entries(), (std::vector<std::string>{".step-000000002.tmp", "step-000000001"}));
    expect_error(ExitCode::environment, {"Another process is writing a checkpoint"},
                 [&] { CheckpointWriter(out(), model, state_at(3)); });
    EXPECT_EQ(newest_checkpoint(out()), checkpoint(1));
  }
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000001"}));
  write_file("file", "");
  expect_error(ExitCode::environment, {"Cannot create"},
               [&] { CheckpointWriter(path("file"), model, state_at(1)); });
}

TEST_F(CheckpointTest, AFailedCommitKeepsTheCheckpointBefore) {
  const Model model = tiny_model();
  save(model, 1);
  {
    CheckpointWriter writer(out(), model, state_at(2));
    fs::remove_all(out() + "/checkpoints/.step-000000002.tmp");
    expect_error(ExitCode::environment, {"Cannot create", "step-000000002"}, [&] { writer.commit(); });
  }
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000001"}));
  EXPECT_EQ(newest_checkpoint(out()), checkpoint(1));
}

// Writes checkpoints until it is killed.
[[noreturn]] void write_forever(const std::string& out, const Model& model, int64_t step) {
  try {
    for (;; ++step) {
      CheckpointWriter writer(out, model, state_at(step));
      if (!write_shards(writer, model, static_cast<uint64_t>(step), kShard, static_cast<unsigned>(step)))
        break;
      writer.commit();
      prune_checkpoints(out, 2);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  _exit(1);
}

TEST_F(CheckpointTest, SigkillAtAnyMomentLeavesACompleteCheckpoint) {
  const Model model = tiny_model();
  save(model, 1);
  std::mt19937 random(20);
  int64_t last = 1;
  // Kills come within 40 ms. After 20 rounds that wrote nothing, as on a slow drive, kills come later.
  for (int round = 0; round < 20 || last == 1; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_forever(out(), model, last + 1);
    usleep(random() % (40'000 * (1 + round / 20)));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
    const std::optional<std::string> newest = newest_checkpoint(out());
    ASSERT_TRUE(newest.has_value());
    const CheckpointReader reader = CheckpointReader::open(*newest);
    EXPECT_GE(reader.state().step, last);
    last = reader.state().step;
    expect_content(reader, model, static_cast<uint64_t>(last));
  }
  save(model, last + 1);
  prune_checkpoints(out(), 1);
  EXPECT_EQ(entries().size(), 1u);  // the killed writers left nothing
}

TEST_F(CheckpointTest, AFullDiskIsAnErrorBeforeAnythingIsLost) {
  const Model model = tiny_model();
  fs::create_directory(path("disk"));
  const std::string disk = path("disk"), run = disk + "/run";
  struct Mounted {
    std::string at;
    ~Mounted() { umount2(at.c_str(), MNT_DETACH); }
  };
  const auto mount_small = [&](const std::string& limit) {
    return mount("tmpfs", disk.c_str(), "tmpfs", 0, limit.c_str()) == 0;
  };
  if (!mount_small(fmt::format(
          "size={}", checkpoint_bytes(model, tensor_planes(model.precision), {whole_groups(model)}) * 3 / 2)))
    GTEST_SKIP() << "a small tmpfs cannot be mounted: " << std::strerror(errno);
  {
    const Mounted mounted{disk};
    CheckpointWriter first(run, model, state_at(1));
    ASSERT_TRUE(write_shards(first, model, 1, kShard, 0));
    first.commit();
    expect_error(ExitCode::io, {"Cannot allocate", "No space left"},
                 [&] { CheckpointWriter(run, model, state_at(2)); });
    EXPECT_EQ(std::distance(fs::directory_iterator(run + "/checkpoints"), {}), 1);
    expect_content(CheckpointReader::open(*newest_checkpoint(run)), model, 1);
  }
  // Space for the tensors but not for more files: the root, run, checkpoints, the temporary directory and
  // three planes.
  if (!mount_small("nr_inodes=7")) GTEST_SKIP() << "nr_inodes is not supported: " << std::strerror(errno);
  const Mounted mounted{disk};
  {
    CheckpointWriter writer(run, model, state_at(1));
    expect_error(ExitCode::io, {"manifest.json", "No space left"}, [&] { writer.commit(); });
  }
  EXPECT_TRUE(fs::is_empty(run + "/checkpoints"));
}

}  // namespace
}  // namespace sluice
