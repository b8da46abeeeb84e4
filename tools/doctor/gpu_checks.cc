#include "tools/doctor/gpu_checks.h"

#include <fmt/format.h>

#include <iterator>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "gpu/cuda/nccl.h"

namespace sluice {
namespace {

constexpr const char* kGpu = "GPU";

// Copies of 256 MiB reach 80 to 90 % of a link's rate; a far NUMA node or a shared switch halves it.
constexpr double kFractionLeast = 0.6;

std::string cuda_version(int version) {
  return fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
}

// The open kernel modules serve every GPU from compute capability 7.5 on; the newest GPUs need them.
constexpr const char* kInstallDriver = "sudo apt-get install nvidia-open";

// A command that makes the GPU usable, or shows why it is not.
std::string gpu_command(const DoctorFacts& f) {
  const CudaStatus& status = f.cuda.status;
  if (!status.built)
    return "sudo apt-get install cuda-nvcc-13-0 cuda-cudart-dev-13-0 cuda-nvtx-13-0 libcublas-dev-13-0 && "
           "rm -rf build/release && tools/build.sh release  # in the source tree";
  if (!status.name.empty()) return "sluice train --device cpu ...";  // an old GPU
  if (status.driver_version == 0 && f.system.container) return "docker run --gpus all ...";
  if (status.driver_version / 1000 < f.cuda.toolkit_version / 1000) return kInstallDriver;
  if (f.visible_devices) return "unset CUDA_VISIBLE_DEVICES";
  return "nvidia-smi";
}

Check check_device(const DoctorFacts& f) {
  Check c{kGpu, "device"};
  const CudaStatus& status = f.cuda.status;
  if (status.available) {
    c.text = fmt::format("{} (cuda:{}, {}), compute capability {}.{}", printable(status.name), f.ordinal,
                         printable(f.cuda.pci_bus_id), status.capability_major, status.capability_minor);
    return c;
  }
  c.status = f.gpu_use == GpuUse::demanded ? CheckStatus::fail : CheckStatus::warn;
  c.text = status.reason;
  c.advice = status.remedy;
  if (status.built && status.driver_version == 0 && !f.system.nvidia_card)
    c.advice += " No NVIDIA card is visible here.";
  c.command = gpu_command(f);
  if (c.command.find("apt-get") != std::string::npos)
    c.advice += " Once NVIDIA's package repository is set up, this does it.";
  return c;
}

// Whether the driver's check already gives the reason why a value is unknown.
template <typename T>
bool said_of_driver(const DoctorFacts& f, const Known<T>& known) {
  return !f.cuda.driver.value && !known.value && known.reason == f.cuda.driver.reason;
}

Check check_driver(const DoctorFacts& f) {
  Check c{kGpu, "driver"};
  const std::string versions =
      fmt::format("for {} and before, this build uses {}", cuda_version(f.cuda.status.driver_version),
                  cuda_version(f.cuda.toolkit_version));
  if (f.cuda.driver.value) {
    c.text = fmt::format("{}, {}", printable(*f.cuda.driver.value), versions);
    return c;
  }
  c.status = CheckStatus::warn;
  const bool memory = said_of_driver(f, f.cuda.memory), link = said_of_driver(f, f.cuda.link);
  const char* const unknown = memory && link ? "its version, the memory and the link are"
                              : memory       ? "its version and the memory are"
                              : link         ? "its version and the link are"
                                             : "its version is";
  c.text = fmt::format("{}; {} not known, because {}", versions, unknown, printable(f.cuda.driver.reason));
  c.advice = memory ? "Give --gpu-mem, as `auto` cannot tell what is free."
                    : "The memory that training takes of the GPU is only estimated.";
  c.command = f.system.container ? "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
                                 : kInstallDriver;
  return c;
}

Check check_gpu_memory(const DoctorFacts& f) {
  Check c{kGpu, "memory"};
  if (!f.cuda.memory.value) {
    c.status = CheckStatus::warn;
    c.text = "not known, because " + printable(f.cuda.memory.reason);
    c.advice = "Give --gpu-mem, as `auto` cannot tell what is free.";
    c.command = "nvidia-smi";
    return c;
  }
  const NvmlMemory& memory = *f.cuda.memory.value;
  c.text = fmt::format("{} free of {}", format_size(memory.free), format_size(memory.total));
  if (memory.free >= memory.total / 10 * 9) return c;
  c.status = CheckStatus::warn;
  c.advice = "Other processes hold the rest: this lists them.";
  c.command = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv";
  return c;
}

Check check_link(const DoctorFacts& f) {
  Check c{kGpu, "link"};
  if (!f.cuda.link.value) {
    c.status = CheckStatus::warn;
    c.text = "not known, because " + printable(f.cuda.link.reason);
    c.advice = "So it is unknown how much of the link the copies below use.";
    c.command = "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv";
    return c;
  }
  const NvmlLink& link = *f.cuda.link.value;
  const std::string most = fmt::format("PCIe {}.0 x{}", link.generation_max, link.width_max);
  if (link.generation >= link.generation_max && link.width >= link.width_max) {
    c.text = most + ", the most that is possible here";
    return c;
  }
  c.status = CheckStatus::warn;
  c.text = fmt::format("PCIe {}.0 x{}, where {} is possible", link.generation, link.width, most);
  c.advice =
      "The cause may be a slot with fewer lanes, a riser or a power saving mode. This shows the link's "
      "state.";
  c.command = fmt::format("sudo lspci -vv -s {} | grep Lnk", printable(f.cuda.pci_bus_id));
  return c;
}

Check check_copies(const DoctorFacts& f) {
  Check c{kGpu, "copies"};
  if (!f.cuda.copies.value) {
    c.status = CheckStatus::warn;
    c.text = "not measured, because " + printable(f.cuda.copies.reason);
    c.advice = "Free some memory of the host and of the GPU, and look again.";
    c.command = "nvidia-smi";
    return c;
  }
  const CudaCopies& copies = *f.cuda.copies.value;
  c.text = fmt::format("to the GPU {:.1f} GB/s, back {:.1f}, both at once {:.1f}",
                       copies.host_to_device / 1e9, copies.device_to_host / 1e9, copies.both / 1e9);
  const double peak =
      f.cuda.link.value ? pcie_bytes_per_second(f.cuda.link.value->generation, f.cuda.link.value->width) : 0;
  const double least = std::min(copies.host_to_device, copies.device_to_host);
  if (peak > 0) c.text += fmt::format("; {:.0f} % of the link's {:.1f}", 100 * least / peak, peak / 1e9);
  c.text += fmt::format(" (median of {} x {})", copies.times, format_size(copies.bytes));
  if (peak == 0 || least >= kFractionLeast * peak) return c;
  c.status = CheckStatus::warn;
  c.advice = "The memory may be at another NUMA node than the GPU, or the link shared with other cards.";
  c.command = f.gpu_node ? fmt::format("numactl --cpunodebind={0} --membind={0} sluice doctor", *f.gpu_node)
                         : "nvidia-smi topo -m";
  return c;
}

Check check_pinning(const DoctorFacts& f) {
  Check c{kGpu, "pinning"};
  if (!f.cuda.pinning.value) {
    c.status = CheckStatus::fail;
    c.text = "not possible, because " + printable(f.cuda.pinning.reason);
    c.advice = "The GPU does not serve this process: it can neither copy nor compute.";
    c.command = "nvidia-smi";
    return c;
  }
  const CudaPinning& pinning = *f.cuda.pinning.value;
  c.text = fmt::format("{} of host memory in {:.2f} s", format_size(pinning.pinned), pinning.seconds);
  if (pinning.pinned == pinning.asked) return c;
  c.status = pinning.pinned == 0 ? CheckStatus::fail : CheckStatus::warn;
  c.text += fmt::format(", of {} asked for; {}", format_size(pinning.asked), printable(pinning.reason));
  c.advice = "Training pins all of --host-mem: raise the limit on locked memory, or the container's.";
  c.command = unlock_command(f);
  return c;
}

Check check_cublas(const DoctorFacts& f) {
  Check c{kGpu, "cuBLAS"};
  if (f.cuda.cublas.value) {
    c.text = printable(*f.cuda.cublas.value);
    return c;
  }
  c.status = CheckStatus::fail;
  c.text = printable(f.cuda.cublas.reason);
  c.advice =
      "Matrix products need it. Where PyTorch has brought it along, LD_LIBRARY_PATH may name its folder, "
      "which this finds.";
  c.command = "find / -name 'libcublasLt.so*' 2> /dev/null";
  return c;
}

Check check_nccl(const DoctorFacts& f) {
  Check c{kGpu, "NCCL"};
  if (f.nccl.value) {
    c.text = fmt::format("{}, for ranks that have a GPU each ({})", nccl_version_text(*f.nccl.value),
                         printable(f.nccl_file));
    return c;
  }
  c.status = CheckStatus::warn;
  c.text = "none, because " + printable(f.nccl.reason);
  c.advice = "It matters to several GPUs only: without it they exchange through host memory.";
  c.command = "sudo apt-get install libnccl2";
  return c;
}

}  // namespace

std::vector<Check> judge_gpu(const DoctorFacts& facts) {
  if (facts.gpu_use == GpuUse::none) return {};
  if (!facts.cuda.status.available) return {check_device(facts)};
  std::vector<Check> checks{check_device(facts), check_driver(facts)};
  if (!said_of_driver(facts, facts.cuda.memory)) checks.push_back(check_gpu_memory(facts));
  if (!said_of_driver(facts, facts.cuda.link)) checks.push_back(check_link(facts));
  const CudaFacts& cuda = facts.cuda;
  const bool neither = !cuda.copies.value && !cuda.pinning.value && cuda.copies.reason == cuda.pinning.reason;
  if (!neither) checks.push_back(check_copies(facts));
  checks.push_back(check_pinning(facts));
  checks.push_back(check_cublas(facts));
  checks.push_back(check_nccl(facts));
  return checks;
}

std::string unlock_command(const DoctorFacts& facts) {
  if (facts.system.container) return "docker run --ulimit memlock=-1 ...";
  if (facts.memory.lockable_hard == kNoLimit) return "ulimit -l unlimited";
  return "sudo prlimit --pid $$ --memlock=unlimited:unlimited";
}

double pcie_bytes_per_second(int generation, int width) {
  // Bits of data a second on one lane. In PCIe 1.0 and 2.0, 8 of 10 bits carry data; from 3.0 on, 128 of 130;
  // in 6.0, 242 of the 256 bytes of a flit.
  constexpr double kLane[] = {
      0, 2.5e9 * 8 / 10, 5e9 * 8 / 10, 8e9 * 128 / 130, 16e9 * 128 / 130, 32e9 * 128 / 130, 64e9 * 242 / 256};
  if (generation < 1 || generation >= static_cast<int>(std::size(kLane))) return 0;
  return kLane[generation] / 8 * width;
}

}  // namespace sluice
