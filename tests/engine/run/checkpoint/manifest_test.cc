// Checkpoints in any number of pieces and files are read. Every kind of damage to a manifest or to files is
// named.
#include "engine/run/checkpoint/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/run/checkpoint/block_checksum.h"
#include "engine/run/start/loader.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A manifest as a resharded checkpoint might have it: master weights "w" [5, 3] as three pieces in two files
// of two writers, and "b" [2] whole.
class ManifestTest : public FormatTest {
 protected:
  void SetUp() override {
    FormatTest::SetUp();
    fs::create_directory(path("c"));
    write_tensors("c/a.safetensors", {{"w", {4}, 0}});
    write_tensors("c/b.safetensors", {{"w", {1, 3}, 4}, {"b", {2}, 100}, {"w.2", {8}, 7}});
    for (const char* plane : {"exp_avg", "exp_avg_sq"})
      write_tensors(fmt::format("c/{}.safetensors", plane), {{"w", {5, 3}, 200}, {"b", {2}, 300}});
    manifest = Json::parse(manifest_to_json(Manifest{}));
    manifest["writers"] = 2;
    for (const char* name : {"b", "a", "exp_avg", "exp_avg_sq"})
      manifest["files"].push_back(file_entry(fmt::format("{}.safetensors", name)));
    const auto whole = [](const char* plane, int count) {
      return Json::array({{{"file", fmt::format("{}.safetensors", plane)}, {"first", 0}, {"count", count}}});
    };
    Json pieces = Json::array();
    pieces.push_back({{"file", "b.safetensors"}, {"first", 7}, {"count", 8}, {"stored_as", "w.2"}});
    pieces.push_back({{"file", "a.safetensors"}, {"first", 0}, {"count", 4}});
    pieces.push_back({{"file", "b.safetensors"}, {"first", 4}, {"count", 3}});
    manifest["tensors"].push_back(
        {{"name", "w"},
         {"shape", {5, 3}},
         {"planes",
          {{"master", pieces}, {"exp_avg", whole("exp_avg", 15)}, {"exp_avg_sq", whole("exp_avg_sq", 15)}}}});
    manifest["tensors"].push_back({{"name", "b"},
                                   {"shape", {2}},
                                   {"planes",
                                    {{"master", whole("b", 2)},
                                     {"exp_avg", whole("exp_avg", 2)},
                                     {"exp_avg_sq", whole("exp_avg_sq", 2)}}}});
    write_manifest(manifest);
  }
  struct Values {
    std::string name;
    Shape shape;
    float first;
  };
  void write_tensors(const std::string& file, const std::vector<Values>& tensors) const {
    std::vector<TensorSpec> specs;
    for (const Values& t : tensors) specs.push_back({t.name, DType::f32, t.shape});
    SafetensorsWriter writer(path(file), specs, {}, kExportAlignment);
    for (const Values& t : tensors)
      for (int64_t i = 0; i < element_count(t.shape); ++i) {
        const float value = t.first + static_cast<float>(i);
        writer.write(&value, sizeof value);
      }
    writer.finish();
  }
  // A file in two sections: the first 100 bytes, and the rest.
  Json file_entry(const std::string& name) const {
    const std::string text = read_file("c/" + name);
    const auto bytes = std::as_bytes(std::span(text));
    const auto section = [](std::span<const std::byte> part) {
      return Json{{"bytes", part.size()}, {"checksum", fmt::format("{:016x}", block_checksum(part, 0))}};
    };
    return {{"name", name},
            {"bytes", bytes.size()},
            {"sections", Json::array({section(bytes.first(100)), section(bytes.subspan(100))})}};
  }
  void write_manifest(const Json& json) const {
    Json open = json;
    open.erase("checksum");
    write_file("c/manifest.json", sealed(open.dump()));
  }
  void rejects(const std::string& part, const std::function<void(Json&)>& edit) const {
    SCOPED_TRACE(part);
    Json damaged = manifest;
    edit(damaged);
    write_manifest(damaged);
    expect_error(ExitCode::malformed_file, {part}, [&] { CheckpointReader::open(path("c")); });
  }
  Json manifest;
};

TEST_F(ManifestTest, ReadersTakeAnyNumberOfPieces) {
  const CheckpointReader reader = CheckpointReader::open(path("c"));
  for (uint64_t first = 0; first <= 15; ++first)
    for (uint64_t count = 0; count <= 15 - first; ++count) {
      std::vector<float> values(count, -1.0f);
      ASSERT_TRUE(reader.read("w", kMasterWeights, first, count, values.data()));
      for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(values[i], static_cast<float>(first + i));
    }
  float b[2];
  ASSERT_TRUE(reader.read("b", kMasterWeights, 0, 2, b));
  EXPECT_EQ(b[1], 101.0f);
  Model model;
  model.groups.push_back({.name = "g", .parameters = {{"w", {5, 3}}, {"b", {2}}}});
  lay_out_group(model.groups[0]);
  reader.check(model);
  std::vector<float> shard(kGroupPadding, -1.0f);
  fill_flat(model.groups[0], source_of(reader), 0, kGroupPadding, shard.data());
  EXPECT_EQ(shard[14], 14.0f);
  EXPECT_EQ(shard[15], 0.0f);
  EXPECT_EQ(shard[64], 100.0f);
  EXPECT_EQ(shard[66], 0.0f);
}

TEST_F(ManifestTest, OlderOnesHaveTheFirstNumerics) {
  EXPECT_EQ(CheckpointReader::open(path("c")).state().numerics, kNumerics);
  for (const int version : {4, 5}) {
    Json older = manifest;
    older["version"] = version;
    older.erase("numerics");
    if (version == 5) older["matmul_algorithms"] = "{}";
    write_manifest(older);
    EXPECT_EQ(CheckpointReader::open(path("c")).state().numerics, 1);
    EXPECT_EQ(CheckpointReader::open(path("c")).state().matmul_algorithms, version == 5 ? "{}" : "");
  }
}

// A manifest of version 6 has numerics 2 and no base.
TEST_F(ManifestTest, ABaseOfAdaptersIsNamed) {
  const std::string where = "/models/\xff base";  // a path need not be UTF-8
  Manifest written;
  written.state.base = {where, 0x0123456789abcdef};
  const Manifest read = manifest_from_json(manifest_to_json(written), "manifest.json");
  ASSERT_TRUE(read.state.base);
  EXPECT_EQ(read.state.base->directory, where);
  EXPECT_EQ(read.state.base->checksum, 0x0123456789abcdef);
  EXPECT_FALSE(CheckpointReader::open(path("c")).state().base);
  Json older = manifest;
  older["version"] = 6;
  write_manifest(older);
  EXPECT_EQ(CheckpointReader::open(path("c")).state().numerics, 2);
  rejects("the base of the manifest lacks 'checksum'", [](Json& m) { m["base"] = {{"directory", "x"}}; });
  rejects("the base of the manifest is not an object", [](Json& m) { m["base"] = 1; });
}

TEST_F(ManifestTest, AValidationReadsBackToTheSameBits) {
  EXPECT_FALSE(CheckpointReader::open(path("c")).state().validation);
  for (const double loss : {0.0, -1e-9, 1.0 / 3, 2.5e300}) {
    Manifest written;
    written.state.validation = {loss, 12345, 0xfedcba9876543210};
    const Manifest read = manifest_from_json(manifest_to_json(written), "manifest.json");
    ASSERT_TRUE(read.state.validation);
    EXPECT_EQ(read.state.validation->loss, loss);
    EXPECT_EQ(read.state.validation->tokens, 12345);
    EXPECT_EQ(read.state.validation->data_checksum, 0xfedcba9876543210);
  }
  const Json whole{{"loss", 2.5}, {"tokens", 3}, {"data_checksum", "00000000000000ff"}};
  const auto with = [&](const char* key, const Json& value) {
    return [=](Json& m) { (m["validation"] = whole)[key] = value; };
  };
  rejects("the validation of the manifest is not an object", [](Json& m) { m["validation"] = 2.5; });
  rejects("the validation of the manifest lacks 'loss'", [](Json& m) { m["validation"] = Json::object(); });
  rejects("has 'loss' null, which is out of range", with("loss", nullptr));
  rejects("has 'tokens' 0, which is out of range", with("tokens", 0));
  rejects("has 'data_checksum' \"ff\", which is out of range", with("data_checksum", "ff"));
}

TEST_F(ManifestTest, ManifestsThatLieAreRejected) {
  rejects("is not that of a Sluice checkpoint", [](Json& m) { m["format"] = "other"; });
  rejects("format version 8", [](Json& m) { m["version"] = 8; });
  rejects("lacks 'numerics'", [](Json& m) { m.erase("numerics"); });
  rejects("'numerics' 3, which is out of range", [](Json& m) { m["numerics"] = 3; });
  rejects("'numerics' 0, which is out of range", [](Json& m) { m["numerics"] = 0; });
  rejects("lacks 'matmul_algorithms'", [](Json& m) { m["version"] = 5; });
  rejects("format version 2", [](Json& m) { m["version"] = 2; });
  rejects("lacks 'step'", [](Json& m) { m.erase("step"); });
  rejects("'step' -1, which is out of range", [](Json& m) { m["step"] = -1; });
  rejects("'step' 1.5, which is out of range", [](Json& m) { m["step"] = 1.5; });
  rejects("'t' 1, which is out of range", [](Json& m) { m["t"] = 1; });  // more updates than steps
  rejects("'loss_scale' 0", [](Json& m) { m["loss_scale"] = 0; });
  rejects("'loss_scale' \"1\"", [](Json& m) { m["loss_scale"] = "1"; });
  rejects("'clean_steps'", [](Json& m) { m["clean_steps"] = 9223372036854775808u; });
  rejects("'cursor'", [](Json& m) { m["cursor"] = -3; });
  rejects("'micro_batch' 0", [](Json& m) { m["micro_batch"] = 0; });
  rejects("'writers' 0", [](Json& m) { m["writers"] = 0; });
  rejects("precision 'int32'", [](Json& m) { m["precision"] = "int32"; });
  rejects("optimizer 'sgd'", [](Json& m) { m["optimizer"] = "sgd"; });
  rejects("'model_config' that is not a text", [](Json& m) { m["model_config"] = Json::object(); });
  rejects("'options' that is not a list", [](Json& m) { m["options"] = 3; });
  rejects("a value that is not a text", [](Json& m) { m["options"] = {{{"name", "x"}, {"values", {1}}}}; });
  rejects("'values' 256", [](Json& m) {
    m["options"] = {{{"name", "x"}, {"values", {Json::array({256})}}}};
  });
  for (const char* name : {"../a.safetensors", "/etc/passwd", "..", ".", "", "x/y", "a\nb"})
    rejects("which is no bare file name", [&](Json& m) { m["files"][1]["name"] = name; });
  rejects("is listed twice", [](Json& m) { m["files"][1]["name"] = "b.safetensors"; });
  rejects("'bytes' -8", [](Json& m) { m["files"][0]["bytes"] = -8; });
  const auto section = [](Json& m, int i) -> Json& { return m["files"][0]["sections"][i]; };
  rejects("the manifest says", [&](Json& m) {
    m["files"][0]["bytes"] = m["files"][0]["bytes"].get<uint64_t>() + 1;
    section(m, 1)["bytes"] = section(m, 1)["bytes"].get<uint64_t>() + 1;
  });
  rejects("1 bytes that are in no section", [&](Json& m) { section(m, 0)["bytes"] = 99; });
  rejects("'bytes' 18446744073709551615", [&](Json& m) { section(m, 1)["bytes"] = UINT64_MAX; });
  rejects("is empty", [&](Json& m) {
    m["files"][0]["sections"].push_back({{"bytes", 0}, {"checksum", "0000000000000000"}});
  });
  for (const char* bad : {"", "0", "000000000000000G", "00000000000000000", "+000000000000001"})
    rejects("'checksum'", [&](Json& m) { section(m, 1)["checksum"] = bad; });
  rejects("their checksum differs", [&](Json& m) { section(m, 0)["checksum"] = "0000000000000000"; });
  rejects("it lacks gone.safetensors", [](Json& m) {
    m["files"].push_back(m["files"][0]);
    m["files"].back()["name"] = "gone.safetensors";
  });
  rejects("lists tensor 'w' twice", [](Json& m) { m["tensors"].push_back(m["tensors"][0]); });
  rejects("'shape' -5", [](Json& m) { m["tensors"][0]["shape"][0] = -5; });
  rejects("'shape' 4611686018427387904", [](Json& m) { m["tensors"][0]["shape"][0] = 1ull << 62; });
  rejects("is empty: 'w'", [](Json& m) { m["tensors"][0]["shape"][1] = 0; });
  rejects("cover 15 of 18 elements", [](Json& m) { m["tensors"][0]["shape"][0] = 6; });
  const auto piece = [](Json& m, int i) -> Json& { return m["tensors"][0]["planes"]["master"][i]; };
  rejects("overlap before element 4", [&](Json& m) { piece(m, 2)["first"] = 3; });
  rejects("leave a hole before element 5", [&](Json& m) { piece(m, 2)["first"] = 5; });
  rejects("cover 7 of 15", [&](Json& m) { m["tensors"][0]["planes"]["master"].erase(0); });
  rejects("'first' -1", [&](Json& m) { piece(m, 1)["first"] = -1; });
  rejects("'first' 16", [&](Json& m) { piece(m, 1)["first"] = 16; });
  rejects("'count' 18446744073709551615", [&](Json& m) { piece(m, 0)["count"] = UINT64_MAX; });
  rejects("is empty", [&](Json& m) { piece(m, 1)["count"] = 0; });
  rejects("which the manifest does not list", [&](Json& m) { piece(m, 1)["file"] = "z.safetensors"; });
  rejects("promises 'w.3', which is not there", [&](Json& m) { piece(m, 0)["stored_as"] = "w.3"; });
  rejects("has 4 elements, the manifest says 3", [&](Json& m) { piece(m, 2)["file"] = "a.safetensors"; });
  rejects("two pieces are stored as", [&](Json& m) {
    m["tensors"].push_back({{"name", "copy"}, {"shape", {2}}, {"planes", {{"master", Json::array()}}}});
    m["tensors"][2]["planes"]["master"].push_back(
        {{"file", "b.safetensors"}, {"first", 0}, {"count", 2}, {"stored_as", "b"}});
  });
  rejects("'b' is F32, not BF16", [](Json& m) {
    m["tensors"][1]["planes"]["frozen"] = m["tensors"][1]["planes"]["exp_avg"];
    m["tensors"][1]["planes"].erase("exp_avg");
  });
}

// Numbers that are each possible alone, but not together.
TEST_F(ManifestTest, NumbersThatContradictEachOtherAreRejected) {
  const auto option = [](const char* name, const char* value) {
    return Json{{"name", name}, {"values", {value}}};
  };
  manifest["step"] = 10, manifest["t"] = 9, manifest["skipped_steps"] = 1;
  manifest["cursor"] = 60, manifest["micro_batch"] = 3;
  manifest["precision"] = "fp16", manifest["loss_scale"] = 32768.0, manifest["clean_steps"] = 9;
  manifest["options"] =
      Json::array({option("batch", "6"), option("micro-batch", "3"), option("precision", "fp16")});
  write_manifest(manifest);
  EXPECT_EQ(CheckpointReader::open(path("c")).state().cursor, 60u);
  rejects("10 steps, but 8 updates and 1 skipped", [](Json& m) { m["t"] = 8; });
  rejects("10 steps, but 9 updates and 0 skipped", [](Json& m) { m["skipped_steps"] = 0; });
  for (const double scale : {0.5, 3.0, 1e300})
    rejects("which fp16 never has", [&](Json& m) { m["loss_scale"] = scale; });
  rejects("'clean_steps' 10", [](Json& m) { m["clean_steps"] = 10; });
  rejects("'cursor' 59, but 10 steps of 6 rows", [](Json& m) { m["cursor"] = 59; });
  rejects("'cursor' 60, but", [](Json& m) { m["step"] = m["t"] = 1ull << 62, m["skipped_steps"] = 0; });
  for (const char* batch : {"4", "0", "-6", "six", ""})
    rejects("does not divide --batch", [&](Json& m) { m["options"][0]["values"][0] = batch; });
  rejects("micro_batch '3', but its option --micro-batch is '2'",
          [](Json& m) { m["options"][1]["values"][0] = "2"; });
  rejects("--precision is 'bf16'", [](Json& m) { m["options"][2]["values"][0] = "bf16"; });
  rejects("'loss_scale' 32768, which bf16 never has",
          [](Json& m) { m["precision"] = m["options"][2]["values"][0] = "bf16"; });
  write_manifest(manifest);
  fs::rename(path("c"), path("step-000000011"));
  expect_error(ExitCode::malformed_file, {"it is of step 10, but its directory is named for another step"},
               [&] { CheckpointReader::open(path("step-000000011")); });
}

TEST_F(ManifestTest, DamagedTextAndFilesAreRejected) {
  const std::string text = read_file("c/manifest.json");
  const auto rejects_text = [&](const std::string& damaged, const std::string& part) {
    write_file("c/manifest.json", damaged);
    expect_error(ExitCode::malformed_file, {part}, [&] { CheckpointReader::open(path("c")); });
  };
  rejects_text("", "it is empty");
  for (size_t length = 1; length < text.size(); length += 1 + length / 3)
    rejects_text(text.substr(0, length), "ends in the middle of its JSON");
  rejects_text(text + "x", "is not valid JSON");
  rejects_text(text + std::string(1, '\0'), "is not valid JSON");
  rejects_text("[]", "the manifest is not an object");
  rejects_text(std::string(100'000, '['), "nested too deeply");
  rejects_text("{\"step\":1," + text.substr(1), "\"step\" is given twice");
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    expect_error(ExitCode::malformed_file, {"m: "}, [&] { manifest_from_json(damaged, "m"); });
  }
  // If the checksum is made anew after the flip, the manifest is refused for its content, or a run could have
  // written this content.
  const std::string body = text.substr(0, text.rfind(",\n\"checksum\""));
  for (size_t i = 1; i < body.size(); ++i) {
    std::string damaged = body;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    try {
      manifest_from_json(sealed(damaged + "}"), "m");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::malformed_file) << error.what();
    }
  }
  write_file("c/manifest.json", text);
  const std::string bytes = read_file("c/b.safetensors");
  for (const size_t length : {size_t{0}, size_t{7}, size_t{8}, size_t{100}, bytes.size() - 1}) {
    write_file("c/b.safetensors", bytes.substr(0, length));
    expect_error(ExitCode::malformed_file, {"b.safetensors", "the manifest says"},
                 [&] { CheckpointReader::open(path("c")); });
  }
  std::string damaged = bytes;
  damaged[9] = 'x';  // the size is right, the header is not
  write_file("c/b.safetensors", damaged);
  expect_error(ExitCode::malformed_file, {"b.safetensors"}, [&] { CheckpointReader::open(path("c")); });
  fs::remove(path("c/b.safetensors"));
  expect_error(ExitCode::malformed_file, {"it lacks b.safetensors"},
               [&] { CheckpointReader::open(path("c")); });
  write_file("outside", bytes);
  fs::create_symlink(path("outside"), path("c/b.safetensors"));
  expect_error(ExitCode::malformed_file, {"is not a regular file"},
               [&] { CheckpointReader::open(path("c")); });
  expect_error(ExitCode::malformed_file, {"it lacks manifest.json"},
               [&] { CheckpointReader::open(path("none")); });
}

}  // namespace
}  // namespace sluice
