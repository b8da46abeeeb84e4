#!/bin/bash
# Installs what is missing, builds, runs the tests: a part of them under the address and thread sanitizers,
# then all in the release build, whose result is the closing line. Fails when anything fails.
# usage: tools/test.sh [--quick]     --quick leaves the sanitizers out
set -euo pipefail
cd "$(dirname "$0")/.."

# Under the address sanitizer: whatever reads bytes from outside, and training itself on small programs.
asan_tests=(size_test config_file_test parser_fuzz_test options_test resume_options_test metrics_test config_test
  safetensors_test low_rank_test hf_weights_test token_data_test text_test manifest_test checkpoint_test
  checkpoint_directory_test offload_transfer_lane_test offload_transfer_faults_test plan_golden_test plan_bits_test)
# Under the thread sanitizer: whatever has threads. Kernels over the emulated GPU have fibers, which it does not
# know, so of its tests only those without kernels.
tsan_tests=(metrics_test executor_test offload_io_queue_test offload_transfer_lane_test
  offload_transfer_faults_test plan_bits_test training_resume_test gpu_emulation_test stream_executor_test
  communicator_test ranks_test profile_test)

quick=false
case "${1:-}" in
  "") ;;
  --quick) quick=true ;;
  *) echo "usage: tools/test.sh [--quick]" >&2; exit 2 ;;
esac

# run_tests PRESET [TEST...]: all tests when none is named.
run_tests() {
  local preset=$1
  shift
  local choice=()
  if [[ $# -gt 0 ]]; then choice=(--tests-regex "^($(IFS='|'; echo "$*"))\$"); fi
  LSAN_OPTIONS="suppressions=$PWD/tests/leaks.supp" \
    ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --timeout 600 "${choice[@]}"
}

# GCC's thread sanitizer cannot start where the kernel randomises addresses widely; some containers forbid to
# turn that off, and most of those do not need it.
run_tests_at_fixed_addresses() {
  if setarch --addr-no-randomize true 2> /dev/null; then
    export -f run_tests
    setarch --addr-no-randomize bash -euo pipefail -c 'run_tests "$@"' run_tests "$@"
  else
    run_tests "$@"
  fi
}

tools/setup.sh
tools/build.sh release
if PATH=$PATH:/usr/local/cuda/bin command -v nvcc > /dev/null &&
  ! grep --quiet '^SLUICE_CUDA_BUILT:INTERNAL=ON$' build/release/CMakeCache.txt; then
  echo "test: there is a CUDA Toolkit, but build/release was configured without the cuda device: remove that" \
    "folder and see what cmake says of CUDA." >&2
  exit 1
fi
if [[ $quick == false ]]; then
  tools/build.sh asan "${asan_tests[@]}"
  run_tests asan "${asan_tests[@]}"
  tools/build.sh tsan "${tsan_tests[@]}"
  run_tests_at_fixed_addresses tsan "${tsan_tests[@]}"
fi
run_tests release
