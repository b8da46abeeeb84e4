// Tests how attention is cut for GPUs, and that the registers of the compiled kernels allow these cuts.
// Register counts are read from what ptxas wrote into the objects of gpu/cuda/attention_*.cu, which are
// therefore not compressed. Kernels must not spill registers, but only with the toolkit for which they were
// written: other toolkits allot registers otherwise.
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string_view>
#include <vector>

#include "gpu/cuda/attention.h"
#include "tests/emulation/emulated_gpu.h"

namespace sluice {
namespace {

using cuda::AttentionPart;

struct Gpu {
  int capability;  // 10 * major + minor
  uint64_t shared_bytes_together, shared_bytes_reserved;
  cuda::Queue queue() const {
    return {.stream = nullptr,
            .multiprocessors = 1,
            .shared_bytes_max = shared_bytes_together - shared_bytes_reserved,
            .shared_bytes_together = shared_bytes_together,
            .shared_bytes_reserved = shared_bytes_reserved};
  }
};
// CUDA Programming Guide 13.0, table "Technical Specifications per Compute Capability".
constexpr Gpu kGpus[] = {{75, 64 << 10, 0},        {80, 164 << 10, 1 << 10}, {86, 100 << 10, 1 << 10},
                         {89, 100 << 10, 1 << 10}, {90, 228 << 10, 1 << 10}, {100, 228 << 10, 1 << 10},
                         {120, 100 << 10, 1 << 10}};
constexpr int kRegisters = 65536,
              kRegistersAtOnce = 8;  // of a multiprocessor; a lane gets them in steps of 8

struct Kernel {
  const char *part, *mangled_part, *mangled_type;
  int size;
  cuda::Cut cut;

  std::string name() const { return std::string(part) + ' ' + std::to_string(size); }
  std::string mangled() const {
    return std::string(mangled_part) + mangled_type + "Li" + std::to_string(size) + "ELi" +
           std::to_string(cut.row_tiles) + "EEE";
  }
};

// Calls f(Kernel) for every 16-bit kernel of a GPU.
template <AttentionPart kPart, typename F>
void for_each_size(const cuda::Queue& queue, const char* part, const char* mangled_part, F f) {
  for (const DType precision : {DType::bf16, DType::f16})
    for (const int padded : cuda::kHeadSizes)
      cuda::for_head_size(precision, padded, [&]<typename T, int kSize>(T, cuda::HeadSize<kSize>) {
        const char* const type = precision == DType::bf16 ? "NS_4Bf16E" : "NS_3F16E";
        if (kPart != AttentionPart::values || cuda::kKeysApart<kSize>)
          f(Kernel{part, mangled_part, type, kSize, cuda::cut_for<kPart, T, kSize>(queue)});
      });
}
template <typename F>
void for_each_kernel(const cuda::Queue& queue, F f) {
  using enum AttentionPart;
  static_assert(static_cast<int>(keys) == 1 && static_cast<int>(values) == 2, "as in mangled names");
  for_each_size<forward>(queue, "forward", "forward_kernelI", f);
  for_each_size<keys>(queue, "keys", "keys_kernelILNS0_13AttentionPartE1E", f);
  for_each_size<values>(queue, "values", "keys_kernelILNS0_13AttentionPartE2E", f);
  for_each_size<queries>(queue, "queries", "queries_kernelI", f);
}

TEST(AttentionCut, EightWarpsAreResidentFromCapability8On) {
  for (const Gpu& gpu : kGpus) {
    if (gpu.capability < 80) continue;
    for_each_kernel(gpu.queue(), [&](const Kernel& kernel) {
      if (kernel.size > 128) return;
      EXPECT_GE(cuda::resident_warps(gpu.queue(), kernel.cut), cuda::kResidentWarps)
          << kernel.name() << " on " << gpu.capability;
    });
  }
}

// Warps and rows of a warp for heads of these sizes.
std::string cuts_of(const Gpu& gpu, const std::vector<int>& sizes) {
  std::string text;
  for_each_kernel(gpu.queue(), [&](const Kernel& kernel) {
    const bool wanted = std::find(sizes.begin(), sizes.end(), kernel.size) != sizes.end();
    if (std::string(kernel.mangled_type) == "NS_4Bf16E" && wanted)
      text += kernel.name() + ' ' + std::to_string(kernel.cut.warps) + 'x' +
              std::to_string(16 * kernel.cut.row_tiles) + "  ";
  });
  return text;
}

// At head size 128 shared memory decides: two blocks of 128 rows need 130 KiB in forward, 194 KiB in
// backward.
TEST(AttentionCut, TakesTheMostRowsAWarpThatLeaveEightWarps) {
  const auto cuts = [](const Gpu& gpu) { return cuts_of(gpu, {64, 128}); };
  const std::string small = "forward 64 4x32  forward 128 8x16  ";
  EXPECT_EQ(cuts(kGpus[0]), small + "keys 64 8x16  keys 128 4x16  queries 64 8x16  queries 128 4x16  ");
  const std::string backward = "keys 64 4x32  keys 128 8x16  queries 64 4x32  ";
  EXPECT_EQ(cuts(kGpus[1]), "forward 64 4x32  forward 128 4x32  " + backward + "queries 128 8x16  ");
  for (const size_t i : {2, 3, 6}) EXPECT_EQ(cuts(kGpus[i]), small + backward + "queries 128 8x16  ");
  for (const size_t i : {4, 5})
    EXPECT_EQ(cuts(kGpus[i]), "forward 64 4x32  forward 128 4x32  " + backward + "queries 128 4x32  ");
}

// A warp's rows take 8 KiB of each tensor, the other side's tiles 32 KiB.
TEST(AttentionCut, LargestHeadsTakeTheWarpsThatFit) {
  EXPECT_EQ(cuts_of(kGpus[0], {256}), "forward 256 4x16  keys 256 2x16  values 256 4x16  queries 256 2x16  ");
  for (const size_t i : {2, 3, 6})
    EXPECT_EQ(cuts_of(kGpus[i], {256}),
              "forward 256 8x16  keys 256 4x16  values 256 8x16  queries 256 4x16  ");
  for (const size_t i : {1, 4, 5})
    EXPECT_EQ(cuts_of(kGpus[i], {256}),
              "forward 256 8x16  keys 256 8x16  values 256 8x16  queries 256 8x16  ");
}

// Every GPU loads all kernels, so one that does not fit would end every run on it.
TEST(AttentionCut, Fp32FitsEveryGpu) {
  for (const Gpu& gpu : kGpus)
    for (const int padded : cuda::kHeadSizes)
      cuda::for_head_size(DType::f32, padded, [&]<typename T, int kSize>(T, cuda::HeadSize<kSize>) {
        using enum AttentionPart;
        const cuda::Queue queue = gpu.queue();
        for (const cuda::Cut& cut :
             {cuda::cut_for<forward, T, kSize>(queue), cuda::cut_for<keys, T, kSize>(queue),
              cuda::cut_for<values, T, kSize>(queue), cuda::cut_for<queries, T, kSize>(queue)})
          EXPECT_LE(cut.shared_bytes, queue.shared_bytes_max) << kSize << " on " << gpu.capability;
      });
}

// ---- What ptxas says of compiled kernels.

struct Usage {
  uint32_t registers = 0, frame_bytes = 0;
};
using UsageOf = std::map<std::pair<int, std::string>, Usage>;  // by capability and mangled name

template <typename T>
T at(const std::string& bytes, uint64_t offset) {
  T value;
  CHECK(offset + sizeof(T) <= bytes.size(), "an object that ends too early");
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Adds the kernels of the cubin that begins at `begin`. Its section .nv.info is a list of attributes, each
// with a head of four bytes: format, attribute, size of what follows. Attribute 0x2f is a kernel's registers,
// and 0x11 is its stack frame. After the head of either come a symbol's index and the number.
void read_cubin(const std::string& object, uint64_t begin, UsageOf& usage) {
  const auto header = at<Elf64_Ehdr>(object, begin);
  const int capability = static_cast<int>(header.e_flags >> 8 & 0xFF);
  const auto section = [&](uint64_t i) {
    return at<Elf64_Shdr>(object, begin + header.e_shoff + i * sizeof(Elf64_Shdr));
  };
  const auto text = [&](uint64_t strings, uint64_t offset) {
    return std::string(object.c_str() + begin + section(strings).sh_offset + offset);
  };
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr info = section(i);
    if (text(header.e_shstrndx, info.sh_name) != ".nv.info") continue;
    const Elf64_Shdr symbols = section(info.sh_link);
    for (uint64_t offset = 0; offset < info.sh_size;) {
      const uint64_t entry = begin + info.sh_offset + offset;
      const auto format = at<uint8_t>(object, entry), attribute = at<uint8_t>(object, entry + 1);
      const uint64_t size = format == 4 ? at<uint16_t>(object, entry + 2) : 0;
      offset += 4 + size;
      if (format != 4 || (attribute != 0x2F && attribute != 0x11)) continue;
      const auto index = at<uint32_t>(object, entry + 4), value = at<uint32_t>(object, entry + 8);
      const auto symbol =
          at<Elf64_Sym>(object, begin + symbols.sh_offset + uint64_t{index} * sizeof(Elf64_Sym));
      Usage& kernel = usage[{capability, text(symbols.sh_link, symbol.st_name)}];
      (attribute == 0x2F ? kernel.registers : kernel.frame_bytes) = value;
    }
  }
}

UsageOf compiled_usage() {
  UsageOf usage;
  std::istringstream paths(SLUICE_ATTENTION_OBJECTS);
  for (std::string path; std::getline(paths, path, ':');) {
    std::ifstream file(path, std::ios::binary);
    CHECK(file.good(), "cannot read " + path);
    const std::string object{std::istreambuf_iterator<char>(file), {}};
    constexpr Elf64_Half kCudaMachine = 190;
    for (size_t begin = object.find(ELFMAG, 1); begin != std::string::npos;
         begin = object.find(ELFMAG, begin + 1))
      if (at<Elf64_Ehdr>(object, begin).e_machine == kCudaMachine) read_cubin(object, begin, usage);
  }
  return usage;
}

TEST(AttentionCut, CompiledKernelsHaveTheRegisters) {
  const UsageOf usage = compiled_usage();
  if (usage.empty()) GTEST_SKIP() << "this build has no cuda device";
  const auto is_built = [&](const Gpu& gpu) {
    return std::any_of(usage.begin(), usage.end(),
                       [&](const auto& entry) { return entry.first.first == gpu.capability; });
  };
  if (std::none_of(std::begin(kGpus), std::end(kGpus), is_built))
    GTEST_SKIP() << "this build has kernels for other GPUs only";
  constexpr bool kSpillsAreKnown = std::string_view(SLUICE_ATTENTION_TOOLKIT).starts_with("13.0.");
  for (const Gpu& gpu : kGpus) {
    if (!is_built(gpu)) continue;  // a build may be for fewer
    const cuda::Queue queue = gpu.queue();
    for_each_kernel(queue, [&](const Kernel& of_gpu) {
      const std::string kernel = of_gpu.mangled();
      const cuda::Cut& cut = of_gpu.cut;
      const auto found = std::find_if(usage.begin(), usage.end(), [&](const auto& entry) {
        return entry.first.first == gpu.capability && entry.first.second.find(kernel) != std::string::npos;
      });
      ASSERT_NE(found, usage.end()) << kernel << " for " << gpu.capability;
      const Usage& its = found->second;
      EXPECT_TRUE(its.frame_bytes == 0 || !kSpillsAreKnown)
          << kernel << " for " << gpu.capability << " spills registers";
      const auto lanes = static_cast<int>((its.registers + kRegistersAtOnce - 1) / kRegistersAtOnce) *
                         kRegistersAtOnce * cuda::kWarp;
      const int blocks = kRegisters / (lanes * cut.warps);
      EXPECT_GE(blocks * cut.warps, std::min(cuda::kResidentWarps, cuda::resident_warps(queue, cut)))
          << kernel << " for " << gpu.capability << " has " << its.registers << " registers";
    });
  }
}

}  // namespace
}  // namespace sluice
