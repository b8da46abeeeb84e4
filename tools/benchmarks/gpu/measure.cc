#include "tools/benchmarks/gpu/measure.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/run/start/devices.h"
#include "gpu/cpu/matmul.h"
#include "gpu/cuda/facts.h"
#include "gpu/cuda/nccl.h"
#include "gpu/cuda/rates.h"
#include "offload/nvme_files.h"
#include "offload/system/memory_limits.h"
#include "tools/bench/nvme_lane.h"
#include "tools/bench/op_timer.h"

namespace sluice {

using nlohmann::ordered_json;

namespace {

constexpr uint64_t kGiB = 1ull << 30, kMiB = 1ull << 20;

// On the cpu device, which is only for rehearsals, there is one timing. A product before it lets the library
// generate its code.
double cpu_matmul_rate(DType precision, int64_t n) {
  const Product product{n, n, n, false, false, n, n, n, precision, precision};
  cpu::Multiplier multiplier(threads_of_machine(), cpu::native_support());
  Workers workers(threads_of_machine());
  const auto elements = static_cast<size_t>(n * n);
  std::vector<float> a(elements, 0.5f), b(elements, 0.25f), c(elements);
  std::vector<float> workspace(multiplier.prepare({&product, 1}) / sizeof(float) + 16);
  void* aligned = workspace.data();
  size_t space = workspace.size() * sizeof(float);
  std::align(64, space - 64, aligned, space);
  const auto run = [&] {
    multiplier.run({product, a.data(), b.data(), c.data()}, static_cast<std::byte*>(aligned), workers);
  };
  run();
  const double begin = steady_seconds();
  run();
  return 2 * static_cast<double>(n * n * n) / (steady_seconds() - begin);
}

}  // namespace

int threads_of_machine() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

ordered_json machine_facts(DeviceKind device, bool small) {
  ordered_json facts;
  if (small) facts["rehearsal"] = true;
  facts["device"] = device == DeviceKind::cuda ? "cuda" : "cpu";
  facts["cores"] = std::thread::hardware_concurrency();
  facts["memory_bytes"] = memory_limits().total;
  if (device != DeviceKind::cuda) return facts;
  const CudaStatus status = cuda_status(0);
  if (!status.available) throw Error(ExitCode::environment, status.reason, status.remedy);
  facts["gpu"] = status.name;
  facts["gpu_memory_bytes"] = status.memory_bytes;
  facts["compute_capability"] =
      std::to_string(status.capability_major) + "." + std::to_string(status.capability_minor);
  facts["cuda_driver"] = status.driver_version;
  const Known<NcclApi> nccl = open_nccl();
  const Known<std::string> cublas = cublas_file();
  facts["libraries"] = {{"cuBLASLt", cublas.value ? *cublas.value : cublas.reason},
                        {"NCCL", nccl.value ? nccl.value->file : nccl.reason}};
  return facts;
}

std::string place_name(const ordered_json& machine, const std::string& commit) {
  const std::string device = machine.at("device");
  std::string name =
      (machine.contains("rehearsal") ? "rehearsal-" : "") + machine.value("gpu", device) + "-" + commit;
  for (char& c : name)
    c = std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(c)) : '-';
  return name;
}

ordered_json measure_link(DeviceKind device, bool small) {
  if (device != DeviceKind::cuda) return {{"state", "skipped"}, {"note", "the cpu device has no link"}};
  const CudaFacts facts = cuda_facts({0, small ? 8 * kMiB : kGiB, steady_seconds, open_nvml()});
  if (!facts.copies.value)
    throw Error(ExitCode::environment, "Copies could not be timed: " + facts.copies.reason + ".",
                "`sluice doctor` says what this machine lacks.");
  ordered_json row{{"state", "measured"},
                   {"host_to_device", facts.copies.value->host_to_device},
                   {"device_to_host", facts.copies.value->device_to_host},
                   {"both", facts.copies.value->both}};
  if (facts.link.value) {
    row["generation"] = facts.link.value->generation;
    row["width"] = facts.link.value->width;
  }
  return row;
}

ordered_json measure_disk(const std::string& directory, bool small) {
  NvmeLane lane(directory, small ? 32 * kMiB : 2 * kGiB, nullptr);
  lane.pass(IoDirection::write);  // a first write into fresh space is slower
  const double write = lane.pass(IoDirection::write), read = lane.pass(IoDirection::read);
  return {{"state", "measured"}, {"write", write}, {"read", read}, {"note", lane.description()}};
}

ordered_json measure_matmul(DeviceKind device, bool small) {
  const int64_t size = small ? 64 : 8192;
  ordered_json row{{"state", "measured"}, {"size", size}};
  for (const auto& [name, precision] :
       {std::pair{"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}}) {
    if (device == DeviceKind::cuda && precision == DType::bf16 && !cuda_status(0).bf16) continue;
    const MatmulMeasurement measurement{0, precision, size, small ? 1 : 10, steady_seconds};
    row[name] = device == DeviceKind::cuda ? cuda_matmul_rate(measurement) : cpu_matmul_rate(precision, size);
  }
  return row;
}

ordered_json measure_attention(DeviceKind kind, bool small) {
  // 16 Ki tokens of 2048 columns, as FlashAttention-3 is measured (arXiv:2407.08608, section 4.1).
  const int64_t sequence = small ? 32 : 2048, sequences = small ? 2 : 8, width = small ? 128 : 2048;
  Options options;
  options.memory.device.kind = kind;
  settle_device(options, false);
  const DType precision = options.numbers.precision;
  const std::unique_ptr<Device> device = make_device(options.memory, threads_of_machine());
  const Repeats repeats{.seconds_at_least = small ? 0 : 0.3, .seconds_at_most = small ? 0 : 1.5};
  ordered_json row{{"state", "measured"},
                   {"precision", dtype_name(precision)},
                   {"sequence", sequence},
                   {"sequences", sequences},
                   {"heads", ordered_json::array()}};
  for (const int64_t size : {64, 128}) {
    const int64_t heads = width / size, rows = sequences * sequence;
    OpShapes shapes{OpKind::attention,
                    {.sequence = sequence, .heads = heads, .kv_heads = heads, .head_size = size},
                    precision,
                    {{rows, 3 * width}},
                    {},
                    {}};
    std::vector<DType> types;
    op_rule(shapes.kind).infer(shapes, shapes.outputs, types);
    BenchMemory memory(*device, OpTimer::bytes_needed(*device, shapes));
    OpTimer timer(*device, memory);
    const auto columns_of_pairs = static_cast<double>(rows * width) * static_cast<double>(sequence + 1) / 2;
    row["heads"].push_back(
        {{"size", size},
         {"forward", 4 * columns_of_pairs / timer.seconds(shapes, Pass::forward, repeats)},
         {"backward", 10 * columns_of_pairs / timer.seconds(shapes, Pass::backward, repeats)}});
  }
  return row;
}

}  // namespace sluice
