# SPDX-License-Identifier: Apache-2.0
"""Includes point down only over the floors, and each third-party library stays in its place."""

import posixpath
import re

import check

FLOORS = ["core", "family", "algebra", "segment", "store", "request", "adapter"]

# What no file may use but those whose path matches: (what, the include or pragma, the places).
WALLS = [
    ("fmt", r"fmt/", r"src/core/message\.cpp"),
    ("libcrypto", r"openssl/", r"src/store/sha256\.cpp"),
    ("nlohmann-json", r"nlohmann/", r"(examples|tests)/engine/.*"),
    ("OpenBLAS", r"(cblas|f77blas|openblas_config|lapacke?)\.h", r"examples/engine/.*|benchmarks/.*"),
    ("OpenMP", r"omp\.h|#pragma omp", r"src/core/parallel\.hpp|examples/engine/workers\.hpp"),
    ("Catch2", r"catch2/", r"tests/.*"),
    ("Google Benchmark", r"benchmark/", r"benchmarks/.*"),
    ("CUDA", r"(cuda|nv|cub|thrust|cooperative_groups)[\w/]*(\.h(pp)?|\.cuh)|cuda/.*|hypic/cuda/.*",
     r"(include/hypic/)?cuda/.*|tests/.*\.cu|benchmarks/.*\.cu"),
]
SYSTEM = re.compile(r"[a-z0-9_]+|(sys/)?[a-z0-9_]+\.h")  # standard C++ and POSIX
DIRECTIVE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]|^\s*#\s*(pragma\s+omp)\b', re.MULTILINE)
SOURCE = re.compile(r"(include|src|cuda|examples|tests|benchmarks)/.*\.(hpp|cpp|h|c|cuh|cu)$")


def floor_of(path):
    match = re.match(r"(?:include/hypic|src)/(\w+)/", path)
    return match[1] if match and match[1] in FLOORS else None


def resolve(path, name, files):
    """The file of the tree that `path` means by `name`, or None."""
    top = path.split("/")[0]
    for folder in (posixpath.dirname(path), "include", top, *(["src"] if top != "src" else []), "examples"):
        candidate = posixpath.normpath(posixpath.join(folder, name))
        if candidate in files:
            return candidate
    return None


def fault(path, name, target):
    """What is wrong with `path` including `name`, which is the tree's file `target`; None if nothing is."""
    for what, pattern, places in WALLS:
        if re.fullmatch(pattern, name) or (pattern.endswith("/") and name.startswith(pattern)):
            if not re.fullmatch(places, path):
                return f"{what} belongs in {places}"
            return None
    if target is None:
        if name.startswith("#") or SYSTEM.fullmatch(name):
            return None
        return "neither a file of this project, nor a standard header, nor a library with a place"

    top, target_top = path.split("/")[0], target.split("/")[0]
    floor, target_floor = floor_of(path), floor_of(target)
    if floor and target_floor and FLOORS.index(target_floor) > FLOORS.index(floor):
        return f"{target_floor} lies above {floor}"
    if top == "include" and target_top != "include":
        return "a public header includes public headers only"
    if top in ("examples", "benchmarks") and target_top not in ("include", top, "examples"):
        return "examples and benchmarks use public headers only"
    if top in ("src", "cuda") and target_top not in ("include", "src", "cuda"):
        return "the library includes its own files only"
    return None


def faults(files):
    for path, text in files.items():
        if not SOURCE.match(path):
            continue
        for include, pragma in DIRECTIVE.findall(text):
            name = include or "#pragma omp"
            if why := fault(path, name, resolve(path, name, files)):
                yield f"{path} has {name}: {why}"


check.run(
    lambda files: list(faults(files)),
    good={
        "include/hypic/core/status.hpp": "#include <cstdint>\n",
        "include/hypic/algebra/fold.hpp": '#include "hypic/core/status.hpp"\n',
        "include/hypic/cuda/tag.hpp": '#include "hypic/algebra/fold.hpp"\n',
        "src/core/message.cpp": '#include <fmt/format.h>\n#include "hypic/core/status.hpp"\n',
        "src/core/parallel.hpp": "#include <omp.h>\n#pragma omp parallel\n",
        "src/algebra/fold.cpp": '#include "hypic/algebra/fold.hpp"\n#include "core/parallel.hpp"\n',
        "examples/engine/model.hpp": "#include <nlohmann/json.hpp>\n#include <cblas.h>\n#include <sys/mman.h>\n",
        "examples/tables/main.cpp": '#include "engine/model.hpp"\n#include "hypic/algebra/fold.hpp"\n',
        "tests/algebra/fold.cpp": '#include <catch2/catch.hpp>\n#include "core/parallel.hpp"\n',
    },
    bad=[
        ("algebra lies above core", {"include/hypic/core/a.hpp": '#include "hypic/algebra/fold.hpp"\n'}),
        ("algebra lies above core", {"src/core/a.cpp": '#include "hypic/algebra/fold.hpp"\n'}),
        ("CUDA belongs", {"include/hypic/segment/a.hpp": '#include "hypic/cuda/tag.hpp"\n'}),
        ("CUDA belongs", {"src/core/a.cpp": "#include <cuda_runtime.h>\n"}),
        ("fmt belongs", {"src/core/a.cpp": "#include <fmt/core.h>\n"}),
        ("libcrypto belongs", {"src/store/key.cpp": "#include <openssl/evp.h>\n"}),
        ("nlohmann-json belongs", {"examples/tables/a.cpp": "#include <nlohmann/json.hpp>\n"}),
        ("OpenBLAS belongs", {"src/segment/a.cpp": "#include <cblas.h>\n"}),
        ("OpenMP belongs", {"src/segment/a.cpp": "  #pragma omp for\n"}),
        ("neither a file", {"src/segment/a.cpp": "#include <boost/any.hpp>\n"}),
        ("public headers only", {"include/hypic/core/a.hpp": '#include "core/parallel.hpp"\n'}),
        ("public headers only", {"examples/engine/a.cpp": '#include "../../src/core/parallel.hpp"\n'}),
        ("public headers only", {"examples/engine/a.cpp": '#include "core/parallel.hpp"\n'}),
        ("its own files only", {"src/core/a.cpp": '#include "../../examples/engine/model.hpp"\n'}),
    ],
)
