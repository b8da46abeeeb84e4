#!/bin/bash
# tools/gpu_check.sh goes through every row at tiny sizes on the cpu device, and through all but those of part
# peer on the emulated GPU. It measures nothing twice and tells what failed or is left. Every row has figures or
# a reason in the report, and a log in the archive; also where a kernel is wrong, a row takes too long, a
# library is missing or a process dies.
# usage: tests/tools/benchmarks/gpu_check_test.sh BUILD_FOLDER     in the repository root
set -euo pipefail

build=$(realpath "$1")
work=$(mktemp --directory --tmpdir="$build")  # the nvme tier needs a drive, not a tmpfs
trap 'rm -rf "$work"' EXIT
fail() {
  echo "gpu_check_test: $*" >&2
  exit 1
}
# check NAME ARGUMENT...: leaves its output in $work/log and its exit code in $code.
check() {
  local out=$1
  shift
  code=0
  tools/gpu_check.sh --rehearse --out "$work/$out" "$@" > "$work/log" 2>&1 || code=$?
}
# expect CODE: the exit code of the last check.
expect() { [[ $code == "$1" ]] || { cat "$work/log"; fail "exit code $code, not $1"; }; }
# has TEXT: the output of the last check contains TEXT.
has() { grep --quiet -- "$1" "$work/log" || { cat "$work/log"; fail "no '$1'"; }; }
# report NAME: the page of what was found there.
report() { tools/gpu_check.sh --report --out "$work/$1" "${bench[@]}" > "$work/page"; }
page_has() { grep --quiet --extended-regexp -- "$1" "$work/page" || { cat "$work/page"; fail "no '$1' in the page"; }; }
# logs NAME PART: a log for every row of the part is in the archive.
logs() {
  tar --list --gzip --file "$work/$1/results.tar.gz" > "$work/list"
  while read -r name _; do
    grep --quiet "/logs/$2-$name-1.log\$" "$work/list" || fail "$1: no log of $2 $name in the archive"
  done < <("$build/gpu_bench" rows "$2" --rehearse)
}

bench=(--bench "$build/gpu_bench")
for part in first tests small offload largest peer; do
  check cpu --part "$part" "${bench[@]}"
  expect 0
  has "^$part: [0-9]* s, 0 failed, 0 left\$"
  logs cpu "$part"
done
# Rows that were skipped are tried again, for what they lacked may be there by now.
check cpu --part small "${bench[@]}"
expect 0
[[ $(grep --count 'there already$' "$work/log") == 9 ]] || { cat "$work/log"; fail "rows were measured twice"; }
[[ $(grep --count ': skipped, it needs a GPU' "$work/log") == 2 ]] || { cat "$work/log"; fail "rows were not tried"; }
grep --quiet '^small gpt2-bf16: there already' <(sed '/^small link/,$d' "$work/log") ||
  fail "what was tried in vain does not come last"
report cpu
if grep 'not measured' "$work/page" | grep --invert-match --extended-regexp 'skipped: |faster peer'; then
  fail "these rows have neither figures nor a reason"
fi
[[ $(grep --count 'A rehearsal with tiny models' "$work/page") == 6 ]] ||
  fail "the report does not say of every part that it is a rehearsal"

# On the emulated GPU, with its tests in place of those that need a GPU. A row of tests runs one of them, and of
# many every 32nd: ctest runs all of them by themselves.
programs=$work/programs
mkdir "$programs"
ln -s "$build/gpu_bench_emulated" "$programs/gpu_bench"
ln -s "$build/sluice_emulated" "$programs/sluice"
cat > "$programs/cuda_test" << END
#!/bin/bash
export GTEST_TOTAL_SHARDS=32 GTEST_SHARD_INDEX=0
case "\$1" in
  gpu/cuda/op_conformance_test) exec "$build/emulation_test" emulation/op_conformance_test "\${@:2}" ;;
  gpu/cuda/training_test)
    unset GTEST_TOTAL_SHARDS GTEST_SHARD_INDEX
    exec "$build/emulated_cuda_test" "\$@" "--gtest_filter=*ThreeTiers*"
    ;;
  gpu/cuda/nccl_test) exec "$build/emulation_test" emulation/nccl_emulation_test "\${@:2}" ;;
  *) exec "$build/emulated_cuda_test" "\$@" ;;
esac
END
chmod +x "$programs/cuda_test"
bench=(--device cuda --bench "$programs/gpu_bench")
for part in small offload largest; do
  check emulated --part "$part" "${bench[@]}"
  expect 0
  has "^$part: [0-9]* s, 0 failed, 0 left\$"
  logs emulated "$part"
done
report emulated
page_has 'GB/s to the GPU'
page_has 'predicted .* by the description "[a-z]*, measured"'
page_has 'cuBLASLt: emulated; NCCL: emulated'
page_has 'products of gpt2-xl by other algorithms: [0-9]+ products, '
SLUICE_EMULATED_GPU=capability_major=7,capability_minor=5 check turing --part largest "${bench[@]}"  # no bf16
expect 0
report turing
page_has 'deepest that fits, fp16, [0-9]* layers \|.*billion'

# One kernel is wrong, NCCL is missing, and one row takes too long. All other rows are there, each with its log;
# speed is measured all the same.
slow=$work/slow
mkdir "$slow"
ln -s "$programs/cuda_test" "$slow/cuda_test"
ln -s "$programs/sluice" "$slow/sluice"
cat > "$slow/gpu_bench" << END
#!/bin/bash
if [[ \$1 == rows && \$2 == first ]]; then
  "$programs/gpu_bench" "\$@" | sed 's/^matmul matmul [0-9]*/matmul matmul 1/'
elif [[ \$1 == run && \$3 == matmul ]]; then
  sleep 30
else
  exec "$programs/gpu_bench" "\$@"
fi
END
chmod +x "$slow/gpu_bench"
export SLUICE_EMULATED_GPU=idle_kernels=rope.cu,nccl_version=0
check broken --first --device cuda --bench "$slow/gpu_bench"
expect 1
has '^first op-rope: failed, .*FAILED.*rope'
has '^first training: failed, '
has '^first matmul: failed, took more than 1 s$'
has '^first: [0-9]* s, [0-9]* failed, 0 left$'
for op in embedding layer_norm rms_norm linear gelu swiglu attention add cross_entropy; do
  has "^first op-$op: measured, [0-9]* tests* passed\$"
done
logs broken first
report broken
page_has '^\| the op rope \| failed: .* \| first-op-rope-1.log \|$'
page_has '^\| the op attention \| measured: '
page_has '^\| GPT-2 1.5B, micro-batches of [0-9]*, bf16, LOSSES NOT FINITE \| .* billion'
page_has 'NCCL: the emulated machine has none'
tar --extract --gzip --to-stdout --file "$work/broken/results.tar.gz" --wildcards '*first-op-rope-1.log' \
  > "$work/log"
has 'the oracle says'
export SLUICE_EMULATED_GPU=cublaslt=0
check without --part small "${bench[@]}"
expect 1
has '^small gpt2-bf16: failed, exit code 4: gpu_bench: cuBLASLt cannot be opened'
has '^small link: measured'
has '^small disk: measured'
logs without small
unset SLUICE_EMULATED_GPU

# compute-sanitizer watches our kernels only. Where it does not know the GPU, its rows are skipped.
mkdir "$work/bin"
cat > "$work/bin/compute-sanitizer" << END
#!/bin/bash
echo "\$*" >> "$work/calls"
echo "========= Error: Device not supported. Please refer to the \"Supported Devices\" section"
exit 1
END
chmod +x "$work/bin/compute-sanitizer"
PATH=$work/bin:$PATH check sanitizer --part tests "${bench[@]}"
expect 0
has '^tests op-attention: measured'
has '^tests shared_gpu: skipped, .*Ranks cannot meet'
has '^tests memcheck-products: skipped, compute-sanitizer says: Device not supported$'
[[ $(grep --count -- '--tool memcheck --kernel-regex kns=sluice' "$work/calls") == 4 ]] ||
  fail "memcheck did not run four times"
grep --quiet -- '--tool racecheck --kernel-regex kns=sluice .*attention' "$work/calls" ||
  fail "racecheck did not run over attention"
logs sanitizer tests

# Only a program that says so lacks tests. One that does not start has failed.
mkdir "$work/unloaded"
ln -s "$build/gpu_bench" "$work/unloaded/gpu_bench"
cat > "$work/unloaded/cuda_test" << END
#!/bin/bash
case "\$1" in
  gpu/cuda/nccl_test)
    echo "cuda_test: error while loading shared libraries: libnone.so"
    exit 127
    ;;
  gpu/cuda/training_test) kill -SEGV \$\$ ;;
  *) exit 2 ;;
esac
END
chmod +x "$work/unloaded/cuda_test"
check unloaded --part tests --bench "$work/unloaded/gpu_bench"
expect 1
has '^tests nccl: failed, exit code 127: cuda_test: error while loading shared libraries: libnone.so$'
has '^tests training: failed, exit code 139: '
has '^tests op-rope: skipped, this build does not have these tests$'
has '^tests: [0-9]* s, 2 failed, 0 left$'
cat > "$work/unloaded/cuda_test" << END
#!/bin/bash
echo "[  PASSED  ] 0 tests."
END
check unloaded --part tests --bench "$work/unloaded/gpu_bench"
expect 1
has '^tests op-rope: failed, no test ran$'
rm "$work/unloaded/cuda_test"
check unloaded --part tests --bench "$work/unloaded/gpu_bench"
expect 1
has '^tests nccl: failed, exit code 127: .*cuda_test'

# A row whose process is killed in a step is reported with the steps that were done, and tried again in the next
# call.
mkdir "$work/killed"
ln -s "$programs/cuda_test" "$work/killed/cuda_test"
ln -s "$programs/sluice" "$work/killed/sluice"
cat > "$work/killed/gpu_bench" << END
#!/bin/bash
if [[ \$1 != run || \$3 != deepest || -f $work/mended ]]; then exec "$programs/gpu_bench" "\$@"; fi
SLUICE_EMULATED_GPU=delay_microseconds_max=20000 "$programs/gpu_bench" "\$@" &
until grep --quiet tokens_per_second "$work"/failing/*/largest.json; do sleep 0.01; done
kill -9 \$! \$\$
END
chmod +x "$work/killed/gpu_bench"
bench=(--device cuda --bench "$work/killed/gpu_bench")
check failing --part largest "${bench[@]}"
expect 1
has '^largest deepest: failed, killed, perhaps by the kernel for lack of memory$'
report failing
page_has 'deepest that fits, bf16, [0-9]* layers \(failed: killed, .* after 1 steps\) \|.*billion'
touch "$work/mended"
check failing --part largest "${bench[@]}"
expect 0
has '^largest: [0-9]* s, 0 failed, 0 left$'
[[ -n $(find "$work/failing" -name 'largest-deepest-2.log') ]] || fail "the second attempt has no log of its own"

# A signal ends a row, also where the command is called from elsewhere; what was found is packed.
# stop SIGNAL NAME: sends it in the first row of part small, whose commands are in $work/NAME. The archive has
# the row's log, which is left in $work/log.
check_script=$PWD/tools/gpu_check.sh
stop() {
  local pid
  ln -s "$build/cuda_test" "$build/sluice" "$work/$2"
  chmod +x "$work/$2"/*
  cd "$work"
  env --default-signal=INT "$check_script" --rehearse --part small --out "$2-out" --bench "$2/gpu_bench" \
    > "$work/log" 2>&1 &
  pid=$!
  for ((i = 0; i < 600; ++i)); do
    if [[ -n $(find "$2-out" -name 'small-link-1.log' 2> /dev/null) ]]; then break; fi
    sleep 0.1
  done
  sleep 0.5
  kill "-$1" $pid
  if [[ $2 == writing ]]; then sleep 0.3 && kill "-$1" $pid; fi  # again, while the row is waited for
  code=0
  wait $pid || code=$?
  cd - > /dev/null
  expect $((128 + $(kill -l "$1")))
  has '^All results and logs: '
  tar --extract --gzip --to-stdout --file "$work/$2-out/results.tar.gz" --wildcards '*/logs/small-link-1.log' \
    > "$work/log" || fail "no log of the row that was stopped"
}
mkdir "$work/stopped"
cat > "$work/stopped/gpu_bench" << END
#!/bin/bash
if [[ \$1 == run ]]; then exec sleep 300; fi
exec "$build/gpu_bench" "\$@"
END
stop INT stopped

# A row that still writes is waited for. tar, which here exits as if a file had changed meanwhile, is believed.
mkdir "$work/writing"
cat > "$work/writing/gpu_bench" << END
#!/bin/bash
if [[ \$1 != run ]]; then exec "$build/gpu_bench" "\$@"; fi
trap 'sleep 1; echo "the last line"; exit' TERM
while true; do echo "a line"; done
END
cat > "$work/bin/tar" << END
#!/bin/bash
"$(command -v tar)" "\$@" || exit
[[ \$1 != --create ]]
END
chmod +x "$work/bin/tar"
PATH=$work/bin:$PATH stop TERM writing
has '^the last line$'

# Where no file of the nvme tier can lie, nothing is begun; where there is no GPU, doctor's report is packed.
if [[ -d /dev/shm && $(stat --file-system --format=%T /dev/shm) == tmpfs ]]; then
  check tmpfs --part small --disk /dev/shm "${bench[@]}"
  expect 4
  has 'tmpfs'
  has 'Name a directory on a drive with --disk'
fi
mkdir "$work/disk"
echo "of somebody else" > "$work/disk/tokens.bin"
SLUICE_EMULATED_GPU=count=0 check none --first --device cuda --disk "$work/disk" --bench "$programs/gpu_bench"
expect 4
has 'sees no GPU'
tar --list --gzip --file "$work/none/results.tar.gz" > "$work/list"
grep --quiet 'doctor.log' "$work/list" || fail "no report of doctor"

# What cannot be recorded or packed is told, and nothing half written stays.
mkdir "$work/full"
cat > "$work/full/gpu_bench" << END
#!/bin/bash
if [[ \$1 == record && \$3 == matmul ]]; then exit 6; fi
exec "$build/gpu_bench" "\$@"
END
printf '#!/bin/bash\nexit 2\n' > "$work/bin/tar"
chmod +x "$work/full/gpu_bench" "$work/bin/tar"
PATH=$work/bin:$PATH check full --part largest --bench "$work/full/gpu_bench"
expect 1
has 'gpu_check: largest matmul lacks something in the report'
has '^largest: [0-9]* s, 1 failed, 0 left$'
has 'the results cannot be packed into .*; they are in '
[[ -z $(find "$work/full" -name '*.next') ]] || fail "half an archive stays"

# Files in --disk that were there before stay as they are. HOME is not needed to look for libraries.
mkdir "$work/lacking"
cat > "$work/lacking/gpu_bench" << END
#!/bin/bash
if [[ \$1 == libraries ]]; then echo libnone.so.1; else exec "$build/gpu_bench" "\$@"; fi
END
chmod +x "$work/lacking/gpu_bench"
ln -s "$build/sluice" "$work/lacking"
(
  unset HOME
  check lacking --part largest --disk "$work/disk" --bench "$work/lacking/gpu_bench"
  expect 0
  has '^libnone.so.1: not found$'
)
[[ $(cat "$work/disk/tokens.bin") == "of somebody else" && $(find "$work/disk" | wc --lines) == 2 ]] ||
  fail "files in --disk changed: $(find "$work/disk")"

# Refusals. Earlier results that cannot be read end a call before it measures, and hide no other part's report.
bench=(--bench "$build/gpu_bench")
(
  flock 9
  check cpu --part largest "${bench[@]}" 9>&-
  expect 2
  has 'another call works in .*cpu'
) 9> "$work/cpu/lock"
mkdir "$work/disk/gpu_check.tmp"
touch "$work/disk/gpu_check.tmp/tokens.bin"
(
  flock 9
  check lacking --part largest --disk "$work/disk" "${bench[@]}" 9>&-
  expect 2
  has 'another call works in .*gpu_check.tmp'
) 9< "$work/disk/gpu_check.tmp"
[[ -e $work/disk/gpu_check.tmp/tokens.bin ]] || fail "the data of another call are gone"
code=0
tools/gpu_check.sh --first --device cpu --out "$work/cpu" "${bench[@]}" 2> "$work/log" || code=$?
expect 2
has 'device cpu is for --rehearse'
check cpu --part largest --archive /dev/null/results.tar.gz "${bench[@]}"
expect 2
has '/dev/null/results.tar.gz cannot be written'
check cpu --part largest --disk "$work/nowhere" "${bench[@]}"
expect 2
has '--disk .*nowhere is no directory'
check cpu --part largest --archive "$work" "${bench[@]}"
expect 2
has '--archive .* is a directory'
check cpu --part largest --bench "$(type -P true)"
expect 2
has 'does not do what gpu_bench does'
check disk/tokens.bin --part largest "${bench[@]}"
expect 2
has 'nothing can be written in .*tokens.bin'
code=0
report disk 2> "$work/log" || code=$?
expect 2
has 'there are no results in'
code=0
tools/gpu_check.sh --report --out "$work/cpu" "${bench[@]}" 2> "$work/log" > /dev/full || code=$?
expect 6
largest=$(find "$work/cpu" -name largest.json)
cp "$largest" "$work/whole.json"
for damage in 's/"tokens_per_second": [0-9.]*/"tokens_per_second": null/' 's/"part": "largest"/"part": 1/' \
  's/"machine": {/"machine": [], "other": {/' "\$d"; do
  sed "$damage" "$work/whole.json" > "$largest"
  if cmp --quiet "$largest" "$work/whole.json"; then fail "$damage changes nothing"; fi
  code=0
  report cpu 2> "$work/log" || code=$?
  expect 5
  has 'part largest cannot be reported'
  page_has '^Cannot be read: '
  page_has '^\| GPT-2 1.5B, micro-batches of 8, bf16 \|.* billion'
done
check cpu --part largest "${bench[@]}"
expect 5
has 'is not the file of the part largest'

tools/gpu_check.sh --help > "$work/log" || fail "exit code of --help"
has '^usage: tools/gpu_check.sh'
check nonsense --part nonsense "${bench[@]}"
expect 2
has '^usage: tools/gpu_check.sh'
