"""Ranks of the tests of COHORT_TORCH_BACKEND=cohort: torch_switch_ranks.py <scenario>, under dlaunch --torch-backend.

It never imports dlaunch before torch does, as the programs that it stands for never do."""

import datetime
import os
import subprocess
import sys

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LIMIT = datetime.timedelta(seconds=100)


def is_ours(group=None):
    from dlaunch.torch.gloo import serves

    return serves(group)


def sums(group, members=None):
    """Whether a sum over the group is right."""
    import torch
    import torch.distributed as dist

    value = torch.full((5,), RANK + 1.0)
    dist.all_reduce(value, group=group)
    return (value == sum(rank + 1 for rank in members or range(SIZE))).all()


def asleep():
    """Without torch nothing is loaded, and the folder of the switch is not where modules are looked for."""
    assert not [name for name in sys.modules if name.split(".")[0] == "dlaunch"]
    assert not [entry for entry in sys.path if entry.endswith("switch")], sys.path
    import importlib.util

    assert importlib.util.find_spec("torch") and "torch" not in sys.modules


def named():
    """Every way to say gloo gives a group of cohort, which answers to the name that the program gave."""
    import torch
    import torch.distributed as dist

    assert torch.__spec__.loader is torch.__loader__ and "Torch" not in type(torch.__loader__).__name__
    config = dist.distributed_c10d.get_backend_config if hasattr(dist.distributed_c10d, "BackendConfig") else None
    for backend, devices in (("gloo", {"cpu:gloo,cuda:gloo"}), ("GLOO", {"cpu:gloo,cuda:gloo"}),
                             ("cpu:gloo", {"cpu:gloo"}), ("cuda:gloo,cpu:gloo", {"cuda:gloo,cpu:gloo"}),
                             ("cpu:gloo,cuda:fake", {"cpu:gloo,cuda:fake"}), (None, {"cpu:gloo"})):
        if config is None and backend != "gloo":
            continue  # PyTorch 1.13 has no backends for each device, and one group of all ranks a process
        if backend == "cpu:gloo,cuda:fake":
            import torch.testing._internal.distributed.fake_pg  # noqa: F401: registers fake
        dist.init_process_group(backend, timeout=LIMIT)
        assert dist.get_backend() == (backend or "undefined").lower(), dist.get_backend()
        assert is_ours() and sums(None)
        assert config is None or config() in devices, config()
        some = dist.new_group([0, SIZE - 1], timeout=LIMIT, backend=backend and "gloo")
        if RANK in (0, SIZE - 1):
            assert dist.get_backend(some) == (backend and "gloo" or "undefined"), dist.get_backend(some)
            assert is_ours(some) and sums(some, [0, SIZE - 1])
        if backend == "cpu:gloo,cuda:fake":
            group = dist.distributed_c10d._get_default_group()
            assert group._get_backend(torch.device("cuda")).name() == "fake"
            assert group._get_backend(torch.device("cpu")).name() == "gloo"
        if backend in ("gloo", "cpu:gloo") and hasattr(dist, "split_group") and not torch.__version__.startswith("2.11"):
            halves = [list(range(SIZE // 2)), list(range(SIZE // 2, SIZE))]
            half = dist.split_group(split_ranks=halves, timeout=LIMIT)
            assert dist.get_backend(half) == backend
            assert is_ours(half) and sums(half, halves[RANK >= SIZE // 2])
        dist.monitored_barrier(timeout=LIMIT)
        everyone = [None] * SIZE
        dist.all_gather_object(everyone, {"rank": RANK})
        assert everyone == [{"rank": rank} for rank in range(SIZE)]
        dist.destroy_process_group()
        assert not dist.is_initialized()


def mesh():
    """DeviceMesh makes the default group itself, and groups of its dimensions."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    both = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("outer", "inner"))
    row = [rank for rank in range(SIZE) if rank // (SIZE // 2) == RANK // (SIZE // 2)]
    assert is_ours() and is_ours(both["inner"].get_group()) and sums(both["inner"].get_group(), row)
    dist.destroy_process_group()


def beside():
    """A ProcessGroupGloo that the program makes itself is Gloo's, and so is every name that Gloo has."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=LIMIT)
    assert dist.is_gloo_available() and dist.Backend.GLOO == "gloo"
    store = dist.PrefixStore("own", dist.distributed_c10d._get_default_store())
    own = dist.ProcessGroupGloo(store, RANK, SIZE, LIMIT)
    value = torch.ones(3)
    own.allreduce([value]).wait()
    assert (value == SIZE).all() and not is_ours(own) and is_ours()
    # Only C++ is told that the group is none of Gloo's: DistributedDataParallel would look for its options.
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()


class Squares:
    """A data set whose workers say what they have loaded."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        import torch

        assert is_registered()
        return torch.tensor(float(index * index))


def is_registered():
    import torch.distributed as dist

    return "COHORT" in dist.Backend._plugins


def children():
    """Workers of a DataLoader, children and modules (-m) find the switch too; PYTHONPATH is the user's behind it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=LIMIT)
    for way in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=way)
        assert sum(batch.sum() for batch in loader) == sum(i * i for i in range(8))
    code = "import torch, sys; print('dlaunch.torch.gloo' in sys.modules)"
    for arguments in (["-c", code], ["-m", "torch.distributed.run", "--help"]):
        ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
        assert arguments[0] == "-m" or ran.stdout.strip() == "True", ran
    assert sums(None)
    dist.destroy_process_group()


def launched():
    """Processes of another launcher, which a rank is, are a world of their own."""
    import torch.distributed as dist

    if os.environ["TORCHELASTIC_RUN_ID"] != os.environ["COHORT_JOB_ID"]:
        dist.init_process_group("gloo", timeout=LIMIT)
        assert is_ours() and dist.get_world_size() == 2 and sums(None)
        dist.destroy_process_group()
    elif RANK == 0:
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", __file__,
                        "launched"], check=True)


def spawned(rank, size, method):
    """A process that a rank has started: one of a world of its own."""
    import torch
    import torch.distributed as dist

    if method == "env":
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    place = {} if method == "env" else {"init_method": method, "rank": rank, "world_size": size}
    dist.init_process_group("gloo", timeout=LIMIT, **place)
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    assert is_ours() and value == size * (size + 1) / 2, value
    some = dist.new_group([0, size - 1], timeout=LIMIT)
    if rank in (0, size - 1):
        dist.all_reduce(value, group=some)
        assert value == size * (size + 1), value
    dist.destroy_process_group()


def spawns():
    """torch.multiprocessing.spawn makes a world within each rank, as it does over Gloo; the rank keeps its place. Where the
    job has several ranks the worlds are as large as the job, and one process of each is numbered as its rank."""
    import socket
    import tempfile

    import torch.distributed as dist
    import torch.multiprocessing as mp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="cohort-spawns-") as folder:
        many = SIZE if SIZE > 1 else 4
        for method in (f"tcp://127.0.0.1:{port}", f"file://{folder}/store", "env"):
            if method == "env":  # as launchers in a program do: before they start their processes
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(many))
            mp.spawn(spawned, args=(many, method), nprocs=many)
    os.environ.update(WORLD_SIZE=str(SIZE))
    dist.init_process_group("gloo", timeout=LIMIT, init_method="cohort://")
    assert is_ours() and sums(None)
    dist.destroy_process_group()


def installed():
    """The package beside dlaunch serves where another one is installed, whether torch or the program imports it first."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="cohort-installed-") as folder:
        for path, text in (("dlaunch/__init__.py", "OLD = True"), ("dlaunch/_comm.abi3.so", ""),
                           ("dlaunch/torch/__init__.py", "def register(): pass"),
                           ("dlaunch-0.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: dlaunch\nVersion: 0.0\n"),
                           ("dlaunch-0.0.dist-info/entry_points.txt",
                            "[torch.backends]\ndlaunch = dlaunch.torch:register\n")):
            os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
            with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
                file.write(text)
        environment = {**os.environ, "PYTHONPATH": os.environ["PYTHONPATH"].replace(":", f":{folder}:", 1)}
        assert folder in environment["PYTHONPATH"], environment["PYTHONPATH"]
        check = "import torch.distributed as d; assert not hasattr(dlaunch, 'OLD'); assert 'COHORT' in d.Backend._plugins"
        for order in ("import torch, dlaunch", "import dlaunch, torch"):
            subprocess.run([sys.executable, "-c", f"{order}; {check}"], env=environment, check=True)


def namesake():
    """A program that has a module dlaunch of its own learns so; without torch it is left alone."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="cohort-namesake-") as folder:
        with open(os.path.join(folder, "dlaunch.py"), "w", encoding="utf-8") as file:
            file.write("OWN = True")
        for order in ("import torch, dlaunch", "import dlaunch, torch"):
            ran = subprocess.run([sys.executable, "-c", order], cwd=folder, capture_output=True, text=True, check=False)
            assert ran.returncode == 1 and f"{folder}/dlaunch.py, which hides Cohort's package" in ran.stderr, ran
        subprocess.run([sys.executable, "-c", "import dlaunch; assert dlaunch.OWN"], cwd=folder, check=True)


def unrelated():
    """A module cohort of another project, PyPI's for one, is neither taken for the package nor in its way."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="cohort-unrelated-") as folder:
        with open(os.path.join(folder, "cohort.py"), "w", encoding="utf-8") as file:
            file.write("OWN = True")
        check = "import torch.distributed as d; assert cohort.OWN; assert 'COHORT' in d.Backend._plugins"
        for order in ("import torch, cohort", "import cohort, torch"):
            subprocess.run([sys.executable, "-c", f"{order}; {check}"], cwd=folder, check=True)


def off():
    """Unless it is asked for, gloo is Gloo's."""
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=LIMIT)
    assert "dlaunch" not in sys.modules or not is_ours()
    assert sums(None)
    dist.destroy_process_group()


def refused():
    """A value that nobody knows is refused when torch is imported; so is a PyTorch without what the backend needs."""
    from raises import raises

    import torch  # noqa: F401
    from dlaunch.torch import gloo

    raises(RuntimeError, lambda: gloo.check_version("1.12.1"), "PyTorch 1.12.1 is too old")
    gloo.check_version("1.13.0a0")
    gloo.check_version("2.15.0+cpu")
    os.environ["COHORT_TORCH_BACKEND"] = "nccl"
    raises(ValueError, gloo.is_asked_for, "COHORT_TORCH_BACKEND=nccl: give cohort")


if __name__ == "__main__":
    name = sys.argv[1]
    globals()[name]()
    print(f"{name}: done", flush=True)
