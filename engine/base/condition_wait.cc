// Lets a build by GCC 12 or later run with the libstdc++ of GCC 11, which Red Hat Enterprise Linux 9 has. GCC
// 12 gave std::condition_variable::wait a second version, GLIBCXX_3.4.30, which differs from the first only
// in that it lets a cancelled thread unwind. Nothing here cancels threads. No other symbol of GCC 12 is
// needed, so the linker sends calls to the first version (--wrap in CMakeLists.txt).
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
