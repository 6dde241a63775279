"""tools/bench/torch on one small point: torch_bench_test.py <tools/bench/torch> <python> <dlaunch> <plot_csv>.

Looks at the table, the CSV file and the plot, and at refusals of bad options. Skips where the interpreter has no torch."""

import os
import subprocess
import sys
import tempfile

bench, python, dlaunch, plot_csv = sys.argv[1:5]
found = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False)
if found.returncode != 0:
    print(f"skipped: {python} has no torch: {found.stderr.strip().splitlines()[-1]}")
    sys.exit(77)
os.environ["PATH"] = os.pathsep.join([os.path.dirname(dlaunch), os.path.dirname(plot_csv), os.environ["PATH"]])


def run(*options):
    return subprocess.run([sys.executable, bench, "--python", python, *options], capture_output=True, text=True, check=False)


with tempfile.TemporaryDirectory(prefix="cohort-bench-torch-") as folder:
    done = run("--ranks", "2", "--nodes", "1", "--operations", "all_reduce,barrier", "--sizes", "8,1024", "--turns", "1",
               "--steps", "1", "--nets", "ddp_digits", "--results", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    # Indented lines are of the summary, which names points again where Gloo was the quicker.
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith(" ")]
    for operation, size in (("all_reduce", "8"), ("all_reduce", "1024"), ("barrier", "0"), ("ddp_digits", "images")):
        [row] = [row for row in rows if row[:2] == [operation, size]]
        assert len(row) == 5 and all(float(cell) > 0 for cell in row[2:]), row
    assert "one host: geometric mean of 3 points" in done.stdout, done.stdout
    kept = {os.path.splitext(name)[1]: os.path.join(folder, name) for name in os.listdir(folder)}
    assert sorted(kept) == [".csv", ".svg", ".txt"], kept
    with open(kept[".csv"], encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert len(lines) == 4 and lines[0].startswith("torch,nodes,ranks,operation,bytes,"), lines
    with open(kept[".svg"], encoding="utf-8") as file:
        assert "all_reduce" in file.read()

refused = run("--operations", "all_reduce,twist")
assert refused.returncode == 1 and "no operation twist" in refused.stderr, refused.stderr
drawn = subprocess.run([plot_csv], input="a,b,1\n", capture_output=True, text=True, check=False)
assert drawn.returncode == 2 and "line 1" in drawn.stderr and not drawn.stdout, drawn
