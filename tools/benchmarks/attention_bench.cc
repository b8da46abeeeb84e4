// What a window and documents save: attention of one long sequence on the cpu device, forward and backward,
// against the same attention without window and documents.
//
//   attention_bench [--length N] [--threads N] [--rounds N] [--small]
//
// The window is an eighth of the sequence, the documents are eight of equal length. Of all causal pairs of
// query and key, the window leaves 0.23 and the documents leave 0.13. All cases run in one process on equal
// operands, in turn, and are compared round by round; the median of the ratios counts. With four key/value
// heads, one task computes all gradients of a head; with one, separate tasks compute gradients of queries and
// of keys.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/base/simd/convert.h"
#include "gpu/device.h"
#include "tools/benchmarks/bench_main.h"
#include "tools/benchmarks/contest.h"

namespace sluice {
namespace {

constexpr double kWindowBar = 0.35, kDocumentsBar = 0.25;
constexpr int64_t kHeads = 4, kHeadSize = 64;

struct Options {
  int64_t length;
  int threads, rounds;
};

// One attention with operands of its own.
class Attention {
 public:
  // documents: how many the sequence is cut into; 0: the op has no such input
  Attention(Device& device, DType precision, int64_t kv_heads, int64_t length, int64_t window,
            int64_t documents)
      : device_(device) {
    shapes_ = {OpKind::attention, {}, precision, {{length, (kHeads + 2 * kv_heads) * kHeadSize}}, {}, {}};
    OpAttributes& a = shapes_.attributes;
    a.sequence = length, a.heads = kHeads, a.kv_heads = kv_heads, a.head_size = kHeadSize, a.window = window;
    inputs_ = {{numbers(precision, shapes_.inputs[0])}};
    input_gradients_ = {{numbers(precision, shapes_.inputs[0])}};
    if (documents > 0) add_documents(length, documents);
    std::vector<DType> types;
    op_rule(OpKind::attention).infer(shapes_, shapes_.outputs, types);
    for (size_t i = 0; i < types.size(); ++i) outputs_.push_back({numbers(types[i], shapes_.outputs[i])});
    output_gradients_ = {{numbers(precision, shapes_.outputs[0])}, {}};
    uint64_t bytes = 0;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      device_.prepare(shapes_, pass);
      bytes = std::max(bytes, device_.workspace_bytes(shapes_, pass));
    }
    workspace_ = take(bytes);
  }

  void run() {
    OpCall call{.shapes = &shapes_, .inputs = inputs_, .outputs = outputs_};
    call.workspace = workspace_;
    device_.forward(call);
    call.output_gradients = output_gradients_, call.input_gradients = input_gradients_;
    device_.backward(call);
  }

 private:
  std::byte* take(uint64_t bytes) {
    pages_.emplace_back(allocate_pages(bytes), [bytes](std::byte* pages) { free_pages(pages, bytes); });
    return pages_.back().get();
  }
  // Numbers between -1/2 and 1/2.
  std::byte* numbers(DType type, const Shape& shape) {
    const auto count = static_cast<uint64_t>(element_count(shape));
    std::vector<float> values(count);
    for (uint64_t i = 0; i < count; ++i)
      values[i] = static_cast<float>(i * 2654435761u >> 20 & 255) / 256 - 0.5f;
    std::byte* const pages = take(count * dtype_bytes(type));
    round_to(type, values.data(), pages, count);
    return pages;
  }
  void add_documents(int64_t length, int64_t documents) {
    auto* const begins = reinterpret_cast<int32_t*>(take(static_cast<uint64_t>(length) * 4));
    const int64_t each = length / documents;
    for (int64_t t = 0; t < length; ++t) begins[t] = static_cast<int32_t>(t / each * each);
    shapes_.inputs.push_back({length});
    inputs_.push_back({begins});
    input_gradients_.push_back({});
  }

  Device& device_;
  OpShapes shapes_;
  std::vector<TensorView> inputs_, outputs_, output_gradients_, input_gradients_;
  std::vector<std::shared_ptr<std::byte>> pages_;
  std::byte* workspace_ = nullptr;
};

// Prints the times of all cases, and the ratios of the window and of the documents with their bars.
void compare(DType precision, int64_t kv_heads, const Options& options) {
  const auto device = make_cpu_device(options.threads);
  const int64_t length = options.length;
  const auto make = [&](int64_t window, int64_t documents) {
    return std::make_shared<Attention>(*device, precision, kv_heads, length, window, documents);
  };
  std::vector<Contestant> all;
  const std::tuple<const char*, int64_t, int64_t> cases[] = {{"all keys", 0, 0},
                                                             {"one document", 0, 1},
                                                             {"a window of an eighth", length / 8, 0},
                                                             {"eight documents", 0, 8}};
  for (const auto& [name, window, documents] : cases)
    all.push_back({name, [a = make(window, documents)] { a->run(); }});
  time_alternating(all, options.rounds);
  const double window = time_ratio(all[2], all[0]), documents = time_ratio(all[3], all[1]);
  fmt::print("{}, {} heads, {} key/value heads of {}, {} tokens, {} threads\n", dtype_name(precision), kHeads,
             kv_heads, kHeadSize, length, options.threads);
  for (const Contestant& c : all) fmt::print("  {:<22} {:8.1f} ms\n", c.name, 1e3 * median(c.seconds));
  const auto verdict = [](double ratio, double bar) { return ratio <= bar ? "ok" : "short"; };
  fmt::print("  window / all keys {:.3f} (bar {})  {}\n", window, kWindowBar, verdict(window, kWindowBar));
  fmt::print("  eight documents / one {:.3f} (bar {})  {}\n", documents, kDocumentsBar,
             verdict(documents, kDocumentsBar));
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  Options options{4096, static_cast<int>(std::max(1u, std::thread::hardware_concurrency())), 5};
  bool small = false;
  BenchMain bench("What a window and documents save of attention on the cpu device.");
  bench.add("--length", options.length, "tokens of the sequence: a multiple of 8");
  bench.add("--threads", options.threads, "threads");
  bench.add("--rounds", options.rounds, "timed rounds");
  bench.add_small(small);
  return bench.run(argc, argv, [&] {
    if (small) options.length = 128, options.rounds = 1;
    for (const DType precision : {DType::f32, DType::bf16})
      for (const int64_t kv_heads : {kHeads, int64_t{1}}) compare(precision, kv_heads, options);
  });
}
