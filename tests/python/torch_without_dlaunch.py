"""dlaunch.torch without dlaunch: a program alone learns what to do, or is a world of one; ranks of another launcher meet
through PyTorch's store. Skips, with the reason, where torch is absent."""

import os
import subprocess
import sys
import tempfile

PROGRAM = """
import sys
import torch, torch.distributed as dist
import dlaunch.torch
method, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
place = {} if size < 0 else {"rank": rank, "world_size": size}
dist.init_process_group("cohort", init_method=method or None, **place)
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
print("sum", value.item(), "of", dist.get_world_size())
dist.destroy_process_group()
"""


def start(method, rank=-1, size=-1):
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, method, str(rank), str(size)], env=clean, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def outputs(processes):
    return [(process.communicate(timeout=300)[0], process.returncode) for process in processes]


def main():
    found = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        print(f"skipped: {sys.executable} has no torch: {found.stderr.strip().splitlines()[-1]}")
        sys.exit(77)
    [(text, status)] = outputs([start("")])
    assert status == 1 and "dlaunch -n 4 python train.py" in text and "init_method='cohort://'" in text, text
    [(text, status)] = outputs([start("cohort://")])
    assert status == 0 and "sum 1.0 of 1" in text, text
    with tempfile.TemporaryDirectory(prefix="cohort-without-dlaunch-") as folder:
        method = f"file://{folder}/store"
        for text, status in outputs([start(method, rank, 3) for rank in range(3)]):
            assert status == 0 and "sum 6.0 of 3" in text, text


if __name__ == "__main__":
    main()
