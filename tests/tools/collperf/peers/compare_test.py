"""The comparison with other systems: ours beside the bare pair, or with every peer whose program has been built.

  compare_test.py <collperf> <dlaunch> ours|peers
"""

import csv
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

COLLPERF, WHO = pathlib.Path(sys.argv[1]), sys.argv[3]
PROGRAMS = {"compare_openmpi_rank": ("openmpi", "openmpi-ucx"), "compare_mpich_rank": ("mpich",),
            "compare_gloo_rank": ("gloo",), "compare_openmpi5_rank": ("openmpi5", "openmpi5-ucx"),
            "compare_mpich5_rank": ("mpich5",), "compare_intelmpi_rank": ("intelmpi",)}


def check_interruption():
    """A comparison that is interrupted says so once, ends soon, and marks what it keeps."""
    with tempfile.TemporaryDirectory() as folder:
        command = [COLLPERF, "all_reduce", "--ranks", "2", "--bytes", "8", "--turns", "1000", "--point-ms", "100000",
                   "--results", folder, "--peers", "bare", "--transport", "shm"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as conductor:
            lines = []
            while not lines or not lines[-1].startswith("# cohort: "):  # printed once all systems have started
                lines.append(conductor.stdout.readline())
                assert lines[-1], lines
            conductor.send_signal(signal.SIGINT)
            began = time.monotonic()
            rest, _ = conductor.communicate(timeout=60)
        print(rest)
        assert conductor.returncode == 1, conductor.returncode
        assert time.monotonic() - began < 20
        assert rest.count("interrupted") == 1 and "# interrupted after 0 of 1 points" in rest, rest
        assert "given up" not in rest, rest
        kept = next(pathlib.Path(folder).glob("*.txt")).read_text()
        assert kept.startswith("# incomplete: 0 of 1 points\n"), kept


def main():
    peers = [name for program, names in PROGRAMS.items() if (COLLPERF.parent / program).exists() for name in names]
    if WHO == "peers" and not peers:
        print("skipped: comparison with other systems: their programs are not built; tools/dev bench peers does it")
        return 77
    has_bare = WHO == "ours" and len(os.sched_getaffinity(0)) >= 2
    transports = {"ours": ["shm"], "peers": ["shm", "tcp"]}[WHO]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
        command = [COLLPERF, "all_reduce,scatter,barrier", "--quick", "--ranks", "2", "--bytes", "8,4K",
                   "--turns", "1", "--point-ms", "10", "--rewrite", "--messages", "64", "--overlap",
                   "--results", folder, "--peers", *(peers if WHO == "peers" else ["bare"]),
                   "--transport", ",".join(transports)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False,
                              env=dict(os.environ, TMPDIR=temporary))
        print(done.stdout, done.stderr)
        assert done.returncode == 0
        files = sorted(path.suffix for path in pathlib.Path(folder).iterdir())
        assert files == [".csv", ".svg", ".svg", ".txt"], files
        rows = list(csv.DictReader(next(pathlib.Path(folder).glob("*.csv")).read_text().splitlines()))
        assert all(row["wrong"] == "0" for row in rows)
        assert {row["rewritten"] for row in rows if row["op"] == "scatter"} == {"false", "true"}
        assert {row["op"] for row in rows if row["messages"] == "64"} == {"send_recv"}
        assert {row["op"] for row in rows if row["compute_us"]} == {"all_reduce"}
        assert all(float(row["flag_least_ns"]) > 0 for row in rows if int(row["turns"]) > 0), rows
        for transport in transports:
            seen = {row["system"] for row in rows if row["transport"] == transport}
            ours = {"private", "window"} if transport == "shm" else {"private"}
            bare = ({"bare", "bare-window"} if transport == "shm" else {"bare"}) if has_bare else set()
            missing = (ours | bare | set(peers if WHO == "peers" else ())) - seen
            # Gloo knows TCP only. Another system may fail to start on a strange machine: the output says why.
            assert not bare & missing and "bare is given up" not in done.stdout, (transport, missing)
            assert not missing - {"gloo"} or "given up" in done.stdout, (transport, missing)
        left = [name for name in os.listdir(temporary) if name.startswith("compare-")]
        assert not left, f"left behind: {left}"
    if WHO == "ours":
        check_interruption()
    return 0


if __name__ == "__main__":
    sys.exit(main())
