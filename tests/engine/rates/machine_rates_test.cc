// Machine descriptions: every key, what is refused, and the share that each rank on a machine gets.
#include "engine/rates/machine_rates.h"

#include <gtest/gtest.h>

#include <fstream>

#include "engine/base/error.h"
#include "engine/simulate/simulate.h"
#include "tests/support/random_program.h"

namespace sluice {
namespace {

void expect_bad_description(const std::string& json, const std::string& message) {
  try {
    parse_machine_rates(json, "m.json");
    FAIL() << "accepted " << json;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::malformed_file);
    EXPECT_NE(std::string(e.what()).find(message), std::string::npos)
        << e.what() << "\nexpected: " << message;
  }
}

TEST(MachineRates, ReadsEveryField) {
  const MachineRates r = parse_machine_rates(R"({"format": "sluice-machine-1", "name": "m",
    "pools": {"cores": 4, "memory": 1e9},
    "drives": [{"tier": "nvme", "read": 3, "write": 2, "mixed": 1, "directory": "/mnt/fast"}],
    "lanes": [{"lane": "compute", "flops_per_second": {"fp32": 5, "bf16": 6}, "bytes_per_second": 7,
               "overhead_seconds": 8, "occupies": {"cores": 2}, "per_byte": {"memory": 1.5}}],
    "links": [{"from": "host", "to": "device", "bytes_per_second": 9, "latency_seconds": 10,
               "occupies": {"cores": 1}, "per_byte": {"memory": 2}}]})",
                                             "m.json");
  EXPECT_EQ(r.name, "m");
  ASSERT_EQ(r.pools.size(), 2u);
  EXPECT_EQ(r.pools[0].name, "cores");
  EXPECT_EQ(r.pools[1].capacity, 1e9);
  EXPECT_EQ(r.drives[0].mixed, 1);
  EXPECT_EQ(r.drives[0].directory, "/mnt/fast");
  EXPECT_EQ(r.lanes[0].flops.fp32, 5);
  EXPECT_EQ(r.lanes[0].flops.bf16, 6);
  EXPECT_EQ(r.lanes[0].flops.fp16, kUnlimited);
  EXPECT_EQ(r.lanes[0].bytes_per_second, 7);
  EXPECT_EQ(r.lanes[0].overhead_seconds, 8);
  EXPECT_EQ(r.lanes[0].sharing.occupies[0].amount, 2);
  EXPECT_EQ(r.lanes[0].sharing.per_byte[0].pool, 1u);
  EXPECT_EQ(r.links[0].to, "device");
  EXPECT_EQ(r.links[0].latency_seconds, 10);
  EXPECT_EQ(r.links[0].sharing.per_byte[0].amount, 2);
}

TEST(MachineRates, ReadsRatesOfOps) {
  const MachineRates r = parse_machine_rates(R"({"format": "sluice-machine-1", "name": "m", "lanes": [
    {"lane": "compute", "ops": {"attention": {"flops_per_second": {"bf16": 3}},
                                "swiglu": {"bytes_per_second": {"fp32": 4}}}}]})",
                                             "m.json");
  ASSERT_EQ(r.lanes[0].ops.size(), 2u);
  EXPECT_EQ(r.lanes[0].ops[0].kind, OpKind::attention);
  EXPECT_EQ(r.lanes[0].ops[0].flops.bf16, 3);
  EXPECT_EQ(r.lanes[0].ops[0].bytes.bf16, kUnlimited);
  EXPECT_EQ(r.lanes[0].ops[1].kind, OpKind::swiglu);
  EXPECT_EQ(r.lanes[0].ops[1].bytes.fp32, 4);
}

TEST(MachineRates, RanksOnAMachineShareIt) {
  MachineRates r;
  r.pools = {{"cores", 8}};
  r.drives = {{"nvme", 6, 4, 2}};
  share_machine(r, 2);
  EXPECT_EQ(r.pools[0].capacity, 4);
  EXPECT_EQ(r.drives[0].read, 3);
  EXPECT_EQ(r.drives[0].write, 2);
  EXPECT_EQ(r.drives[0].mixed, 1);
  r.network = {{"node", 8, 1, 0}};  // the description is of one of eight shares
  share_machine(r, 4);
  EXPECT_EQ(r.pools[0].capacity, 8);
  r.network = {{"node", 1 << 20, 1, 0}};  // a rank alone: a million times that memory, up to the limit
  r.memory = {std::nullopt, uint64_t{1} << 40, 1'000'000'000'000'000'000};
  share_machine(r, 1);
  EXPECT_EQ(r.memory->host, 1'000'000'000'000'000'000u);
  EXPECT_EQ(r.memory->nvme, 1'000'000'000'000'000'000u);
}

TEST(MachineRates, KnowItsGpuByName) {
  const auto describes = [](const std::string& gpu, const char* name) {
    MachineRates r;
    r.gpu = gpu;
    return describes_gpu(r, name);
  };
  for (const auto& [gpu, name] : {std::pair("A100", "NVIDIA A100-SXM4-80GB"), std::pair("T4", "Tesla T4"),
                                  std::pair("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation"),
                                  std::pair("NVIDIA L4", "NVIDIA L4"), std::pair("H2", "GH200 H2")})
    EXPECT_TRUE(describes(gpu, name)) << gpu << ": " << name;
  for (const auto& [gpu, name] :
       {std::pair("H200", "NVIDIA GH200 480GB"), std::pair("L4", "NVIDIA L40S"), std::pair("", "Tesla T4"),
        std::pair("H100", ""), std::pair("T4", "NVIDIA T400 4GB")})
    EXPECT_FALSE(describes(gpu, name)) << gpu << ": " << name;
}

TEST(MachineRates, RejectsWhatItDoesNotUnderstand) {
  const std::string head = R"({"format": "sluice-machine-1", "name": "m", "pools": {"cores": 2}, )";
  expect_bad_description("{", "it ends in the middle of its JSON");
  expect_bad_description("[]", "the file is not an object");
  expect_bad_description(R"({"format": "other", "name": "m"})", "its format is not sluice-machine-1");
  expect_bad_description(R"({"format": "sluice-machine-1"})", "the file lacks the text `name`");
  expect_bad_description(head + R"("lane": []})", "the file has the unknown key lane");
  expect_bad_description(head + R"("lanes": {}})", "lanes is not a list");
  expect_bad_description(head + R"("lanes": [{"bytes_per_second": 1}]})", "a lane lacks the text `lane`");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "bytes_per_second": -1}]})",
                         "is not a positive number");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "bytes_per_second": "1"}]})",
                         "is not a positive number");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "overhead_seconds": -1}]})",
                         "is not a number of seconds");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "overhead_seconds": 1e10}]})",
                         "is more than 1e+09");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "bytes_per_second": 1e-19}]})",
                         "is not between 1e-18 and 1e+30");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "bytes_per_second": 1e31}]})",
                         "is not between 1e-18 and 1e+30");
  expect_bad_description(head + R"("lanes": [{"lane": "a"}, {"lane": "a"}]})", "lane a appears twice");
  expect_bad_description(
      head + R"("lanes": [{"lane": "a", "tier": "t"}, {"lane": "a"}, {"lane": "a", "tier": "t"}]})",
      "lane a in tier t appears twice");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "occupies": {"disk": 1}}]})",
                         "the unknown pool disk");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "flops_per_second": {"fp8": 1}}]})",
                         "the unknown key fp8");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "ops": []}]})", "ops of lane a is not an object");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "ops": {"softmax": {}}}]})",
                         "ops of lane a names softmax, which is no op");
  expect_bad_description(head + R"("lanes": [{"lane": "a", "ops": {"add": {"seconds": 1}}}]})",
                         "the unknown key seconds");
  expect_bad_description(
      head + R"("lanes": [{"lane": "a", "ops": {"add": {"bytes_per_second": {"fp32": 0}}}}]})",
      "is not a positive number");
  expect_bad_description(head + R"("drives": [{"tier": "nvme", "read": 1, "write": 1}]})", "has no mixed");
  const std::string drive = R"({"tier": "nvme", "read": 1, "write": 1, "mixed": 1, "directory": )";
  expect_bad_description(head + R"("drives": [)" + drive + "5}]}",
                         "the drive of nvme lacks the text `directory`");
  expect_bad_description(head + R"("drives": [)" + drive + R"("/a"}, )" + drive + R"("/a"}]})",
                         "the drive of nvme in /a appears twice");
  expect_bad_description(head + R"("name": "again"})", "\"name\" is given twice");
  expect_bad_description(R"({"format": "sluice-machine-1", "name": "m", "pools": {"cores": 0}})",
                         "pool cores is not");
  expect_bad_description(head + R"("source": 1})", "the file lacks the text `source`");
  expect_bad_description(head + R"("source": ")" + std::string(1001, 'x') + "\"}",
                         "longer than 1000 characters");
  expect_bad_description(head + R"("gpu": ["T4"]})", "the file lacks the text `gpu`");
  expect_bad_description(head + R"("gpu": ")" + std::string(1001, 'x') + "\"}",
                         "gpu is longer than 1000 characters");
  expect_bad_description(head + R"("memory": 1})", "memory is not an object");
  expect_bad_description(head + R"("memory": {"device": 8e9}})", "memory has no host");
  expect_bad_description(head + R"("memory": {"host": 8e9, "disk": 8e9}})",
                         "memory has the unknown key disk");
  for (const char* bytes : {"-8e9", "0", "\"8GiB\"", "null", "1e-18", "1e400"})
    expect_bad_description(head + R"("memory": {"host": )" + bytes + "}}", "");
  for (const char* bytes : {"1048575", "1048576.5", "2e18"})
    expect_bad_description(head + R"("memory": {"host": 8e9, "device": )" + bytes + "}}",
                           "device of memory is not a whole number of bytes between 1048576 and 1e+18");
}

// The example in the documentation is the built-in description.
TEST(MachineRates, DocumentationShowsTheDefault) {
  std::ifstream file("docs/machine.md");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = text.find("```json\n");
  ASSERT_NE(begin, std::string::npos) << "run the tests in the repository root";
  text = text.substr(begin + 8, text.find("```", begin + 8) - begin - 8);
  const MachineRates shown = parse_machine_rates(text, "docs/machine.md"), built_in = default_machine_rates();
  EXPECT_EQ(shown.name, built_in.name);
  const Program p = testing::random_program(1);
  const std::vector<BodyId> sequence = {0, 1, 2, 3, 4};
  EXPECT_EQ(simulate(p, shown, sequence).seconds, simulate(p, built_in, sequence).seconds);
  EXPECT_EQ(shown.pools.size(), built_in.pools.size());
  EXPECT_EQ(shown.drives[0].mixed, built_in.drives[0].mixed);
  EXPECT_EQ(shown.lanes[0].flops.fp32, built_in.lanes[0].flops.fp32);
  EXPECT_EQ(shown.lanes[0].flops.fp16, built_in.lanes[0].flops.fp16);
}

}  // namespace
}  // namespace sluice
