// Matrix products of training, cut into tiles as the cpu device does it, against a large product by a library
// with its own threads, in the same process.
//
//   matmul_bench [THREADS] [REPEATS] [ROWS] [--peak]
//
// For every product of GPT-2 124M's linear layers and its loss (fp32 and bf16), prints GFLOP/s and the ratio
// to the library; then the same for all products of a step. Figures are medians. --peak: only the library's
// large product, the best of five, as one JSON object in GFLOP/s.
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
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/base/simd/convert.h"
#include "gpu/cpu/matmul.h"
#include "gpu/device.h"
#include "tools/bench/median.h"

namespace sluice {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Pauses first: for some milliseconds the threads of the other library's runtime wait for work without giving
// up their cores.
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

struct Options {
  int threads, repeats;
  int64_t rows;                               // of a micro-batch
  int64_t large() const { return 2 * rows; }  // side of the library's product
};

// The large product by a library with its own threads.
struct LibraryProduct {
  const char* name;
  std::function<double()> seconds;  // of one run
  double best_of_five() const {
    double best = seconds();
    for (int i = 0; i < 4; ++i) best = std::min(best, seconds());
    return best;
  }
};

struct Operands {
  Operands(DType precision, int64_t n) : a(precision, n * n), b(precision, n * n), c(DType::f32, n * n) {}
  Buffer a, b, c;
};

LibraryProduct openblas_product(const Options& options) {
  const auto n = static_cast<blasint>(options.large());
  const auto o = std::make_shared<Operands>(DType::f32, n);
  return {"OpenBLAS", [o, n, threads = options.threads] {
            openblas_set_num_threads(threads);
            const double seconds = seconds_of([&] {
              cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, o->a.bytes.data(), n,
                          o->b.bytes.data(), n, 0, o->c.bytes.data(), n);
            });
            openblas_set_num_threads(1);
            return seconds;
          }};
}

#ifdef SLUICE_WITH_ONEDNN
LibraryProduct onednn_product(DType precision, const Options& options) {
  using Memory = dnnl::memory;
  struct Prepared {
    Operands operands;
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};
    dnnl::matmul product;
    std::unordered_map<int, Memory> arguments;
  };
  const int64_t n = options.large();
  const auto p = std::make_shared<Prepared>(Prepared{Operands(precision, n)});
  const auto type = precision == DType::bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
  const Memory::desc in({n, n}, type, Memory::format_tag::ab);
  const Memory::desc out({n, n}, Memory::data_type::f32, Memory::format_tag::ab);
  omp_set_num_threads(options.threads);  // oneDNN fixes the thread count in the code that it generates
#if DNNL_VERSION_MAJOR < 3
  p->product = dnnl::matmul({dnnl::matmul::desc(in, in, out), p->engine});
#else
  p->product = dnnl::matmul({p->engine, in, in, out});
#endif
  p->arguments = {{DNNL_ARG_SRC, Memory(in, p->engine, p->operands.a.data())},
                  {DNNL_ARG_WEIGHTS, Memory(in, p->engine, p->operands.b.data())},
                  {DNNL_ARG_DST, Memory(out, p->engine, p->operands.c.data())}};
  return {"oneDNN", [p, threads = options.threads] {
            omp_set_num_threads(threads);
            const double seconds = seconds_of([&] {
              p->product.execute(p->stream, p->arguments);
              p->stream.wait();
            });
            omp_set_num_threads(1);
            return seconds;
          }};
}
#endif

// The library to compare with. For fp32 it is the one that is faster on this machine.
LibraryProduct library_product([[maybe_unused]] DType precision, const Options& options) {
#ifdef SLUICE_WITH_ONEDNN
  const LibraryProduct onednn = onednn_product(precision, options);
  if (precision == DType::bf16) return onednn;
  const LibraryProduct openblas = openblas_product(options);
  return onednn.best_of_five() < openblas.best_of_five() ? onednn : openblas;
#else
  return openblas_product(options);
#endif
}

struct GptShape {
  const char* name;
  int64_t rows, in, out;
  int uses;   // in a step: number of layers, or of chunks
  bool loss;  // weight [out, in] and fp32 logits
};

// GPT-2 124M: 12 layers, 768 columns, vocabulary 50257; the loss in chunks of half a micro-batch.
std::vector<GptShape> shapes_of(int64_t rows) {
  return {{"qkv", rows, 768, 2304, 12, false},
          {"attention out", rows, 768, 768, 12, false},
          {"mlp in", rows, 768, 3072, 12, false},
          {"mlp out", rows, 3072, 768, 12, false},
          {"loss", rows / 2, 768, 50257, 2, true}};
}

struct Named {
  const char* pass;
  Product product;
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

// Alternates with the library, so that other work of the machine disturbs both alike.
Measured measure(const GptShape& s, DType precision, const Named& named, const LibraryProduct& library,
                 const Options& options) {
  const Product& p = named.product;
  cpu::Multiplier multiplier(options.threads, cpu::native_support());
  Workers workers(options.threads);
  Buffer a(precision, p.stride_a * (p.transpose_a ? p.k : p.m));
  Buffer b(precision, p.stride_b * (p.transpose_b ? p.n : p.k));
  Buffer c(DType::f32, p.stride_c * p.m);
  std::vector<float> workspace(multiplier.prepare({&p, 1}) / sizeof(float) + 16);
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64;
  auto* scratch = reinterpret_cast<std::byte*>(aligned);
  const auto run = [&] { multiplier.run({p, a.data(), b.data(), c.data(), c.data()}, scratch, workers); };
  run();
  std::vector<double> ours, theirs;
  for (int i = 0; i < options.repeats; ++i) {
    theirs.push_back(library.seconds());
    ours.push_back(seconds_of(run));
  }
  const Measured m{median(ours), median(theirs)};
  const double speed = gflops(p.m, p.n, p.k, m.ours);
  const auto n = static_cast<double>(options.large());
  fmt::print("{} {:14} {:7} {:5} x {:5} x {:5}  {:5.0f} GFLOP/s  {:.2f} of the library\n",
             dtype_name(precision), s.name, named.pass, p.m, p.n, p.k, speed,
             speed / gflops(n, n, n, m.library));
  return m;
}

void print_products(DType precision, const Options& options) {
  const LibraryProduct library = library_product(precision, options);
  const auto n = static_cast<double>(options.large());
  fmt::print("{} {}^3 by {}'s own {} threads: {:.0f} GFLOP/s, best of five\n", dtype_name(precision),
             options.large(), library.name, options.threads, gflops(n, n, n, library.best_of_five()));
  double flops = 0, ours = 0, theirs = 0;  // theirs: the same flops at the speed of the large product
  for (const GptShape& s : shapes_of(options.rows))
    for (const Named& named : products_of(s, precision)) {
      const Product& p = named.product;
      const Measured m = measure(s, precision, named, library, options);
      const double work =
          s.uses * 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
      flops += work;
      ours += m.ours * s.uses;
      theirs += m.library * work / (2 * n * n * n);
    }
  fmt::print("{} all products of a step: {:.0f} GFLOP/s, {:.2f} of the library (bar 0.85)\n\n",
             dtype_name(precision), 1e-9 * flops / ours, theirs / ours);
}

// The best of five large products, or null where the processor lacks the precision.
void print_peaks(const Options& options) {
  const auto n = static_cast<double>(options.large());
  const auto peak = [&](DType precision) {
    return fmt::format("{:.1f}", gflops(n, n, n, library_product(precision, options).best_of_five()));
  };
  fmt::print("{{\"size\": {}, \"threads\": {}, \"fp32\": {}, \"bf16\": {}}}\n", options.large(),
             options.threads, peak(DType::f32), cpu_device_has_native_bf16() ? peak(DType::bf16) : "null");
}

int argument(int argc, char** argv, int i, int otherwise) {
  return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const bool peak = argc > 1 && std::string_view(argv[argc - 1]) == "--peak";
  if (peak) --argc;
  const Options options{argument(argc, argv, 1, threads), argument(argc, argv, 2, 5),
                        std::max(2, argument(argc, argv, 3, 1024))};
  if (peak) {
    print_peaks(options);
    return 0;
  }
  print_products(DType::f32, options);
  if (cpu_device_has_native_bf16()) print_products(DType::bf16, options);
}
