#!/usr/bin/env python3
"""strategies_test.py <bin folder> <trainer/README.md>: the commands of the table "Which strategy when" run as they stand
there, but for fewer steps."""

import os
import re
import subprocess
import sys

SHORTER = {"train_gpt": "--steps 2 --sample 0",
           "port_resnet": "--batches 1 --batch-size 40 --classes 10 --image-size 32 --width 4",
           "port_parallelize": "--epochs 1",
           "port_million_classes": "--classes 20000 --steps 2"}
RESULT = r"validation loss [0-9.]+|batch 1: loss [0-9.]+|step 30: loss [0-9.]+|classes: [0-9]+ MiB"


def main(folder, page):
    with open(page, encoding="utf-8") as file:
        table = file.read().split("## Which strategy when\n")[1].split("\n## ")[0]
    commands = re.findall(r"^\|.*\| `(dlaunch [^`]+)` \|$", table, re.MULTILINE)
    failed = len(commands) < 10
    for command in commands:
        program = next(name for name in SHORTER if name in command.split())
        words = f"{command} {SHORTER[program]}".split()
        ended = subprocess.run([os.path.join(folder, words[0]), *words[1:]], capture_output=True, text=True, timeout=100,
                               env={**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"]})
        print(f"{command}: exit status {ended.returncode}", flush=True)
        if ended.returncode != 0 or not re.search(RESULT, ended.stdout):
            print(ended.stdout + ended.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
