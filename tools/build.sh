#!/bin/bash
# Configures and builds one preset and prints how long it took.
# `local` is a release for this machine: with GPU code for its GPU, or without any. `check` is one for tests: with GPU
# code for few kinds of GPUs.
# usage: tools/build.sh release|check|local|debug|asan|tsan [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: tools/build.sh release|check|local|debug|asan|tsan [TARGET...]"
case "${1:-}" in
  -h | --help)
    echo "$usage"
    exit
    ;;
  release | check | local | debug | asan | tsan) ;;
  *)
    echo "$usage" >&2
    exit 2
    ;;
esac
preset=$1
shift

configure=()
if command -v ccache > /dev/null; then
  configure+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
fi
targets=()
if [[ $# -gt 0 ]]; then targets=(--target "$@"); fi

SECONDS=0
echo "build: $preset"
cmake --preset "$preset" "${configure[@]}" || {
  code=$?
  echo "build: could not configure; tools/setup.sh installs the packages that are missing" >&2
  exit $code
}
cmake --build --preset "$preset" "${targets[@]}"
echo "build: $preset took ${SECONDS} s"
