// What tools/gpu_check.sh measures: the rows of every part, each with its explicit budgets, and the small
// stand-ins by which a rehearsal goes through all of them without a GPU. Pure data.
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
  bench,     // `sluice bench`: its machine description stays beside the parts'
  profile,   // a configuration by `sluice profile`, which predicts with that; its files stay there, too
  peer,      // the same configuration by PyTorch: run by the script
};
const char* kind_name(RowKind kind);

struct Row {
  std::string part, name;
  RowKind kind;
  std::string title;            // in the report
  int seconds_most;             // what the script lets it take
  std::string model;            // as --model; "layers=*" stands for as many layers as the budgets hold
  std::string precision;        // bf16 or fp16
  int batch, sequence;          // of a step
  int steps;                    // the first two do not count
  std::string gpu, host, nvme;  // budgets; gpu and nvme: "most" of what is free; nvme: "" for no such tier
  std::string resident;   // name, in this part, of the row whose speed is that of the model in GPU memory
  std::string mode;       // peer: how PyTorch does it
  int layers_most = 128;  // that "layers=*" may become

  bool operator==(const Row&) const = default;
};

// Parts of training and of the machine, in the order of the report; `tests` has no rows of its own.
std::vector<std::string> row_parts();
std::vector<Row> rows_of(const std::string& part);
std::optional<Row> find_row(const std::string& part, const std::string& name);

// The row with a tiny model and budgets that fit anywhere.
Row rehearsed(Row row);

}  // namespace sluice
