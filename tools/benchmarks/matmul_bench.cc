// Matrix products of training, cut into tiles as the cpu device does, against the libraries' own threading
// on a large product in the same process.
//
// Prints, for every product of GPT-2 124M's linear layers and its loss (1024 rows, fp32 and bf16), GFLOP/s
// and the ratio to the library; then a step's mixture of them. Medians. matmul_bench [THREADS] [REPEATS]
#include <cblas.h>
#include <fmt/format.h>
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cpu_optim/optimizer.h"
#include "gpu/cpu_matmul.h"
#include "gpu/device.h"

namespace sluice {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_of(const std::function<void()>& body) {
  const double begin = seconds_now();
  body();
  return seconds_now() - begin;
}

double gflops(double m, double n, double k, double seconds) { return 2e-9 * m * n * k / seconds; }

struct Buffer {
  std::vector<float> bytes;  // any type: 4 bytes an element
  Buffer(DType type, int64_t elements) : bytes(static_cast<size_t>(elements)) {
    std::vector<float> values(bytes.size());
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i * 2654435761u >> 20 & 255) / 256 - 0.5f;
    round_to(type, values.data(), bytes.data(), values.size());
  }
  void* data() { return bytes.data(); }
};

constexpr int64_t kLarge = 2048;

// 2048^3 by a library with its own threads; for fp32 whichever of OpenBLAS and oneDNN is faster here.
class LibraryProduct {
 public:
  LibraryProduct(DType precision, int threads)
      : threads_(threads),
        a_(precision, kLarge * kLarge),
        b_(precision, kLarge * kLarge),
        c_(DType::f32, kLarge * kLarge) {
    using Memory = dnnl::memory;
    const auto type = precision == DType::bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
    const Memory::dims dims{kLarge, kLarge};
    const Memory::desc in(dims, type, Memory::format_tag::ab),
        out(dims, Memory::data_type::f32, Memory::format_tag::ab);
    omp_set_num_threads(threads);  // oneDNN bakes the thread count into the code that it makes
    product_ = dnnl::matmul({dnnl::matmul::desc(in, in, out), engine_});
    arguments_ = {{DNNL_ARG_SRC, Memory(in, engine_, a_.data())},
                  {DNNL_ARG_WEIGHTS, Memory(in, engine_, b_.data())},
                  {DNNL_ARG_DST, Memory(out, engine_, c_.data())}};
    if (precision != DType::f32) return;
    double seconds[2];
    for (const bool openblas : {false, true}) {
      openblas_ = openblas;
      seconds[openblas] = best_of_five();
    }
    openblas_ = seconds[1] < seconds[0];
  }

  const char* name() const { return openblas_ ? "OpenBLAS" : "oneDNN"; }
  double best_of_five() {
    double best = run();
    for (int i = 0; i < 5; ++i) best = std::min(best, run());
    return best;
  }

  // Seconds of one product.
  double run() {
    if (openblas_) {
      openblas_set_num_threads(threads_);
      const double seconds = seconds_of([&] {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kLarge, kLarge, kLarge, 1, a_.bytes.data(),
                    kLarge, b_.bytes.data(), kLarge, 0, c_.bytes.data(), kLarge);
      });
      openblas_set_num_threads(1);
      return seconds;
    }
    omp_set_num_threads(threads_);
    const double seconds = seconds_of([&] {
      product_.execute(stream_, arguments_);
      stream_.wait();
    });
    omp_set_num_threads(1);
    return seconds;
  }

 private:
  int threads_;
  Buffer a_, b_, c_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul product_;
  std::unordered_map<int, dnnl::memory> arguments_;
  bool openblas_ = false;
};

struct GptShape {
  const char* name;
  int64_t rows, in, out;
  int uses;   // of a step: layers, or chunks
  bool loss;  // weight [out, in] and fp32 logits
};

// GPT-2 124M: 12 layers, 768 columns, vocabulary 50257; 1024 rows a slice, the loss in chunks of 512.
constexpr GptShape kShapes[] = {{"qkv", 1024, 768, 2304, 12, false},
                                {"attention out", 1024, 768, 768, 12, false},
                                {"mlp in", 1024, 768, 3072, 12, false},
                                {"mlp out", 1024, 3072, 768, 12, false},
                                {"loss", 512, 768, 50257, 2, true}};

struct Named {
  const char* pass;
  cpu::Product product;
};

std::vector<Named> products_of(const GptShape& s, DType t) {
  const int64_t stride = s.loss ? (s.out + 15) / 16 * 16 + 16 : s.out,
                bits16 = s.loss && t != DType::f32 ? 2 : 1;
  if (s.loss)
    return {{"logits", {s.rows, s.out, s.in, false, true, s.in, s.in, stride, t, DType::f32}},
            {"dx", {s.rows, s.in, s.out, false, false, stride * bits16, s.in, s.in, t, t}},
            {"dW", {s.out, s.in, s.rows, true, false, stride * bits16, s.in, s.in, t, DType::f32, true}}};
  return {{"y", {s.rows, s.out, s.in, false, false, s.in, s.out, s.out, t, t}},
          {"dx", {s.rows, s.in, s.out, false, true, s.out, s.out, s.in, t, t}},
          {"dW", {s.in, s.out, s.rows, true, false, s.in, s.out, s.out, t, DType::f32, true}}};
}

struct Measured {
  double ours, library;  // seconds
};

// Alternates with the library, so that a machine's other work disturbs both alike.
Measured measure(const GptShape& s, DType precision, const Named& named, LibraryProduct& library,
                 int threads, int repeats) {
  const cpu::Product& p = named.product;
  cpu::Multiplier multiplier(threads, cpu::native_support());
  Workers workers(threads);
  Buffer a(precision, p.stride_a * (p.transpose_a ? p.k : p.m)),
      b(precision, p.stride_b * (p.transpose_b ? p.n : p.k));
  Buffer c(DType::f32, p.stride_c * p.m);
  std::vector<float> workspace(multiplier.prepare(p) / sizeof(float) + 16);
  auto* scratch =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
  const auto run = [&] { multiplier.run(p, a.data(), b.data(), nullptr, c.data(), scratch, workers); };
  run();
  std::vector<double> ours, theirs;
  for (int i = 0; i < repeats; ++i) {
    theirs.push_back(library.run());
    ours.push_back(seconds_of(run));
  }
  const Measured m{median(ours), median(theirs)};
  fmt::print("{} {:14} {:7} {:5} x {:5} x {:5}  {:5.0f} GFLOP/s  {:.2f} of the library\n",
             dtype_name(precision), s.name, named.pass, p.m, p.n, p.k, gflops(p.m, p.n, p.k, m.ours),
             gflops(p.m, p.n, p.k, m.ours) / gflops(kLarge, kLarge, kLarge, m.library));
  return m;
}

void print_products(DType precision, int threads, int repeats) {
  LibraryProduct library(precision, threads);
  const double best = gflops(kLarge, kLarge, kLarge, library.best_of_five());
  fmt::print("{} {}^3 by {}'s own {} threads: {:.0f} GFLOP/s, best of five\n", dtype_name(precision), kLarge,
             library.name(), threads, best);
  double flops = 0, ours = 0,
         theirs = 0;  // theirs: the same arithmetic at the library's speed on its large product
  for (const GptShape& s : kShapes)
    for (const Named& named : products_of(s, precision)) {
      const cpu::Product& p = named.product;
      const Measured m = measure(s, precision, named, library, threads, repeats);
      const double work =
          2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) * s.uses;
      flops += work;
      ours += m.ours * s.uses;
      theirs += m.library * work / (2.0 * kLarge * kLarge * kLarge);
    }
  fmt::print("{} all products of a step: {:.0f} GFLOP/s, {:.2f} of the library (bar 0.85)\n\n",
             dtype_name(precision), 1e-9 * flops / ours, theirs / ours);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const int threads =
      argc > 1 ? std::max(1, std::atoi(argv[1])) : static_cast<int>(std::thread::hardware_concurrency());
  const int repeats = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  sluice::print_products(sluice::DType::f32, threads, repeats);
  if (sluice::cpu_device_has_native_bf16()) sluice::print_products(sluice::DType::bf16, threads, repeats);
}
