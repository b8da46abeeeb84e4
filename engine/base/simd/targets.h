// Says which vector targets are built. Include it before any Highway header.
//
// Targets below AVX2 have no fused multiply-add, so their results would differ. Processors without AVX2 take
// the scalar target, whose multiply-add (fma() of simd-inl.h) is std::fma. Highway's 128-bit emulation has no
// fused multiply-add either.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#define HWY_BROKEN_EMU128 1  // the fallback is HWY_SCALAR on every compiler
