#include "tools/benchmarks/gpu/rows.h"

#include <algorithm>

namespace sluice {

namespace {

// The optimizer state of 7 billion parameters is 75 GiB, and nothing of it fits in 24 GiB of GPU memory. That
// of 13 billion is 145 GiB: 110 GiB of host memory hold a part, the GPU the rest. Batches of Llama are 32 Ki
// or 64 Ki tokens.
std::vector<Row> all_rows() {
  const std::string most = "most";
  const auto matmul = [](const char* part) {
    return Row{part, "matmul", RowKind::matmul, "matrix products", 60};
  };
  return {
      {"small", "link", RowKind::link, "host-device link", 40},
      {"small", "disk", RowKind::disk, "drive", 100},
      matmul("small"),
      {"small", "gpt2-bf16", RowKind::training, "GPT-2 124M, resident", 60, "gpt2", "bf16", 64, 1024, 14,
       "70GiB", "6GiB"},
      {"small", "gpt2-fp16", RowKind::training, "GPT-2 124M, resident", 60, "gpt2", "fp16", 64, 1024, 14,
       "70GiB", "6GiB"},
      {"small", "gpt2-xl-bf16", RowKind::training, "GPT-2 1.5B, resident", 90, "gpt2-xl", "bf16", 16, 1024,
       14, "70GiB", "8GiB"},
      {"small", "gpt2-xl-fp16", RowKind::training, "GPT-2 1.5B, resident", 90, "gpt2-xl", "fp16", 16, 1024,
       14, "70GiB", "8GiB"},
      {"small", "bench", RowKind::bench, "sluice bench", 120},
      {"small", "profile", RowKind::profile, "sluice profile, GPT-2 1.5B with its state in DRAM", 120,
       "gpt2-xl", "bf16", 16, 1024, 8, "10GiB", "40GiB"},
      matmul("offload"),
      {"offload", "7b-resident", RowKind::training, "Llama 7B, in GPU memory", 120, "llama-7b", "bf16", 8,
       4096, 8, most, "12GiB"},
      {"offload", "7b-dram", RowKind::training, "Llama 7B, state in DRAM", 150, "llama-7b", "bf16", 8, 4096,
       8, "24GiB", "110GiB", "", "7b-resident"},
      {"offload", "13b-dram", RowKind::training, "Llama 13B, state in GPU memory and DRAM", 210, "llama-13b",
       "bf16", 16, 4096, 6, most, "110GiB"},
      {"offload", "7b-nvme", RowKind::training, "Llama 7B, state in three tiers", 300, "llama-7b", "bf16", 8,
       4096, 4, "24GiB", "60GiB", "40GiB", "7b-resident"},
      matmul("largest"),
      {"largest", "deepest", RowKind::training, "Llama, the deepest that fits", 400, "llama-13b:layers=*",
       "bf16", 8, 4096, 3, most, "114GiB", most},
      matmul("peer"),
      {"peer", "7b-sluice", RowKind::training, "Llama 7B, Sluice", 150, "llama-7b", "bf16", 8, 4096, 6, most,
       "110GiB"},
      {"peer", "7b-loop", RowKind::peer, "Llama 7B, PyTorch, a pinned loop", 200, "llama-7b", "bf16", 8, 4096,
       4, "", "", "", "", "loop"},
      {"peer", "7b-fsdp", RowKind::peer, "Llama 7B, PyTorch, FSDP2 with CPU offload", 200, "llama-7b", "bf16",
       8, 4096, 4, "", "", "", "", "fsdp"},
  };
}

}  // namespace

const char* kind_name(RowKind kind) {
  switch (kind) {
    case RowKind::link:
      return "link";
    case RowKind::disk:
      return "disk";
    case RowKind::matmul:
      return "matmul";
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

std::vector<std::string> row_parts() { return {"small", "offload", "largest", "peer"}; }

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

Row rehearsed(Row row) {
  if (row.kind != RowKind::training && row.kind != RowKind::profile && row.kind != RowKind::peer) return row;
  row.batch = 4;
  row.sequence = 32;
  row.steps = 4;
  row.layers_most = 3;
  row.model = std::string("llama:width=32,heads=2,kv_heads=2,ffn=64,vocab=256,context=32,layers=") +
              (row.model.ends_with('*') ? "*" : "2");
  row.gpu = "256MiB";
  row.host = "1GiB";
  if (!row.nvme.empty()) row.nvme = "64MiB";
  return row;
}

}  // namespace sluice
