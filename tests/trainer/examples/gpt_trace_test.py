"""A trace of train_gpt on two simulated nodes of four ranks, over pipeline, shard and tensor axes, holds exactly the calls
that the black boxes of the ranks have recorded, by rank and operation, and the trainer's ranges and steps.

gpt_trace_test.py <dlaunch> <train_gpt> <blackbox> <folder of read_trace.py> schema|perfetto

`schema` reads the file by Cohort's copy of the schema. `perfetto` asks Perfetto's own trace processor: it wants the module
`perfetto`, and the program trace_processor_shell in PATH or in COHORT_TRACE_PROCESSOR. Exit status 77: it is not there."""

import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

RANKS = 8
STEPS = 2
RING = 512
LIMIT_S = 280
MODEL = ["--mesh", "pipeline=2,shard=2,tensor=2", "--layers", "1", "--width", "16", "--context", "8", "--batch-size", "4",
         "--micro-batches", "2", "--log-every", "1", "--sample", "0", "--steps", str(STEPS)]
# A rank's shell waits behind the training, so that its agent keeps the black box.
WAITS = 'code=0; "$@" || code=$?; touch "$TOLD/$COHORT_RANK"; while ! test -e "$TOLD/go"; do sleep 0.1; done; exit $code'


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def trace_processor():
    """The module's class, and the program."""
    try:
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
    except ImportError as error:
        skip(f"PyPI's perfetto is not there: {error}")
    program = os.environ.get("COHORT_TRACE_PROCESSOR") or shutil.which("trace_processor_shell")
    if not program:
        skip("no trace_processor_shell in PATH, and COHORT_TRACE_PROCESSOR is not set")
    return lambda path: TraceProcessor(trace=path, config=TraceProcessorConfig(bin_path=program))


def await_ranks(job, told):
    limit = time.monotonic() + LIMIT_S
    while len(os.listdir(told)) < RANKS:
        if job.poll() is not None or time.monotonic() > limit:
            job.kill()
            sys.exit(f"the ranks do not come to their ends:\n{job.communicate()[0]}")
        time.sleep(0.1)


def recorded(blackbox, job):
    """Counter of (rank, operation) in the black boxes of all ranks, which hold every call."""
    listed = subprocess.run([blackbox, "--json", "--last", str(RING), "--job", job], capture_output=True, text=True,
                            timeout=60)
    if listed.returncode != 0:
        sys.exit(f"blackbox: {listed.stderr}")
    calls, decoder, text = collections.Counter(), json.JSONDecoder(), listed.stdout.strip()
    while text:
        host, end = decoder.raw_decode(text)
        text = text[end:].strip()
        for rank in host["ranks"]:
            number = int(host["node"].removeprefix("node")) * RANKS // 2 + rank["local_rank"]
            if len(rank["calls"]) >= RING:
                sys.exit(f"a smaller model is needed: rank {number} has made more calls than its black box holds")
            for call in rank["calls"]:
                calls[number, call["kind"]] += 1
    ranks = {rank for rank, _ in calls}
    if ranks != set(range(RANKS)):
        sys.exit(f"there are black boxes of ranks {sorted(ranks)}:\n{listed.stdout}")
    return calls


def by_schema(path, folder):
    sys.path.insert(0, folder)
    from read_trace import Trace

    trace = Trace(path)
    calls = collections.Counter()
    for found in trace.slices:
        if found.track.removeprefix("rank ").isdigit():
            calls[int(found.track.removeprefix("rank ")), found.name] += 1
    ranges = collections.Counter((found.track, found.name) for found in trace.slices)
    steps = collections.Counter((found.track, found.arguments["number"]) for found in trace.instants if found.name == "step")
    dropped = sum(found.name in ("calls missing", "ranges missing") for found in trace.instants)
    return calls, ranges, steps, dropped


def by_perfetto(path, _):
    with trace_processor()(path) as processor:
        calls, ranges, steps = collections.Counter(), collections.Counter(), collections.Counter()
        for row in processor.query("select t.name as track, s.name as name, count(*) as n from slice s join track t on "
                                   "s.track_id = t.id where s.dur != 0 or s.name not in ('step') group by 1, 2"):
            if row.track and row.track.startswith("rank "):
                ranges[row.track, row.name] = row.n
                if row.track.removeprefix("rank ").isdigit() and row.name not in ("step", "calls missing", "ranges missing"):
                    calls[int(row.track.removeprefix("rank ")), row.name] += row.n
        for row in processor.query("select t.name as track, extract_arg(s.arg_set_id, 'debug.number') as number from slice s "
                                   "join track t on s.track_id = t.id where s.name = 'step'"):
            steps[row.track, int(row.number)] += 1
        dropped = next(iter(processor.query("select count(*) as n from slice where name like '% missing'"))).n
        wrong = [f"{row.name}: {row.value}" for row in processor.query(
            "select name, value from stats where severity in ('error', 'data_loss') and value != 0")]
        if wrong:
            sys.exit(f"the trace processor finds faults: {wrong}")
        return calls, ranges, steps, dropped


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: in the trace and not recorded {found - expected}, recorded and not in the trace {expected - found}")


def main(dlaunch, train_gpt, blackbox, folder, reader):
    if reader == "perfetto":
        trace_processor()
    with tempfile.TemporaryDirectory() as place:
        told = os.path.join(place, "told")
        os.mkdir(told)
        path = os.path.join(place, "job.pftrace")
        command = [dlaunch, "--simulate-nodes", "2", "--nproc-per-node", "4", "--trace", path, "--", "sh", "-c", WAITS, "sh",
                   train_gpt, *MODEL, "--checkpoints", os.path.join(place, "checkpoints")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=dict(os.environ, TOLD=told)) as job:
            await_ranks(job, told)
            calls = recorded(blackbox, job_of(dlaunch, job.pid))
            with open(os.path.join(told, "go"), "w", encoding="utf-8"):
                pass
            output = job.communicate(timeout=60)[0]
        if job.returncode != 0:
            sys.exit(f"the job ended with {job.returncode}:\n{output}")
        traced, ranges, steps, dropped = (by_perfetto if reader == "perfetto" else by_schema)(path, folder)
        if dropped:
            sys.exit(f"{dropped} events say that something is missing")
        expect("calls", traced, calls)
        expect("steps", steps, collections.Counter({(f"rank {rank}", step): 1 for rank in range(RANKS)
                                                    for step in range(STEPS + 1)}))
        for rank in range(RANKS):
            # Two micro-batches in each step, and the forward passes of four validation batches.
            for lane, name, least in (("stages", "forward", 2 * STEPS), ("stages", "backward", 2 * STEPS),
                                      ("buckets", "unit", STEPS), ("passes", "optimizer", STEPS)):
                if ranges[f"rank {rank} {lane}", name] < least:
                    sys.exit(f"rank {rank} {lane}: {ranges[f'rank {rank} {lane}', name]} ranges {name}, at least {least} were "
                             "expected")
            if not any(track == f"rank {rank} checkpoints" and name.startswith("save ") for track, name in ranges):
                sys.exit(f"rank {rank} has no range of the checkpoint")
        print(f"{sum(calls.values())} calls of {RANKS} ranks, {len(calls)} counts by rank and operation, all equal")


def job_of(dlaunch, pid):
    # The exit status is 1 where another test has stopped its dlaunch.
    listed = subprocess.run([dlaunch, "status", "--json"], capture_output=True, text=True, timeout=60, check=False)
    jobs = [job["job"] for job in json.loads(listed.stdout)["jobs"] if job["dlaunch_pid"] == pid]
    if not jobs:
        sys.exit(f"dlaunch status does not list the job of process {pid}:\n{listed.stdout}{listed.stderr}")
    return jobs[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
