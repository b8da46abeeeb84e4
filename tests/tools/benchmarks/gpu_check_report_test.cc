// What tools/gpu_check.sh reports, without measuring: the table of rows, the files of its parts, and the page
// made of them, on figures that can be worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/format_test_support.h"
#include "tests/support/op_cases.h"
#include "tests/support/test_filter.h"
#include "tools/benchmarks/gpu/measure.h"
#include "tools/benchmarks/gpu/part_file.h"
#include "tools/benchmarks/gpu/report.h"
#include "tools/benchmarks/gpu/rows.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

TEST(GpuCheckRows, HaveNamesOfTheirOwnAndBudgets) {
  for (const std::string& part : row_parts()) {
    const std::vector<Row> rows = rows_of(part);
    std::set<std::string> names;
    ASSERT_FALSE(rows.empty()) << part;
    for (const Row& row : rows) {
      EXPECT_TRUE(names.insert(row.name).second) << part << " " << row.name;
      EXPECT_GT(row.seconds_most, 0) << row.name;
      EXPECT_LE(row.seconds_most, 440) << row.name << " must fit into a call with a matmul before it";
      EXPECT_EQ(find_row(part, row.name), row);
      EXPECT_TRUE(row.resident.empty() || find_row(part, row.resident)) << row.name;
      EXPECT_EQ(row.source.empty(), row.kind != RowKind::test && row.kind != RowKind::sanitizer) << row.name;
      if (row.kind != RowKind::training) continue;
      EXPECT_FALSE(row.gpu.empty() || row.host.empty()) << row.name;
      EXPECT_GT(row.steps, 2) << row.name << ": two do not count";
      EXPECT_EQ(rehearsed(row).nvme.empty(), row.nvme.empty()) << row.name;
    }
    EXPECT_EQ(names.contains("matmul"), part != "tests") << part << ": the peak is measured in the same call";
  }
  EXPECT_EQ(find_row("small", "no such row"), std::nullopt);
}

TEST(GpuCheckRows, TheFirstQuestionsFitInOneCall) {
  int seconds = 0;
  for (const Row& row : rows_of("first")) seconds += row.seconds_most;
  EXPECT_LE(seconds, 470);
}

// In each part that runs the conformance suite, one row runs a given case. In part "tests", another row runs
// it under memcheck.
TEST(GpuCheckRows, EveryOpHasARow) {
  const auto rows_with = [](const std::string& part, const std::string& tool, const std::string& test) {
    const std::vector<Row> rows = rows_of(part);
    return std::count_if(rows.begin(), rows.end(), [&](const Row& row) {
      return row.source == "gpu/cuda/op_conformance_test" && row.tool == tool && chooses(row.filter, test);
    });
  };
  const auto expect_rows = [&](const std::string& name, const char* suite, const char* suite_of_nan) {
    const std::string agrees = std::string("Ops/") + suite + ".DevicesAgreeWithReference/" + name;
    const std::string nan = std::string("Ops/") + suite_of_nan + ".NotANumberIsNeverHidden/" + name;
    EXPECT_EQ(rows_with("first", "", agrees), 1) << name;
    EXPECT_EQ(rows_with("tests", "", agrees), 1) << name;
    EXPECT_EQ(rows_with("tests", "", nan), 1) << name;
    EXPECT_EQ(rows_with("tests", "memcheck", agrees), 1) << name;
  };
  for (const OpCase& c : op_cases()) expect_rows(c.name, "OpConformance", "SmallOpConformance");
  for (const OpCase& c : forward_cases()) expect_rows(c.name, "ForwardConformance", "ForwardConformance");
  EXPECT_EQ(rows_with("first", "", "DeviceConformance.UpdatesGiveTheSameBits"), 1);
  EXPECT_EQ(rows_with("tests", "memcheck", "DeviceConformance.UpdatesGiveTheSameBits"), 1);
}

TEST(GpuCheckPlace, IsOfTheGpuAndTheBuild) {
  EXPECT_EQ(place_name({{"device", "cuda"}, {"gpu", "NVIDIA H100 80GB HBM3"}, {"cores", 16}}, "1a2b3c4"),
            "nvidia-h100-80gb-hbm3-1a2b3c4");
  EXPECT_EQ(place_name({{"device", "cpu"}, {"rehearsal", true}}, "v1/2"), "rehearsal-cpu-v1-2");
}

class GpuCheckFile : public FormatTest {};

TEST_F(GpuCheckFile, KeepsRowsAndIsOfOneGpu) {
  const ordered_json machine{{"device", "cuda"}, {"gpu", "A GPU"}, {"memory_bytes", 2}};
  {
    PartFile file(path("out"), "small");
    EXPECT_TRUE(file.json().empty());
    EXPECT_FALSE(file.has("disk"));
    file.settle(machine, "abc");
    file.put("disk", {{"state", "measured"}, {"read", 0.1}});
    file.put("matmul", {{"state", "failed"}});
    file.put("link", {{"state", "skipped"}});
  }
  PartFile file(path("out"), "small");
  EXPECT_TRUE(file.has("disk"));
  EXPECT_FALSE(file.has("link")) << "what was skipped is tried again";
  EXPECT_FALSE(file.has("matmul")) << "what failed is tried again";
  EXPECT_EQ(file.json()["rows"]["disk"]["read"], 0.1);
  EXPECT_EQ(file.json()["commit"], "abc");
  EXPECT_EQ(file.row("disk")["read"], 0.1);
  EXPECT_TRUE(file.row("gpt2").empty());
  file.settle({{"device", "cuda"}, {"gpu", "A GPU"}, {"memory_bytes", 3}}, "abc");
  EXPECT_EQ(file.json()["machine"]["memory_bytes"], 2) << "some machines' memory grows as it is used";
  expect_error(ExitCode::usage, {"another GPU or build"}, [&] { file.settle(machine, "abd"); });
  expect_error(ExitCode::usage, {"another GPU or build"}, [&] {
    file.settle({{"device", "cuda"}, {"gpu", "Another"}}, "abc");
  });
  EXPECT_FALSE(std::filesystem::exists(path("out/small.json.next")));
}

TEST_F(GpuCheckFile, RefusesOtherFiles) {
  for (const char* text :
       {"", "[]", "{}", R"({"part": "offload", "machine": {}, "rows": {}})",
        R"({"part": "small", "machine": {}, "rows": []})", R"({"part": "small", "machine": [], "rows": {}})",
        R"({"part": 1, "machine": {}, "rows": {}})",
        R"({"part": "small", "machine": {}, "rows": {"disk": "measured"}})"}) {
    write_file("small.json", text);
    expect_error(ExitCode::malformed_file, {"small.json"}, [&] { PartFile(directory.string(), "small"); });
  }
}

// One billion parameters and 25,000 tokens in half a second: 50,000 tokens/s and 300 TFLOP/s.
ordered_json training_row(double recomputed) {
  return {{"state", "measured"},
          {"layers", 56},
          {"tokens", 25000},
          {"seconds", 0.5},
          {"seconds_of_steps", {0.5, 0.5}},
          {"tokens_per_second", 50000},
          {"attention_flops", 6e12},
          {"recomputed", recomputed},
          {"busy", {{"compute", 0.875}, {"h2d", 0.25}, {"collective", 0}}},
          {"peak_bytes", {{"device", 1ull << 30}, {"host", 1ull << 31}}},
          {"process_peak_bytes", 3ull << 30},
          {"device_held_bytes", 5ull << 30},
          {"plan",
           {{"parameters", 1000000000},
            {"micro_batch", 4},
            {"seconds_predicted", 0.4},
            {"arenas", {{"device", 3ull << 29}, {"host", 1ull << 31}}},
            {"budgets", {{"device", 6ull << 30}, {"host", 4ull << 30}}},
            {"homes", {{"state", {{"device", 0}, {"host", 1ull << 31}}}}}}}};
}

ordered_json part_with(const std::string& name, const ordered_json& rows) {
  return {
      {"part", name},
      {"date", "2026-11-21"},
      {"commit", "abc"},
      {"machine",
       {{"gpu", "A GPU"}, {"gpu_memory_bytes", 80ull << 30}, {"cores", 16}, {"memory_bytes", 128ull << 30}}},
      {"rows", rows}};
}

void expect_line(const std::string& page, const std::string& text) {
  EXPECT_NE(page.find("\n" + text), std::string::npos) << text << "\nis not in\n" << page;
}

TEST(GpuCheckReport, FiguresAreThoseOfTheRows) {
  ordered_json dram = training_row(2);
  dram["tokens_per_second"] = 40000;
  dram["seconds"] = 0.625;
  const std::string page = gpu_report(
      {{"offload",
        part_with("offload", {{"matmul", {{"state", "measured"}, {"bf16", 600e12}}},
                              {"7b-resident", training_row(0)},
                              {"7b-dram", dram},
                              {"13b-dram", {{"state", "failed"}, {"note", "took more\nthan | 1 s"}}}})}});
  expect_line(page, "2026-11-21, commit abc: A GPU (80 GiB), 16 cores, 128 GiB of DRAM");
  expect_line(page, "- matrix products: bf16 600 TFLOP/s");
  expect_line(page,
              "| Llama 7B, in GPU memory, bf16 | 1 billion | 4 | 25000 | 50000 | 300.0 | 12.0 | 50.0 % | "
              "50.0 % | - | "
              "0.500 / 0.400 | compute 88 %, h2d 25 % |");
  // It reaches 240 of 600 x 6 / 8 = 450 TFLOP/s, and four fifths of the speed with resident state.
  expect_line(
      page,
      "| Llama 7B, state in DRAM, bf16 | 1 billion | 4 | 25000 | 40000 | 240.0 | 9.6 | 40.0 % | 53.3 % | "
      "80.0 % | 0.625 / 0.400 | compute 88 %, h2d 25 % |");
  expect_line(
      page,
      "| Llama 13B, state in GPU memory and DRAM, bf16 | not measured (failed: took more than / 1 s) |");
  expect_line(page, "| Llama 7B, state in three tiers, bf16 | not measured |");
  expect_line(
      page,
      "| Llama 7B, in GPU memory, bf16 | device 1.00 / 1.50, host 2.00 / 2.00 | GPU 5.00 / 6.00, host "
      "3.00 / 4.00 | host 2.0 |");
}

TEST(GpuCheckReport, AProfileTellsHowFarThePredictionIsOff) {
  const ordered_json row{{"state", "measured"},
                         {"seconds", 0.5},
                         {"seconds_predicted", 0.475},
                         {"prediction_error", -0.05},
                         {"machine", "measured"}};
  const ordered_json bench{{"state", "measured"}, {"seconds", 41.2},  {"fp16", 500e12},
                           {"fp32", 40e12},       {"memory", 2.5e12}, {"optimizer", 60e9}};
  const std::string page = gpu_report({{"small", part_with("small", {{"bench", bench}, {"profile", row}})}});
  expect_line(page,
              "- sluice profile, GPT-2 1.5B with its state in DRAM: a step of 0.500 s, predicted 0.475 "
              "(-5.0 %) by the description \"measured\"");
  expect_line(page,
              "- sluice bench: 41 s; products of layers fp16 500 TFLOP/s, fp32 40 TFLOP/s; rounding and "
              "AdamW in the device's memory 2500.0 GB/s, AdamW in DRAM 60.0");
}

TEST(GpuCheckReport, AttentionIsToldByHeadSize) {
  const auto heads = [](int size, double forward, double backward) {
    return ordered_json{{"size", size}, {"forward", forward}, {"backward", backward}};
  };
  const ordered_json row{{"state", "measured"},
                         {"precision", "bf16"},
                         {"sequence", 2048},
                         {"sequences", 8},
                         {"heads", {heads(64, 250e12, 180.5e12), heads(128, 300e12, 200e12)}}};
  expect_line(gpu_report({{"first", part_with("first", {{"attention", row}})}}),
              "- causal attention by itself: bf16, 8 sequences of 2048 tokens; heads of 64: 250 TFLOP/s "
              "forward, 180.5 backward; heads of 128: 300 TFLOP/s forward, 200 backward");
}

TEST(GpuCheckReport, ExpertsAreComparedWithOneProduct) {
  const auto pass = [](double experts, double one) {
    return ordered_json{{"experts", experts}, {"one", one}};
  };
  const ordered_json row{{"state", "measured"},
                         {"precision", "bf16"},
                         {"tokens", 4096},
                         {"layers",
                          {{{"experts", 8},
                            {"chosen", 2},
                            {"width", 4096},
                            {"columns", 28672},
                            {"forward", pass(450e12, 600e12)},
                            {"backward", pass(400e12, 500e12)}}}}};
  expect_line(
      gpu_report({{"small", part_with("small", {{"experts", row}})}}),
      "- products of experts, against one product of as many rows: bf16, 4096 tokens; 2 of 8 experts, "
      "4096 x 28672, forward 450 TFLOP/s (0.75 of one product's), backward 400 TFLOP/s (0.80 of one "
      "product's)");
}

TEST(GpuCheckReport, TheDeepestModelTellsItsLayers) {
  const std::string page = gpu_report({{"largest", part_with("largest", {{"deepest", training_row(2)}})}});
  expect_line(page, "| Llama, the deepest that fits, bf16, 56 layers | 1 billion |");
  expect_line(gpu_report({{"largest", part_with("largest", ordered_json::object())}}),
              "| Llama, the deepest that fits, bf16 | not measured |");
}

TEST(GpuCheckReport, PeersAreComparedByTheFaster) {
  const auto peer = [](double speed) {
    return ordered_json{{"state", "measured"},
                        {"parameters", 1000000000},
                        {"tokens_per_second", speed},
                        {"seconds", 25000 / speed}};
  };
  ordered_json rows{{"7b-sluice", training_row(2)}, {"7b-loop", peer(10000)}, {"7b-fsdp", peer(12500)}};
  std::string page = gpu_report({{"peer", part_with("peer", rows)}});
  expect_line(page, "| Llama 7B, PyTorch, a pinned loop | 10000 | 2.50 |");
  expect_line(page, "Sluice / the faster peer: 4.00");
  rows["7b-fsdp"] = {{"state", "skipped"}, {"note", "no PyTorch"}};
  page = gpu_report({{"peer", part_with("peer", rows)}});
  expect_line(page, "| Llama 7B, PyTorch, FSDP2 with CPU offload | not measured (skipped: no PyTorch) |");
  expect_line(page, "Sluice / the faster peer: 5.00");
  rows["7b-fsdp"] = peer(20000);
  rows["7b-fsdp"]["parameters"] = 999;
  page = gpu_report({{"peer", part_with("peer", rows)}});
  expect_line(page, "| Llama 7B, PyTorch, FSDP2 with CPU offload | not comparable: another number");
  expect_line(page, "Sluice / the faster peer: 5.00");
  rows.erase("7b-sluice");
  expect_line(gpu_report({{"peer", part_with("peer", rows)}}), "Sluice / the faster peer: not measured");
}

TEST(GpuCheckReport, WhatWasNotRunIsNotEstimated) {
  const std::string page = gpu_report({});
  for (const std::string& part : row_parts()) expect_line(page, "## " + part + "\n\nNot run.");
  EXPECT_EQ(page.find('%'), std::string::npos) << page;
  ordered_json part = part_with("small", {{"gpt2-bf16", training_row(0)}});
  part["machine"]["rehearsal"] = true;
  const std::string rehearsal = gpu_report({{"small", part}});
  expect_line(rehearsal, "A rehearsal with tiny models");
  // Without a measured peak, no share of it is given.
  EXPECT_NE(rehearsal.find("| 300.0 | 12.0 | not measured | not measured |"), std::string::npos) << rehearsal;
}

TEST(GpuCheckReport, TestsAreListedWithTheirReasonsAndLogs) {
  const ordered_json rows{
      {"op-attention",
       {{"state", "measured"}, {"wall_seconds", 12.0}, {"note", "3 tests passed"}, {"log", "a.log"}}},
      {"op-rope",
       {{"state", "failed"}, {"wall_seconds", 1.0}, {"note", "exit code 1: | rope"}, {"log", "b.log"}}},
      {"memcheck-attention", {{"state", "skipped"}, {"note", "not installed"}}}};
  const std::string page = gpu_report({{"tests", part_with("tests", rows)}});
  expect_line(page, "| the op attention | measured: 3 tests passed | 12 | a.log |");
  expect_line(page, "| the op rope | failed: exit code 1: / rope | 1 | b.log |");
  expect_line(page, "| memcheck of attention | skipped: not installed | 0 |  |");
  expect_line(page, "| NCCL | not run |  |  |");
}

// A row that was cut off, or whose losses are no numbers, is shown with its figures and with what failed.
TEST(GpuCheckReport, WhatIsKnownOfAFailedRowIsShown) {
  ordered_json cut = training_row(0), wrong = training_row(0);
  cut["state"] = "failed";
  cut["note"] = "took more than 400 s";
  wrong["finite"] = false;
  const std::string page = gpu_report({{"largest", part_with("largest", {{"deepest", cut}})},
                                       {"small", part_with("small", {{"gpt2-bf16", wrong}})}});
  expect_line(
      page,
      "| Llama, the deepest that fits, bf16, 56 layers (failed: took more than 400 s after 2 steps) | 1 "
      "billion | 4 | 25000 | 50000 |");
  expect_line(page, "| GPT-2 124M, resident, bf16, LOSSES NOT FINITE | 1 billion | 4 | 25000 | 50000 |");
}

TEST(GpuCheckReport, LibrariesAreNamed) {
  ordered_json part = part_with("small", ordered_json::object());
  part["machine"]["libraries"] = {{"cuBLASLt", "/venv/libcublasLt.so.13"}, {"NCCL", "none"}};
  expect_line(gpu_report({{"small", part}}),
              "2026-11-21, commit abc: A GPU (80 GiB), 16 cores, 128 GiB of DRAM; cuBLASLt: "
              "/venv/libcublasLt.so.13; NCCL: none");
}

}  // namespace
}  // namespace sluice
