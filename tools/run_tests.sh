#!/bin/bash
# Runs the tests of an unpacked bundle as ctest runs those of a build folder: in this directory, with the same
# arguments, 600 s each at most. Prints a line for each test, and the output of tests that fail.
# usage: run_tests.sh [--gpu] [NAME...]     --gpu: tests that need a GPU; NAME: these tests; default: all
# Exit codes: 0 no test failed, 1 a test failed, 2 usage.
set -uo pipefail
cd "$(dirname "$0")" || exit 1

help() { sed --quiet '4,5s/^# \?//p' run_tests.sh; }
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  help
  exit
fi
gpu=false
if [[ ${1:-} == --gpu ]]; then
  gpu=true
  shift
fi
if [[ ${1:-} == -* || ! -f tests.list ]]; then
  help >&2
  echo "It runs in an unpacked bundle, beside its tests.list." >&2
  exit 2
fi
wanted=" $* "
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0 skipped_within=0

# report NAME CODE SKIP_CODE SECONDS: prints the line of a test, from its exit code and GoogleTest's log.
report() {
  local name=$1 code=$2 skip_code=$3 seconds=$4
  local count reason
  count=$(sed --quiet 's/^\[  SKIPPED \] \([0-9]* tests\?\), .*/\1/p' "$log")  # 3 tests
  reason=$(sed --quiet '/: Skipped$/{n;p;q}' "$log")
  if [[ $code == "$skip_code" ]]; then
    skipped=$((skipped + 1))
    echo "skip  $name  ($(tail --lines=1 "$log"))"
  elif [[ $code == 0 && -n $count ]] && grep --quiet '^\[  PASSED  \] 0 tests' "$log"; then
    skipped=$((skipped + 1))
    echo "skip  $name  ($reason)"
  elif [[ $code == 0 ]]; then
    passed=$((passed + 1))
    if [[ -n $count ]]; then skipped_within=$((skipped_within + ${count%% *})); fi
    echo "pass  $name  $seconds s${count:+, $count skipped ($reason)}"
  else
    failed=$((failed + 1))
    tail --lines=100 "$log"
    echo "FAIL  $name  exit code $code after $seconds s"
  fi
}

while IFS=$'\t' read -r -a fields <&3; do
  name=${fields[0]} labels=${fields[1]} skip_code=${fields[2]} command=("${fields[@]:3}")
  if [[ $gpu == true && ",$labels," != *,gpu,* ]]; then continue; fi
  if [[ $wanted != "  " && $wanted != *" $name "* ]]; then continue; fi
  if ! command -v "${command[0]}" > /dev/null; then
    skipped=$((skipped + 1))
    echo "skip  $name  (${command[0]} is not installed)"
    continue
  fi
  SECONDS=0
  timeout 600 "${command[@]}" > "$log" 2>&1 < /dev/null
  report "$name" $? "$skip_code" "$SECONDS"
done 3< tests.list

if [[ $((passed + skipped + failed)) == 0 ]]; then
  echo "run_tests: there is no such test; tests.list has them all" >&2
  exit 2
fi
if [[ $skipped_within -gt 0 ]]; then echo "$skipped_within tests were skipped within those that passed"; fi
echo "$passed passed, $skipped skipped, $failed failed"
[[ $failed == 0 ]]
