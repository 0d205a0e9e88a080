# SPDX-License-Identifier: Apache-2.0
"""
No public header costs a translation unit much more than the standard headers that any program has anyway.

Seconds would be a matter of the machine, so the cost is a ratio to REFERENCE, which the same compiler reads on the same
machine at that moment: of lines after the preprocessor, which never vary, and of processor time, where the best of
several runs counts and the budget is wide. Lines find a heavy include, time finds heavy templates.

usage: header_cost.py COMPILER INCLUDE_FOLDER | header_cost.py COMPILER --self-test
"""

import pathlib
import resource
import subprocess
import sys
import tempfile

REFERENCE = "#include <memory>\n#include <optional>\n#include <span>\n#include <string>\n#include <vector>\n"
LINES = 1.15
TIME = 2.0
RUNS = 3


def run(compiler, include, text, *options):
    command = [compiler, "-std=c++20", "-x", "c++", "-I", include, *options, "-"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return output, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def lines(compiler, include, text):
    return run(compiler, include, text, "-E", "-P")[0].count("\n")


def time(compiler, include, text):
    return run(compiler, include, text, "-fsyntax-only")[1]


def faults(compiler, include):
    reference_lines = lines(compiler, include, REFERENCE)
    reference_time = min(time(compiler, include, REFERENCE) for _ in range(RUNS))
    for header in sorted(path.relative_to(include) for path in include.rglob("*.h*")):
        text = f'#include "{header}"\n'
        line_ratio = lines(compiler, include, text) / reference_lines
        time_ratio = time(compiler, include, text) / reference_time
        for _ in range(RUNS - 1):
            if time_ratio > TIME:
                reference_time = min(reference_time, time(compiler, include, REFERENCE))
                time_ratio = min(time_ratio, time(compiler, include, text) / reference_time)
        print(f"{line_ratio:5.2f} lines {time_ratio:5.2f} time  {header}")
        if line_ratio > LINES:
            yield f"{header}: {line_ratio:.2f} times the lines of the reference, at most {LINES}"
        if time_ratio > TIME:
            yield f"{header}: {time_ratio:.2f} times the compile time of the reference, at most {TIME}"


HEAVY_INCLUDE = "#include <memory>\n#include <regex>\n"
HEAVY_TEMPLATES = """
#include <tuple>
#include <utility>
template <int First, int... I>
auto distinct(std::integer_sequence<int, I...>) -> std::tuple<std::integral_constant<int, First + I>...>;
template <int N>
constexpr auto total = sizeof(distinct<100 * N>(std::make_integer_sequence<int, 80>{})) + total<N - 1>;
template <> constexpr auto total<0> = sizeof(int);
static_assert(total<12> > 0);
"""


def self_test(compiler):
    for words, text in [(None, REFERENCE), ("the lines", HEAVY_INCLUDE), ("the compile time", HEAVY_TEMPLATES)]:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "header.hpp").write_text("#pragma once\n" + text)
            found = list(faults(compiler, pathlib.Path(folder)))
        expected = not found if words is None else len(found) == 1 and words in found[0]
        if not expected:
            sys.exit(f"self-test: expected {words or 'no fault'}; found {found}")
    print("2 bad headers, each found out")


if sys.argv[2] == "--self-test":
    self_test(sys.argv[1])
else:
    found = list(faults(sys.argv[1], pathlib.Path(sys.argv[2])))
    print("\n".join(found) or "no fault")
    sys.exit(1 if found else 0)
