# SPDX-License-Identifier: Apache-2.0
"""
Code in documents is cut from programs that ctest runs. A block

    <!-- from examples/x/main.cpp: name -->
    ```cpp
    ...
    ```

equals what stands between `[begin name]` and `[end name]` in that file, indentation aside. In README.md and docs/ every
block of C, C++ or CMake has such a line.
"""

import re
import textwrap

import check

CODE = {"c", "h", "cpp", "c++", "cc", "cxx", "hpp", "cuda", "cu", "cmake"}
MARK = re.compile(r"^\s*<!--\s*from\s+(\S+):\s*(.*?)\s*-->\s*$")
FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*([^\s`{]*)")
EDGE = re.compile(r"\[(begin|end) ([^\]]+)\]")


def regions(text):
    """The regions of a program, {name: its lines, without the marks of others}, and what is wrong with the marks."""
    found, opened, wrong = {}, {}, []
    for line in text.splitlines():
        edge = EDGE.search(line)
        if edge is None:
            for lines in opened.values():
                lines.append(line)
        elif edge[1] == "begin":
            if edge[2] in opened or edge[2] in found:
                wrong.append(f"begins the region {edge[2]!r} twice")
            opened[edge[2]] = []
        elif edge[2] in opened:
            found[edge[2]] = opened.pop(edge[2])
        else:
            wrong.append(f"ends the region {edge[2]!r}, which it has not begun")
    wrong += [f"does not end the region {name!r}" for name in opened]
    return {name: tidy(lines) for name, lines in found.items()}, wrong


def tidy(lines):
    return textwrap.dedent("\n".join(line.rstrip() for line in lines)).strip("\n")


def blocks(text):
    """The blocks of a document: (mark as (file, name) or None, language, code); a mark before no block has no language."""
    mark, fence, language, lines = None, None, "", []
    for line in text.splitlines():
        edge = FENCE.match(line)
        if fence is not None:
            if edge and not edge[2] and edge[1].startswith(fence):
                yield mark, language, tidy(lines)
                mark, fence = None, None
            else:
                lines.append(line)
        elif edge:
            fence, language, lines = edge[1], edge[2].lower(), []
        elif MARK.match(line):
            if mark is not None:
                yield mark, None, ""
            mark = MARK.match(line).groups()
        elif mark is not None and line.strip():
            yield mark, None, ""
            mark = None
    if fence is not None:
        yield mark, language, tidy(lines)
    elif mark is not None:
        yield mark, None, ""


def fault_of(block, programs):
    """What is wrong with a block, or None."""
    mark, language, code = block
    if mark is None:
        return "names no program that it is cut from" if language in CODE else None
    if language is None:
        return f"is none: no block of code follows the mark of {mark[1]!r} of {mark[0]}"
    if mark[1] not in programs.get(mark[0], {}):
        return f"is cut from a place that is none: {mark[0]} has no region {mark[1]!r}"
    if programs[mark[0]][mark[1]] != code:
        return f"differs from the region {mark[1]!r} of {mark[0]}"
    return None


def faults(files):
    programs = {}
    for path, text in files.items():
        if not EDGE.search(text) or path.endswith((".md", ".py")):
            continue
        programs[path], wrong = regions(text)
        yield from (f"{path} {words}" for words in wrong)
    cut = 0
    for path, text in files.items():
        if path != "README.md" and not (path.startswith("docs/") and path.endswith(".md")):
            continue
        for block in blocks(text):
            cut += block[0] is not None
            words = fault_of(block, programs)
            if words:
                yield f"{path}: the block of {block[1] or 'code'} that begins {block[2][:40]!r} {words}"
    if cut == 0:
        yield "no block of code is cut from a program"


SOURCE = "int x;\n  // [begin part]\n  int y;\n  // [begin inner]\n    int z;\n  // [end inner]\n  // [end part]\n"
MARKED = "<!-- from examples/a.cpp: part -->\n"
GOOD = MARKED + "```cpp\nint y;\n  int z;\n```\n\n" + "```\nany text\n```\n"

check.run(
    lambda files: list(faults(files)),
    good={
        "examples/a.cpp": SOURCE,
        "examples/CMakeLists.txt": "# [begin find]\nfind_package(hypic)\n# [end find]\n",
        "docs/a.md": GOOD + "<!-- from examples/CMakeLists.txt: find -->\n\n  ~~~cmake\n  find_package(hypic)\n  ~~~\n",
        "README.md": GOOD + "```\n./dev test\n```\n",
    },
    bad=[
        ("differs", {"docs/a.md": GOOD.replace("int y", "int w")}),
        ("differs", {"README.md": GOOD.replace("int y", "int w")}),
        ("names no program", {"README.md": GOOD + "```cmake\nproject(q)\n```\n"}),
        ("differs", {"docs/deeper/b.md": GOOD.replace("int z;\n", "int z;\n  int more;\n")}),
        ("has no region 'other'", {"docs/a.md": GOOD.replace(": part", ": other")}),
        ("examples/b.cpp has no region", {"docs/a.md": GOOD.replace("examples/a", "examples/b")}),
        ("names no program", {"docs/b.md": "```cpp\nint q;\n```\n"}),
        ("names no program", {"docs/b.md": "- item\n\n  ```c++ title\n  int q;\n  ```\n"}),
        ("names no program", {"docs/b.md": "~~~CMake\nproject(q)\n~~~\n"}),
        ("names no program", {"docs/b.md": "````cpp\n```\nint q;\n"}),
        ("no block of code follows", {"docs/b.md": MARKED + "words\n"}),
        ("no block of code follows", {"docs/b.md": MARKED + GOOD}),
        ("does not end the region 'part'", {"examples/b.cpp": SOURCE.replace("  // [end part]\n", "")}),
        ("begins the region 'part' twice", {"examples/b.cpp": SOURCE + "// [begin part]\n// [end part]\n"}),
        ("has not begun", {"examples/b.cpp": "// [end part]\n"}),
        ("no block of code is cut", {"docs/a.md": "no code\n", "README.md": "none\n"}),
    ],
)
