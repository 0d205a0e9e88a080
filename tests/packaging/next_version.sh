#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the sources of a next version: one minor version up, in the inline namespace v1.
# usage: next_version.sh SOURCE TO
set -euo pipefail
source=$1 to=$2

rm -rf "$to"
mkdir -p "$to"
cp -r "$source"/{CMakeLists.txt,cmake,include,src} "$to"
header=include/hypic/core/version.hpp
minor=$(sed -n 's/^#define HYPIC_VERSION_MINOR //p' "$source/$header")
sed -i "s/^\(#define HYPIC_VERSION_MINOR\) .*/\1 $((minor + 1))/" "$to/$header"
find "$to"/{include,src} -type f -exec sed -i 's/\binline v0\b/inline v1/' {} +

# With the times of the originals, a build compiles again only what has changed.
cd "$source"
find CMakeLists.txt cmake include src -type f -exec touch -r {} "$to/{}" \;
