// The built-in machine descriptions, engine/rates/machines/NAME.json: their list, and that they are complete.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "engine/base/file.h"
#include "engine/rates/machine_rates.h"
#include "engine/run/options/options.h"

namespace sluice {
namespace {

std::vector<std::string> names_of_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("engine/rates/machines"))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

const LinkRates* find_link(const MachineRates& m, const std::string& from, const std::string& to) {
  for (const LinkRates& link : m.links)
    if (link.from == from && link.to == to) return &link;
  return nullptr;
}

double pool(const MachineRates& m, const std::string& name) {
  for (const PoolRate& p : m.pools)
    if (p.name == name) return p.capacity;
  return 0;
}

TEST(Machines, AreThoseOfTheFolder) {
  std::string names;
  for (const std::string& name : names_of_files()) {
    names += (names.empty() ? "" : ", ") + name;
    const std::string file = "engine/rates/machines/" + name + ".json";
    const MachineRates of_file = parse_machine_rates(read_text_file(file, 1 << 20), file);
    const std::optional<MachineRates> built_in = built_in_machine(name);
    ASSERT_TRUE(built_in) << name;
    EXPECT_EQ(built_in->name, of_file.name);
    EXPECT_EQ(built_in->source, of_file.source);
  }
  EXPECT_EQ(built_in_machine_names(), names);
}

// --help and docs/machine.md list all built-in descriptions.
TEST(Machines, AreListedWhereUsersLook) {
  const OptionRow& option = *find_option("machine");
  for (const std::string& name : names_of_files())
    EXPECT_NE(option_help(option).find(name), std::string::npos) << "the help of --machine lacks " << name;
  for (const std::string name : {kDefaultMachine, kGpuMachine})
    EXPECT_NE(std::string(option.default_text).find(name), std::string::npos)
        << "the default of --machine, as its help tells it, lacks " << name;

  std::vector<std::string> rows;
  std::istringstream page(read_text_file("docs/machine.md", 1 << 20));
  for (std::string line; std::getline(page, line) && (rows.empty() || line.starts_with("|"));)
    if (line.starts_with("| `")) rows.push_back(line.substr(3, line.find('`', 3) - 3));
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ(rows, names_of_files()) << "the first table of docs/machine.md has a row for each description";
}

TEST(Machines, SayWhatTheyAre) {
  for (const std::string& name : names_of_files()) {
    const MachineRates m = *built_in_machine(name);
    EXPECT_FALSE(m.source.empty()) << name;
    EXPECT_EQ(m.name, name == kDefaultMachine ? name : name + ", data sheets");
    EXPECT_EQ(m.gpu.empty(), name == kDefaultMachine) << name;
    if (name == kDefaultMachine || name == kGpuMachine) {
      EXPECT_FALSE(m.memory) << "what stands for this machine has its sizes";
      continue;
    }
    ASSERT_TRUE(m.memory && m.memory->device) << name;
    EXPECT_GT(m.memory->host, *m.memory->device) << name;
  }
}

// Each description is found by the name that NVIDIA's driver gives to the GPU.
TEST(Machines, NameTheirGpus) {
  const std::pair<const char*, const char*> names[] = {
      {"t4", "Tesla T4"},
      {"l4", "NVIDIA L4"},
      {"rtx-3090", "NVIDIA GeForce RTX 3090"},
      {"rtx-4090", "NVIDIA GeForce RTX 4090"},
      {"rtx-5090", "NVIDIA GeForce RTX 5090"},
      {"rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation"},
      {"rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"},
      {"v100-dgx2", "Tesla V100-SXM3-32GB"},
      {"a100-80gb", "NVIDIA A100-SXM4-80GB"},
      {"gpu-server", "NVIDIA H100 80GB HBM3"},
      {"h200", "NVIDIA H200"},
      {"gh200", "NVIDIA GH200 480GB"},
      {"b200", "NVIDIA B200"}};
  for (const auto& [machine, name] : names)
    for (const auto& [other, other_name] : names)
      EXPECT_EQ(describes_gpu(built_in_machine(machine).value(), other_name), machine == other)
          << machine << ": " << other_name;
}

// The descriptions have every entry that a program of three tiers and several ranks looks up, and the figures
// of each fit each other.
TEST(Machines, AreWhole) {
  for (const std::string& name : names_of_files()) {
    SCOPED_TRACE(name);
    const MachineRates m = *built_in_machine(name);
    const double cores = pool(m, "cores"), memory = pool(m, "memory");
    EXPECT_GE(cores, 1);
    const LaneRates* compute = find_lane(m, "compute", "device");
    const LaneRates* optimizer = find_lane(m, "optimizer", "host");
    ASSERT_TRUE(compute && optimizer);
    EXPECT_LT(compute->flops.fp32, kUnlimited);
    EXPECT_LT(compute->flops.fp16, kUnlimited);
    EXPECT_LT(compute->bytes_per_second, kUnlimited);
    if (!m.gpu.empty()) {  // long sequences take what attention does, which is slower than products
      ASSERT_EQ(compute->ops.size(), 1u);
      const OpRates& attention = compute->ops.front();
      EXPECT_EQ(attention.kind, OpKind::attention);
      EXPECT_LT(attention.flops.fp32, compute->flops.fp32);
      EXPECT_LT(attention.flops.fp16, compute->flops.fp16);
      if (compute->flops.bf16 < kUnlimited) {
        EXPECT_EQ(attention.flops.bf16, attention.flops.fp16);
      }
      EXPECT_EQ(attention.bytes.fp16, compute->bytes_per_second);
    }
    EXPECT_LE(optimizer->bytes_per_second, memory);
    EXPECT_EQ(optimizer->sharing.occupies.front().amount, cores);
    EXPECT_TRUE(find_lane(m, "collective", "host"));
    EXPECT_TRUE(find_lane(m, "nvme_write", "host"));
    for (const auto& [from, to] : {std::pair("host", "device"), std::pair("device", "host")}) {
      ASSERT_TRUE(find_link(m, from, to));
      EXPECT_LE(find_link(m, from, to)->bytes_per_second, memory);
    }
    EXPECT_TRUE(find_link(m, "nvme", "host") && find_link(m, "host", "nvme"));
    ASSERT_FALSE(m.drives.empty());
    for (const DriveRates& d : m.drives) {
      EXPECT_EQ(d.tier, "nvme");
      EXPECT_LE(d.mixed, d.read + d.write);
      EXPECT_GE(d.mixed, std::min(d.read, d.write));
    }
  }
}

TEST(Machines, AttentionIsWhatWasMeasured) {  // docs/measurements/h200.md: 217 TFLOP/s in a layer
  for (const char* name : {"h200", "h100", "gpu-server"})
    EXPECT_EQ(find_lane(*built_in_machine(name), "compute", "device")->ops.front().flops.bf16, 217e12)
        << name;
}

TEST(Network, WhatTheProgramBringsAlongJoinsTheRanksThatItSays) {
  EXPECT_EQ(built_in_machine("a100-cluster").value().network.back().ranks, 80u);
  EXPECT_EQ(built_in_machine("h100-cluster").value().network.back().ranks, 1024u);
  EXPECT_EQ(built_in_machine("h100-x8").value().network.back().ranks, 8u);
  EXPECT_TRUE(built_in_machine("gpu-server").value().network.empty());
  EXPECT_FALSE(built_in_machine("b100-cluster").has_value());
}

}  // namespace
}  // namespace sluice
