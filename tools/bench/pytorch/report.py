"""The tables, the CSV file and the plots of tools/bench/torch."""

import csv
import math
import statistics
import subprocess

# Geometric means of Gloo's time over cohort's, on one host and on two simulated nodes; the least of any point.
TARGETS = {1: 8.0, 2: 2.0}
LEAST = 0.9


def ratio_of(point):
    """The median over the turns of Gloo's time divided by cohort's; None where one of both does not serve the call."""
    ours, theirs = point["cohort"], point["gloo"]
    if not ours or not theirs:
        return None
    return statistics.median(b / a for a, b in zip(ours, theirs))


def head(place):
    return f"\n{place.ranks} ranks, {place.nodes} node(s), PyTorch {place.torch}"


def cell(values, digits=1):
    return f"{statistics.median(values):12.{digits}f}" if values else f"{'-':>12}"


def row(name, size, point):
    ratio = ratio_of(point)
    return f"{name:16}{size:>10}{cell(point['cohort'])}{cell(point['gloo'])}" + (f"{ratio:10.2f}" if ratio else f"{'-':>10}")


COLUMNS = f"{'operation':16}{'bytes':>10}{'cohort us':>12}{'gloo us':>12}{'gloo/ours':>10}"
RATES = f"{'net':16}{'':>10}{'cohort /s':>12}{'gloo /s':>12}{'ours/gloo':>10}"


def training_row(name, unit, point):
    """Rates: here the greater is the better."""
    ratios = [a / b for a, b in zip(point["cohort"], point["gloo"])]
    last = f"{statistics.median(ratios):10.2f}" if ratios else f"{'-':>10}"
    return f"{name:16}{unit:>10}{cell(point['cohort'], 0)}{cell(point['gloo'], 0)}{last}"


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(points):
    """Lines with the means and the worst points, beside the targets."""
    lines = []
    for torch in dict.fromkeys(place.torch for place, _, _ in points):
        for nodes, target in TARGETS.items():
            ratios = {}
            for (place, operation, size), point in points.items():
                if place.nodes == nodes and place.torch == torch and ratio_of(point):
                    ratios[f"{operation} {size} B, {place.ranks} ranks"] = ratio_of(point)
            if not ratios:
                continue
            mean, below = geometric_mean(ratios.values()), {k: v for k, v in ratios.items() if v < LEAST}
            where = "one host" if nodes == 1 else "two simulated nodes"
            missed = ", missed" if mean < target else ""
            lines.append(f"PyTorch {torch}, {where}: geometric mean of {len(ratios)} points {mean:.2f} "
                         f"(target {target:.0f}{missed}); least {min(ratios.values()):.2f} at "
                         f"{min(ratios, key=ratios.get)}; {len(below)} below {LEAST}")
            lines += [f"  {name}: {value:.2f}" for name, value in sorted(below.items(), key=lambda item: item[1])]
            for operation in dict.fromkeys(name.split()[0] for name in ratios):
                of = [value for name, value in ratios.items() if name.split()[0] == operation]
                lines.append(f"  {operation:16} geometric mean {geometric_mean(of):7.2f}, least {min(of):6.2f}")
    return lines


def write_csv(path, points):
    with open(path, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(["torch", "nodes", "ranks", "operation", "bytes", "cohort_us", "gloo_us", "ratio"])
        for (place, operation, size), point in points.items():
            ratio = ratio_of(point)
            times = [f"{statistics.median(of):.2f}" if of else "" for of in (point["cohort"], point["gloo"])]
            out.writerow([place.torch, place.nodes, place.ranks, operation, size, *times, f"{ratio:.3f}" if ratio else ""])


def plot(path, points, caption):
    """A chart for each place: the ratio of each operation over the sizes."""
    lines = []
    for (place, operation, size), point in points.items():
        if size > 0 and ratio_of(point):
            chart = f"{place.ranks} ranks; {place.nodes} node(s); PyTorch {place.torch}"
            lines.append(f"{chart},{operation},{size},{ratio_of(point):.3f}")
    command = ["plot_csv", "--columns", "2", "--x", "bytes", "--y", "Gloo's time divided by cohort's", "--line", "1"]
    with open(path, "w", encoding="utf-8") as file:
        subprocess.run([*command, "--caption", caption], input="\n".join(lines), text=True, stdout=file, check=True)
