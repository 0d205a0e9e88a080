#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the sources of a next version: one minor version up, in the inline namespace v1.
# usage: next_version.sh SOURCE TO
set -euo pipefail
source=$1 to=$2

mkdir -p "$to"
cp -r "$source"/{CMakeLists.txt,cmake,include,src} "$to"
find "$to"/{include,src} -type f -exec sed -i 's/\binline v0\b/inline v1/' {} +
minor=$(sed -n 's/^#define HYPIC_VERSION_MINOR //p' "$to/include/hypic/core/version.hpp")
sed -i "s/^\(#define HYPIC_VERSION_MINOR\) .*/\1 $((minor + 1))/" "$to/include/hypic/core/version.hpp"
