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
    ("OpenMP", r"omp\.h|#pragma omp", r"src/core/parallel\.hpp|examples/engine/workers\.hpp|benchmarks/.*"),
    ("Catch2", r"catch2/", r"tests/.*"),
    ("Google Benchmark", r"benchmark/", r"benchmarks/.*"),
    ("NVTX", r"nvtx3/", r"(include/hypic|src)/adapter/nvtx\.[hc]pp|(examples|tests)/.*"),
    # hypic's own side tower stands behind a wall too: a host file of the library never needs it, and a program that
    # uses it from plain C++ sees no .cuh.
    ("CUDA", r"(cuda|nv|cub|thrust|cooperative_groups)[\w/]*(\.h(pp)?|\.cuh)|cuda/.*|hypic/cuda/.*\.cuh",
     r"cuda/.*|include/hypic/cuda/.*\.cuh|(examples|tests|benchmarks)/.*\.cuh?"),
    ("hypic's CUDA back end", r"hypic/cuda/.*", r"(include/hypic/)?cuda/.*|(examples|tests|benchmarks)/.*"),
]
SYSTEM = re.compile(r"[a-z0-9_]+|(sys/)?[a-z0-9_]+\.h")  # standard C++ and POSIX
DIRECTIVE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]|^\s*#\s*(pragma\s+omp)\b', re.MULTILINE)
SOURCE = re.compile(r"(include|src|cuda|examples|tests|benchmarks)/.*\.(hpp|cpp|h|c|cuh|cu)$")


def floor_of(path):
    """The floor of a library's file. The C API, which lies in no folder of its own, is of the highest."""
    match = re.match(r"(?:include/hypic|src)/(\w+)/", path)
    if match:
        return match[1] if match[1] in FLOORS else None
    return FLOORS[-1] if re.match(r"include/(hypic/)?\w+\.\w+$", path) else None


def resolve(path, name, files):
    """The file of the tree that `path` means by `name`, or None."""
    top = path.split("/")[0]
    for folder in (posixpath.dirname(path), "include", top, *(["src"] if top != "src" else []), "examples"):
        candidate = posixpath.normpath(posixpath.join(folder, name))
        if candidate in files:
            return candidate
    return None


def fault(path, name, target, stands_alone):
    """
    What is wrong with `path` including `name`, which is the tree's file `target`; None if nothing is. `stands_alone`:
    the path is of an example that is a project of its own.
    """
    if target is not None:
        name = target.removeprefix("include/")
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
    if re.match(r"(include/hypic/)?cuda/", path) and target_floor == "adapter":
        return "adapter lies above cuda"
    if top == "include" and target_top != "include":
        return "a public header includes public headers only"
    if stands_alone and target_top != "include" and target.split("/")[:2] != path.split("/")[:2]:
        return "an example that stands alone includes public headers and its own files only"
    if top in ("examples", "benchmarks") and target_top not in ("include", top, "examples"):
        return "examples and benchmarks use public headers only"
    if top in ("src", "cuda") and target_top not in ("include", "src", "cuda"):
        return "the library includes its own files only"
    return None


def faults(files):
    alone = {posixpath.dirname(path) for path, text in files.items()
             if re.fullmatch(r"examples/\w+/CMakeLists\.txt", path) and "find_package(hypic" in text}
    for path, text in files.items():
        if not SOURCE.match(path):
            continue
        stands_alone = "/".join(path.split("/")[:2]) in alone
        for include, pragma in DIRECTIVE.findall(text):
            name = include or "#pragma omp"
            if why := fault(path, name, resolve(path, name, files), stands_alone):
                yield f"{path} has {name}: {why}"


check.run(
    lambda files: list(faults(files)),
    good={
        "include/hypic/core/status.hpp": "#include <cstdint>\n",
        "include/hypic/algebra/fold.hpp": '#include "hypic/core/status.hpp"\n',
        "include/hypic/cuda/tag.hpp": '#include "hypic/algebra/fold.hpp"\n',
        "include/hypic/cuda/fold.cuh": '#include <cuda_runtime.h>\n#include "hypic/cuda/tag.hpp"\n',
        "include/hypic/adapter/dlpack.hpp": '#include "hypic/algebra/fold.hpp"\n',
        "include/hypic.h": "#include <stdint.h>\n",
        "src/adapter/c_api.cpp": '#include "hypic.h"\n#include "hypic/adapter/dlpack.hpp"\n',
        "src/adapter/nvtx.cpp": "#include <nvtx3/nvToolsExt.h>\n",
        "cuda/fold.cu": '#include <cub/cub.cuh>\n#include "hypic/cuda/fold.cuh"\n#include "hypic/algebra/fold.hpp"\n',
        "src/core/message.cpp": '#include <fmt/format.h>\n#include "hypic/core/status.hpp"\n',
        "src/core/parallel.hpp": "#include <omp.h>\n#pragma omp parallel\n",
        "src/algebra/fold.cpp": '#include "hypic/algebra/fold.hpp"\n#include "core/parallel.hpp"\n',
        "examples/engine/model.hpp": "#include <nlohmann/json.hpp>\n#include <cblas.h>\n#include <sys/mman.h>\n",
        "examples/tables/main.cpp": '#include "engine/model.hpp"\n#include "hypic/algebra/fold.hpp"\n',
        "examples/on_the_gpu/main.cpp": '#include "hypic/cuda/tag.hpp"\n',
        "examples/alone/CMakeLists.txt": "find_package(hypic REQUIRED)\n",
        "examples/alone/main.cpp": '#include "own.hpp"\n#include "hypic/algebra/fold.hpp"\n',
        "examples/alone/own.hpp": "",
        "examples/alone/api.c": '#include <stdio.h>\n#include "hypic.h"\n',
        "tests/algebra/fold.cpp": '#include <catch2/catch.hpp>\n#include "core/parallel.hpp"\n',
    },
    bad=[
        ("algebra lies above core", {"include/hypic/core/a.hpp": '#include "hypic/algebra/fold.hpp"\n'}),
        ("algebra lies above core", {"src/core/a.cpp": '#include "hypic/algebra/fold.hpp"\n'}),
        ("adapter lies above request", {"include/hypic/request/a.hpp": '#include "hypic/adapter/dlpack.hpp"\n'}),
        ("adapter lies above store", {"src/store/a.cpp": '#include "hypic.h"\n'}),
        ("adapter lies above cuda", {"include/hypic/cuda/a.hpp": '#include "hypic/adapter/dlpack.hpp"\n'}),
        ("adapter lies above cuda", {"cuda/a.cu": '#include "hypic.h"\n'}),
        ("CUDA back end belongs", {"include/hypic/segment/a.hpp": '#include "hypic/cuda/tag.hpp"\n'}),
        ("CUDA back end belongs", {"include/hypic/segment/a.hpp": '#include "../cuda/tag.hpp"\n'}),
        ("CUDA back end belongs", {"src/adapter/a.cpp": '#include "hypic/cuda/tag.hpp"\n'}),
        ("CUDA belongs", {"include/hypic/cuda/a.hpp": "#include <cuda_runtime.h>\n"}),
        ("CUDA belongs", {"include/hypic/cuda/a.hpp": '#include "hypic/cuda/fold.cuh"\n'}),
        ("CUDA belongs", {"examples/on_the_gpu/a.cpp": '#include "hypic/cuda/fold.cuh"\n'}),
        ("NVTX belongs", {"src/core/a.cpp": "#include <nvtx3/nvToolsExt.h>\n"}),
        ("neither a file", {"include/hypic/adapter/a.hpp": "#include <dlpack/dlpack.h>\n"}),
        ("fmt belongs", {"examples/alone/a.cpp": "#include <fmt/core.h>\n"}),
        ("stands alone includes", {"examples/alone/a.cpp": '#include "engine/model.hpp"\n'}),
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
