# SPDX-License-Identifier: Apache-2.0
"""Configuring downloads nothing, and hypic's own options have its prefix."""

import re

import check

CMAKE = re.compile(r"(^|/)CMakeLists\.txt$|\.cmake(\.in)?$")
COMMENT = re.compile(r"#.*")
DOWNLOAD = re.compile(r"ExternalProject_\w+|FetchContent_(?!FULLY_DISCONNECTED)\w+|\bGIT_REPOSITORY\b|"
                      r"\bfile\s*\(\s*(?:DOWNLOAD|UPLOAD)\b|\bCOMMAND\s+(?:curl|wget|git|pip3?|apt-get|conan|vcpkg)\b", re.IGNORECASE)
OPTION = re.compile(r"\b(?:cmake_dependent_)?option\s*\(\s*(\w+)|\bset\s*\(\s*(\w+)[^)]*\bCACHE\b", re.IGNORECASE)
# It takes hypic itself in, from the folder that it is given.
FETCHES = "tests/packaging/fetch_content/CMakeLists.txt"


def faults(files):
    for path, text in files.items():
        if not CMAKE.search(path):
            continue
        code = COMMENT.sub("", text)
        for word in DOWNLOAD.findall(code):
            if not (path == FETCHES and word in ("FetchContent_Declare", "FetchContent_MakeAvailable")):
                yield f"{path}: may download: {word}"
        for names in OPTION.findall(code):
            name = names[0] or names[1]
            if not name.startswith("HYPIC_") and name != "CMAKE_BUILD_TYPE":
                yield f"{path}: the option {name} lacks the prefix HYPIC_"


check.run(
    lambda files: list(faults(files)),
    good={
        "CMakeLists.txt": 'option(HYPIC_STORE "git, curl" ON)\nset(HYPIC_SANITIZE "" CACHE STRING "")\n# git clone\n',
        FETCHES: "FetchContent_Declare(hypic SOURCE_DIR ${HYPIC_SOURCE})\nFetchContent_MakeAvailable(hypic)\n",
    },
    bad=[
        ("may download: FetchContent_Declare", {"src/CMakeLists.txt": "FetchContent_Declare(fmt URL https://a.org)\n"}),
        ("may download: GIT_REPOSITORY", {FETCHES: "FetchContent_Declare(hypic\n  GIT_REPOSITORY /a/hypic)\n"}),
        ("may download: ExternalProject_Add", {"cmake/a.cmake": "ExternalProject_Add(fmt)\n"}),
        ("may download: file(DOWNLOAD", {"cmake/a.cmake": "file(DOWNLOAD https://example.org/a a)\n"}),
        ("may download: COMMAND git", {"cmake/a.cmake": "execute_process(COMMAND git clone /a/fmt)\n"}),
        ("STORE lacks the prefix", {"CMakeLists.txt": 'option(STORE "" ON)\n'}),
        ("STORE lacks the prefix", {"CMakeLists.txt": 'cmake_dependent_option(STORE "" ON A OFF)\n'}),
        ("STORE lacks the prefix", {"CMakeLists.txt": 'set(STORE\n  "" CACHE STRING "")\n'}),
    ],
)
