#!/bin/bash
# Builds the fuzzers of tests/fuzz with clang 14 (apt-get install clang-14) and runs one after the other.
# What they learn stays in build/fuzz/corpus, so a later call goes on from there. A finding ends the call: its
# input is a file build/fuzz/TARGET-*; once the bug is mended, it belongs into tests/fuzz/corpus/TARGET.
# usage: tools/fuzz.sh [SECONDS [TARGET...]]     SECONDS for each fuzzer: 60 if not given
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
if [[ ! $seconds =~ ^[0-9]+$ ]]; then
  echo "usage: tools/fuzz.sh [SECONDS [TARGET...]]" >&2
  exit 2
fi
targets=("${@:2}")
if [[ ${#targets[@]} -eq 0 ]]; then
  targets=(tests/fuzz/fuzz_*.cc)
  targets=("${targets[@]#tests/fuzz/fuzz_}")
  targets=("${targets[@]%.cc}")
fi
launcher=()
if command -v ccache > /dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
cmake -S . -B build/fuzz -G Ninja -DSLUICE_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++-14 "${launcher[@]}"
cmake --build build/fuzz --target write_seeds "${targets[@]/#/fuzz_}"
build/fuzz/write_seeds build/fuzz/seeds

for target in "${targets[@]}"; do
  mkdir -p "build/fuzz/corpus/$target"
  "build/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
    -artifact_prefix="build/fuzz/$target-" -print_final_stats=1 \
    "build/fuzz/corpus/$target" "build/fuzz/seeds/$target"
done
