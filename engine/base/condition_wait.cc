// Lets what is built with GCC 12 or later run beside the libstdc++ of GCC 11, as Red Hat Enterprise Linux 9
// has it. GCC 12 gave std::condition_variable::wait a second version, GLIBCXX_3.4.30, which is as the first
// one but lets a cancelled thread unwind. Nothing here cancels threads. No other symbol of GCC 12 is needed,
// so calls go to the first version: the linker renames them (--wrap in CMakeLists.txt).
#include <condition_variable>
#include <mutex>

#define SLUICE_WAIT "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"

extern "C" {
void sluice_first_wait(std::condition_variable* condition, std::unique_lock<std::mutex>* lock);
__asm__(".symver sluice_first_wait, " SLUICE_WAIT "@GLIBCXX_3.4.11");
void sluice_wait(std::condition_variable* condition,
                 std::unique_lock<std::mutex>* lock) __asm__("__wrap_" SLUICE_WAIT);
void sluice_wait(std::condition_variable* condition, std::unique_lock<std::mutex>* lock) {
  sluice_first_wait(condition, lock);
}
}
