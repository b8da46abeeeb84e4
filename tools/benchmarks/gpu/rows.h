// The rows of tools/gpu_check.sh, by part: tests, measurements with explicit budgets, and tiny stand-ins with
// which a rehearsal runs all of them without a GPU. Pure data.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice {

enum class RowKind : uint8_t {
  doctor,      // `sluice doctor`: run by the script
  test,        // tests that need a GPU: run by the script, in a process of their own
  sanitizer,   // such tests under compute-sanitizer
  link,        // copies between host and GPU
  disk,        // reads and writes of one file of the nvme tier
  matmul,      // large products through the device's multiplier
  attention,   // causal attention by itself, forward and backward
  experts,     // products of a layer's experts, and one product of as many rows
  algorithms,  // the products of a model, by each of several algorithms of cuBLASLt
  training,    // steps of one configuration
  bench,       // `sluice bench`, whose machine description serves all rows after it
  profile,     // a configuration by `sluice profile`; its files stay, too
  peer,        // a configuration of training in PyTorch: run by the script
};
const char* kind_name(RowKind kind);

struct Row {
  std::string part, name;
  RowKind kind{};
  std::string title;     // in the report
  int seconds_most = 0;  // the script ends the row after that time
  // Tests and sanitizers: a source as cuda_test takes it, a filter for its tests, and the tool of
  // compute-sanitizer.
  std::string source, filter, tool;
  // Training, profile, peer and algorithms. The model is as --model takes it; "layers=*" stands for as many
  // layers as the budgets hold. Batch and sequence are those of a step. Up to `steps` steps are done, as far
  // as the time allows; the first two do not count. Budget "most": nearly all that is free; nvme "": none.
  std::string model, precision = "bf16";
  int batch = 0, sequence = 0, steps = 0;
  std::string gpu, host, nvme;
  int micro_batch = 0;    // 0: the planner's choice
  std::string resident;   // name of the row of this part with the same model in GPU memory alone
  std::string mode;       // peer: --mode of torch_offload.py
  int layers_most = 128;  // limit for "layers=*"

  bool operator==(const Row&) const = default;
};

// The parts in the order of the report.
std::vector<std::string> row_parts();
std::vector<Row> rows_of(const std::string& part);
std::optional<Row> find_row(const std::string& part, const std::string& name);

// Whether rows of the part read and write files on a drive.
bool needs_drive(const std::string& part);

// The row with a tiny model, with budgets that fit on any machine, and with more time.
Row rehearsed(Row row);

}  // namespace sluice
