#!/bin/bash
# Tests and measures training on this machine's GPU: docs/gpu_hour.md says what to type and what comes back.
# A call does one part, in under 8 minutes. The next call of the same part does the rows that failed, were
# skipped or were left. Runs in an unpacked bundle, or in a repository with a build folder.
#
# usage: tools/gpu_check.sh --first [OPTION...]         the questions that matter most, each by itself
#        tools/gpu_check.sh --part PART [OPTION...]     tests, small, offload, largest or peer
#        tools/gpu_check.sh --report [--out DIR]        all that was found, as Markdown
#   --out DIR       for results: a folder for each GPU and build, with a log for every row
#                   (default: out/gpu_check)
#   --archive FILE  all of them in one file, also after a failure (default: DIR/results.tar.gz)
#   --disk DIR      on a drive, for a file of 2 GiB, token data and the nvme tier, all in DIR/gpu_check.tmp
#                   (default: the --out directory)
#   --rehearse      tiny models on the cpu device: only shows that every row works
#   --device NAME   cuda (default), or cpu in a rehearsal (default there)
#   --bench FILE    the gpu_bench command (default: that of the bundle, else of build/release)
# Part tests runs the tests that need a GPU, also those with two ranks on one GPU, and compute-sanitizer over
# the ops. Part peer needs python3 with PyTorch. Exit codes: 0 no row failed or is left, 1 a row failed (others
# may be left), 2 usage, 4 no GPU or no drive, 5 a file of earlier results cannot be read, 75 rows are left for
# another call.
set -euo pipefail
set -f  # words of rows have stars

seconds_most=470  # of a call
root=$(cd "$(dirname "$0")/.." && pwd)
bench=$root/bin/gpu_bench
if [[ ! -x $bench ]]; then bench=$root/build/release/gpu_bench; fi
part="" report=false rehearse=() device="" out=out/gpu_check archive="" disk=""

help() { sed --quiet '6,20s/^# \?//p' "$0"; }
usage() {
  help >&2
  exit 2
}
# refuse CODE SENTENCE
refuse() {
  echo "gpu_check: $2" >&2
  exit "$1"
}
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help)
      help
      exit
      ;;
    --first) part=first ;;
    --report) report=true ;;
    --rehearse) rehearse=(--rehearse) ;;
    --part | --out | --archive | --disk | --device | --bench)
      if [[ $# -lt 2 ]]; then usage; fi
      declare "${1#--}=$2"
      shift
      ;;
    *) usage ;;
  esac
  shift
done
if [[ ! -x $bench || -d $bench ]]; then
  refuse 2 "there is no $bench. Build it with tools/build.sh release, or name it with --bench."
fi
if [[ $report == true ]]; then
  code=0 reported=false
  while read -r results; do
    "$bench" report --dir "$results" || code=$?
    reported=true
  done < <(find "$out" -mindepth 2 -maxdepth 2 -name '*.json' -printf '%h\n' 2> /dev/null | sort --unique)
  if [[ $reported == false ]]; then refuse 2 "there are no results in $out."; fi
  exit $code
fi
case "$part" in first | tests | small | offload | largest | peer) ;; *) usage ;; esac
case "$device" in "" | cuda | cpu) ;; *) usage ;; esac

bench=$(realpath --no-symlinks "$bench")
programs=$(dirname "$bench")
if [[ ${#rehearse[@]} -gt 0 ]]; then
  seconds_most=3600
elif [[ $device == cpu ]]; then
  refuse 2 "--device cpu is for --rehearse: the rows are too large for a processor."
fi
if [[ -z $device ]]; then device=$([[ ${#rehearse[@]} -gt 0 ]] && echo cpu || echo cuda); fi
if [[ -n $disk && ! -d $disk ]]; then refuse 2 "--disk $disk is no directory."; fi
disk=${disk:-$out}
archive=${archive:-$out/results.tar.gz}
if [[ -d $archive ]]; then refuse 2 "--archive $archive is a directory."; fi
# can_write FILE: makes its folder, too.
can_write() { mkdir -p "$(dirname "$1")" && : > "$1"; } 2> /dev/null
if ! can_write "$out/lock"; then refuse 2 "nothing can be written in $out."; fi
if ! can_write "$archive.next"; then refuse 2 "$archive cannot be written."; fi
rm "$archive.next"
# lock FD FOLDER: rows inherit the lock, so one that outlives a killed call keeps it.
lock() {
  local code=0
  flock --nonblock "$1" || code=$?
  if [[ $code == 1 ]]; then
    refuse 2 "another call works in $2, or a row of one that was killed. Wait for it."
  elif [[ $code != 0 ]]; then
    echo "gpu_check: locks do not work in $2: start no second call there." >&2
  fi
}
exec 9> "$out/lock"
lock 9 "$out"
out=$(realpath "$out") disk=$(realpath "$disk") archive=$(realpath "$archive")  # tests run in another folder
scratch=$disk/gpu_check.tmp scratch_is_ours=false
commit=$(cat "$root/commit" 2> /dev/null || git -C "$root" describe --always --dirty 2> /dev/null ||
  echo unknown)
common=(--disk "$scratch" --device "$device" --commit "$commit" "${rehearse[@]}")

# Libraries that only PyTorch or another package has brought along.
find_libraries() {
  local name folder folders
  mapfile -t folders < <(python3 -c 'import sys; print(*filter(None, sys.path), sep="\n")' 2> /dev/null)
  while read -r name; do
    folder=$(timeout 20 find "${folders[@]}" /usr /opt ${HOME:+"$HOME"} -name "$name" -not -path '*/stubs/*' \
      -printf '%h\n' -quit 2> /dev/null || true)
    if [[ -n $folder ]]; then
      export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
      echo "$name: found in $folder"
    else
      echo "$name: not found"
    fi
  done < <("$bench" libraries "${common[@]}")
}

row=""  # the process of the row under way
# What is packed: folders of results and the logs of a call that found no GPU. tar's exit code 1: a file changed
# while it was read.
pack() {
  local codes="0 0"
  trap '' INT TERM HUP  # a second Ctrl-C while it waits
  if [[ -n $row ]]; then
    echo "gpu_check: ending the row under way"
    kill "$row" 2> /dev/null || true
    wait "$row" || true  # its last lines belong in the archive
  fi
  if [[ $scratch_is_ours == true ]]; then
    rm -f "$scratch/tokens.bin"
    rmdir "$scratch" || true
  fi
  (cd "$out" && find . -mindepth 1 -maxdepth 2 '(' -path ./doctor.log -o -path ./no-place.log -o \
    -path './*/logs' -type d ')' -printf '%P\n') | sed 's|/logs$||' |
    tar --create --gzip --directory "$out" --file "$archive.next" --files-from - 2> /dev/null ||
    codes=${PIPESTATUS[*]:1}
  if [[ $codes == "0 "[01] ]] && mv "$archive.next" "$archive"; then
    echo "All results and logs: $archive"
  else
    rm -f "$archive.next"
    echo "gpu_check: the results cannot be packed into $archive; they are in $out." >&2
  fi
}
trap pack EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# briefly COMMAND...: of what is done beside the rows, so that a driver that hangs does not hold a call.
briefly() { timeout --foreground --kill-after=10 60 "$@" < /dev/null; }

find_libraries
rm -f "$out/doctor.log"
code=0
place=$(briefly "$bench" place "$part" "${common[@]}" --disk "$disk" 2> "$out/no-place.log") || code=$?
if [[ $code == 4 ]]; then
  cat "$out/no-place.log" >&2
  if ! grep --quiet -- --disk "$out/no-place.log"; then
    echo "Without a GPU, --rehearse shows that every row works." >&2
  fi
  briefly "$programs/sluice" doctor --device auto --nvme-dir "$disk" > "$out/doctor.log" 2>&1 || true
  exit 4
elif [[ -z $place ]]; then
  cat "$out/no-place.log" >&2
  refuse 2 "$bench does not do what gpu_bench does (exit code $code)."
fi
rm "$out/no-place.log"
results=$out/$place
if ! mkdir -p "$results/logs" "$scratch"; then refuse 2 "nothing can be written in $out or $disk."; fi
exec 8< "$scratch"
lock 8 "$scratch"
scratch_is_ours=true
common+=(--dir "$results")
rows=$(briefly "$bench" rows "$part" "${common[@]}")  # ends the call where earlier results cannot be read
log="" failed=0 left=0

# start NAME SECONDS: whether to do a row now that takes SECONDS at most. If so, it gets a log of its own.
start() {
  local i=1
  if "$bench" has "$part" "$1" "${common[@]}"; then
    echo "$part $1: there already"
  elif [[ $((SECONDS + $2)) -gt $seconds_most ]]; then
    echo "$part $1: left for the next call, as it may take $2 s"
    left=$((left + 1))
  else
    while [[ -e $results/logs/$part-$1-$i.log ]]; do i=$((i + 1)); done
    log=$results/logs/$part-$1-$i.log
    if ! can_write "$log"; then log=/dev/null; fi
    echo "$part $1: at most $2 s ..."
    row_began=$SECONDS
    return 0
  fi
  return 1
}

# record NAME STATE NOTE [WORD...]: a failure to record counts as one of the row, and the rows that follow are
# done.
record() {
  local name=$1 state=$2 note=$3
  shift 3
  if [[ ! -s $log ]]; then write_log "$state, $note"; fi
  if ! add "$name" --state "$state" --note "$note" "$@"; then
    failed=$((failed + 1))
    state="$state, not recorded"
  elif [[ $state == failed ]]; then
    failed=$((failed + 1))
  fi
  echo "$part $name: $state${note:+, $note}"
}
# add NAME WORD...: to what is known of the row
add() {
  if ! briefly "$bench" record "$part" "$@" --log "$(basename "$log")" --seconds $((SECONDS - row_began)) \
    "${common[@]}"; then
    echo "gpu_check: $part $1 lacks something in the report" >&2
    return 1
  fi
}
# write_log TEXT: begins the row's log; on a full disk it stays empty.
write_log() { echo "$1" 2> /dev/null > "$log" || true; }

# why CODE SECONDS: why a row failed, from the exit code and the log.
why() {
  if [[ ($1 == 124 || $1 == 137) && $((SECONDS - row_began)) -ge $2 ]]; then
    echo "took more than $2 s"
  elif [[ $1 == 137 ]]; then
    echo "killed, perhaps by the kernel for lack of memory"
  else
    echo "exit code $1: $(grep --max-count=1 '^gpu_bench: ' "$log" || tail --lines=1 "$log")"
  fi
}

# limited SECONDS COMMAND...: into the row's log. In the background, since a signal has to end the wait.
limited() {
  local seconds=$1 code=0
  shift
  write_log "\$ $*"
  timeout --kill-after=10 "$seconds" "$@" < /dev/null >> "$log" 2>&1 &
  row=$!
  wait "$row" || code=$?
  row=""
  return $code
}

run_row() {
  local name=$1 seconds=$2 code=0
  limited "$seconds" "$bench" run "$part" "$name" --seconds "$seconds" "${common[@]}" || code=$?
  if [[ $code != 0 ]]; then
    record "$name" failed "$(why $code "$seconds")"
  elif add "$name"; then
    echo "$part $name: $(tail --lines=1 "$log") ($((SECONDS - row_began)) s)"
  else
    failed=$((failed + 1))
  fi
}

run_doctor() {
  local name=$1 seconds=$2 code=0
  limited "$seconds" "$programs/sluice" doctor --device "$device" --nvme-dir "$scratch" || code=$?
  if [[ $code == 0 ]]; then
    record "$name" measured "$(grep --count '^  warn' "$log" || true) warnings"
  else
    record "$name" failed "exit code $code, $(grep --max-count=1 '^  FAIL' "$log" || tail --lines=1 "$log")"
  fi
}

run_peer() {
  local name=$1 seconds=$2 code=0 values=$results/peer.values obstacle
  shift 2
  if ! obstacle=$(briefly python3 -c 'import torch' 2>&1); then
    write_log "$obstacle"
    record "$name" skipped "there is no python3 with PyTorch"
    return
  fi
  limited "$seconds" python3 -B "$root/tools/benchmarks/torch_offload.py" "$@" || code=$?
  if [[ $code == 0 ]]; then
    tail --lines=1 "$log" > "$values" || true
    record "$name" measured "" --values "$values"
  elif [[ $code == 4 ]]; then
    record "$name" skipped "$(tail --lines=1 "$log")"
  else
    record "$name" failed "$(why $code "$seconds")"
  fi
  rm -f "$values"
}

# run_test NAME SECONDS COMMAND...: googletest says in the log what passed and what was skipped.
run_test() {
  local name=$1 seconds=$2 code=0 state=measured note
  shift 2
  cd "$root"
  limited "$seconds" "$@" || code=$?
  cd - > /dev/null
  note=$(sed --quiet 's/^\[  PASSED  \] \([0-9]* tests\?\).*/\1 passed/p' "$log")
  if [[ $code != 0 ]] && grep --quiet 'Device not supported' "$log"; then
    state=skipped  # as in some containers
    note="compute-sanitizer says: Device not supported"
  elif [[ $code != 0 ]]; then
    state=failed
    note="$(why $code "$seconds"), $(grep --max-count=1 'FAILED' "$log" || true)"
  elif grep --quiet '^\[  SKIPPED \]' "$log"; then
    if [[ $note == "0 tests"* ]]; then state=skipped; fi
    note="$note, others skipped: $(sed --quiet '/: Skipped$/{n;p;q}' "$log")"
  elif [[ $note == "" || $note == "0 tests"* ]]; then
    state=failed
    note="no test ran"
  fi
  record "$name" "$state" "$note"
}

# run_tests NAME SECONDS SOURCE FILTER: skipped if cuda_test says by its exit code 2 (tests/support/main.cc) that
# it has no tests of the source.
run_tests() {
  local name=$1 seconds=$2 source=$3 filter=$4 program=$programs/cuda_test code=0
  limited "$seconds" "$program" "$source" --gtest_list_tests || code=$?
  case $code in
    0) run_test "$name" "$seconds" "$program" "$source" "--gtest_filter=$filter" ;;
    2) record "$name" skipped "this build does not have these tests" ;;
    *) record "$name" failed "$(why $code "$seconds")" ;;
  esac
}

run_sanitizer() {
  local name=$1 seconds=$2 tool=$3 source=$4 filter=$5 sanitizer
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)
  if [[ $device != cuda ]]; then
    record "$name" skipped "it needs a GPU"
  elif [[ -z $sanitizer ]]; then
    record "$name" skipped "compute-sanitizer is not installed"
  else
    run_test "$name" "$seconds" "$sanitizer" --tool "$tool" --kernel-regex kns=sluice --error-exitcode 97 \
      "$programs/cuda_test" "$source" "--gtest_filter=$filter"
  fi
}

while read -r name kind seconds words <&3; do
  if ! start "$name" "$seconds"; then continue; fi
  # shellcheck disable=SC2086  # words of one option each
  case "$kind" in
    doctor) run_doctor "$name" "$seconds" ;;
    test) run_tests "$name" "$seconds" $words ;;
    sanitizer) run_sanitizer "$name" "$seconds" $words ;;
    peer) run_peer "$name" "$seconds" $words ;;
    *) run_row "$name" "$seconds" ;;
  esac
done 3<<< "$rows"

echo "$part: $SECONDS s, $failed failed, $left left"
if [[ $failed -gt 0 ]]; then exit 1; fi
if [[ $left -gt 0 ]]; then exit 75; fi
