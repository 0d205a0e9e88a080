# SPDX-License-Identifier: Apache-2.0
"""The project stands alone: no file names a place outside of it, and every source file states its licence."""

import re

import check

SPDX = "SPDX-License-Identifier: Apache-2.0"
SOURCE = re.compile(r"\.(hpp|cpp|h|c|cuh|cu|cmake|cmake\.in|py|sh|clang-format)$|(^|/)(CMakeLists\.txt|dev|\.ci/run)$")
OUTSIDE = re.compile(r"\.\./shared\b|(?<![\w.*}/-])/(home|root|work|Users)/")


def faults(files):
    for path, text in files.items():
        if SOURCE.search(path) and SPDX not in "\n".join(text.split("\n", 2)[:2]):
            yield f"{path}: its first two lines have no '{SPDX}'"
        for number, line in enumerate(text.splitlines(), 1):
            if match := OUTSIDE.search(line):
                yield f"{path}:{number}: names a place outside of the project: {match[0]}"


check.run(
    lambda files: list(faults(files)),
    good={
        "src/a.cpp": f"// {SPDX}\nint a; // https://example.org/work/a, build/work/a\n",
        "dev": f"#!/bin/sh\n# {SPDX}\n",
        "README.md": "hypic\n",
    },
    bad=[
        ("src/a.cpp: its first two lines", {"src/a.cpp": "int a;\n"}),
        ("dev: its first two lines", {"dev": f"#!/bin/sh\n\n# {SPDX}\n"}),
        ("README.md:2: names", {"README.md": "hypic\nsee " + "/".join(["", "work", "notes.md"])}),
        ("README.md:1: names", {"README.md": "see " + "/".join(["..", "shared", "notes.md"])}),
    ],
)
