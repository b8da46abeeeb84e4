// Matrix products of training, cut into tiles as the cpu device does, against the libraries' own threading
// on a large product in the same process.
//
// Prints, for every product of GPT-2 124M's linear layers and its loss (1024 rows, fp32 and bf16), GFLOP/s
// and the ratio to the library; then a step's mixture of them. Medians. matmul_bench [THREADS] [REPEATS]
#include <cblas.h>
#include <fmt/format.h>
#ifdef SLUICE_WITH_ONEDNN
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
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

// A pause comes first: for some milliseconds the threads of the runtime that ran before wait for work without
// giving up their cores.
double seconds_of(const std::function<void()>& body) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
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

// 2048^3 by a library with its own threads.
struct LibraryProduct {
  const char* name;
  std::function<double()> seconds;  // of one run
  double best_of_five() const {
    double best = seconds();
    for (int i = 0; i < 5; ++i) best = std::min(best, seconds());
    return best;
  }
};

LibraryProduct openblas_product(int threads) {
  struct Operands {
    Buffer a{DType::f32, kLarge*kLarge}, b{DType::f32, kLarge*kLarge}, c{DType::f32, kLarge*kLarge};
  };
  const auto o = std::make_shared<Operands>();
  return {"OpenBLAS", [o, threads] {
            openblas_set_num_threads(threads);
            const double seconds = seconds_of([&] {
              cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kLarge, kLarge, kLarge, 1,
                          o->a.bytes.data(), kLarge, o->b.bytes.data(), kLarge, 0, o->c.bytes.data(),
                          kLarge);
            });
            openblas_set_num_threads(1);
            return seconds;
          }};
}

#ifdef SLUICE_WITH_ONEDNN
LibraryProduct onednn_product(DType precision, int threads) {
  using Memory = dnnl::memory;
  struct Operands {
    explicit Operands(DType t)
        : a(t, kLarge * kLarge), b(t, kLarge * kLarge), c(DType::f32, kLarge * kLarge) {}
    Buffer a, b, c;
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};
    dnnl::matmul product;
    std::unordered_map<int, Memory> arguments;
  };
  const auto o = std::make_shared<Operands>(precision);
  const auto type = precision == DType::bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
  const Memory::dims dims{kLarge, kLarge};
  const Memory::desc in(dims, type, Memory::format_tag::ab);
  const Memory::desc out(dims, Memory::data_type::f32, Memory::format_tag::ab);
  omp_set_num_threads(threads);  // oneDNN bakes the thread count into the code that it makes
  o->product = dnnl::matmul({dnnl::matmul::desc(in, in, out), o->engine});
  o->arguments = {{DNNL_ARG_SRC, Memory(in, o->engine, o->a.data())},
                  {DNNL_ARG_WEIGHTS, Memory(in, o->engine, o->b.data())},
                  {DNNL_ARG_DST, Memory(out, o->engine, o->c.data())}};
  return {"oneDNN", [o, threads] {
            omp_set_num_threads(threads);
            const double seconds = seconds_of([&] {
              o->product.execute(o->stream, o->arguments);
              o->stream.wait();
            });
            omp_set_num_threads(1);
            return seconds;
          }};
}
#endif

// For fp32 whichever library is faster on this machine.
LibraryProduct library_product([[maybe_unused]] DType precision, int threads) {
#ifdef SLUICE_WITH_ONEDNN
  LibraryProduct onednn = onednn_product(precision, threads);
  if (precision == DType::bf16) return onednn;
  LibraryProduct openblas = openblas_product(threads);
  return onednn.best_of_five() < openblas.best_of_five() ? onednn : openblas;
#else
  return openblas_product(threads);
#endif
}

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
Measured measure(const GptShape& s, DType precision, const Named& named, const LibraryProduct& library,
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
    theirs.push_back(library.seconds());
    ours.push_back(seconds_of(run));
  }
  const Measured m{median(ours), median(theirs)};
  fmt::print("{} {:14} {:7} {:5} x {:5} x {:5}  {:5.0f} GFLOP/s  {:.2f} of the library\n",
             dtype_name(precision), s.name, named.pass, p.m, p.n, p.k, gflops(p.m, p.n, p.k, m.ours),
             gflops(p.m, p.n, p.k, m.ours) / gflops(kLarge, kLarge, kLarge, m.library));
  return m;
}

void print_products(DType precision, int threads, int repeats) {
  const LibraryProduct library = library_product(precision, threads);
  const double best = gflops(kLarge, kLarge, kLarge, library.best_of_five());
  fmt::print("{} {}^3 by {}'s own {} threads: {:.0f} GFLOP/s, best of five\n", dtype_name(precision), kLarge,
             library.name, threads, best);
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
