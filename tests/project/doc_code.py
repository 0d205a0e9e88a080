# SPDX-License-Identifier: Apache-2.0
"""
Code in documents is cut from programs that ctest runs. A block

    <!-- from examples/x/main.cpp: name -->
    ```cpp
    ...
    ```

equals what stands between `[begin name]` and `[end name]` in that file, indentation aside. In docs/ every block of C, C++
or CMake has such a line; in README.md those that have one are held to it.

usage: doc_code.py ROOT | doc_code.py --self-test
"""

import pathlib
import re
import sys
import tempfile
import textwrap

BLOCK = re.compile(r"(?:^<!-- from (?P<file>\S+): (?P<name>[\w ]+) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)
CODE = {"cpp", "c", "cmake"}


def region(path, name):
    """The lines between a region's marks, without those of other regions; None where there is no such region."""
    found = re.search(rf"^[^\n]*\[begin {re.escape(name)}\][^\n]*\n(.*?)^[^\n]*\[end {re.escape(name)}\]", path.read_text(), re.M | re.S)
    if not found:
        return None
    lines = [line for line in found[1].splitlines() if not re.search(r"\[(begin|end) [\w ]+\]", line)]
    return textwrap.dedent("\n".join(lines)).strip("\n")


def faults(root):
    documents = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    blocks = 0
    for document in documents:
        if not document.exists():
            continue
        for block in BLOCK.finditer(document.read_text()):
            where = f"{document.relative_to(root)}: the block of {block['language']} that begins {block['code'][:40]!r}"
            if block["file"] is None:
                if block["language"] in CODE and document.name != "README.md":
                    yield f"{where} names no program that it is cut from"
                continue
            blocks += 1
            source = root / block["file"]
            wanted = region(source, block["name"]) if source.exists() else None
            if wanted is None:
                yield f"{where}: {block['file']} has no region {block['name']!r}"
            elif wanted != block["code"].strip("\n"):
                yield f"{where} differs from the region {block['name']!r} of {block['file']}"
    if blocks == 0:
        yield "no block of code is cut from a program"


def self_test():
    source = "int x;\n  // [begin part]\n  int y;\n    int z;\n  // [end part]\n"
    good = "<!-- from examples/a.cpp: part -->\n```cpp\nint y;\n  int z;\n```\n"
    cases = [
        (good, None),
        (good.replace("int y", "int w"), "differs"),
        (good.replace(": part", ": other"), "has no region"),
        (good.replace("examples/a", "examples/b"), "has no region"),
        (good + "```cpp\nint q;\n```\n", "names no program"),
        (good + "```\ntext\n```\n", None),
        ("no code\n", "no block"),
    ]
    for text, words in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for place, content in {"examples/a.cpp": source, "docs/a.md": text}.items():
                (root / place).parent.mkdir(exist_ok=True)
                (root / place).write_text(content)
            found = list(faults(root))
        if (words is None) != (not found) or (words and not any(words in fault for fault in found)):
            sys.exit(f"self-test: {text!r}: expected {words or 'no fault'}; found {found}")
    print(f"{len(cases)} documents, each told right from wrong")


if sys.argv[1] == "--self-test":
    self_test()
else:
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join(found) or "no fault")
    sys.exit(1 if found else 0)
