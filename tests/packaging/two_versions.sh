#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Links one program from a file that was compiled against each of two installed versions, and runs it.
# usage: two_versions.sh COMPILER SOURCES LIBDIR WORK PREFIX PREFIX
set -euo pipefail
compiler=$1 sources=$2 libdir=$3 work=$4 prefixes=("${@:5}")

mkdir -p "$work"
inputs=()
for i in 0 1; do
  "$compiler" -std=c++20 -I "${prefixes[i]}/include" -DSIDE="side_$i" -c "$sources/side.cpp" -o "$work/side_$i.o"
  inputs+=("$work/side_$i.o" "${prefixes[i]}/$libdir/libhypic.so" "-Wl,-rpath,${prefixes[i]}/$libdir")
done
"$compiler" -std=c++20 "$sources/two_versions.cpp" "${inputs[@]}" -o "$work/two_versions"
"$work/two_versions"
