#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copies an installed tree to another place, where it has to work as well, so none of its text files may name FROM or
# one of the places where it was made.
# usage: move.sh FROM TO PLACE...
set -euo pipefail
from=$1 to=$2

# A place is named where its path stands alone: /a is in "/a/b" and -I/a, but in neither "/ab" nor "${prefix}/a".
alone='(?:(?<![\w})>.-])|(?<=-[IL]))'
for place in "$from" "${@:3}"; do
  if grep -rIP -- "$alone\\Q$place\\E(?![\w.-])" "$from"; then
    echo "move: a file of $from names a place: $place" >&2
    exit 1
  fi
done
mkdir -p "$(dirname "$to")"
cp -a "$from" "$to"
