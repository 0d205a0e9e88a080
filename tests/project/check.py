# SPDX-License-Identifier: Apache-2.0
"""What the checks of this folder share: the files of a tree, and the way to run a check or its self-test."""

import os
import sys
import tempfile

SKIPPED_FOLDERS = {".git", ".cache", "build", "__pycache__"}


def read_tree(root):
    """The UTF-8 files below root: {path with slashes, relative to root: text}. Binary files are left out."""
    files = {}
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.join(folder, name)
            try:
                with open(path, encoding="utf-8") as file:
                    files[os.path.relpath(path, root).replace(os.sep, "/")] = file.read()
            except UnicodeDecodeError:
                pass
    return files


def run(check, good, bad):
    """
    Runs check(files) -> list of faults, on the tree that the command line names. With --self-test, runs it on small
    trees instead: `good` must have no fault; each of `bad`, as (words of the fault, changes to `good`), exactly one,
    which has those words.
    """
    if sys.argv[1:] != ["--self-test"]:
        files = read_tree(sys.argv[1])
        faults = check(files)
        print("\n".join(faults) or f"{len(files)} files, no fault")
        sys.exit(1 if faults else 0)

    for words, changes in [(None, {}), *bad]:
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**good, **changes}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            faults = check(read_tree(root))
        expected = not faults if words is None else len(faults) == 1 and words in faults[0]
        if not expected:
            sys.exit(f"self-test: expected {words or 'no fault'}; found {faults}")
    print(f"{len(bad)} bad trees, each found out")
