// Checkpoints: what was written comes back to the bit, in whatever order and shards it was written. What is
// damaged, or belongs to another model, is refused.
#include "engine/run/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <random>

#include "tests/support/checkpoint_support.h"

namespace sluice {
namespace {

constexpr const char* kGpt2 = "gpt2:layers=2,width=160,heads=5,vocab=301,context=37";
constexpr const char* kLlama = "llama:layers=2,width=96,heads=3,kv_heads=1,vocab=301,context=37,ffn=129";

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
    const std::vector<StoredPlane> planes = tensor_planes(precision);
    const StoredPlane &master = planes.front(), &squares = planes[2], &frozen = planes.back();
    const std::vector<float> expected = flat(last, squares, 7);
    std::vector<float> range(last.elements - 12);
    fill_plane(last, reader, squares, 5, range.size(), std::as_writable_bytes(std::span(range)).data());
    EXPECT_TRUE(same_bits(range, {expected.begin() + 5, expected.end() - 7}));

    for (const Group& group : model.groups) {
      const Parameter& p = group.parameters.front();
      const StoredPlane& weights = group.trainable ? master : frozen;
      std::byte stored[3 * sizeof(float)];
      float first[3] = {}, again[3] = {};
      EXPECT_TRUE(reader.read(p.name, weights, 1, 3, stored));
      widen(weights.type, stored, first, 3);
      EXPECT_EQ(first[2], value_at(p, weights, 3, 7));
      reader.read_weights(p.name, 1, 3, again);
      EXPECT_EQ(std::memcmp(first, again, sizeof first), 0);
      EXPECT_FALSE(reader.read(p.name, group.trainable ? frozen : master, 0, 1, stored));
    }
    float ignored;
    EXPECT_FALSE(reader.read("no.such.tensor", master, 0, 1, &ignored));
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
  for (const StoredPlane& plane : tensor_planes(model.precision)) {
    const SafetensorsFile file = SafetensorsFile::open(checkpoint(1) + "/" + plane.name + ".safetensors");
    total += sizes.at(std::string(plane.name) + ".safetensors");
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
  std::vector<StoredPlane> planes = tensor_planes(model.precision);
  EXPECT_EQ(checkpoint_bytes(model, planes, {whole_groups(model)}), total);
  std::erase_if(planes,
                [](const StoredPlane& plane) { return std::string_view(plane.name) == "exp_avg_sq"; });
  EXPECT_EQ(checkpoint_bytes(model, planes, {whole_groups(model)}),
            total - sizes.at("exp_avg_sq.safetensors"));
  const Model large = build_model(config_from_name("llama-70b"), DType::bf16, 1, 4096);
  EXPECT_NEAR(
      static_cast<double>(checkpoint_bytes(large, tensor_planes(large.precision), {whole_groups(large)})),
      12.0 * static_cast<double>(parameter_count(large)),
      2e6);  // headers and padding: a few MB of 840 GB
}

// Wherever a bit flips on the drive, reading reports it. The error names the file of the tensor and the older
// checkpoint.
TEST_F(CheckpointTest, AFlippedBitIsFoundWhenItIsRead) {
  const Model model = odd_model(kGpt2, DType::bf16, true);
  save(model, 1), save(model, 2);
  const auto read_all = [&](int64_t step) {
    const CheckpointReader reader = CheckpointReader::open(checkpoint(step));
    expect_content(reader, model, static_cast<uint64_t>(step));
  };
  std::mt19937_64 random(5);
  for (const StoredPlane& plane : tensor_planes(model.precision))
    for (int i = 0; i < 8; ++i) {
      const std::string file = fmt::format("{}/{}.safetensors", checkpoint(2), plane.name);
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

}  // namespace
}  // namespace sluice
