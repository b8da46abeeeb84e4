#!/bin/bash
# Installs what is missing, builds, and runs the tests: a part of them under the address and thread
# sanitizers, then all in the build of preset check. Ends with what took longest. Fails if any test fails.
# usage: tools/test.sh [--quick]     --quick leaves the sanitizers out
set -euo pipefail
cd "$(dirname "$0")/.."

quick=false
case "${1:-}" in
  "") ;;
  --quick) quick=true ;;
  *) echo "usage: tools/test.sh [--quick]" >&2; exit 2 ;;
esac

# run_tests PRESET PARALLEL: runs all tests that the preset builds, PARALLEL of them at once. A sanitizer's
# preset builds those that tests/CMakeLists.txt lists for it.
run_tests() {
  LSAN_OPTIONS="suppressions=$PWD/tests/leaks.supp" TSAN_OPTIONS="suppressions=$PWD/tests/races.supp" \
    ctest --test-dir "build/$1" --parallel "$2" --output-on-failure --no-tests=error --timeout 900 \
    --output-junit "$PWD/build/$1/tests.xml"
}

# GCC's thread sanitizer cannot start where the kernel randomises addresses widely. Some containers forbid
# turning that off, and most of them do not need it.
run_tests_at_fixed_addresses() {
  if setarch --addr-no-randomize true 2> /dev/null; then
    export -f run_tests
    setarch --addr-no-randomize bash -euo pipefail -c 'run_tests "$@"' run_tests "$@"
  else
    run_tests "$@"
  fi
}

tools/setup.sh
tools/build.sh check
if PATH=$PATH:/usr/local/cuda/bin command -v nvcc > /dev/null &&
  ! grep --quiet '^SLUICE_CUDA_BUILT:INTERNAL=ON$' build/check/CMakeCache.txt; then
  echo "test: there is a CUDA Toolkit, but build/check was configured without the cuda device: remove that" \
    "folder and see what cmake says of CUDA." >&2
  exit 1
fi
if [[ $quick == false ]]; then
  tools/build.sh asan tests
  run_tests asan "$(nproc)"
  tools/build.sh tsan tests
  run_tests_at_fixed_addresses tsan "$(nproc)"
fi
run_tests check "$(($(nproc) + 1))"  # one more than cores, since tests of several ranks mostly wait
tools/test_costs.py
