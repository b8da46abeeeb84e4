#!/usr/bin/env python3
"""What tools/test.sh costs: seconds of compilers, linkers and tests, from ninja's logs and ctest's reports.

    python3 tools/test_costs.py [--markdown] [PRESET...]

Prints what takes longest, the seconds of each step and of all together, and which tests take over a minute for
no reason that tests/CMakeLists.txt gives. --markdown prints the tables of
docs/measurements/ci.md. Seconds are those of each command by the clock, added up, so with two cores the check
takes a little more than half of their sum. Where ccache had an object, that one counts as the moment that it took.
"""
import argparse
import os
import re
import xml.etree.ElementTree as xml
from collections import defaultdict

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LONGEST = 10
MINUTE = 60


def edges(preset):
    """Seconds of each command of ninja, by its last output."""
    last = {}
    with open(os.path.join(ROOT, "build", preset, ".ninja_log"), encoding="utf-8") as log:
        for line in log:
            if not line.startswith("#"):
                start, end, _, output, command = line.rstrip("\n").split("\t")
                last[output] = (command, (int(end) - int(start)) / 1000)
    once = {command: (output, seconds) for output, (command, seconds) in last.items()}
    return dict(once.values())


def target_of(output):
    """The target of CMake that an object belongs to."""
    found = re.search(r"([^/]+)\.dir/.*\.o$", output)
    return found.group(1) if found else "links, and what is made"


def tests(preset):
    """Seconds of each test, from the report of run_tests in tools/test.sh."""
    report = os.path.join(ROOT, "build", preset, "tests.xml")
    if not os.path.exists(report):
        return {}
    cases = xml.parse(report).getroot().iter("testcase")
    return {case.get("name"): float(case.get("time")) for case in cases}


def without_reason(seconds):
    """Those tests that take over a minute and that tests/CMakeLists.txt doesn't list with a reason."""
    with open(os.path.join(ROOT, "tests", "CMakeLists.txt"), encoding="utf-8") as file:
        listed = re.search(r"set\(long\n(.*?)\)", file.read(), re.DOTALL).group(1)
    known = {line.split("#")[0].strip() for line in listed.splitlines()}
    return [name for name, took in seconds.items() if took > MINUTE and name not in known]


def print_table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def longest(seconds):
    return sorted(seconds.items(), key=lambda entry: -entry[1])[:LONGEST]


def markdown(presets, built, tested):
    files, costs = defaultdict(dict), defaultdict(dict)
    for preset in presets:
        for output, seconds in built[preset].items():
            target = target_of(output)
            files[target][preset] = files[target].get(preset, 0) + 1
            costs[target][preset] = costs[target].get(preset, 0) + seconds
    order = sorted(costs, key=lambda target: -sum(costs[target].values()))
    print_table(["built", *(f"{p}: files" for p in presets), *(f"{p}: s" for p in presets)],
                [[target, *(files[target].get(p, "") for p in presets),
                  *(f"{costs[target][p]:.0f}" if p in costs[target] else "" for p in presets)] for target in order])
    for preset in presets:
        print()
        print_table([f"longest to build, {preset}", "s"],
                    [[output, f"{seconds:.0f}"] for output, seconds in longest(built[preset])])
        print()
        print_table([f"longest tests, {preset}", "s"],
                    [[name, f"{seconds:.0f}"] for name, seconds in longest(tested[preset])])
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/measurements/ci.md")
    parser.add_argument("presets", nargs="*", default=["check", "asan", "tsan"])
    options = parser.parse_args()
    presets = [p for p in options.presets if os.path.exists(os.path.join(ROOT, "build", p, ".ninja_log"))]
    built = {preset: edges(preset) for preset in presets}
    tested = {preset: tests(preset) for preset in presets}
    if options.markdown:
        markdown(presets, built, tested)
    for name, seconds in longest({f"{p} {name}": s for p in presets for name, s in tested[p].items()}):
        print(f"costs: {seconds:7.1f} s  {name}")
    total = 0
    for preset in presets:
        building, testing = sum(built[preset].values()), sum(tested[preset].values())
        total += building + testing
        print(f"costs: {preset}: {building:.0f} s of building, {testing:.0f} s of tests")
    print(f"costs: {total:.0f} s in all")
    for name in without_reason(tested.get("check", {})):
        print(f"costs: {name} takes over {MINUTE} s; tests/CMakeLists.txt does not say why")


if __name__ == "__main__":
    main()
