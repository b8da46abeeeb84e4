#!/bin/bash
# Makes the wheel, the Debian package and an installed tree from a build folder, and tries each. The tag of the
# wheel promises what README.md says; pip installs it, the command trains without the environment, and pip
# removes all of it. The Debian package needs no MPI. An installed command finds its MPI module.
# usage: tests/tools/packages_test.sh BUILD_FOLDER     in the repository root
set -euo pipefail

build=$1
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
fail() {
  if [[ -f $work/log ]]; then cat "$work/log" >&2; fi
  echo "packages_test: $*" >&2
  exit 1
}
# logged COMMAND...: its output goes to the log, which a failure shows.
logged() { "$@" > "$work/log" 2>&1 < /dev/null; }
# has TEXT: the log has a line that matches.
has() { grep --quiet -- "$1" "$work/log"; }
# trains OUT COMMAND...: two steps of a tiny training, which needs nothing of the environment.
trains() {
  logged env --ignore-environment PATH=/usr/bin:/bin "${@:2}" train --model tests/fixtures/gpt2 --device cpu \
    --data tests/fixtures/tokens.bin --batch 2 --steps 2 --out "$work/$1" && has '^step 2/2  loss 5'
}

logged python3 -B tools/wheel.py "$build" "$work" || fail "no wheel"
version=$("$build/sluice" --version)
glibc=$(grep --only-matching 'glibc 2\.[0-9]*' README.md | sort --unique)
tag=py3-none-manylinux_${glibc//[a-z .]/}_x86_64
wheel=sluice-${version#sluice }-${tag/_2/_2_}.whl
[[ -f $work/$wheel ]] || fail "README.md promises $glibc, so the wheel should be $wheel, not $(ls "$work")"
venv=$work/venv
python3 -m venv "$venv" || fail "no venv: apt-get install --no-install-recommends python3-venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
logged "${pip[@]}" install --no-index "$work/$wheel" || fail "pip does not install the wheel"
[[ $(env --ignore-environment "$venv/bin/sluice" --version) == "$version" ]] || fail "it is not $version"
trains wheel "$venv/bin/sluice" || fail "the wheel's command does not train"
tree=$work/tree  # the wheel's files alone
mkdir --parents "$tree/bin" "$tree/lib"
cp "$venv/bin/sluice" "$tree/bin"
cp --recursive "$venv/lib/sluice" "$tree/lib"
logged tests/tools/portable_tree.sh "$tree" || fail "the wheel needs what README.md does not name"
logged tests/tools/portable_tree.sh "$tree" "glibc 2.33" && fail "symbols of glibc 2.34 are not seen"
has '^portable_tree: sluice needs GLIBC_2.34, but README.md promises GLIBC_2.33$' || fail "the symbol is not named"
rm "$tree/lib/sluice/libudev.so.1"
logged tests/tools/portable_tree.sh "$tree" && fail "a library that lacks is not seen"
has '^portable_tree: libhwloc.so.15 needs libudev.so.1, which is not there$' || fail "the library is not named"
logged "${pip[@]}" uninstall --yes sluice || fail "pip does not remove the wheel"
find "$venv" -name '*sluice*' ! -type d > "$work/log"
[[ ! -s $work/log ]] || fail "pip has left files"

prefix=$work/prefix
logged cmake --install "$build" --prefix "$prefix" || fail "cmake --install failed"
for file in share/man/man1/sluice.1 share/bash-completion/completions/sluice share/zsh/site-functions/_sluice \
  share/fish/vendor_completions.d/sluice.fish share/doc/sluice/LICENSE share/doc/sluice/docs/plan.md; do
  [[ -s $prefix/$file ]] || fail "cmake --install leaves out $file"
done
[[ $(ls "$prefix/bin" "$prefix/lib") == $(printf '%s\n' "$prefix/bin:" sluice "" "$prefix/lib:" sluice) ]] ||
  fail "cmake --install installs more than the command"
trains installed "$prefix/bin/sluice" || fail "the installed command does not train"
trains ranks mpirun --allow-run-as-root --oversubscribe --timeout 60 --mca btl_vader_single_copy_mechanism none \
  -np 2 "$prefix/bin/sluice" || fail "the installed command does not train under mpirun"

logged cpack --config "$build/CPackConfig.cmake" -B "$work" || fail "no Debian package"
deb=$(echo "$work"/sluice-training_"${version#sluice }"-1~*.deb)
logged dpkg-deb --info "$deb" || fail "$deb is no Debian package"
has '^ Depends: libc6 .*libopenblas0' || fail "it does not depend on its libraries"
has '^ Depends: .*libonig5' || fail "it does not depend on the library that it opens"
has '^ Recommends: .*libopenmpi' || fail "it does not recommend Open MPI"
if grep '^ Depends:' "$work/log" | grep --quiet mpi; then fail "it depends on MPI"; fi
logged dpkg-deb --contents "$deb"
for file in bin/sluice lib/sluice/libsluice_mpi.so share/man/man1/sluice.1 \
  share/doc/sluice-training/copyright; do
  has " ./usr/$file\$" || fail "the Debian package leaves out $file"
done
