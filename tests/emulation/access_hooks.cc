// Kernels that are compiled with -fsanitize=thread call these functions at each access to memory. They stand
// in for the sanitizer's library, and count accesses (traffic.h). The names are the compiler's. Functions
// that kernels do not need are left out: a kernel with atomics, say, would not link.
#include "tests/emulation/traffic.h"

namespace {

void read(const void* begin, uint64_t bytes) {
  if (sluice::emulation::Traffic* const traffic = sluice::emulation::traffic_of_thread)
    traffic->read(begin, bytes);
}
void write(const void* begin, uint64_t bytes) {
  if (sluice::emulation::Traffic* const traffic = sluice::emulation::traffic_of_thread)
    traffic->write(begin, bytes);
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}  // of objects of the host

void __tsan_read1(void* p) { read(p, 1); }
void __tsan_read2(void* p) { read(p, 2); }
void __tsan_read4(void* p) { read(p, 4); }
void __tsan_read8(void* p) { read(p, 8); }
void __tsan_read16(void* p) { read(p, 16); }
void __tsan_read_range(void* p, unsigned long bytes) { read(p, bytes); }
void __tsan_write1(void* p) { write(p, 1); }
void __tsan_write2(void* p) { write(p, 2); }
void __tsan_write4(void* p) { write(p, 4); }
void __tsan_write8(void* p) { write(p, 8); }
void __tsan_write16(void* p) { write(p, 16); }
void __tsan_write_range(void* p, unsigned long bytes) { write(p, bytes); }

}  // extern "C"
