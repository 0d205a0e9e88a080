#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the CUDA back end beside its peers and writes one file of results.

    benchmarks/cuda/run.py hit PROGRAM RESULTS.json [--commit HASH]

PROGRAM is the built benchmark, build/release/benchmarks/cuda/cuda_hit. Peers need PyTorch; without it their columns are
empty. The commit is the checkout's, which has to be clean, unless it is given: a copy without .git cannot know it.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def commit_of_checkout():
    def git(*words):
        return subprocess.run(["git", "-C", HERE, *words], check=True, capture_output=True, text=True).stdout.strip()

    if git("status", "--porcelain"):
        sys.exit("run.py: the checkout has changes; commit them first")
    return git("rev-parse", "HEAD")


def peers_of(kind):
    ran = subprocess.run([sys.executable, HERE / f"{kind}_peers.py"], stdout=subprocess.PIPE, text=True)
    if ran.returncode != 0:
        print("run.py: no peers: their program failed", file=sys.stderr)
        return {"peers": {}}
    return json.loads(ran.stdout.splitlines()[-1])


def main():
    words = argparse.ArgumentParser()
    words.add_argument("kind", choices=["hit"])
    words.add_argument("program", type=pathlib.Path)
    words.add_argument("results", type=pathlib.Path)
    words.add_argument("--commit")
    given = words.parse_args()
    commit = given.commit or commit_of_checkout()

    measured = json.loads(subprocess.run([given.program], check=True, stdout=subprocess.PIPE, text=True).stdout)
    others = peers_of(given.kind)
    for row in measured["rows"]:
        row["peer"], row["peer_ms"] = others["peers"].get(row["name"], (None, None))
    results = {
        "gpu": measured["gpu"],
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "command": f"benchmarks/cuda/run.py {given.kind} {given.program.name} {given.results.name}",
        "copy_tb_s": measured["copy_tb_s"],
        "matmul_tflops": others.get("matmul_tflops"),
        "torch": others.get("torch"),
        "rows": measured["rows"],
    }
    given.results.write_text(json.dumps(results, indent=1) + "\n")
    for row in results["rows"]:
        peer = f"{row['peer_ms']:8.3f}  {row['peer']}" if row["peer_ms"] else ""
        print(f"{row['name']:24} {row['shape']:48} {row['ms']:8.3f} ms  limit {row['limit_ms']:6.3f} {peer}")


if __name__ == "__main__":
    main()
