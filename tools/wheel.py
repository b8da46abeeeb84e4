#!/usr/bin/env python3
"""Packs the command into a wheel, sluice-VERSION-py3-none-manylinux_2_X_x86_64.whl.

    python3 tools/wheel.py BUILD_FOLDER [FOLDER]     FOLDER gets the wheel; default: BUILD_FOLDER

cmake/install.cmake says what is in it. pip puts bin, lib and share into those of its environment; when the
command runs, no Python does. The tag names the oldest glibc whose systems have all that the files need. The
target `wheel` builds the command and then runs this.
"""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

# Of each version of libstdc++, the oldest glibc beside which it is found, as the manylinux policies have it.
GLIBC_OF_LIBSTDCXX = {"3.4.29": "2.34", "3.4.30": "2.35", "3.4.32": "2.38", "3.4.33": "2.39"}


def fail(message, code):
    print(f"wheel: {message}", file=sys.stderr)
    sys.exit(code)


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        fail(f"{' '.join(command)} failed: {result.stderr}\nwheel: tools/build.sh builds what it needs", 1)
    return result.stdout


def numbers(version):
    return tuple(int(part) for part in version.split("."))


def newest(name, needs):
    """The newest version of symbols NAME_1.2.3 in objdump's list of what a file needs of others."""
    return max(re.findall(rf"^ +0x\S+ \S+ \S+ {name}_([\d.]+)$", needs, re.MULTILINE), key=numbers)


def tag_of(files):
    """The wheel's tag, from the symbol versions that the files need."""
    needs = run("objdump", "--private-headers", *files)
    glibc, libstdcxx = newest("GLIBC", needs), newest("GLIBCXX", needs)
    found = [g for version, g in GLIBC_OF_LIBSTDCXX.items() if numbers(version) >= numbers(libstdcxx)]
    if not found:
        fail(f"GLIBCXX_{libstdcxx} is newer than tools/wheel.py knows: build on an older system, or add it.", 1)
    glibc = max(glibc, found[0], key=numbers)
    return f"py3-none-manylinux_{glibc.replace('.', '_')}_{os.uname().machine}"


def members_of(stage, version, tag):
    """Pairs of a path in the wheel and a file, or the bytes, that it gets."""
    home, info = f"sluice-{version}", f"sluice-{version}.dist-info"
    for folder, _, names in os.walk(stage):
        for name in names:
            file = os.path.join(folder, name)
            path = os.path.relpath(file, stage)
            scheme = "scripts/" + path[len("bin/"):] if path.startswith("bin/") else "data/" + path
            yield f"{home}.data/{scheme}", file
    yield f"{info}/licenses/LICENSE", os.path.join(stage, "share/doc/sluice/LICENSE")
    yield f"{info}/METADATA", (
        f"Metadata-Version: 2.1\nName: sluice\nVersion: {version}\n"
        "Summary: trains language models that do not fit the memory of the machine\n"
        "License: Apache-2.0\n").encode()
    yield f"{info}/WHEEL", (
        f"Wheel-Version: 1.0\nGenerator: tools/wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n").encode()


def write(path, members, record):
    """Writes the archive. It has the same bytes whenever its members have."""
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name, content, mode):
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = mode << 16
            archive.writestr(entry, content)

        for name, source in sorted(members):
            content, mode = source, 0o100644
            if isinstance(source, str):
                with open(source, "rb") as file:
                    content = file.read()
                mode = os.stat(source).st_mode
            add(name, content, mode)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            lines.append(f"{name},sha256={digest},{len(content)}\n")
        add(record, "".join(lines) + f"{record},,\n", 0o100644)


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        fail("usage: tools/wheel.py BUILD_FOLDER [FOLDER]", 2)
    build, target = sys.argv[1], sys.argv[-1]
    for tool, package in (("cmake", "cmake"), ("objdump", "binutils")):
        if shutil.which(tool) is None:
            fail(f"{tool} is not installed. Add it with: apt-get install --no-install-recommends {package}", 4)
    with tempfile.TemporaryDirectory(dir=build, prefix="wheel.") as stage:
        for component in ("sluice", "libraries"):
            run("cmake", "--install", build, "--component", component, "--prefix", stage, "--strip")
        files = [f"{stage}/bin/sluice"] + [
            f"{stage}/lib/sluice/{name}" for name in os.listdir(f"{stage}/lib/sluice") if ".so" in name]
        version, tag = run(files[0], "--version").split()[1], tag_of(files)
        wheel = os.path.join(target, f"sluice-{version}-{tag}.whl")
        write(wheel + ".part", members_of(stage, version, tag), f"sluice-{version}.dist-info/RECORD")
    os.rename(wheel + ".part", wheel)
    print(f"wheel: {wheel}, {os.path.getsize(wheel) / (1 << 20):.1f} MiB")


main()
