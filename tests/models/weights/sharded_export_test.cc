// Exports for PyTorch's distributed checkpoint: names, metadata and every byte, read without our own reader,
// by the rules of torch.distributed.checkpoint.HuggingFaceStorageReader.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "models/weights/hf_export.h"
#include "models/weights/hf_weights.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A tensor as PyTorch's reader loads it: its full shape, and its value at every flat index.
struct Loaded {
  std::string dtype;
  std::vector<int64_t> shape;
  std::map<int64_t, float> values;
};

std::vector<int64_t> index_of(int64_t flat, const std::vector<int64_t>& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0; flat /= shape[d]) index[d] = flat % shape[d];
  return index;
}

class ShardedExport : public FormatTest {
 protected:
  using Part = std::function<void(const std::string& name, const Json& entry,
                                  const std::vector<int64_t>& offsets, const std::string& bytes)>;
  // Calls f for every tensor of every file.
  void for_each_part(const std::string& directory_name, const Part& f) const {
    for (const auto& entry : fs::directory_iterator(path(directory_name))) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::string bytes = read_file(directory_name + "/" + entry.path().filename().string());
      uint64_t length = 0;
      std::memcpy(&length, bytes.data(), 8);
      const Json header = Json::parse(bytes.substr(8, length));
      const Json& metadata = header.at("__metadata__");
      EXPECT_EQ(metadata.at("DCP_VERSION"), "1.0");
      EXPECT_EQ(metadata.at("format"), "pt");
      const Json info = Json::parse(metadata.at("DCP_SHARDING_INFO").get<std::string>());
      EXPECT_EQ(info.size() + 1, header.size());
      for (const auto& [name, tensor] : header.items()) {
        if (name == "__metadata__") continue;
        const auto begin = tensor["data_offsets"][0].get<size_t>(),
                   end = tensor["data_offsets"][1].get<size_t>();
        f(name, tensor, info.at(name).at("saved_offsets").get<std::vector<int64_t>>(),
          bytes.substr(8 + length + begin, end - begin));
      }
    }
  }

  // Reads fp32 only. In each dimension, a tensor's size is the largest offset plus size of its parts.
  std::map<std::string, Loaded> load(const std::string& directory_name) const {
    std::map<std::string, Loaded> out;
    for_each_part(directory_name, [&](const std::string& name, const Json& tensor,
                                      const std::vector<int64_t>& offsets, const std::string&) {
      Loaded& l = out[name];
      const auto shape = tensor["shape"].get<std::vector<int64_t>>();
      l.dtype = tensor["dtype"];
      l.shape.resize(shape.size());
      ASSERT_EQ(offsets.size(), shape.size());
      for (size_t d = 0; d < shape.size(); ++d) l.shape[d] = std::max(l.shape[d], offsets[d] + shape[d]);
    });
    for_each_part(directory_name, [&](const std::string& name, const Json& tensor,
                                      const std::vector<int64_t>& offsets, const std::string& bytes) {
      Loaded& l = out[name];
      const auto shape = tensor["shape"].get<std::vector<int64_t>>();
      for (int64_t i = 0; i < static_cast<int64_t>(bytes.size() / sizeof(float)); ++i) {
        const auto index = index_of(i, shape);
        int64_t flat = 0;
        for (size_t d = 0; d < shape.size(); ++d) flat = flat * l.shape[d] + offsets[d] + index[d];
        float value;
        std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof value, sizeof value);
        EXPECT_TRUE(l.values.emplace(flat, value).second) << name << " holds element " << flat << " twice";
      }
    });
    return out;
  }

  std::set<std::string> safetensors_in(const std::string& directory_name) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path(directory_name)))
      if (entry.path().extension() == ".safetensors") names.insert(entry.path().filename().string());
    return names;
  }
};

float exported(size_t tensor, uint64_t element) {
  return static_cast<float>(tensor * 10'000 + element);  // exact: below 2^24
}
void read_exported(size_t tensor, uint64_t first, uint64_t count, float* out) {
  for (uint64_t i = 0; i < count; ++i) out[i] = exported(tensor, first + i);
}

// Rows that do not divide evenly, fewer rows than shards, a tensor without dimensions, one with three.
const std::vector<ExportTensor> kTensors = {
    {"wide", {7, 5}}, {"line", {11}}, {"row", {1, 300}}, {"point", {}}, {"deep", {4, 3, 2}}};

TEST_F(ShardedExport, HoldsEveryElementOnceAtItsOffset) {
  for (const uint64_t shards : {2u, 3u, 4u, 12u}) {
    SCOPED_TRACE(shards);
    const std::string to = "to" + std::to_string(shards);
    write_hf_directory(path(to), kTensors, {.dtype = DType::f32, .shards = shards, .config_json = "{}"},
                       read_exported);
    EXPECT_FALSE(fs::exists(path(to + "/model.safetensors.index.json")));
    const auto loaded = load(to);
    ASSERT_EQ(loaded.size(), kTensors.size());
    for (size_t t = 0; t < kTensors.size(); ++t) {
      const Loaded& l = loaded.at(kTensors[t].name);
      EXPECT_EQ(l.dtype, "F32");
      EXPECT_EQ(l.shape, std::vector<int64_t>(kTensors[t].shape.begin(), kTensors[t].shape.end()));
      ASSERT_EQ(l.values.size(), static_cast<size_t>(element_count(kTensors[t].shape)));
      for (const auto& [element, value] : l.values)
        EXPECT_EQ(value, exported(t, static_cast<uint64_t>(element))) << kTensors[t].name;
    }
  }
}

// Our own reader takes them too, and notices a file that is missing.
TEST_F(ShardedExport, IsReadBack) {
  write_hf_directory(path("to"), kTensors, {.dtype = DType::f32, .shards = 3, .config_json = "{}"},
                     read_exported);
  const HfWeights weights = HfWeights::open(path("to"), "llama");
  ASSERT_EQ(weights.names().size(), kTensors.size());
  for (size_t t = 0; t < kTensors.size(); ++t) {
    const HfTensor* const tensor = weights.find(kTensors[t].name);
    ASSERT_TRUE(tensor != nullptr && tensor->shape == kTensors[t].shape) << kTensors[t].name;
    for (uint64_t first = 0; first < tensor->elements(); ++first) {  // also across the borders of files
      std::vector<float> values(std::min<uint64_t>(3, tensor->elements() - first));
      weights.read(kTensors[t].name, first, values.size(), values.data());
      for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], exported(t, first + i)) << first;
    }
  }
  fs::rename(path("to/shard-00002-model-00001-of-00001.safetensors"), path("away"));
  expect_error(ExitCode::malformed_file, {"lack rows of"}, [&] { HfWeights::open(path("to"), "llama"); });
  fs::copy(path("away"), path("to/shard-00002-model-00001-of-00001.safetensors"));
  fs::copy(path("away"), path("to/shard-00002-model-00002-of-00002.safetensors"));
  expect_error(ExitCode::malformed_file, {"hold rows twice of"},
               [&] { HfWeights::open(path("to"), "llama"); });
}

TEST_F(ShardedExport, NamesSayShardFileAndFilesOfTheShard) {
  const std::vector<ExportTensor> tensors = {{"a", {4, 10}}, {"b", {2, 10}}, {"c", {1}}};
  write_hf_directory(path("to"), tensors,
                     {.dtype = DType::f32, .file_bytes_max = 100, .shards = 2, .config_json = "{}"},
                     read_exported);
  // Each shard has two rows of a (80 bytes) and one of b (40). c has one row, which is in the last shard.
  EXPECT_EQ(safetensors_in("to"), (std::set<std::string>{"shard-00001-model-00001-of-00002.safetensors",
                                                         "shard-00001-model-00002-of-00002.safetensors",
                                                         "shard-00002-model-00001-of-00002.safetensors",
                                                         "shard-00002-model-00002-of-00002.safetensors"}));
  EXPECT_EQ(load("to").at("c").values.at(0), exported(2, 0));
}

TEST_F(ShardedExport, SixteenBitsAreTheBytesOfAPlainExport) {
  const std::vector<ExportTensor> tensors = {{"a", {6, 9}}};
  const ExportOptions plain{.dtype = DType::bf16, .config_json = "{}"};
  ExportOptions sharded = plain;
  sharded.shards = 4;
  write_hf_directory(path("plain"), tensors, plain, read_exported);
  write_hf_directory(path("sharded"), tensors, sharded, read_exported);
  std::map<int64_t, std::string> rows;
  for_each_part("sharded", [&](const std::string&, const Json& tensor, const std::vector<int64_t>& offsets,
                               const std::string& bytes) {
    EXPECT_EQ(tensor["dtype"], "BF16");
    EXPECT_EQ(tensor["shape"][1], 9);
    EXPECT_EQ(offsets[1], 0);
    rows[offsets[0]] = bytes;
  });
  std::string joined;
  for (const auto& [first, bytes] : rows) joined += bytes;
  const std::string whole = read_file("plain/model.safetensors");
  EXPECT_EQ(joined, whole.substr(whole.size() - 6 * 9 * 2));
}

}  // namespace
}  // namespace sluice
