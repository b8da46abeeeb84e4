// How many tokens a second a mixture of experts generates whose weights all live on a drive. One way reads
// only the experts that a batch needs, the other reads all.
//
//   decode_bench [--dir DIR] [--tokens N] [--threads N] [--rounds N] [--small]
//
// The model is a Qwen3-MoE with random weights in bf16 and 64 experts, of which a token uses 4. Both ways
// have the same memory, get the same prompts, run in turn and must give the same answers. The first token of
// an answer is not timed. Where the drive is the bottleneck, the speeds differ by the ratio of the bytes that
// are read. The bar is half of that ratio, and at least 1.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "engine/run/generate/generator.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/generation_request.h"
#include "engine/run/start/loader.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/session_start.h"
#include "tools/benchmarks/bench_main.h"
#include "tools/benchmarks/contest.h"

namespace sluice {
namespace {

constexpr double kBar = 0.5;

struct Sizes {
  std::string model, directory = ".";
  int64_t tokens = 33;
  int threads = 2, rounds = 3;
};

class Decoding {
 public:
  Decoding(const Sizes& sizes, int64_t sequences, bool picks) : tokens_(sizes.tokens) {
    Options options;
    options.model.model = sizes.model;
    options.numbers.precision = DType::bf16;
    options.memory.device.kind = DeviceKind::cpu;
    options.memory.threads = sizes.threads;
    options.memory.placement = Placement::lowest;
    options.memory.nvme_directories = {sizes.directory};
    const ModelSource source = resolve_model(options.model);
    const Budgets budgets = resolve_budgets(options.memory, memory_limits(), true);
    device_ = make_device(options.memory, budgets.threads);
    PlanRequest request =
        generation_request(options, source.config, {sequences, tokens_ + 8, 8}, budgets, needs_of(*device_));
    request.lower.picks_experts = picks;
    plan_ = plan_or_throw(request, budgets);
    session_ = std::make_unique<Session>(plan_, *device_, session_options(options, budgets.threads));
    Workers workers(budgets.threads);
    load(*session_, load_from(plan_.model, source_of(options.numbers.seed), workers));
    generator_ = std::make_unique<Generator>(*session_, Sampling{}, std::vector<uint32_t>{});
    for (uint32_t s = 0; s < static_cast<uint32_t>(sequences); ++s)
      prompts_.push_back({{1 + 17 * s, 5, 90 + s}, s});
  }

  void run() {
    double begin = 0;
    uint64_t before = 0;
    const auto said = [&](size_t place, uint32_t) {
      if (begin == 0 && place + 1 == prompts_.size()) {
        begin = wall_seconds();
        before = read();
      }
      return true;
    };
    answers_ = generator_->answer(prompts_, tokens_, false, said, never_);
    seconds.push_back((wall_seconds() - begin) / static_cast<double>(tokens_ - 1));
    bytes = static_cast<double>(read() - before) / static_cast<double>(tokens_ - 1);
  }

  std::vector<std::vector<uint32_t>> said() const {
    std::vector<std::vector<uint32_t>> tokens;
    for (const Answer& answer : answers_) tokens.push_back(answer.tokens);
    return tokens;
  }

  std::vector<double> seconds;  // of a decode, by round
  double bytes = 0;             // that a decode reads from the drive

 private:
  uint64_t read() const {
    uint64_t all = 0;
    for (LaneId l = 0; l < plan_.program.machine.lanes.size(); ++l)
      if (plan_.program.machine.lanes[l].name == "nvme_read") all += session_->runner().moved_bytes(l);
    return all;
  }

  const int64_t tokens_;
  std::unique_ptr<Device> device_;
  Plan plan_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Generator> generator_;
  std::vector<Prompt> prompts_;
  std::vector<Answer> answers_;
  const std::atomic<bool> never_{false};
};

void compare(const Sizes& sizes, int64_t sequences) {
  Decoding all(sizes, sequences, false), picks(sizes, sequences, true);
  for (int round = 0; round <= sizes.rounds; ++round)
    for (Decoding* one : {&all, &picks}) one->run();
  for (Decoding* one : {&all, &picks}) one->seconds.erase(one->seconds.begin());  // the first one warms up
  CHECK(all.said() == picks.said(), "reading fewer experts changed what is said");
  const double slow = median(all.seconds), fast = median(picks.seconds);
  const auto rate = [&](double seconds) { return static_cast<double>(sequences) / seconds; };
  const double bar = std::max(1.0, kBar * all.bytes / picks.bytes);
  fmt::print(
      "{} at once: {:.1f} MB a decode and {:.2f} tokens/s with all experts, {:.1f} MB and {:.2f} with "
      "those needed: {:.2f} times as fast (bar {:.2f})  {}\n",
      sequences, 1e-6 * all.bytes, rate(slow), 1e-6 * picks.bytes, rate(fast), slow / fast, bar,
      slow / fast >= bar ? "ok" : "short");
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  Sizes sizes{.model =
                  "qwen3_moe:layers=4,width=512,heads=8,kv_heads=4,head_size=64,experts=64,top=4,"
                  "expert_ffn=512,vocab=1024,context=256"};
  bool small = false;
  BenchMain bench("Decoding with the experts that a batch needs, against all of them; all live on a drive.");
  bench.add("--dir", sizes.directory, "folder on a drive");
  bench.add("--tokens", sizes.tokens, "tokens of an answer: 2 to 200");
  bench.add("--threads", sizes.threads, "threads");
  bench.add("--rounds", sizes.rounds, "timed rounds");
  bench.add_small(small);
  return bench.run(argc, argv, [&] {
    if (small) {
      sizes.model =
          "qwen3_moe:layers=2,width=128,heads=2,kv_heads=2,head_size=64,experts=8,top=2,expert_ffn=1365,"
          "vocab=256,context=64";
      sizes.tokens = 3, sizes.rounds = 1;
    }
    if (sizes.tokens < 2 || sizes.tokens > 200)
      throw Error(ExitCode::usage, "An answer has 2 to 200 tokens.", "Give --tokens a number of that range.");
    for (const int64_t sequences : {1, 4, 8}) compare(sizes, sequences);
  });
}
