// Counts what launches do with device memory, in sectors of 32 bytes, the unit in which a GPU moves memory.
//
// Distinct sectors that a launch reads and those that it writes are what DRAM must move at least if nothing
// is kept between launches. Visits are how often its blocks come back to them: a block visits a sector when
// it first touches it, and again if it has visited kNear others since it last touched it, as the cache of a
// multiprocessor may have dropped it then. Blocks run one after the other, so that a block is told from the
// others without a search.
//
// EmulatedGpu::traffic names the object. Kernels call it through access_hooks.cc, if they are compiled with
// -fsanitize=thread; products name their operands, each once, and compute nothing then. Caller: the GPU's
// thread; results are taken when it is idle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::emulation {

constexpr uint64_t kSectorBytes = 32;
constexpr uint32_t kNear = 2048;  // sectors, 64 KiB

struct SectorCount {
  uint64_t distinct = 0, visits = 0;
};

struct LaunchTraffic {
  std::string source;  // file of the kernel, or "product"
  bool product = false;
  int64_t blocks = 0;
  SectorCount read, written;

  uint64_t bytes() const { return (read.distinct + written.distinct) * kSectorBytes; }
  uint64_t visited_bytes() const { return (read.visits + written.visits) * kSectorBytes; }
};

class Traffic {
 public:
  // Accesses to other memory do not count: shared memory, stacks.
  Traffic(const void* begin, uint64_t bytes);

  void begin_launch(std::string source, bool product);
  void begin_block();
  void read(const void* begin, uint64_t bytes) { touch(begin, bytes, &Sector::read, &LaunchTraffic::read); }
  void write(const void* begin, uint64_t bytes) {
    touch(begin, bytes, &Sector::written, &LaunchTraffic::written);
  }

  std::vector<LaunchTraffic> take();  // of the launches since the last call, in order

 private:
  struct Touch {
    uint32_t block = 0, visits = 0;  // the last block that touched the sector, and its visits_ then
  };
  struct Sector {
    Touch read, written;
  };
  void touch(const void* begin, uint64_t bytes, Touch Sector::*last, SectorCount LaunchTraffic::*count);

  uintptr_t begin_;
  uint64_t bytes_;
  std::vector<Sector> sectors_;
  std::vector<LaunchTraffic> launches_;
  uint32_t first_block_ = 1,
           block_ = 0;   // the launch's first block and the current one, numbered over all launches
  uint32_t visits_ = 0;  // of the current block
};

// What the calling thread's kernel counts in; nullptr: nothing counts. Compiled accesses have no argument
// that could name it.
extern thread_local Traffic* traffic_of_thread;

}  // namespace sluice::emulation
