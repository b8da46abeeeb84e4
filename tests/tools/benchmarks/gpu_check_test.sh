#!/bin/bash
# tools/gpu_check.sh goes through every row at tiny sizes on the cpu device, and through all but those of part
# peer on the emulated GPU. It measures nothing twice and tells what failed or is left. Every row of its
# report has figures or a reason.
# usage: tests/tools/benchmarks/gpu_check_test.sh BUILD_FOLDER     in the repository root
set -euo pipefail

build=$1
work=$(mktemp --directory --tmpdir="$build")  # the nvme tier needs a drive, not a tmpfs
trap 'rm -rf "$work"' EXIT
fail() {
  echo "gpu_check_test: $*" >&2
  exit 1
}
check() { tools/gpu_check.sh --rehearse --out "$work/$out" "$@" > "$work/log" 2>&1; }
# has TEXT: the output of the last check contains TEXT.
has() { grep --quiet -- "$1" "$work/log" || { cat "$work/log"; fail "no '$1'"; }; }

out=cpu
bench=(--bench "$build/gpu_bench")
for part in tests small offload largest peer; do
  check --part "$part" "${bench[@]}" || { cat "$work/log"; fail "part $part"; }
  has "^$part: [0-9]* s, 0 failed, 0 left\$"
  if [[ $part == tests ]]; then has "^tests shared_gpu: at most"; fi
done
check --part small "${bench[@]}" || fail "a second call failed"
[[ $(grep --count 'there already$' "$work/log") == 9 ]] || { cat "$work/log"; fail "rows were measured twice"; }
tools/gpu_check.sh --report --out "$work/$out" "${bench[@]}" > "$work/page"
if grep 'not measured' "$work/page" | grep --invert-match --extended-regexp 'skipped: |faster peer'; then
  fail "these rows have neither figures nor a reason"
fi
[[ $(grep --count 'A rehearsal with tiny models' "$work/page") == 5 ]] ||
  fail "the report does not say of every part that it is a rehearsal"

out=emulated
bench=(--device cuda --bench "$build/gpu_bench_emulated")
for part in small offload largest; do
  check --part "$part" "${bench[@]}" || { cat "$work/log"; fail "part $part on the emulated GPU"; }
  has "^$part: [0-9]* s, 0 failed, 0 left\$"
done
tools/gpu_check.sh --report --out "$work/$out" "${bench[@]}" > "$work/page"
grep --quiet 'GB/s to the GPU' "$work/page" || fail "the link was not measured"
grep --quiet 'predicted .* by the description "[a-z]*, measured"' "$work/page" || fail "profile did not predict with bench"

# compute-sanitizer watches our kernels only. Where it does not know the GPU, its rows are skipped.
out=sanitizer
mkdir "$work/bin"
cat > "$work/bin/compute-sanitizer" << END
#!/bin/bash
echo "\$GTEST_FILTER \$*" >> "$work/calls"
echo "========= Error: Device not supported. Please refer to the \"Supported Devices\" section"
exit 1
END
chmod +x "$work/bin/compute-sanitizer"
PATH=$work/bin:$PATH check --part tests "${bench[@]}" || { cat "$work/log"; fail "part tests with a sanitizer"; }
has '^tests sanitizer-4: skipped, compute-sanitizer says: Device not supported$'
has '^tests racecheck: skipped, compute-sanitizer says: Device not supported$'
[[ $(grep --count -- '--tool memcheck --kernel-regex kns=sluice' "$work/calls") == 4 ]] ||
  fail "memcheck did not run four times"
grep --quiet -- 'attention.*--tool racecheck --kernel-regex kns=sluice' "$work/calls" ||
  fail "racecheck did not run over attention"

# A row whose command fails is reported and tried again in the next call.
out=failing
cat > "$work/gpu_bench" << END
#!/bin/bash
if [[ \$1 == run && ! -f $work/mended ]]; then echo "gpu_bench: no luck" >&2; exit 6; fi
exec $(realpath "$build")/gpu_bench "\$@"
END
chmod +x "$work/gpu_bench"
code=0
check --part largest --bench "$work/gpu_bench" || code=$?
[[ $code == 1 ]] || fail "exit code $code after a failure"
has '^largest deepest: failed, exit code 6: gpu_bench: no luck$'
touch "$work/mended"
check --part largest --bench "$work/gpu_bench" || { cat "$work/log"; fail "what failed was not tried again"; }
has '^largest: [0-9]* s, 0 failed, 0 left$'

tools/gpu_check.sh --help > "$work/log" || fail "exit code of --help"
has '^usage: tools/gpu_check.sh'
code=0
check --part nonsense "${bench[@]}" || code=$?
[[ $code == 2 ]] || fail "exit code $code for an unknown part"
has '^usage: tools/gpu_check.sh'
