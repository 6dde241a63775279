"""One rank of tools/bench/torch: measures what its argument asks for, and rank 0 prints each result as a line of JSON."""

import datetime
import json
import sys

import torch
import torch.distributed as dist

import calls
import dlaunch.torch  # noqa: F401: registers the backend
import training


def main(asked):
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=300)
    dist.init_process_group("cohort", timeout=limit)
    groups = {"cohort": dist.group.WORLD, "gloo": dist.new_group(backend="gloo", timeout=limit)}

    def emit(**result):
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)

    for operation in asked["operations"]:
        for size in asked["sizes"] if operation != "barrier" else [0]:
            calls.measure(operation, size, groups, asked["turns"], emit)
    for net in asked["nets"]:
        training.measure(net, groups, asked["turns"], asked["steps"], emit)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
