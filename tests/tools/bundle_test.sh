#!/bin/bash
# Makes the bundle of a build folder (tools/bundle.sh fails if it is too large) and unpacks it elsewhere. The
# bundle has every library that its commands need or open, except those of glibc, GCC, CUDA and NCCL, and no other. It
# needs no newer systems than README.md says. Its run_tests.sh tells what passes, is skipped and fails.
# usage: tests/tools/bundle_test.sh BUILD_FOLDER     in the repository root
set -euo pipefail

of_others='^(linux-vdso|ld-linux.*|lib(c|m|mvec|dl|pthread|rt|resolv|util|anl|stdc\+\+|gcc_s)'
of_others+='|lib(cuda|cudart|cublas|cublasLt|nccl|nvidia-ml|nvrtc|nvJitLink|nvToolsExt))\.so'
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "bundle_test: $*" >&2
  exit 1
}

tools/bundle.sh "$1" "$work/moved.tar.xz"
tar --extract --file "$work/moved.tar.xz" --directory "$work"
bundle=$work/moved
wanted=$work/wanted
for program in "$bundle"/bin/*; do
  # name => path (address), or name => not found
  ldd "$program" | awk '$2 == "=>" {print $1, $3}' > "$work/ldd"
  while read -r name path; do
    if [[ $name =~ $of_others ]]; then continue; fi
    [[ $path == "$bundle"/* && -f $path ]] || fail "$(basename "$program") takes $name from $path"
    echo "$name" >> "$wanted"
  done < "$work/ldd"
done
echo libonig.so.5 >> "$wanted"  # opened at run time
diff <(sort --unique "$wanted") <(ls --ignore=licenses "$bundle/lib/sluice") || fail "the libraries wanted (<) are not those there (>)"
tests/tools/portable_tree.sh "$bundle" || fail "it needs what README.md does not name"
ls "$bundle/bin" | grep --quiet '^sluice$' || fail "the command is not there"
if ls "$bundle/bin" | grep emulat; then fail "a program of the emulation is there"; fi
[[ $(wc --lines < "$bundle/tests.list") -gt 50 ]] || fail "tests.list is too short"

cd "$work"
env --ignore-environment "$bundle/bin/sluice" --help > help || fail "sluice --help failed"
grep --quiet train help || fail "sluice --help does not speak of train"
moved/run_tests.sh --help > help || fail "run_tests.sh --help failed"
grep --quiet '^usage: run_tests.sh' help || fail "run_tests.sh --help is silent"
moved/run_tests.sh tools/command/config_file_test tools/command/cli_limits_test reduce_bench_small \
  models/text/tokenizer/oracle_test > log || { cat log; fail "tests failed"; }
grep --quiet '^4 passed, 0 skipped, 0 failed$' log || { cat log; fail "not four tests passed"; }
printf '#!/bin/bash\nexit 3\n' > "$bundle/bin/models_test"
printf '#!/bin/bash\necho no drive of ours\nexit 4\n' > "$bundle/bin/nvme_bench"
if moved/run_tests.sh models/data/token_data_test nvme_bench_small > log; then fail "run_tests.sh hides a failure"; fi
grep --quiet '^FAIL  models/data/token_data_test  exit code 3' log || { cat log; fail "the failure is not named"; }
grep --quiet '^skip  nvme_bench_small  (no drive of ours)$' log || { cat log; fail "no reason of a skip"; }
if moved/run_tests.sh no_such_test 2> log; then fail "run_tests.sh takes unknown names"; fi
