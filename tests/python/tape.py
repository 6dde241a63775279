"""The script of docs/start/pytorch.md, each of its ranks recorded and then run again alone: tape.py <dlaunch> <page>.

Losses are equal bit for bit, and so are the gradients that a rank gives to its calls, of which a replay compares hashes.
A script that was changed is told its first difference."""

import os
import re
import subprocess
import sys
import tempfile

try:
    import torch.distributed  # noqa: F401
except ImportError as error:
    print(f"skipped: {sys.executable} has no PyTorch: {error}")
    sys.exit(77)

RANKS = 2
DIFFERS = "is not what it was in the recorded run"
PRINTED = 'if dist.get_rank() == 0:\n    print(f"{dist.get_world_size()} ranks, loss {loss.item():.4f}")\n'
EXACT = 'print(f"loss {loss.item().hex()}")\n'


def script_of(page):
    with open(page, encoding="utf-8") as file:
        found = re.search(r'```python title="train.py"\n(.*?)```', file.read(), re.DOTALL)
    if found is None or PRINTED not in found[1]:
        sys.exit(f"{page} has another script than this test knows")
    return found[1].replace(PRINTED, EXACT)


def run(folder, *command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, check=False,
                          cwd=folder)


def losses(done):
    found = re.findall(r"loss (0x\S+)", done.stdout)
    if done.returncode != 0 or not found or DIFFERS in done.stderr:
        sys.exit(f"{' '.join(done.args)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return found


def main(dlaunch, page):
    script = [sys.executable, "train.py"]
    with tempfile.TemporaryDirectory(prefix="cohort-tape-") as folder:
        with open(os.path.join(folder, "train.py"), "w", encoding="utf-8") as file:
            file.write(script_of(page))
        recorded = losses(run(folder, dlaunch, "--no-prefix", "-n", str(RANKS), "--tape", "tapes", "--", *script))
        replayed = [losses(run(folder, dlaunch, "replay", "tapes", "--rank", str(rank), "--", *script))
                    for rank in range(RANKS)]
        if sorted(recorded) != sorted(loss for alone in replayed for loss in alone):
            sys.exit(f"recorded losses {recorded}, and replayed ones {replayed}")
        print(f"losses of {RANKS} ranks alike: {recorded}")
        wrong = run(folder, dlaunch, "replay", "tapes", "--rank", "0", "--", *script, "--wrong")
        named = (r"replay: rank 0 calls all_reduce\(sum, float32, 1\) at train.py:\d+ .*its tape has as call \d+ "
                 r"all_reduce\(sum, float32, 9\) at train.py:\d+")
        if wrong.returncode == 0 or not re.search(named, wrong.stderr):
            sys.exit(f"the changed script: exit status {wrong.returncode}\n{wrong.stdout}{wrong.stderr}")


main(*sys.argv[1:])
