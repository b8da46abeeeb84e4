// Matrix libraries, called single-threaded on one tile at a time: OpenBLAS and oneDNN.
//
// All matrices are row-major: C [m,n] = or += op(A) [m,k] op(B) [k,n], with fp32 accumulation; a transposed
// operand is stored [k,m] or [n,k], and a stride is the distance of stored rows in elements. A call uses the
// calling thread alone (Debian's oneDNN is the OpenMP build, and OpenMP's thread count is a property of the
// calling thread). Callers: the cpu device's kernels, on any worker thread; two calls may run at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluice::cpu {

enum class Library : uint8_t { openblas, onednn };

// What the processor has and this build can use. oneDNN multiplies fp32 if the processor has AVX-512, since
// OpenBLAS 0.3.21 runs its AVX2 code on processors that it does not know (measured: half the speed on AMD's
// family 26).
struct Support {
  Library f32 = Library::openblas;
  bool bf16 = false;  // bf16 matrices multiplied natively (AVX512-BF16 or AMX)
};
Support native_support();

// Sets OpenBLAS to one thread, for the whole process. Throws Error (environment) for its OpenMP variant,
// whose threads would come on top of Sluice's.
void set_up_openblas();

struct TileShape {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  int64_t stride_a, stride_b, stride_c;
  bool accumulate;
  auto operator<=>(const TileShape&) const = default;
};

// fp32: C = alpha op(A) op(B), or C += alpha op(A) op(B) if the shape accumulates.
void multiply_f32(Library library, const TileShape& shape, float alpha, const float* a, const float* b,
                  float* c);

// bf16 A and B, fp32 C, through oneDNN. The library's code for one shape is made at construction (set-up); a
// run does not allocate in Sluice's code.
class Bf16Tile {
 public:
  // Throws Error (environment) if the library refuses the shape. Runs may use thread numbers [0, threads).
  Bf16Tile(const TileShape& shape, int threads);
  ~Bf16Tile();
  Bf16Tile(const Bf16Tile&) = delete;
  Bf16Tile& operator=(const Bf16Tile&) = delete;

  uint64_t scratch_bytes() const;  // of one run, aligned to 64
  void run(int thread, const void* a, const void* b, float* c, std::byte* scratch) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A tile of few rows times a panel of B. Many such tiles are multiplied with one panel, so pack() brings the
// panel into the library's own layout once. fp32 or bf16 through oneDNN; C is fp32 and dense.
struct PackedShape {
  int64_t m, n, k;
  bool transpose_b;
  int64_t stride_a, stride_b;
  bool bf16;  // A and B are bf16, not fp32
  bool accumulate;
  auto operator<=>(const PackedShape&) const = default;
};
class PackedTile {
 public:
  // Errors and thread numbers are as for Bf16Tile.
  PackedTile(const PackedShape& shape, int threads);
  ~PackedTile();
  PackedTile(const PackedTile&) = delete;
  PackedTile& operator=(const PackedTile&) = delete;

  uint64_t packed_bytes() const;   // of a panel, aligned to 64
  uint64_t scratch_bytes() const;  // of pack() or run(), aligned to 64
  void pack(int thread, const void* b, std::byte* packed, std::byte* scratch) const;
  void run(int thread, const void* a, const std::byte* packed, float* c, std::byte* scratch) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::cpu
