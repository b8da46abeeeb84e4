// Checkpoints: what was written comes back to the bit, in whatever order and cut it was written; a crash at
// any moment leaves the newest complete checkpoint readable.
#include "engine/run/checkpoint.h"

#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "cpu_optim/optimizer.h"
#include "engine/run/loader.h"
#include "models/family.h"
#include "tests/format_test_support.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kShard = 65536;  // elements: the finest shard boundary
constexpr std::array<Plane, kPlanes> kAllPlanes = {Plane::master, Plane::first_moment, Plane::second_moment,
                                                   Plane::frozen_weights};

// Odd sizes, so that tensors and groups end in padding; the first group frozen when asked.
Model odd_model(const std::string& name, DType precision, bool freeze) {
  Model model = build_model(config_from_name(name), precision, 1, 8);
  if (freeze) model.groups.front().trainable = false;
  return model;
}
constexpr const char* kGpt2 = "gpt2:layers=2,width=160,heads=5,vocab=301,context=37";
constexpr const char* kLlama = "llama:layers=2,width=96,heads=3,kv_heads=1,vocab=301,context=37,ffn=129";
Model tiny_model() {
  return odd_model("gpt2:layers=1,width=32,heads=1,vocab=33,context=8", DType::bf16, false);
}

bool stores(const Group& group, Plane plane) { return group.trainable != (plane == Plane::frozen_weights); }
uint64_t elements_of(const Parameter& parameter) {
  return static_cast<uint64_t>(element_count(parameter.shape));
}

// Any finite value, subnormals and both zeros included, that tells where it belongs; 16-bit for frozen
// weights.
float value_at(const Parameter& parameter, Plane plane, uint64_t element, uint64_t salt) {
  uint64_t z = (std::hash<std::string>()(parameter.name) ^ salt * 31 ^ static_cast<uint64_t>(plane)) +
               element * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  auto bits = static_cast<uint32_t>((z ^ (z >> 27)) >> 16);
  if ((bits & 0x7f800000u) == 0x7f800000u) bits ^= 0x40000000u;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  if (plane != Plane::frozen_weights) return value;
  return static_cast<float>(static_cast<int>(bits % 509) - 254) / 4;  // exact in bf16, fp16 and fp32
}

// A group's flat buffer as a reader should give it.
std::vector<float> flat(const Group& group, Plane plane, uint64_t salt) {
  std::vector<float> values(group.elements, 0.0f);
  for (const Parameter& p : group.parameters)
    for (uint64_t i = 0; i < elements_of(p); ++i) values[p.offset + i] = value_at(p, plane, i, salt);
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Writes every plane of every group, in shards of `shard` elements and in an order drawn from `seed`, as the
// lane does: from aligned memory, at the target's offset. False when a write fails.
bool write_shards(CheckpointWriter& writer, const Model& model, uint64_t salt, uint64_t shard,
                  unsigned seed) {
  struct Job {
    uint32_t group;
    uint64_t first;
    Plane plane;
  };
  std::vector<Job> jobs;
  for (uint32_t g = 0; g < model.groups.size(); ++g)
    for (const Plane plane : kAllPlanes)
      for (uint64_t first = 0; stores(model.groups[g], plane) && first < model.groups[g].elements;
           first += shard)
        jobs.push_back({g, first, plane});
  std::shuffle(jobs.begin(), jobs.end(), std::mt19937(seed));
  for (const Job& job : jobs) {
    const Group& group = model.groups[job.group];
    const DType dtype = job.plane == Plane::frozen_weights ? model.precision : DType::f32;
    const uint64_t n = std::min(shard, group.elements - job.first), bytes = n * dtype_bytes(dtype);
    const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(4096, bytes), &std::free);
    round_to(dtype, flat(group, job.plane, salt).data() + job.first, memory.get(), n);
    const FileTarget target = writer.begin_write(job.group, job.first, job.plane,
                                                 {static_cast<const std::byte*>(memory.get()), bytes});
    if (bytes % 4096 != 0 || target.offset % 4096 != 0) return false;
    if (pwrite(target.fd, memory.get(), bytes, static_cast<off_t>(target.offset)) !=
        static_cast<ssize_t>(bytes))
      return false;
  }
  return true;
}

CheckpointState state_at(int64_t step, DType precision = DType::bf16) {
  CheckpointState state;
  state.step = step;
  state.t = step;
  state.precision = precision;
  state.model_config = "{}";
  return state;
}

void expect_content(const CheckpointReader& reader, const Model& model, uint64_t salt) {
  for (const Group& group : model.groups)
    for (const Plane plane : kAllPlanes) {
      if (!stores(group, plane)) continue;
      std::vector<float> values(group.elements, -1.0f);
      fill_flat(group, source_of(reader, plane), 0, group.elements, values.data());
      EXPECT_TRUE(same_bits(values, flat(group, plane, salt))) << group.name << " " << plane_name(plane);
    }
}

class CheckpointTest : public FormatTest {
 protected:
  std::string out() const { return path("run"); }
  std::string checkpoint(int64_t step) const { return path(fmt::format("run/checkpoints/step-{:09}", step)); }
  // Entries of the checkpoints' directory, hidden ones too.
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(out() + "/checkpoints"))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  void save(const Model& model, int64_t step) const {
    CheckpointWriter writer(out(), model, state_at(step, model.precision));
    ASSERT_TRUE(write_shards(writer, model, static_cast<uint64_t>(step), kShard, 0));
    writer.commit();
  }
};

TEST_F(CheckpointTest, WhatWasWrittenComesBackToTheBit) {
  unsigned seed = 1;
  for (const auto& [name, precision, freeze] :
       {std::tuple{kGpt2, DType::bf16, true}, {kLlama, DType::f32, false}, {kLlama, DType::f16, true}}) {
    SCOPED_TRACE(fmt::format("{} {}", name, dtype_name(precision)));
    const Model model = odd_model(name, precision, freeze);
    CheckpointState state = state_at(41, precision);
    CheckpointWriter writer(out(), model, state);
    ASSERT_TRUE(write_shards(writer, model, 7, kShard, seed++));
    writer.commit();
    EXPECT_EQ(writer.path(), checkpoint(41));
    EXPECT_EQ(newest_checkpoint(out()), checkpoint(41));

    const CheckpointReader reader = CheckpointReader::open(checkpoint(41));
    reader.check(model);
    reader.check_weights(model);
    expect_content(reader, model, 7);
    const Group& last = model.groups.back();  // a range that begins and ends inside tensors and holds padding
    const std::vector<float> expected = flat(last, Plane::second_moment, 7);
    std::vector<float> range(last.elements - 12);
    fill_flat(last, source_of(reader, Plane::second_moment), 5, range.size(), range.data());
    EXPECT_TRUE(same_bits(range, {expected.begin() + 5, expected.end() - 7}));

    for (const Group& group : model.groups) {
      const Parameter& p = group.parameters.front();
      const Plane weights = group.trainable ? Plane::master : Plane::frozen_weights;
      float first[3] = {}, again[3] = {};
      EXPECT_TRUE(reader.read(p.name, weights, 1, 3, first));
      EXPECT_EQ(first[2], value_at(p, weights, 3, 7));
      reader.read_weights(p.name, 1, 3, again);
      EXPECT_EQ(std::memcmp(first, again, sizeof first), 0);
      EXPECT_FALSE(reader.read(p.name, group.trainable ? Plane::frozen_weights : Plane::master, 0, 1, first));
    }
    float ignored;
    EXPECT_FALSE(reader.read("no.such.tensor", Plane::master, 0, 1, &ignored));
  }
}

TEST_F(CheckpointTest, TheRunsNumbersComeBackExactly) {
  const Model model = odd_model("gpt2:layers=1,width=32,heads=1,vocab=33,context=8", DType::f16, false);
  CheckpointState state = state_at(1'000'000'000'000);  // more digits than the directory's name pads to
  state.precision = DType::f16;
  state.t = 999'999'999'997;
  state.loss_scale = 32768;
  state.clean_steps = 1999;
  state.skipped_steps = 3;
  state.cursor = UINT64_MAX;
  state.micro_batch = 12;
  state.tokens = 1'000'000'007;
  state.data_checksum = 0xfedcba9876543210;
  state.model_config = "{\n  \"a\": \"\\u00e9 \xc3\xa9\", \"b\": 1e-05\n}\n";
  state.options = {
      {"data", {"caf\xe9.txt", "\xff\xfe", "plain\n\"quoted\""}}, {"empty", {}}, {"lr", {"0.0003"}}};
  CheckpointWriter writer(out(), model, state);
  writer.commit();
  const CheckpointState read = CheckpointReader::open(*newest_checkpoint(out())).state();
  EXPECT_EQ(read.step, state.step);
  EXPECT_EQ(read.t, state.t);
  EXPECT_EQ(read.loss_scale, state.loss_scale);
  EXPECT_EQ(read.tokens, state.tokens);
  EXPECT_EQ(read.data_checksum, state.data_checksum);
  EXPECT_EQ(read.clean_steps, 1999);
  EXPECT_EQ(read.skipped_steps, 3);
  EXPECT_EQ(read.cursor, UINT64_MAX);
  EXPECT_EQ(read.micro_batch, 12);
  EXPECT_EQ(read.precision, DType::f16);
  EXPECT_EQ(read.model_config, state.model_config);
  ASSERT_EQ(read.options.size(), state.options.size());
  for (size_t i = 0; i < read.options.size(); ++i) {
    EXPECT_EQ(read.options[i].name, state.options[i].name);
    EXPECT_EQ(read.options[i].values, state.options[i].values);
  }
  for (const double scale : {1.0, 65536.0, 0x1p1023}) {
    Manifest manifest;
    manifest.state.precision = DType::f16;
    manifest.state.loss_scale = scale;
    EXPECT_EQ(manifest_from_json(manifest_to_json(manifest), "m").state.loss_scale, scale);
  }
}

TEST_F(CheckpointTest, FilesAreSafetensorsWithoutHolesAndHaveTheStatedSize) {
  const Model model = odd_model(kGpt2, DType::bf16, true);
  save(model, 1);
  std::map<std::string, uint64_t> sizes;
  uint64_t total = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint(1)))
    sizes[entry.path().filename().string()] = entry.file_size();
  ASSERT_EQ(sizes.size(), 5u);
  sizes.erase("manifest.json");
  for (const Plane plane : kAllPlanes) {
    const SafetensorsFile file =
        SafetensorsFile::open(checkpoint(1) + "/" + plane_name(plane) + ".safetensors");
    total += sizes.at(std::string(plane_name(plane)) + ".safetensors");
    EXPECT_EQ(file.tensors().front().begin % kCheckpointAlignment, 0u);
    std::map<std::string, Shape> stored, expected;
    for (const SafetensorsTensor& tensor : file.tensors()) {
      if (tensor.type == SafetensorsType::u8)
        EXPECT_TRUE(tensor.name.starts_with("padding.")) << tensor.name;
      else
        stored[tensor.name] = tensor.shape;
    }
    for (const Group& group : model.groups)
      for (const Parameter& p : group.parameters)
        if (stores(group, plane)) expected[p.name] = p.shape;
    EXPECT_EQ(stored, expected);
  }
  EXPECT_EQ(checkpoint_bytes(model), total);
  const Model large = build_model(config_from_name("llama-70b"), DType::bf16, 1, 4096);
  EXPECT_NEAR(static_cast<double>(checkpoint_bytes(large)),
              12.0 * static_cast<double>(parameter_count(large)),
              2e6);  // headers and padding: a few MB of 840 GB
}

// Wherever a bit flips on the disk, reading says so; each tensor's own file and the older checkpoint are
// named.
TEST_F(CheckpointTest, AFlippedBitIsFoundWhenItIsRead) {
  const Model model = odd_model(kGpt2, DType::bf16, true);
  save(model, 1), save(model, 2);
  const auto read_all = [&](int64_t step) {
    const CheckpointReader reader = CheckpointReader::open(checkpoint(step));
    expect_content(reader, model, static_cast<uint64_t>(step));
  };
  std::mt19937_64 random(5);
  for (const Plane plane : kAllPlanes)
    for (int i = 0; i < 8; ++i) {
      const std::string file = fmt::format("{}/{}.safetensors", checkpoint(2), plane_name(plane));
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      const auto at = static_cast<std::streamoff>(i == 0   ? 4096 + random() % 64
                                                  : i == 1 ? fs::file_size(file) - 1
                                                           : random() % fs::file_size(file));
      const auto flip = [&] {
        char byte = 0;
        stream.seekg(at).read(&byte, 1);
        byte = static_cast<char>(byte ^ 1 << i);
        stream.seekp(at).write(&byte, 1).flush();
      };
      flip();
      expect_error(ExitCode::malformed_file, {file}, [&] { read_all(2); });
      if (i != 1) {
        flip();
        continue;
      }
      try {
        read_all(2);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("checksum differs"), std::string::npos) << error.what();
        EXPECT_EQ(error.remedy(), "Use the checkpoint before it: " + checkpoint(1) + ".");
      }
      flip();
    }
  read_all(2);
}

TEST_F(CheckpointTest, BytesDoNotDependOnShardsOrTheirOrder) {
  const Model model = odd_model(kLlama, DType::bf16, true);
  std::map<std::string, std::string> first;
  for (const auto& [shard, seed] : {std::pair{kShard, 3u}, {uint64_t{1} << 30, 4u}}) {
    fs::remove_all(out());
    CheckpointWriter writer(out(), model, state_at(9));
    ASSERT_TRUE(write_shards(writer, model, 2, shard, seed));
    writer.commit();
    for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint(9))) {
      const std::string name = entry.path().filename().string(),
                        bytes = read_file(fs::relative(entry.path(), directory).string());
      if (first.contains(name))
        EXPECT_TRUE(first[name] == bytes) << name;
      else
        first[name] = bytes;
    }
  }
  EXPECT_EQ(first.size(), 5u);
}

TEST_F(CheckpointTest, AnotherModelIsRejectedWithAList) {
  const Model model = tiny_model();
  save(model, 1);
  const CheckpointReader reader = CheckpointReader::open(checkpoint(1));
  Model other = model;
  other.groups[0].parameters[0].name = "renamed";
  expect_error(ExitCode::malformed_file,
               {"renamed is missing", model.groups[0].parameters[0].name + " is not in the model"},
               [&] { reader.check(other); });
  other = model;
  other.groups[0].parameters[0].shape = {33, 31};
  expect_error(ExitCode::malformed_file, {"[33, 32], the model wants [33, 31]"},
               [&] { reader.check(other); });
  other = model;
  for (Group& group : other.groups) group.trainable = false;
  expect_error(ExitCode::malformed_file, {"was trained, the model has it frozen"},
               [&] { reader.check(other); });
  reader.check_weights(other);
  const Model deeper = odd_model("gpt2:layers=3,width=32,heads=1,vocab=33,context=8", DType::bf16, false);
  // Two more layers of 12 tensors: ten are named.
  expect_error(ExitCode::malformed_file, {"h.1.ln_1.weight is missing", "and 14 more"},
               [&] { reader.check(deeper); });
  expect_error(ExitCode::malformed_file, {"and 14 more"}, [&] { reader.check_weights(deeper); });
}

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

// The commit itself deletes nothing of other steps, and of its own step only what is a complete checkpoint.
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
  EXPECT_EQ(notes[1], "Removed the later checkpoint " + checkpoint(15) + ".");
  EXPECT_EQ(notes[2], "Removed the later checkpoint " + checkpoint(10) + ".");
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000005", "step-000000020"}));
  for (const char* aside : {"step-000000020.damaged", "step-000000020.damaged.2"}) {
    save(model, 20);
    EXPECT_TRUE(fs::exists(out() + "/checkpoints/" + aside)) << aside;
    fs::remove(checkpoint(20) + "/manifest.json");
  }
  EXPECT_TRUE(fs::exists(checkpoint(20) + ".damaged/of somebody else"));
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
    write_file("run/checkpoints/step-000000002", "in the way");
    expect_error(ExitCode::io, {"Cannot rename", "step-000000002"}, [&] { writer.commit(); });
  }
  EXPECT_EQ(entries(), (std::vector<std::string>{"step-000000001", "step-000000002"}));
  fs::remove(checkpoint(2));
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
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_forever(out(), model, last + 1);
    usleep(random() % 40'000);
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
  EXPECT_GT(last, 1);
  save(model, last + 1);
  prune_checkpoints(out(), 1);
  EXPECT_EQ(entries().size(), 1u);  // nothing that the killed ones left
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
  if (!mount_small(fmt::format("size={}", checkpoint_bytes(model) * 3 / 2)))
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
  // Space for the tensors but for no more files: run, checkpoints, the temporary and three planes, besides
  // the root.
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
