// Include before any Highway header: which vector targets are built.
//
// Targets below AVX2 have no fused multiply-add, so their results would differ; such processors take the
// scalar target, whose multiply-add (fma() of simd-inl.h) is std::fma. Highway's 128-bit emulation has none
// either.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#define HWY_BROKEN_EMU128 1  // the fallback is HWY_SCALAR on every compiler
