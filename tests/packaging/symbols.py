# SPDX-License-Identifier: Apache-2.0
"""
A shared hypic exports what its public headers mark with HYPIC_API, all of it, and nothing else: no helper of its own,
no instance of a standard template, no name outside of the versioned namespace.

usage: symbols.py LIBRARY INCLUDE_FOLDER [--namespace v0] | symbols.py --self-test COMPILER
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

API_TYPE = re.compile(r"\b(?:class|struct)\s+HYPIC_API\s+(\w+)")
API_FUNCTION = re.compile(r"\bHYPIC_(?:C_)?API\s[^;{}()]*?\b(\w+)\s*\(")
NOT_CODE = re.compile(r"//.*|^\s*#.*", re.MULTILINE)
C_NAME = re.compile(r"hypic_\w+")


def public_names(include):
    """What the public headers mark, as (functions, types)."""
    text = "\n".join(NOT_CODE.sub("", path.read_text()) for path in sorted(include.rglob("*.h*")))
    return set(API_FUNCTION.findall(text)), set(API_TYPE.findall(text))


def exported(library):
    """The dynamic symbols that the library defines, mangled."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", library]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split()[0] for line in lines]


def demangled(symbol):
    return subprocess.run(["c++filt", symbol], check=True, capture_output=True, text=True).stdout.strip()


def names_in(symbol, namespace):
    """The names of a function or type below hypic::<namespace>, outermost first; none if the symbol is elsewhere."""
    start = re.match(rf"_Z(?:T[ISV])?NK?5hypic{len(namespace)}{namespace}", symbol)
    names, rest = [], symbol[start.end():] if start else ""
    while length := re.match(r"\d+", rest):
        end = length.end() + int(length[0])
        names.append(rest[length.end():end])
        rest = rest[end:]
    return names


def faults(library, include, namespace):
    functions, types = public_names(include)
    seen = set()
    for symbol in exported(library):
        names = [symbol] if C_NAME.fullmatch(symbol) else names_in(symbol, namespace)
        if not names:
            yield f"outside of hypic::{namespace}: {demangled(symbol)}"
        elif names[0] not in types and names[-1] not in functions:
            yield f"not marked HYPIC_API in a public header: {demangled(symbol)}"
        seen.update(names)
    for name in sorted(functions - seen):
        yield f"declared with HYPIC_API and not exported: {name}"


GOOD_HEADER = """
#pragma once
#include <string>
#define HYPIC_API __attribute__((visibility("default")))
namespace hypic::inline v0 {
struct number { int value; };
HYPIC_API std::string words(number n);
template <class T> HYPIC_API number twice(T value);
class HYPIC_API store { public: virtual ~store(); virtual int get() = 0; };
}
extern "C" HYPIC_API int hypic_version();
"""
GOOD_SOURCE = """
#include "api.hpp"
#include <vector>
namespace hypic::inline v0 {
std::string words(number n) { std::vector<int> v(3, n.value); v.push_back(1); return std::to_string(v[0]); }
template <class T> number twice(T value) { return {static_cast<int>(value * 2)}; }
template HYPIC_API number twice<float>(float);
store::~store() = default;
number helper() { return {1}; }
}
int hypic_version() { return 1; }
"""
SCRIPT = f"-Wl,--version-script={pathlib.Path(__file__).resolve().parents[2]}/cmake/hypic.map"
USUAL = [SCRIPT, "-fvisibility=hidden"]
BAD_SOURCE = """
HYPIC_API int stray() { return 1; }
namespace hypic { HYPIC_API int stray() { return 1; } }
namespace hypic::v1 { HYPIC_API int stray() { return 1; } }
namespace hypic::inline v0 { HYPIC_API int inner() { return 1; } }
extern "C" HYPIC_API int hypic_inner() { return 1; }
"""
BAD = [  # (added to the header, added to the source, flags, words of the faults)
    ("namespace hypic::inline v0 { HYPIC_API int missing(); }", BAD_SOURCE, USUAL, [
        "outside of hypic::v0: hypic::stray()",
        "outside of hypic::v0: hypic::v1::stray()",
        "not marked HYPIC_API in a public header: hypic::v0::inner()",
        "not marked HYPIC_API in a public header: hypic_inner",
        "declared with HYPIC_API and not exported: missing"]),
    ("", BAD_SOURCE, ["-fvisibility=hidden"], [  # without the version script
        "outside of hypic::v0: stray()",
        "outside of hypic::v0: void std::vector<"]),
    ("", "", [SCRIPT], ["not marked HYPIC_API in a public header: hypic::v0::helper()"]),  # with nothing hidden
]


def self_test(compiler):
    for header, source, flags, wanted in [("", "", USUAL, []), *BAD]:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "api.hpp").write_text(GOOD_HEADER + header)
            (folder / "api.cpp").write_text(GOOD_SOURCE + source)
            command = [compiler, "-std=c++20", "-fPIC", "-shared", *flags, folder / "api.cpp", "-o", folder / "api.so"]
            subprocess.run(command, check=True)
            found = list(faults(folder / "api.so", folder, "v0"))
        missed = [words for words in wanted if not any(words in fault for fault in found)]
        if missed or (found and not wanted):
            sys.exit(f"self-test: expected {missed or 'no fault'}; found {found}")
    print(f"{sum(len(wanted) for *_, wanted in BAD)} faults, each found out")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=pathlib.Path, nargs="?")
    parser.add_argument("include", type=pathlib.Path, nargs="?")
    parser.add_argument("--namespace", default="v0")
    parser.add_argument("--self-test", metavar="COMPILER")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test(arguments.self_test)
        return
    found = list(faults(arguments.library, arguments.include, arguments.namespace))
    print("\n".join(found) or f"{len(exported(arguments.library))} symbols, no fault")
    sys.exit(1 if found else 0)


main()
