#!/bin/bash
# Installs the Debian packages that Sluice needs and this system lacks, through apt-get only.
# usage: tools/setup.sh [--quickstart]     --quickstart adds the text that tools/quickstart.sh trains on
set -euo pipefail

# package: purpose. cmake/dependencies.cmake has those of libraries.
packages=(
  "g++: compiler (C++20)"
  "cmake: build description"
  "ninja-build: build"
  "pkg-config: finds libraries"
  "openmpi-bin: starting ranks of several processes"
  "iproute2: two machines for tests, as network namespaces"
  "xz-utils: packing the bundle"
  "python3-venv: packing the wheel, and installing it in tests"
  "dpkg-dev: finding what the Debian package depends on"
  "chromium: opening the report of sluice profile in tests"
)
dependencies=$(dirname "$0")/../cmake/dependencies.cmake
libraries=$(sed -n 's/^require_.*"\([a-z0-9.+-]*: [^"]*\)".*/\1/p' "$dependencies")
[[ -n $libraries ]] || { echo "setup: $dependencies names no library" >&2; exit 1; }
mapfile -t -O ${#packages[@]} packages <<< "$libraries"
case "${1:-}" in
  "") ;;
  --quickstart) packages+=("bible-kjv: English text to train on") ;;
  *) echo "usage: tools/setup.sh [--quickstart]" >&2; exit 2 ;;
esac

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
  echo "setup: this is not a Debian-like system (no apt-get). Install the equivalents of:" >&2
  printf '  %s\n' "${packages[@]}" >&2
  exit 4
fi

missing=()
for entry in "${packages[@]}"; do
  package=${entry%%:*}
  state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2> /dev/null || true)
  if [[ $state != installed ]]; then
    missing+=("$package")
    echo "setup: missing $package (${entry#*: })"
  fi
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "setup: all packages are installed"
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo > /dev/null; then
    echo "setup: installing needs root and there is no sudo. As root, run:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 4
  fi
  as_root=(sudo)
fi

echo "setup: installing ${missing[*]}"
if ! "${as_root[@]}" apt-get update --quiet=2 ||
  ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}" < /dev/null; then
  echo "setup: apt-get failed; its messages above say why. Sluice is tested on Debian 12." >&2
  exit 4
fi
echo "setup: done"
