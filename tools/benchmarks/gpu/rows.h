// The measurements of tools/gpu_check.sh: the rows of every part, each with explicit budgets, and tiny
// stand-ins with which a rehearsal runs all of them without a GPU. Pure data.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice {

enum class RowKind : uint8_t {
  link,      // copies between host and GPU
  disk,      // reads and writes of one file of the nvme tier
  matmul,    // large products through the device's multiplier
  training,  // steps of one configuration
  bench,     // `sluice bench`: its machine description stays beside the files of the parts
  profile,   // a configuration by `sluice profile`, which predicts with that description; its files stay, too
  peer,      // the same configuration in PyTorch: run by the script
};
const char* kind_name(RowKind kind);

struct Row {
  std::string part, name;
  RowKind kind;
  std::string title;            // in the report
  int seconds_most;             // the script ends it after that
  std::string model;            // as --model; "layers=*" stands for as many layers as the budgets hold
  std::string precision;        // bf16 or fp16
  int batch, sequence;          // of a step
  int steps;                    // the first two do not count
  std::string gpu, host, nvme;  // budgets; gpu, nvme: "most": nearly all that is free; nvme: "": no such tier
  std::string resident;         // name of the row of this part with the same model in GPU memory alone
  std::string mode;             // peer: --mode of torch_offload.py
  int layers_most = 128;        // limit for "layers=*"

  bool operator==(const Row&) const = default;
};

// The parts in the order of the report, without `tests`, which has no rows here.
std::vector<std::string> row_parts();
std::vector<Row> rows_of(const std::string& part);
std::optional<Row> find_row(const std::string& part, const std::string& name);

// The row with a tiny model, and with budgets that fit on any machine.
Row rehearsed(Row row);

}  // namespace sluice
