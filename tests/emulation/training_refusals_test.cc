// What `sluice train` refuses of a GPU, here the emulated one: one sentence says what is wrong, one what to
// do, the exit code is right, and nothing is left behind. Also what it accepts with a note.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/run/checkpoint/checkpoint.h"
#include "tests/emulation/emulated_command.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

using emulation::EmulatedGpu;
using emulation::Nvml;

class Refusals : public EmulatedRun {
 protected:
  // `parts` occur in the two sentences.
  Ended expect_refused(const EmulatedGpu& gpu, const Words& more, ExitCode code, const Words& parts) {
    emulation::set_up(gpu);
    const Ended ended = run_command(train("refused", 2, more));
    EXPECT_EQ(ended.code, code) << ended.what;
    if (code != ExitCode::infeasible) expect_sentences(ended);
    for (const std::string& part : parts)
      EXPECT_NE((ended.what + " " + ended.remedy).find(part), std::string::npos)
          << part << " in: " << ended.what << " " << ended.remedy;
    EXPECT_FALSE(std::filesystem::exists(directory / "refused"));
    EXPECT_TRUE(std::filesystem::is_empty(scratch));
    expect_nothing_on_the_gpu();
    return ended;
  }
  Ended expect_trained(const EmulatedGpu& gpu, const std::string& out, const Words& more, int64_t steps = 2) {
    emulation::set_up(gpu);
    const Ended ended = run_command(train(out, steps, more));
    EXPECT_EQ(ended.code, ExitCode::done) << ended.what << " " << ended.remedy;
    expect_nothing_on_the_gpu();
    return ended;
  }
};

const Words kCuda{"--device", "cuda"};

TEST_F(Refusals, AGpuThatIsNotThere) {
  const ExitCode code = ExitCode::environment;
  expect_refused({.driver_version = 0}, kCuda, code, {"no NVIDIA driver", "Install", "--device cpu"});
  expect_refused({.driver_version = 12040}, kCuda, code, {"CUDA 12.4", "CUDA 13.0", "Update"});
  expect_refused({.count = 0}, kCuda, code, {"sees no GPU", "CUDA_VISIBLE_DEVICES"});
  expect_refused({}, {"--device", "cuda:1"}, code, {"no GPU 1", "--device cuda:0"});
  expect_refused({.capability_major = 7, .capability_minor = 0}, kCuda, code,
                 {"compute capability 7.0", "7.5 is needed", "--device cpu"});
}

// The build has kernels for other GPUs only.
TEST_F(Refusals, AGpuThatNoKernelsAreBuiltFor) {
  for (const cudaError_t missing : {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction})
    expect_refused(
        {.loading_returns = missing}, kCuda + Words{"--gpu-mem", "400MiB"}, ExitCode::environment,
        {"no kernels for the GPU's compute capability", "SLUICE_CUDA_ARCHITECTURES=all", "--device cpu"});
}

// Where there is a GPU that cannot be used, auto says why. Without a driver it says nothing.
TEST_F(Refusals, AutoFallsBackToTheProcessorAndSaysWhy) {
  const auto out = [&](const EmulatedGpu& gpu, const std::string& name) {
    return expect_trained(gpu, name, {"--host-mem", "256MiB"}).out;
  };
  EXPECT_EQ(out({.driver_version = 0}, "none").find("GPU"), std::string::npos);
  EXPECT_NE(out({.driver_version = 12040}, "old").find("CUDA 12.4"), std::string::npos);
  EXPECT_NE(out({.capability_major = 7}, "volta").find("compute capability 7.0"), std::string::npos);
}

// bf16 begins with compute capability 8.0.
TEST_F(Refusals, AGpuWithoutBf16TakesFp16) {
  const EmulatedGpu turing{.capability_major = 7, .capability_minor = 5};
  expect_refused(turing, kCuda + Words{"--precision", "bf16"}, ExitCode::environment,
                 {"no bf16", "8.0", "--precision fp16"});
  const auto precision_of = [&](const std::string& out) {
    return CheckpointReader::open(*newest_checkpoint(directory / out)).state().precision;
  };
  const std::string note = "has no bf16: --precision is fp16.";
  EXPECT_NE(expect_trained(turing, "turing", {}).out.find(note), std::string::npos);
  EXPECT_EQ(precision_of("turing"), DType::f16);
  // A resumed run keeps its precision, whatever the GPU.
  EXPECT_EQ(expect_trained({}, "turing", {"--resume", "auto"}, 3).out.find(note), std::string::npos);
  EXPECT_EQ(precision_of("turing"), DType::f16);
  expect_trained({}, "ampere", {});
  EXPECT_EQ(precision_of("ampere"), DType::bf16);
  emulation::set_up(turing);
  const Ended refused = run_command(train("ampere", 3, {"--resume", "auto"}));
  EXPECT_EQ(refused.code, ExitCode::environment);
  expect_sentences(refused);
  EXPECT_NE(refused.remedy.find("a run in bf16 on a GPU that has it"), std::string::npos) << refused.remedy;
}

// The default rates are for an H100. A description may be for the GPU here, or may not say for which GPU it
// is.
TEST_F(Refusals, RatesOfAnotherGpuAreSaid) {
  const std::string note =
      "Times are predicted at the rates of gpu-server, data sheets. These are another GPU's: those of H100, "
      "where this machine has emulated GPU. Name a description of yours with --machine, or measure its "
      "machine with sluice bench.";
  EXPECT_NE(expect_trained({}, "default", {}).out.find(note), std::string::npos);
  nlohmann::json machine =
      nlohmann::json::parse(read_text_file("engine/rates/machines/gpu-server.json", 1 << 20));
  const Words named{"--machine", directory / "machine.json"};
  for (const char* gpu : {"GPU", "emulated GPU", ""}) {
    machine["gpu"] = gpu;
    write_bytes(named.back(), machine.dump());
    const std::string out = expect_trained({}, "named" + std::string(gpu), named).out;
    EXPECT_EQ(out.find("another GPU's"), std::string::npos) << out;
  }
}

TEST_F(Refusals, TheDeviceIsPartOfARun) {
  expect_trained({}, "gpu", kCuda);
  const auto refused = [&](const Words& more, ExitCode code, const std::string& part) {
    const Ended ended = run_command(train("gpu", 3, Words{"--resume", "auto"} + more));
    EXPECT_EQ(ended.code, code) << ended.what;
    expect_sentences(ended);
    EXPECT_NE(ended.what.find(part), std::string::npos) << ended.what;
  };
  refused({"--device", "cpu"}, ExitCode::usage, "--device cpu differs from the run's own, which is cuda");
  emulation::set_up({.count = 0});
  refused({"--device", "auto"}, ExitCode::environment, "sees no GPU");  // not the cpu device instead
  refused({}, ExitCode::environment, "sees no GPU");
  const Ended resumed = expect_trained({}, "gpu", {"--resume", "auto", "--device", "auto"}, 3);
  EXPECT_NE(resumed.out.find("outside the device arena"), std::string::npos) << resumed.out;
}

// What another process holds is not free. NVML tells how much this process holds, or at least how much was
// held before it held anything.
TEST_F(Refusals, ABudgetAboveWhatIsFree) {
  for (const Nvml nvml : {Nvml::lists_processes, Nvml::lists_none}) {
    EmulatedGpu gpu{.memory_bytes = 2048 * kMiB, .used_by_others = 1000 * kMiB, .context_bytes = 300 * kMiB};
    gpu.nvml = nvml;
    expect_refused(gpu, {"--gpu-mem", "1049MiB"}, ExitCode::environment,
                   {"--gpu-mem asks for 1049 MiB", "only 1048 MiB are free", "a smaller", "nvidia-smi"});
    expect_trained(gpu, nvml == Nvml::lists_none ? "unlisted" : "listed", {"--gpu-mem", "1048MiB"});
    EXPECT_LE(emulation::counts().held_most, 1048 * kMiB);
  }
}

TEST_F(Refusals, TooLittleIsFree) {
  const Words least{"together: --gpu-mem "};
  const EmulatedGpu full{
      .memory_bytes = 2048 * kMiB, .used_by_others = 1700 * kMiB, .context_bytes = 300 * kMiB};
  expect_refused(full, {}, ExitCode::infeasible, least);
  expect_refused(full, {"--gpu-mem", "100%"}, ExitCode::infeasible, least);
  expect_refused(full, {"--gpu-mem", "348MiB"}, ExitCode::infeasible, least);
  EmulatedGpu nothing = full;
  nothing.used_by_others = 2048 * kMiB;
  expect_refused(nothing, {}, ExitCode::infeasible, least);
  // Less than the context takes.
  expect_refused({.context_bytes = 300 * kMiB}, {"--gpu-mem", "200MiB"}, ExitCode::infeasible, least);
}

TEST_F(Refusals, WhatTheDriverRefuses) {
  const ExitCode code = ExitCode::environment;
  const Words memory{"--gpu-mem", "400MiB"};
  expect_refused({.allocation_that_fails = 0}, memory, code,
                 {"no", "MiB in one piece", "are free", "smaller --gpu-mem", "nvidia-smi"});
  const Words limits{"Cannot pin", "kernel's log", "container", "--host-mem", "sluice doctor"};
  expect_refused({.registration_that_fails = 0}, memory, code, limits);
  expect_refused({.pinned_bytes_max = 8192}, memory, code, limits);
  for (uint64_t i = 0; i < 3; ++i)
    expect_refused({.stream_that_fails = i}, memory, code, {"streams failed", "nvidia-smi"});
  for (const uint64_t i : {0, 1, 2, 50, 200})
    expect_refused({.event_that_fails = i}, memory, code, {"streams failed", "nvidia-smi"});
}

}  // namespace
}  // namespace sluice
