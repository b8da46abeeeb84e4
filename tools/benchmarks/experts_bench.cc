// The products of a layer's experts on the cpu device, against one product of as many rows: expert_linear of
// 8 experts of which a token chooses 2, against linear.
//
//   experts_bench [--tokens N...] [--threads N] [--rounds N] [--in-out] [--processor-time]
//                 [--small]
//
// Each expert has a weight of its own. Choices are random, so that experts have different numbers of rows,
// and their last tiles are not full. The experts and the one product run in one process, in turn, and are
// compared round by round; the median of the ratios counts. The bar is for 256 rows an expert and more.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/simd/convert.h"
#include "engine/graph/routing.h"
#include "gpu/device.h"
#include "tools/benchmarks/bench_main.h"
#include "tools/benchmarks/contest.h"

namespace sluice {
namespace {

constexpr double kBar = 0.8;
constexpr int64_t kExperts = 8, kChosen = 2;
// Numbers of columns of the input and of the output.
constexpr std::array<std::pair<int64_t, int64_t>, 3> kWidths = {{{512, 1408}, {1024, 2816}, {2048, 1024}}};

struct Options {
  std::vector<int64_t> tokens = {2048, 4096, 8192};
  int threads = 1, rounds = 5;
  bool in_out = false, processor_time = false;
};

enum class Work : uint8_t { forward, backward, dx, dw };
constexpr const char* kWorkNames[] = {"forward", "backward", "only dx", "only dW"};

class Memory {
 public:
  std::byte* take(uint64_t bytes) {
    bytes = std::max<uint64_t>(bytes, 1);
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

 private:
  std::vector<std::shared_ptr<std::byte>> pages_;
};

// A routing in which each row chooses its experts at random.
std::vector<int32_t> random_routing(int64_t rows) {
  std::mt19937 generator(11);
  std::vector<int32_t> experts;
  for (int64_t r = 0; r < rows; ++r) {
    const auto first = static_cast<int32_t>(generator() % kExperts);
    const auto apart = static_cast<int32_t>(1 + generator() % (kExperts - 1));
    experts.insert(experts.end(), {first, static_cast<int32_t>((first + apart) % kExperts)});
  }
  return make_routing({rows, kExperts, kChosen}, experts);
}

// linear, or expert_linear for each of the experts.
class Products {
 public:
  Products(Device& device, DType precision, OpKind kind, int64_t tokens, std::pair<int64_t, int64_t> widths,
           bool in_out)
      : device_(device), experts_(kind == OpKind::expert_linear ? kExperts : 1) {
    const auto [in, out] = widths;
    shapes_ = {kind, {}, precision, {}, {}, {in_out ? Shape{in, out} : Shape{out, in}}};
    shapes_.attributes.weight_out_in = !in_out;
    if (kind == OpKind::linear) {
      shapes_.inputs = {{tokens * kChosen, in}};
    } else {
      shapes_.attributes.routing = {.experts = kExperts, .chosen = kChosen};
      const std::vector<int32_t> routing = random_routing(tokens);
      shapes_.inputs = {{static_cast<int64_t>(routing.size())}, {expert_rows_most(tokens), in}};
      auto* const copy = reinterpret_cast<int32_t*>(memory_.take(routing.size() * sizeof(int32_t)));
      std::ranges::copy(routing, copy);
      inputs_.push_back({copy});
      input_gradients_.push_back({});
    }
    std::vector<DType> types;
    op_rule(kind).infer(shapes_, shapes_.outputs, types);
    inputs_.push_back({memory_.numbers(precision, shapes_.inputs.back())});
    input_gradients_.push_back({memory_.numbers(precision, shapes_.inputs.back())});
    outputs_ = {{memory_.numbers(precision, shapes_.outputs[0])}};
    output_gradients_ = {{memory_.numbers(precision, shapes_.outputs[0])}};
    unwanted_.resize(inputs_.size());
    for (int64_t e = 0; e < experts_; ++e) {
      weights_.push_back({memory_.numbers(precision, shapes_.parameters[0])});
      std::byte* const gradient = memory_.numbers(DType::f32, shapes_.parameters[0]);
      weight_gradients_.push_back({gradient, gradient});
    }
    uint64_t bytes = 0;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      device_.prepare(shapes_, pass);
      bytes = std::max(bytes, device_.workspace_bytes(shapes_, pass));
    }
    workspace_ = memory_.take(bytes);
  }

  void run(Work work) {
    for (int64_t e = 0; e < experts_; ++e) {
      const auto i = static_cast<size_t>(e);
      OpCall call{.shapes = &shapes_, .inputs = inputs_, .outputs = outputs_};
      call.parameters = std::span(&weights_[i], 1);
      call.workspace = workspace_;
      call.expert = e;
      call.output_gradients = output_gradients_;
      const bool dx = work == Work::dx || work == Work::backward, dw = work != Work::dx;
      call.input_gradients = dx ? std::span(input_gradients_) : std::span(unwanted_);
      call.parameter_gradients = std::span(dw ? &weight_gradients_[i] : &unwanted_[0], 1);
      work == Work::forward ? device_.forward(call) : device_.backward(call);
    }
  }

 private:
  Device& device_;
  int64_t experts_;
  OpShapes shapes_;
  Memory memory_;
  std::vector<TensorView> inputs_, outputs_, weights_;
  std::vector<TensorView> output_gradients_, input_gradients_, weight_gradients_, unwanted_;
  std::byte* workspace_ = nullptr;
};

// Prints the speeds and their ratio for each kind of work.
void compare(DType precision, int64_t tokens, std::pair<int64_t, int64_t> widths, const Options& options) {
  const auto device = make_cpu_device(options.threads);
  const auto make = [&](OpKind kind) {
    return std::make_shared<Products>(*device, precision, kind, tokens, widths, options.in_out);
  };
  const auto one = make(OpKind::linear), grouped = make(OpKind::expert_linear);
  const auto rows = static_cast<double>(tokens * kChosen);
  const auto [in, out] = widths;
  for (const Work work : {Work::forward, Work::backward, Work::dx, Work::dw}) {
    std::vector<Contestant> both = {{"one product", [&] { one->run(work); }},
                                    {"experts", [&] { grouped->run(work); }}};
    time_alternating(both, options.rounds, options.processor_time ? processor_seconds : wall_seconds);
    const double flops =
        2 * rows * static_cast<double>(in) * static_cast<double>(out) * (work == Work::backward ? 2 : 1);
    const bool judged = work <= Work::backward && tokens * kChosen / kExperts >= 256;
    const double ratio = time_ratio(both[0], both[1]);
    fmt::print("{} {:<8} {:5} rows an expert, {:4} to {:4}: {:6.0f} and {:6.0f} GFLOP/s, {:.2f}{}\n",
               dtype_name(precision), kWorkNames[static_cast<size_t>(work)], tokens * kChosen / kExperts, in,
               out, 1e-9 * flops / median(both[0].seconds), 1e-9 * flops / median(both[1].seconds), ratio,
               !judged         ? ""
               : ratio >= kBar ? "  ok"
                               : "  short");
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  Options options;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  bool small = false;
  BenchMain bench("Products of experts on the cpu device, against one product of as many rows.");
  bench.add("--tokens", options.tokens, "tokens, each with 2 of 8 experts");
  bench.add("--threads", options.threads, "threads");
  bench.add("--rounds", options.rounds, "timed rounds");
  bench.add_flag("--in-out", options.in_out, "weights are [in,out], not [out,in]");
  bench.add_flag("--processor-time", options.processor_time,
                 "time of the processor, for a busy machine; with --threads 1");
  bench.add_small(small);
  return bench.run(argc, argv, [&] {
    if (small) options.tokens = {64}, options.rounds = 1;
    fmt::print("one product's speed, that of the experts' products, and their ratio (bar {}), {} threads\n",
               kBar, options.threads);
    for (const DType precision : {DType::bf16, DType::f32})
      for (const int64_t tokens : options.tokens)
        for (const auto& widths : kWidths) compare(precision, tokens, widths, options);
  });
}
