#!/bin/bash
# Measures training on this machine's GPU. A call does one part, in under 8 minutes. The next call of the same
# part does the rows that failed or were left. Runs in an unpacked bundle, or in a repository with a build
# folder.
#
# usage: tools/gpu_check.sh --part tests|small|offload|largest|peer [OPTION...]    writes DIR/PART.json
#        tools/gpu_check.sh --report [--out DIR]                                  all parts as Markdown
#   --out DIR      for the JSON files (default: out/gpu_check)
#   --disk DIR     for a file of 8 GiB, token data and the nvme tier (default: the --out directory)
#   --rehearse     tiny models on the cpu device: only shows that every row works
#   --device NAME  cuda (default), or cpu in a rehearsal (default there)
#   --bench FILE   the gpu_bench command (default: that of the bundle, else of build/release)
# Part tests runs the tests that need a GPU, also those with two ranks on one GPU, and compute-sanitizer over
# the ops. Part peer needs python3 with PyTorch. Exit codes: 0 all rows are there, 1 a row failed, 2 usage, 4
# no GPU, 75 some rows are left for another call.
set -euo pipefail

seconds_most=470  # of a call
sanitizer_runs=4  # into which the tests of ops are divided, so that each is short
root=$(cd "$(dirname "$0")/.." && pwd)
bench=$root/bin/gpu_bench
if [[ ! -x $bench ]]; then bench=$root/build/release/gpu_bench; fi
part="" report=false rehearse=() device="" out=out/gpu_check disk=""

help() { sed --quiet '6,15s/^# \?//p' "$0"; }
usage() {
  help >&2
  exit 2
}
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help)
      help
      exit
      ;;
    --report) report=true ;;
    --rehearse) rehearse=(--rehearse) ;;
    --part | --out | --disk | --device | --bench)
      if [[ $# -lt 2 ]]; then usage; fi
      declare "${1#--}=$2"
      shift
      ;;
    *) usage ;;
  esac
  shift
done
if [[ ! -x $bench ]]; then
  echo "gpu_check: there is no $bench. Build it with tools/build.sh release, or name it with --bench." >&2
  exit 2
fi
if [[ $report == true ]]; then exec "$bench" report --dir "$out"; fi
case "$part" in tests | small | offload | largest | peer) ;; *) usage ;; esac

programs=$(dirname "$bench")
if [[ -z $device ]]; then device=$([[ ${#rehearse[@]} -gt 0 ]] && echo cpu || echo cuda); fi
disk=${disk:-$out}
mkdir -p "$out" "$disk"
commit=$(cat "$root/commit" 2> /dev/null || git -C "$root" describe --always --dirty 2> /dev/null ||
  echo unknown)
common=(--dir "$out" --disk "$disk" --device "$device" --commit "$commit" "${rehearse[@]}")
log=$(mktemp)
trap 'rm -f "$log" "$disk/tokens.bin"' EXIT
failed=0 left=0

# start NAME SECONDS: whether to do a row now that takes SECONDS at most.
start() {
  if "$bench" has "$part" "$1" "${common[@]}"; then
    echo "$part $1: there already"
  elif [[ $((SECONDS + $2)) -gt $seconds_most ]]; then
    echo "$part $1: left for the next call, as it may take $2 s"
    left=$((left + 1))
  else
    echo "$part $1: at most $2 s ..."
    row_began=$SECONDS
    return 0
  fi
  return 1
}

# record NAME STATE NOTE [WORD...]
record() {
  local name=$1 state=$2 note=$3
  shift 3
  if [[ $state == failed ]]; then failed=$((failed + 1)); fi
  "$bench" record "$part" "$name" --state "$state" --note "$note" "${common[@]}" "$@"
  echo "$part $name: $state${note:+, $note}"
}

# why CODE SECONDS: why a row failed, from the exit code and the log.
why() {
  if [[ $1 == 124 || $1 == 137 ]]; then
    echo "took more than $2 s"
  else
    echo "exit code $1: $(grep --max-count=1 '^gpu_bench: ' "$log" || tail --lines=1 "$log")"
  fi
}

# limited SECONDS COMMAND...
limited() {
  local seconds=$1
  shift
  timeout --kill-after=10 "$seconds" "$@" < /dev/null
}

run_row() {
  local name=$1 seconds=$2 code=0
  limited "$seconds" "$bench" run "$part" "$name" "${common[@]}" > "$log" 2>&1 || code=$?
  if [[ $code == 0 ]]; then
    echo "$part $name: $(tail --lines=1 "$log") ($((SECONDS - row_began)) s)"
  else
    record "$name" failed "$(why $code "$seconds")"
  fi
}

run_peer() {
  local name=$1 seconds=$2 code=0 values=$log.json
  shift 2
  if ! python3 -c 'import torch' 2> "$log"; then
    record "$name" skipped "there is no python3 with PyTorch"
    return
  fi
  limited "$seconds" python3 -B "$root/tools/benchmarks/torch_offload.py" "$@" > "$values" 2> "$log" ||
    code=$?
  if [[ $code == 0 ]]; then
    record "$name" measured "" --values "$values"
  elif [[ $code == 4 ]]; then
    record "$name" skipped "$(head --lines=1 "$values")"
  else
    record "$name" failed "$(why $code "$seconds")"
  fi
  rm -f "$values"
}

# run_test NAME SECONDS COMMAND...: GoogleTest says in the log what passed and what was skipped.
run_test() {
  local name=$1 seconds=$2 code=0 state=measured note
  shift 2
  (cd "$root" && limited "$seconds" "$@") > "$log" 2>&1 || code=$?
  note=$(sed --quiet 's/^\[  PASSED  \] \([0-9]* tests\?\).*/\1 passed/p' "$log")
  if [[ $code != 0 ]] && grep --quiet 'Device not supported' "$log"; then
    state=skipped  # as in some containers
    note="compute-sanitizer says: Device not supported"
  elif [[ $code != 0 ]]; then
    state=failed
    note="$(why $code "$seconds"), $(grep --max-count=1 'FAILED' "$log" || true)"
  elif grep --quiet '^\[  SKIPPED \]' "$log"; then
    state=skipped
    note="$note, others skipped: $(sed --quiet '/: Skipped$/{n;p;q}' "$log")"
  fi
  record "$name" "$state" "$note" --seconds $((SECONDS - row_began))
}

# run_sanitizer NAME TOOL VARIABLE=VALUE...: tests of ops, with our kernels watched. Kernels of libraries are
# not watched, since they would take most of the time.
run_sanitizer() {
  local name=$1 tool=$2 sanitizer
  shift 2
  if ! start "$name" 110; then return; fi
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)
  if [[ $device != cuda ]]; then
    record "$name" skipped "it needs a GPU"
  elif [[ -z $sanitizer ]]; then
    record "$name" skipped "compute-sanitizer is not installed"
  else
    run_test "$name" 110 env "$@" "$sanitizer" --tool "$tool" --kernel-regex kns=sluice --error-exitcode 97 \
      "$programs/cuda_test" gpu/cuda/op_conformance_test
  fi
}

run_tests() {
  local name i
  for name in op_conformance training shared_gpu nccl; do
    if ! "$programs/cuda_test" "gpu/cuda/${name}_test" --gtest_list_tests > /dev/null 2>&1; then continue; fi
    if start "$name" 200; then run_test "$name" 200 "$programs/cuda_test" "gpu/cuda/${name}_test"; fi
  done
  for ((i = 1; i <= sanitizer_runs; ++i)); do
    run_sanitizer "sanitizer-$i" memcheck "GTEST_TOTAL_SHARDS=$sanitizer_runs" "GTEST_SHARD_INDEX=$((i - 1))"
  done
  run_sanitizer racecheck racecheck \
    'GTEST_FILTER=*DevicesAgree*/attention*:*DevicesAgree*norm*:*DevicesAgree*/cross_entropy*'
}

if [[ $part == tests ]]; then
  run_tests
else
  while read -r name kind seconds words <&3; do
    if ! start "$name" "$seconds"; then continue; fi
    # shellcheck disable=SC2086  # words of one option each
    if [[ $kind == peer ]]; then run_peer "$name" "$seconds" $words; else run_row "$name" "$seconds"; fi
  done 3< <("$bench" rows "$part" "${rehearse[@]}")
fi

echo "$part: $SECONDS s, $failed failed, $left left"
if [[ $failed -gt 0 ]]; then exit 1; fi
if [[ $left -gt 0 ]]; then exit 75; fi
