#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles a program with the flags that pkg-config gives for hypic, and runs it.
# usage: pkg_config.sh static|shared DIRECTORY_OF_HYPIC_PC VERSION COMPILER ARGUMENTS... -o PROGRAM
set -euo pipefail
kind=$1 version=$3 program=${*: -1}
export PKG_CONFIG_PATH=$2
command=("${@:4}")

fail() {
  echo "pkg_config: $1" >&2
  exit 1
}

pkg-config --validate hypic
[[ $(pkg-config --modversion hypic) == "$version" ]] || fail "the version is not $version"

if [[ $kind == static ]]; then
  read -ra flags <<< "$(pkg-config --static --cflags --libs hypic)"
  read -ra without_static <<< "$(pkg-config --cflags --libs hypic)"
  # Shows that the private entries are needed, and so that this test can fail.
  ! "${command[@]}" "${without_static[@]}" 2> /dev/null || fail 'a static library linked without its dependencies'
else
  read -ra flags <<< "$(pkg-config --cflags --libs hypic)"
  [[ ${flags[*]} != *crypto* ]] || fail 'a shared library passes its own dependencies on'
  LD_LIBRARY_PATH=$(pkg-config --variable=libdir hypic)
  export LD_LIBRARY_PATH
fi
"${command[@]}" "${flags[@]}"
"$program"
