#!/bin/bash
# Packs what cmake/bundle.cmake lists into one archive, which runs on another machine. Fails if the archive is
# too large. The target `bundle` builds everything and then runs this.
# usage: tools/bundle.sh BUILD_FOLDER [ARCHIVE.tar.xz]     default: BUILD_FOLDER/sluice-bundle.tar.xz
set -euo pipefail

bytes_max=$((60 << 20))

if [[ $# -lt 1 || $# -gt 2 ]]; then
  echo "usage: tools/bundle.sh BUILD_FOLDER [ARCHIVE.tar.xz]" >&2
  exit 2
fi
build=$1
archive=${2:-$build/sluice-bundle.tar.xz}
name=$(basename "$archive" .tar.xz)
if ! command -v xz > /dev/null; then
  echo "bundle: xz is not installed. Add it with: apt-get install --no-install-recommends xz-utils" >&2
  exit 4
fi

stage=$(mktemp -d "$build/bundle.XXXXXX")
trap 'rm -rf "$stage"' EXIT
cmake --install "$build" --component bundle --prefix "$stage/$name" --strip > "$stage/log" || {
  cat "$stage/log" >&2
  exit 1
}
# Several of the files hold the same kernels, up to 100 MB apart, so a large dictionary makes the archive smaller.
# Higher presets take five times as long and save a tenth of the size.
tar --create --sort=name --owner=0 --group=0 --numeric-owner --directory "$stage" "$name" |
  xz --threads=1 --lzma2=preset=1,dict=128MiB > "$stage/archive"
mv "$stage/archive" "$archive"

bytes=$(stat --format=%s "$archive")
# newest NAME: the newest version of symbols NAME_1.2.3 that a file needs.
newest() {
  objdump --private-headers "$stage/$name"/bin/* "$stage/$name"/lib/sluice/*.so* |
    grep --only-matching " $1_[0-9.]*[0-9]" | sort --version-sort | tail --lines=1
}
printf 'bundle: %s, %d.%d MiB, for x86-64 with%s and%s or later\n' "$archive" $((bytes >> 20)) \
  $((bytes * 10 / (1 << 20) % 10)) "$(newest GLIBC)" "$(newest GLIBCXX)"
if [[ $bytes -gt $bytes_max ]]; then
  echo "bundle: that is more than the $((bytes_max >> 20)) MiB that it may have" >&2
  exit 1
fi
