#!/bin/bash
# Holds a tree of bin/ and lib/sluice/ against what README.md says of the systems on which it runs. Every file
# needs symbols of glibc and libstdc++ that are not newer than those, and shared libraries that lie in lib/sluice
# or are named below. Prints what it needs at most; names each offence and fails.
# usage: tests/tools/portable_tree.sh TREE [glibc 2.X]     in the repository root; instead of README's glibc
set -euo pipefail

tree=$1
# figure PATTERN: the only text of README.md that matches.
figure() {
  grep --only-matching "$1" README.md | sort --unique
}
glibc=${2:-$(figure 'glibc 2\.[0-9]*')}
libstdcxx=$(figure 'GLIBCXX_[0-9.]*[0-9]')
if [[ ! $glibc =~ ^glibc\ [0-9.]+$ || ! $libstdcxx =~ ^GLIBCXX_[0-9.]+$ ]]; then
  echo "portable_tree: README.md does not name one glibc and one libstdc++, but: $glibc $libstdcxx" >&2
  exit 1
fi
# GCC 11 has these with GLIBCXX_3.4.29: CXXABI in libstdc++, GCC in libgcc_s.
most=("GLIBC_${glibc#glibc }" "$libstdcxx" CXXABI_1.3.13 GCC_7.0.0)

of_system='^(ld-linux.*|lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s))\.so'
failed=0 needs=""
offence() {
  echo "portable_tree: $*" >&2
  failed=1
}
for file in "$tree"/bin/* "$tree"/lib/sluice/*.so*; do
  name=$(basename "$file")
  versions=$(readelf --version-info --wide "$file" | sed --quiet '/^Version needs/,$s/.* Name: \([^ ]*\) .*/\1/p')
  for limit in "${most[@]}"; do
    kind=${limit%%_*}
    newest=$(grep "^${kind}_[0-9]" <<< "$versions" | sort --version-sort | tail --lines=1) || true
    needs+="$newest"$'\n'
    [[ $(printf '%s\n' "$newest" "$limit" | sort --version-sort | tail --lines=1) == "$limit" ]] ||
      offence "$name needs $newest, but README.md promises $limit"
  done
  while read -r library; do
    if [[ $library =~ $of_system || -f $tree/lib/sluice/$library ]]; then continue; fi
    if [[ $name == libsluice_mpi.so && $library == libmpi.so.40 ]]; then continue; fi
    offence "$name needs $library, which is not there"
  done < <(readelf --dynamic --wide "$file" | sed --quiet 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
done
for limit in "${most[@]}"; do
  newest=$(grep "^${limit%%_*}_" <<< "$needs" | sort --version-sort | tail --lines=1) || true
  [[ -n $newest ]] || offence "no file needs a version of ${limit%%_*}: readelf was misread"
  echo "$newest of $limit"
done
exit $failed
