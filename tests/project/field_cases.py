# SPDX-License-Identifier: Apache-2.0
"""Every case of docs/field_cases.md that is in scope has a test with its tag, and no tag names an unknown case."""

import re

import check

LIST = "docs/field_cases.md"
ROW = re.compile(r"^\| *(\d+) *\| *(yes|later) *\|", re.MULTILINE)
TAG = re.compile(r"\[case-(\d+)\]")
LITERAL = re.compile(r'"[^"\n]*"')


def faults(files):
    rows = ROW.findall(files.get(LIST, ""))
    cases = {f"{int(number):02}": scope for number, scope in rows}
    if not rows or [int(number) for number, _ in rows] != list(range(1, len(rows) + 1)):
        yield f"{LIST}: its rows are not numbered 1, 2, 3, ..."

    tagged = {}
    for path, text in files.items():
        if path.startswith("tests/") and path.endswith(".cpp"):
            for literal in LITERAL.findall(text):  # a comment does not count
                for number in TAG.findall(literal):
                    tagged.setdefault(number, path)
    for number, path in tagged.items():
        if number not in cases:
            yield f"{path}: the tag [case-{number}] names no case of {LIST}"
    for number, scope in cases.items():
        if scope == "yes" and number not in tagged:
            yield f"{LIST}: case {number} is in scope, and no test has the tag [case-{number}]"


check.run(
    lambda files: list(faults(files)),
    good={
        LIST: "| case | in scope |\n|---|---|\n| 1 | yes | a |\n| 2 | later | b |\n",
        "tests/core/a.cpp": 'TEST_CASE("a", "[core][case-01]") {}\n',
    },
    bad=[
        ("case 01 is in scope", {"tests/core/a.cpp": 'TEST_CASE("a", "[core]") {}  // [case-01]\n'}),
        ("[case-03] names no case", {"tests/core/b.cpp": 'TEST_CASE("b", "[case-03]") {}\n'}),
        ("[case-1] names no case", {"tests/core/b.cpp": 'TEST_CASE("b", "[case-1]") {}\n'}),
        ("not numbered", {LIST: "| 1 | yes | a |\n| 3 | later | b |\n"}),
    ],
)
