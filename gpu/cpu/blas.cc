#include "gpu/cpu/blas.h"

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "gpu/cpu/pack_bf16.h"

#ifdef SLUICE_WITH_ONEDNN
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace sluice::cpu {
namespace {

blasint to_blasint(int64_t n) {
  CHECK(n >= 0 && n <= std::numeric_limits<blasint>::max(), "a dimension exceeds what OpenBLAS can express");
  return static_cast<blasint>(n);
}

void multiply_openblas(const TileShape& s, float alpha, const float* a, const float* b, float* c) {
  cblas_sgemm(CblasRowMajor, s.transpose_a ? CblasTrans : CblasNoTrans,
              s.transpose_b ? CblasTrans : CblasNoTrans, to_blasint(s.m), to_blasint(s.n), to_blasint(s.k),
              alpha, a, to_blasint(s.stride_a), b, to_blasint(s.stride_b), s.accumulate ? 1.0f : 0.0f, c,
              to_blasint(s.stride_c));
}

}  // namespace

void set_up_openblas() {
  constexpr int kOpenMp = 2;  // openblas_get_parallel: 0 sequential, 1 its own threads, 2 OpenMP
  if (openblas_get_parallel() == kOpenMp)
    throw Error(ExitCode::environment,
                "The OpenBLAS that was loaded is its OpenMP variant, whose threads cannot be confined.",
                "Install the pthread variant: apt-get install libopenblas0-pthread.");
  openblas_set_num_threads(1);
}

#ifdef SLUICE_WITH_ONEDNN

Support native_support() {
  // Instruction sets are bit masks: a larger set has the bits of the sets that it includes (dnnl_types.h).
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [isa](dnnl::cpu_isa wanted) {
    return (isa & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
  };
  return {has(dnnl::cpu_isa::avx512_core) ? Library::onednn : Library::openblas,
          has(dnnl::cpu_isa::avx512_core_bf16)};
}

void multiply_f32(Library library, const TileShape& s, float alpha, const float* a, const float* b,
                  float* c) {
  if (library == Library::openblas) return multiply_openblas(s, alpha, a, b, c);
  omp_set_num_threads(1);
  const dnnl_status_t status =
      dnnl_sgemm(s.transpose_a ? 'T' : 'N', s.transpose_b ? 'T' : 'N', s.m, s.n, s.k, alpha, a, s.stride_a, b,
                 s.stride_b, s.accumulate ? 1.0f : 0.0f, c, s.stride_c);
  CHECK(status == dnnl_success, "oneDNN's sgemm returned " + std::to_string(status));
}

namespace {

// `accumulate`: the product is added to what C has. The caller gives the scratch memory.
dnnl::primitive_attr attributes_of(bool accumulate) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (!accumulate) return attributes;
  dnnl::post_ops sum;
  sum.append_sum(1.0f);
  attributes.set_post_ops(sum);
  return attributes;
}

dnnl::matmul::primitive_desc product_of(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                        const dnnl::memory::desc& b, const dnnl::memory::desc& c,
                                        bool accumulate) {
#if DNNL_VERSION_MAJOR < 3
  return {dnnl::matmul::desc(a, b, c), attributes_of(accumulate), engine};
#else
  return {engine, a, b, c, attributes_of(accumulate)};
#endif
}

[[noreturn]] void refuse(const char* product, int64_t m, int64_t n, int64_t k, const dnnl::error& error,
                         const char* remedy) {
  throw Error(ExitCode::environment,
              std::string("oneDNN cannot make ") + product + " of " + std::to_string(m) + " x " +
                  std::to_string(n) + " x " + std::to_string(k) + ": " + error.message + ".",
              remedy);
}

}  // namespace

struct Bf16Tile::Impl {
  struct Thread {
    dnnl::stream stream;
    dnnl::memory a, b, c, scratch;
  };
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::matmul product;
  uint64_t scratch_bytes = 0;
  std::vector<Thread> threads;
};

Bf16Tile::Bf16Tile(const TileShape& s, int threads) : impl_(std::make_unique<Impl>()) {
  using Memory = dnnl::memory;
  omp_set_num_threads(1);  // oneDNN bakes the thread count into the code that it makes
  try {
    const auto strides = [](bool transposed, int64_t stride) {
      return transposed ? Memory::dims{1, stride} : Memory::dims{stride, 1};
    };
    const Memory::desc a({s.m, s.k}, Memory::data_type::bf16, strides(s.transpose_a, s.stride_a));
    const Memory::desc b({s.k, s.n}, Memory::data_type::bf16, strides(s.transpose_b, s.stride_b));
    const Memory::desc c({s.m, s.n}, Memory::data_type::f32, Memory::dims{s.stride_c, 1});
    const dnnl::matmul::primitive_desc description = product_of(impl_->engine, a, b, c, s.accumulate);
    impl_->product = dnnl::matmul(description);
    impl_->scratch_bytes = description.scratchpad_desc().get_size();
    for (int t = 0; t < threads; ++t)
      impl_->threads.push_back({dnnl::stream(impl_->engine), Memory(a, impl_->engine, nullptr),
                                Memory(b, impl_->engine, nullptr), Memory(c, impl_->engine, nullptr),
                                Memory(description.scratchpad_desc(), impl_->engine, nullptr)});
  } catch (const dnnl::error& error) {
    refuse("a bf16 product", s.m, s.n, s.k, error,
           "Install oneDNN 2.6 or newer (apt-get install libdnnl-dev), or use --precision fp32.");
  }
}

uint64_t Bf16Tile::scratch_bytes() const { return impl_->scratch_bytes; }

void Bf16Tile::run(int thread, const void* a, const void* b, float* c, std::byte* scratch) const {
  omp_set_num_threads(1);
  Impl::Thread& own = impl_->threads[static_cast<size_t>(thread)];
  own.a.set_data_handle(const_cast<void*>(a));
  own.b.set_data_handle(const_cast<void*>(b));
  own.c.set_data_handle(c);
  own.scratch.set_data_handle(scratch);
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, own.a.get()},
                                       {DNNL_ARG_WEIGHTS, own.b.get()},
                                       {DNNL_ARG_DST, own.c.get()},
                                       {DNNL_ARG_SCRATCHPAD, own.scratch.get()}};
  const dnnl_status_t status = dnnl_primitive_execute(impl_->product.get(), own.stream.get(), 4, arguments);
  CHECK(status == dnnl_success, "oneDNN's product returned " + std::to_string(status));
}

struct PackedTile::Impl {
  struct Thread {
    dnnl::stream stream;
    dnnl::memory a, b, packed, c, scratch, pack_scratch;
  };
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::matmul product;
  dnnl::reorder reorder;
  PackedShape shape;
  bool pairs = false;  // packed as pack_bf16 does it
  uint64_t packed_bytes = 0, scratch_bytes = 0;
  std::vector<Thread> threads;
};

PackedTile::PackedTile(const PackedShape& s, int threads) : impl_(std::make_unique<Impl>()) {
  using Memory = dnnl::memory;
  omp_set_num_threads(1);
  try {
    const dnnl::engine& engine = impl_->engine;
    const auto type = s.bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
    const Memory::desc a({s.m, s.k}, type, Memory::dims{s.stride_a, 1});
    const Memory::desc any({s.k, s.n}, type, Memory::format_tag::any);
    const Memory::desc b({s.k, s.n}, type,
                         s.transpose_b ? Memory::dims{1, s.stride_b} : Memory::dims{s.stride_b, 1});
    const Memory::desc c({s.m, s.n}, Memory::data_type::f32, Memory::dims{s.n, 1});
    const dnnl::matmul::primitive_desc product = product_of(engine, a, any, c, s.accumulate);
    const Memory::desc packed = product.weights_desc();
    const dnnl::reorder::primitive_desc reorder(engine, b, engine, packed, attributes_of(false));
    impl_->product = dnnl::matmul(product);
    impl_->reorder = dnnl::reorder(reorder);
    impl_->shape = s;
    impl_->pairs = s.bf16 && s.k % 32 == 0 && s.n % 64 == 0 &&
                   packed == Memory::desc({s.k, s.n}, type, Memory::format_tag::BA16a64b2a);
    impl_->packed_bytes = packed.get_size();
    impl_->scratch_bytes =
        std::max(product.scratchpad_desc().get_size(), reorder.scratchpad_desc().get_size());
    for (int t = 0; t < threads; ++t)
      impl_->threads.push_back({dnnl::stream(engine), Memory(a, engine, nullptr), Memory(b, engine, nullptr),
                                Memory(packed, engine, nullptr), Memory(c, engine, nullptr),
                                Memory(product.scratchpad_desc(), engine, nullptr),
                                Memory(reorder.scratchpad_desc(), engine, nullptr)});
  } catch (const dnnl::error& error) {
    refuse("a product of tiles", s.m, s.n, s.k, error,
           "Install oneDNN 2.6 or newer: apt-get install libdnnl-dev.");
  }
}

uint64_t PackedTile::packed_bytes() const { return impl_->packed_bytes; }
uint64_t PackedTile::scratch_bytes() const { return impl_->scratch_bytes; }

void PackedTile::pack(int thread, const void* b, std::byte* packed, std::byte* scratch) const {
  const PackedShape& s = impl_->shape;
  if (impl_->pairs) return pack_bf16(b, s.transpose_b, s.stride_b, s.k, s.n, packed);
  omp_set_num_threads(1);
  Impl::Thread& own = impl_->threads[static_cast<size_t>(thread)];
  own.b.set_data_handle(const_cast<void*>(b));
  own.packed.set_data_handle(packed);
  own.pack_scratch.set_data_handle(scratch);
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, own.b.get()},
                                       {DNNL_ARG_TO, own.packed.get()},
                                       {DNNL_ARG_SCRATCHPAD, own.pack_scratch.get()}};
  const dnnl_status_t status = dnnl_primitive_execute(impl_->reorder.get(), own.stream.get(), 3, arguments);
  CHECK(status == dnnl_success, "oneDNN's reorder returned " + std::to_string(status));
}

void PackedTile::run(int thread, const void* a, const std::byte* packed, float* c, std::byte* scratch) const {
  omp_set_num_threads(1);
  Impl::Thread& own = impl_->threads[static_cast<size_t>(thread)];
  own.a.set_data_handle(const_cast<void*>(a));
  own.packed.set_data_handle(const_cast<std::byte*>(packed));
  own.c.set_data_handle(c);
  own.scratch.set_data_handle(scratch);
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, own.a.get()},
                                       {DNNL_ARG_WEIGHTS, own.packed.get()},
                                       {DNNL_ARG_DST, own.c.get()},
                                       {DNNL_ARG_SCRATCHPAD, own.scratch.get()}};
  const dnnl_status_t status = dnnl_primitive_execute(impl_->product.get(), own.stream.get(), 4, arguments);
  CHECK(status == dnnl_success, "oneDNN's product of a tile returned " + std::to_string(status));
}

#else

Support native_support() { return {}; }

void multiply_f32(Library library, const TileShape& s, float alpha, const float* a, const float* b,
                  float* c) {
  CHECK(library == Library::openblas, "this build has no oneDNN");
  multiply_openblas(s, alpha, a, b, c);
}

struct Bf16Tile::Impl {};

Bf16Tile::Bf16Tile(const TileShape&, int) { CHECK(false, "this build has no oneDNN"); }
uint64_t Bf16Tile::scratch_bytes() const { return 0; }
void Bf16Tile::run(int, const void*, const void*, float*, std::byte*) const {}

struct PackedTile::Impl {};

PackedTile::PackedTile(const PackedShape&, int) { CHECK(false, "this build has no oneDNN"); }
uint64_t PackedTile::packed_bytes() const { return 0; }
uint64_t PackedTile::scratch_bytes() const { return 0; }
void PackedTile::pack(int, const void*, std::byte*, std::byte*) const {}
void PackedTile::run(int, const void*, const std::byte*, float*, std::byte*) const {}

#endif

Bf16Tile::~Bf16Tile() = default;
PackedTile::~PackedTile() = default;

}  // namespace sluice::cpu
