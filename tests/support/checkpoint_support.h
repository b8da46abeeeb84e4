// What the tests of checkpoints share: small models of odd sizes, values that tell which element they belong
// to, and a directory with checkpoints of these models.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/base/simd/convert.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/start/loader.h"
#include "models/families/family.h"
#include "tests/support/format_test_support.h"

namespace sluice {

namespace fs = std::filesystem;

inline constexpr uint64_t kShard = 65536;  // elements: the finest shard boundary

// Returns the planes that checkpoints store as tensors: those of AdamW's state and of frozen groups.
inline std::vector<StoredPlane> tensor_planes(DType precision) {
  std::vector<StoredPlane> planes = stored_planes(OptimizerKind::adamw, precision);
  std::erase_if(planes, [](const StoredPlane& plane) { return plane.what != Owned::state; });
  return planes;
}

// Odd sizes make tensors and groups end in padding. `freeze` freezes the first group.
inline Model odd_model(const std::string& name, DType precision, bool freeze) {
  Model model = build_model(config_from_name(name), precision, 1, 8);
  if (freeze) model.groups.front().trainable = false;
  return model;
}
inline Model tiny_model() {
  return odd_model("gpt2:layers=1,width=32,heads=1,vocab=33,context=8", DType::bf16, false);
}

inline bool stores(const Group& group, const StoredPlane& plane) { return group.trainable != plane.frozen; }
inline uint64_t elements_of(const Parameter& parameter) {
  return static_cast<uint64_t>(element_count(parameter.shape));
}

// A finite value (subnormals and both zeros included) that tells which element it belongs to. Frozen weights
// get values that are exact in 16 bits.
inline float value_at(const Parameter& parameter, const StoredPlane& plane, uint64_t element, uint64_t salt) {
  uint64_t z =
      (std::hash<std::string>()(parameter.name + plane.name) ^ salt * 31) + element * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  auto bits = static_cast<uint32_t>((z ^ (z >> 27)) >> 16);
  if ((bits & 0x7f800000u) == 0x7f800000u) bits ^= 0x40000000u;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  if (!plane.frozen) return value;
  return static_cast<float>(static_cast<int>(bits % 509) - 254) / 4;  // exact in bf16, fp16 and fp32
}

// A group's flat buffer with the values of value_at(), as a reader should return it.
inline std::vector<float> flat(const Group& group, const StoredPlane& plane, uint64_t salt) {
  std::vector<float> values(group.elements, 0.0f);
  for (const Parameter& p : group.parameters)
    for (uint64_t i = 0; i < elements_of(p); ++i) values[p.offset + i] = value_at(p, plane, i, salt);
  return values;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Writes every plane of every group in shards of `shard` elements, in an order drawn from `seed`, as a lane
// does: from aligned memory, at the target's offset. False when a write fails.
inline bool write_shards(CheckpointWriter& writer, const Model& model, uint64_t salt, uint64_t shard,
                         unsigned seed) {
  struct Job {
    uint32_t group;
    uint64_t first;
    StoredPlane plane;
  };
  std::vector<Job> jobs;
  for (uint32_t g = 0; g < model.groups.size(); ++g)
    for (const StoredPlane& plane : tensor_planes(model.precision))
      for (uint64_t first = 0; stores(model.groups[g], plane) && first < model.groups[g].elements;
           first += shard)
        jobs.push_back({g, first, plane});
  std::shuffle(jobs.begin(), jobs.end(), std::mt19937(seed));
  for (const Job& job : jobs) {
    const Group& group = model.groups[job.group];
    const uint64_t n = std::min(shard, group.elements - job.first), bytes = job.plane.bytes(n);
    const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(4096, bytes), &std::free);
    round_to(job.plane.type, flat(group, job.plane, salt).data() + job.first, memory.get(), n);
    const FileTarget target = writer.begin_write(job.group, job.first, job.plane,
                                                 {static_cast<const std::byte*>(memory.get()), bytes});
    if (bytes % 4096 != 0 || target.offset % 4096 != 0) return false;
    if (pwrite(target.fd, memory.get(), bytes, static_cast<off_t>(target.offset)) !=
        static_cast<ssize_t>(bytes))
      return false;
  }
  return true;
}

inline CheckpointState state_at(int64_t step, DType precision = DType::bf16) {
  CheckpointState state;
  state.step = step;
  state.t = step;
  state.precision = precision;
  state.model_config = "{}";
  return state;
}

inline void expect_content(const CheckpointReader& reader, const Model& model, uint64_t salt) {
  for (const Group& group : model.groups)
    for (const StoredPlane& plane : tensor_planes(model.precision)) {
      if (!stores(group, plane)) continue;
      std::vector<std::byte> stored(plane.bytes(group.elements));
      fill_plane(group, reader, plane, 0, group.elements, stored.data());
      std::vector<float> values(group.elements, -1.0f);
      widen(plane.type, stored.data(), values.data(), group.elements);
      EXPECT_TRUE(same_bits(values, flat(group, plane, salt))) << group.name << " " << plane.name;
    }
}

class CheckpointTest : public FormatTest {
 protected:
  std::string out() const { return path("run"); }
  std::string checkpoint(int64_t step) const { return path(fmt::format("run/checkpoints/step-{:09}", step)); }
  // Names in the directory of checkpoints, hidden ones included.
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(out() + "/checkpoints"))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  void save(const Model& model, int64_t step,
            std::optional<ValidationRecord> validation = std::nullopt) const {
    CheckpointState state = state_at(step, model.precision);
    state.validation = validation;
    CheckpointWriter writer(out(), model, state);
    ASSERT_TRUE(write_shards(writer, model, static_cast<uint64_t>(step), kShard, 0));
    writer.commit();
  }
};

}  // namespace sluice
