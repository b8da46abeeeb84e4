#include "engine/base/parallel.h"

#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/base/affinity.h"
#include "engine/base/error.h"

#ifdef SLUICE_PLAIN_THREADS
#include <atomic>
#else
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>
#include <tbb/task_scheduler_observer.h>

#include <optional>
#endif

namespace sluice {

#ifdef SLUICE_PLAIN_THREADS

struct Workers::Impl {
  const ProcessorSet allowed = allowed_processors();
};

Workers::Workers(int threads) : impl_(std::make_unique<Impl>()), threads_(threads) {}
Workers::~Workers() = default;

void Workers::run(int64_t count, const void* body, void (*call)(const void*, int64_t, int)) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int thread) {
    for (int64_t i = next++; i < count; i = next++) call(body, i, thread);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads_ && t < count; ++t)
    others.emplace_back([&, t] {
      (void)allow_processors(impl_->allowed);
      work(t);
    });
  work(0);
  for (std::thread& t : others) t.join();
}

#else

namespace {

// TBB moves its threads between arenas. In an arena, a thread runs on the processors of the thread that made
// the arena, since each rank of a process has processors of its own.
class Binder final : public tbb::task_scheduler_observer {
 public:
  explicit Binder(tbb::task_arena& arena) : task_scheduler_observer(arena) { observe(true); }
  ~Binder() override { observe(false); }
  void on_scheduler_entry(bool is_worker) override {
    if (is_worker && !(allowed_processors() == allowed_)) (void)allow_processors(allowed_);
  }

 private:
  const ProcessorSet allowed_ = allowed_processors();
};

}  // namespace

struct Workers::Impl {
  explicit Impl(int threads) : arena(threads) {
    // TBB makes as many threads as there are processors, unless it is told that more are wanted.
    if (threads > tbb::this_task_arena::max_concurrency())
      allowed.emplace(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
    arena.initialize();  // before the observer: out of memory, TBB would end with a half-made observer
    binder.emplace(arena);
  }
  std::optional<tbb::global_control> allowed;
  tbb::task_arena arena;
  std::optional<Binder> binder;
};

Workers::Workers(int threads) : impl_(std::make_unique<Impl>(threads)), threads_(threads) {}
Workers::~Workers() = default;

void Workers::run(int64_t count, const void* body, void (*call)(const void*, int64_t, int)) {
  if (count <= 0) return;
  if (count == 1 || threads_ == 1) {
    for (int64_t i = 0; i < count; ++i) call(body, i, 0);
    return;
  }
  impl_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, count, 1),
        [&](const tbb::blocked_range<int64_t>& range) {
          const int thread = tbb::this_task_arena::current_thread_index();
          for (int64_t i = range.begin(); i < range.end(); ++i) call(body, i, thread);
        },
        tbb::simple_partitioner());
  });
}

#endif

void check_threads(int count) {
  std::vector<std::thread> threads;
  std::latch all_started(1);
  std::string refusal;
  try {
    while (threads.size() < static_cast<size_t>(count)) threads.emplace_back([&] { all_started.wait(); });
  } catch (const std::system_error& error) {
    refusal = error.code().message();
  }
  all_started.count_down();
  for (std::thread& t : threads) t.join();
  if (refusal.empty()) return;
  throw Error(ExitCode::environment,
              "Of " + std::to_string(count) + " threads the system grants " + std::to_string(threads.size()) +
                  ": " + refusal + ".",
              "Give fewer --threads, or raise the limits on processes and memory (ulimit -u, ulimit -v, the "
              "container's pids limit).");
}

}  // namespace sluice
