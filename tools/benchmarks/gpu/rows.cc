#include "tools/benchmarks/gpu/rows.h"

#include <algorithm>

namespace sluice {

namespace {

const std::string kMost = "most";
const std::string kConformance = "gpu/cuda/op_conformance_test";

// Ops as the conformance suite names its cases: NAME or NAME_DETAIL.
const std::vector<std::string> kOps = {"embedding", "layer_norm", "rms_norm",  "linear", "gelu",
                                       "swiglu",    "rope",       "attention", "add",    "cross_entropy"};
// Ops of a mixture of experts, which share a row; add_sum is among the cases of add.
const std::vector<std::string> kExpertOps = {"router",        "route",   "dispatch", "expert_linear",
                                             "expert_swiglu", "combine", "repeat"};
// The op and, if there is one, the op of generation that shares its row.
std::vector<std::string> ops_with(const std::string& op) {
  if (op == "attention") return {op, "cached_attention"};
  if (op == "embedding") return {op, "pick_rows"};
  return {op};
}

// googletest's filter for the ops' cases in tests that match `test`.
std::string filter_of(const std::string& test, const std::vector<std::string>& ops) {
  std::string filter;
  for (const std::string& op : ops)
    filter += (filter.empty() ? "" : ":") + test + "/" + op + ":" + test + "/" + op + "_*";
  return filter;
}

Row matmul(const std::string& part) {
  return {.part = part,
          .name = "matmul",
          .kind = RowKind::matmul,
          .title = "matrix products",
          .seconds_most = 30};
}

// Rows for a person with little time. Each answers a question on its own.
std::vector<Row> first_rows() {
  const std::string part = "first";
  std::vector<Row> rows{{.part = part,
                         .name = "doctor",
                         .kind = RowKind::doctor,
                         .title = "sluice doctor",
                         .seconds_most = 30}};
  const auto test = [&](const std::string& name, const std::string& title, const std::string& source,
                        const std::string& filter, int seconds) {
    rows.push_back({.part = part,
                    .name = name,
                    .kind = RowKind::test,
                    .title = title,
                    .seconds_most = seconds,
                    .source = source,
                    .filter = filter});
  };
  for (const std::string& op : kOps)
    test("op-" + op, "the op " + op, kConformance, filter_of("*DevicesAgreeWithReference", ops_with(op)), 15);
  test("op-experts", "ops of a mixture of experts", kConformance,
       filter_of("*DevicesAgreeWithReference", kExpertOps), 15);
  test("op-updates", "rounding, sums over ranks, the optimizer", kConformance, "DeviceConformance.*", 30);
  test("training", "trainings keep their bits", "gpu/cuda/training_test", "*", 60);
  rows.push_back(matmul(part));
  rows.push_back({.part = part,
                  .name = "attention",
                  .kind = RowKind::attention,
                  .title = "causal attention by itself",
                  .seconds_most = 20});
  for (const int m : {2, 8, 16})
    rows.push_back({.part = part,
                    .name = "micro-" + std::to_string(m),
                    .kind = RowKind::training,
                    .title = "GPT-2 1.5B, micro-batches of " + std::to_string(m),
                    .seconds_most = 45,
                    .model = "gpt2-xl",
                    .batch = 16,
                    .sequence = 1024,
                    .steps = 14,
                    .gpu = kMost,
                    .host = "24GiB",
                    .micro_batch = m});
  return rows;
}

std::vector<Row> test_rows() {
  const std::string part = "tests";
  std::vector<Row> rows;
  const auto test = [&](const std::string& name, const std::string& title, const std::string& source,
                        const std::string& filter) {
    rows.push_back({.part = part,
                    .name = name,
                    .kind = RowKind::test,
                    .title = title,
                    .seconds_most = 100,
                    .source = source,
                    .filter = filter});
  };
  for (const std::string& op : kOps)
    test("op-" + op, "the op " + op, kConformance, filter_of("*Conformance.*", ops_with(op)));
  test("op-experts", "ops of a mixture of experts", kConformance, filter_of("*Conformance.*", kExpertOps));
  test("op-updates", "rounding, sums over ranks, the optimizer", kConformance,
       "DeviceConformance.*:CudaDevice.*");
  test("training", "trainings keep their bits", "gpu/cuda/training_test", "*");
  test("shared_gpu", "two ranks on one GPU", "gpu/cuda/shared_gpu_test", "*");
  test("nccl", "NCCL", "gpu/cuda/nccl_test", "*");
  // Only Sluice's kernels are watched, since kernels of libraries would take most of the time.
  const auto sanitizer = [&](const std::string& tool, const std::string& name, const std::string& filter) {
    rows.push_back({.part = part,
                    .name = tool + "-" + name,
                    .kind = RowKind::sanitizer,
                    .title = tool + " of " + name,
                    .seconds_most = 110,
                    .source = kConformance,
                    .filter = filter,
                    .tool = tool});
  };
  const std::string agree = "*DevicesAgreeWithReference";
  sanitizer("memcheck", "attention", filter_of(agree, {"attention", "cached_attention"}));
  sanitizer("memcheck", "products", filter_of(agree, {"linear", "cross_entropy", "router", "expert_linear"}));
  sanitizer("memcheck", "rows",
            filter_of(agree, {"embedding", "layer_norm", "rms_norm", "gelu", "swiglu", "rope", "add", "route",
                              "dispatch", "expert_swiglu", "combine", "repeat", "pick_rows"}));
  sanitizer("memcheck", "updates", "DeviceConformance.Round*:DeviceConformance.Upd*:DeviceConformance.Zero*");
  sanitizer("racecheck", "shared",
            filter_of(agree, {"attention", "cached_attention", "layer_norm", "rms_norm", "cross_entropy",
                              "route", "router", "expert_linear"}));
  return rows;
}

// The optimizer state of 7 billion parameters is 75 GiB, and nothing of it fits in 24 GiB of GPU memory. The
// optimizer state of 13 billion is 145 GiB: 110 GiB of host memory hold a part, the GPU the rest. Batches of
// Llama are 32 Ki or 64 Ki tokens. On a GPU of 80 GB, Llama 7B with 16 layers and Llama 13B with 32 layers
// stand for these models.
std::vector<Row> training_rows() {
  const auto training = [](const std::string& part, const std::string& name, const std::string& title,
                           int seconds, const std::string& model, int batch, int sequence, int steps,
                           const std::string& gpu, const std::string& host) {
    return Row{.part = part,
               .name = name,
               .kind = RowKind::training,
               .title = title,
               .seconds_most = seconds,
               .model = model,
               .batch = batch,
               .sequence = sequence,
               .steps = steps,
               .gpu = gpu,
               .host = host};
  };
  const auto gpt2 = [&](const std::string& name, const std::string& title, int seconds,
                        const std::string& model, int batch, const std::string& host,
                        const std::string& precision) {
    Row row = training("small", name, title, seconds, model, batch, 1024, 14, "70GiB", host);
    row.precision = precision;
    return row;
  };
  const auto beside = [](Row row, const std::string& resident, const std::string& nvme = "") {
    row.resident = resident;
    row.nvme = nvme;
    return row;
  };
  const auto peer = [&](const std::string& name, const std::string& title, const std::string& mode) {
    Row row = training("peer", name, title, 200, "llama-7b", 8, 4096, 4, "", "");
    row.kind = RowKind::peer;
    row.mode = mode;
    return row;
  };
  // The micro-batch is the one that plans choose for the model.
  const auto algorithms = [](const std::string& model, int batch, int sequence) {
    return Row{.part = "small",
               .name = "algorithms-" + model,
               .kind = RowKind::algorithms,
               .title = "products of " + model + " by other algorithms",
               .seconds_most = 60,
               .model = model,
               .batch = batch,
               .sequence = sequence,
               .micro_batch = batch};
  };
  Row profile = training("small", "profile", "sluice profile, GPT-2 1.5B with its state in DRAM", 120,
                         "gpt2-xl", 16, 1024, 8, "10GiB", "40GiB");
  profile.kind = RowKind::profile;
  Row deepest = training("largest", "deepest", "Llama, the deepest that fits", 400, "llama-13b:layers=*", 8,
                         4096, 8, kMost, "114GiB");
  deepest.nvme = kMost;
  return {
      {.part = "small",
       .name = "link",
       .kind = RowKind::link,
       .title = "host-device link",
       .seconds_most = 40},
      {.part = "small", .name = "disk", .kind = RowKind::disk, .title = "drive", .seconds_most = 60},
      matmul("small"),
      {.part = "small",
       .name = "bench",
       .kind = RowKind::bench,
       .title = "sluice bench",
       .seconds_most = 120},
      {.part = "small",
       .name = "experts",
       .kind = RowKind::experts,
       .title = "products of experts, against one product of as many rows",
       .seconds_most = 60},
      algorithms("gpt2-xl", 16, 1024),
      algorithms("llama-13b", 4, 4096),
      gpt2("gpt2-bf16", "GPT-2 124M, resident", 60, "gpt2", 64, "6GiB", "bf16"),
      gpt2("gpt2-fp16", "GPT-2 124M, resident", 60, "gpt2", 64, "6GiB", "fp16"),
      gpt2("gpt2-xl-bf16", "GPT-2 1.5B, resident", 90, "gpt2-xl", 16, "8GiB", "bf16"),
      gpt2("gpt2-xl-fp16", "GPT-2 1.5B, resident", 90, "gpt2-xl", 16, "8GiB", "fp16"),
      profile,
      matmul("offload"),
      training("offload", "3b-resident", "16 layers of Llama 7B, in GPU memory", 100, "llama-7b:layers=16", 8,
               4096, 8, kMost, "12GiB"),
      beside(training("offload", "3b-dram", "16 layers of Llama 7B, state in DRAM", 120, "llama-7b:layers=16",
                      8, 4096, 8, "16GiB", "64GiB"),
             "3b-resident"),
      training("offload", "7b-resident", "Llama 7B, in GPU memory", 120, "llama-7b", 8, 4096, 8, kMost,
               "12GiB"),
      beside(training("offload", "7b-dram", "Llama 7B, state in DRAM", 150, "llama-7b", 8, 4096, 8, "24GiB",
                      "110GiB"),
             "7b-resident"),
      training("offload", "10b-dram", "32 layers of Llama 13B, state in GPU memory and DRAM", 200,
               "llama-13b:layers=32", 16, 4096, 6, kMost, "110GiB"),
      training("offload", "13b-dram", "Llama 13B, state in GPU memory and DRAM", 210, "llama-13b", 16, 4096,
               6, kMost, "110GiB"),
      beside(training("offload", "7b-nvme", "Llama 7B, state in three tiers", 300, "llama-7b", 8, 4096, 8,
                      "24GiB", "60GiB"),
             "7b-resident", "40GiB"),
      matmul("largest"),
      deepest,
      matmul("peer"),
      training("peer", "7b-sluice", "Llama 7B, Sluice", 150, "llama-7b", 8, 4096, 6, kMost, "110GiB"),
      peer("7b-loop", "Llama 7B, PyTorch, a pinned loop", "loop"),
      peer("7b-fsdp", "Llama 7B, PyTorch, FSDP2 with CPU offload", "fsdp"),
  };
}

std::vector<Row> all_rows() {
  std::vector<Row> rows = first_rows();
  for (const std::vector<Row>& more : {test_rows(), training_rows()})
    rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

}  // namespace

const char* kind_name(RowKind kind) {
  switch (kind) {
    case RowKind::doctor:
      return "doctor";
    case RowKind::test:
      return "test";
    case RowKind::sanitizer:
      return "sanitizer";
    case RowKind::link:
      return "link";
    case RowKind::disk:
      return "disk";
    case RowKind::matmul:
      return "matmul";
    case RowKind::attention:
      return "attention";
    case RowKind::experts:
      return "experts";
    case RowKind::algorithms:
      return "algorithms";
    case RowKind::training:
      return "training";
    case RowKind::bench:
      return "bench";
    case RowKind::profile:
      return "profile";
    case RowKind::peer:
      break;
  }
  return "peer";
}

std::vector<std::string> row_parts() { return {"first", "tests", "small", "offload", "largest", "peer"}; }

std::vector<Row> rows_of(const std::string& part) {
  std::vector<Row> rows = all_rows();
  std::erase_if(rows, [&](const Row& row) { return row.part != part; });
  return rows;
}

std::optional<Row> find_row(const std::string& part, const std::string& name) {
  for (const Row& row : rows_of(part))
    if (row.name == name) return row;
  return std::nullopt;
}

bool needs_drive(const std::string& part) {
  const std::vector<Row> rows = rows_of(part);
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) {
    return !row.nvme.empty() || row.kind == RowKind::disk || row.kind == RowKind::bench;
  });
}

Row rehearsed(Row row) {
  row.seconds_most *= 4;  // for emulated kernels, on slow machines
  if (row.model.empty()) return row;
  row.batch = 4;
  row.sequence = 32;
  row.steps = 4;
  row.micro_batch = std::min(row.micro_batch, row.batch);
  row.layers_most = 3;
  row.model = std::string("llama:width=32,heads=2,kv_heads=2,ffn=64,vocab=256,context=32,layers=") +
              (row.model.ends_with('*') ? "*" : "2");
  row.gpu = "256MiB";
  row.host = "1GiB";
  if (!row.nvme.empty()) row.nvme = "64MiB";
  return row;
}

}  // namespace sluice
