"""The JSON of programs, validated against the schemas that are installed.

  json_test.py <dlaunch> <plan> <collperf> <folder of schemas>
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import jsonschema
except ImportError:
    print("skipped: all: python3-jsonschema is not installed")
    sys.exit(77)

DLAUNCH, PLAN, COLLPERF, SCHEMAS = sys.argv[1:5]
DEADLINE_S = 60


def without_others(schema):
    """The schema, whose objects allow no keys but those that it describes: readers ignore new keys, the test does not."""
    if isinstance(schema, list):
        return [without_others(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: without_others(value) for key, value in schema.items()}
    return {**strict, "additionalProperties": False} if schema.get("type") == "object" else strict


def validator(name, strict=True):
    with open(f"{SCHEMAS}/{name}.schema.json", encoding="utf-8") as file:
        schema = json.load(file)
    kind = getattr(jsonschema, "Draft202012Validator", jsonschema.Draft7Validator)
    kind.check_schema(schema)
    return kind(without_others(schema) if strict else schema)


def run(*command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout


class JsonTest(unittest.TestCase):
    def valid(self, name, text):
        document = json.loads(text)
        errors = [f"{list(error.absolute_path)}: {error.message}" for error in validator(name).iter_errors(document)]
        self.assertEqual(errors, [], text)
        self.assertEqual(document["format"], 1)
        return document

    def start(self, *words):
        process = subprocess.Popen([DLAUNCH, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.terminate)
        job = re.search(r"job-[0-9a-f]+", process.stderr.readline()).group(0)
        self.ask_until(lambda _: True, "status", "status", "--json", job)  # it listens a moment later
        return job

    def await_connection(self, process):
        """Until it has one socket for a second: the connection of a look stays, those before it are short."""
        end, sockets, since = time.monotonic() + DEADLINE_S, set(), time.monotonic()
        while not sockets or time.monotonic() - since < 1:
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(process.poll())
            now = set()
            for file in os.listdir(f"/proc/{process.pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    now.add(os.readlink(f"/proc/{process.pid}/fd/{file}"))
            now = {name for name in now if name.startswith("socket:")}
            if now != sockets:
                sockets, since = now, time.monotonic()
            time.sleep(0.05)

    def ask_until(self, condition, name, *words):
        """The first answer of a command to a job that is as wanted: a busy machine starts the ranks late."""
        end, found = time.monotonic() + DEADLINE_S, None
        while found is None or not condition(found):
            self.assertLess(time.monotonic(), end, found)
            asked = subprocess.run([DLAUNCH, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            found = self.valid(name, asked.stdout) if asked.returncode == 0 else None
            time.sleep(0.05)
        return found

    def listed(self):
        """All jobs of this user. The exit status is 1 where another test has stopped its dlaunch."""
        asked = subprocess.run([DLAUNCH, "status", "--json"], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertIn(asked.returncode, (0, 1), asked.stderr)
        return self.valid("status", asked.stdout)

    def test_only_the_test_refuses_keys_that_a_schema_does_not_describe(self):
        wrong = {"format": 1, "jobs": [], "silent": [], "more": 1}
        self.assertTrue(list(validator("status").iter_errors(wrong)))
        self.assertFalse(list(validator("status", strict=False).iter_errors(wrong)))
        self.assertTrue(list(validator("status").iter_errors({"format": 1, "jobs": [{}], "silent": []})))

    def test_running_jobs(self):
        job = self.start("--simulate-nodes", "2", "--nproc-per-node", "2", COLLPERF, "all_reduce", "--bytes", "1K",
                         "--point-ms", "500000")
        listed = self.listed()
        self.assertIn(job, [one["job"] for one in listed["jobs"]])
        self.assertNotIn(job, [one["job"] for one in listed["silent"]])
        one = self.valid("status", run(DLAUNCH, "status", "--json", job))["jobs"][0]
        self.assertEqual([node["ranks"] for node in one["nodes"]], [[0, 1], [2, 3]])
        self.assertEqual(one["programs"][0]["ranks"], [])  # of one program: all
        looks = run(DLAUNCH, "top", "--json", job).splitlines()
        self.assertEqual(len(looks), 1)
        look = self.valid("top", looks[0])
        self.assertEqual([rank["rank"] for rank in look["ranks"]], [0, 1, 2, 3])
        self.assertEqual(look["job"]["job"], job)
        stacks = self.ask_until(lambda found: len(found["ranks"]) >= 2, "stacks", "stacks", "--json", "--rank", "1-2", job)
        self.assertEqual([rank["rank"] for rank in stacks["ranks"]], [1, 2])
        why = self.ask_until(lambda found: found["ranks"] >= 4, "why", "why", "--json", "--for", "1s", job)
        self.assertEqual((why["job"], why["ranks"]), (job, 4))
        self.assertNotIn("asked_seconds", why)

    def test_all_spares_are_counted_and_the_first_are_named(self):
        job = self.start("--simulate-nodes", "19", "--nnodes", "1", "--nproc-per-node", "1", "--spares", "18",
                         "--max-restarts", "1", "sleep", "600")
        one = self.valid("status", run(DLAUNCH, "status", "--json", job))["jobs"][0]
        self.assertEqual(one["spare_count"], 18)
        self.assertEqual(len(one["spares"]), 16)

    def test_a_command_that_is_too_long_to_tell_is_left_out(self):
        job = self.start("sh", "-c", "sleep 600", "x" * 10000)
        one = self.valid("status", run(DLAUNCH, "status", "--json", job))["jobs"][0]
        self.assertNotIn("programs", one)

    def test_each_look_of_top_is_a_line(self):
        job = self.start("sleep", "600")
        with subprocess.Popen([DLAUNCH, "top", "--json", "--interval", "0.2", job], stdout=subprocess.PIPE,
                              text=True) as top:
            lines = [top.stdout.readline() for _ in range(3)]
            run(DLAUNCH, "kill", "--now", job)
            rest = top.stdout.read().splitlines()
            self.assertEqual(top.wait(DEADLINE_S), 0)
        for line in lines + rest:
            self.valid("top", line)

    def test_why_of_a_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = folder + "/job.pftrace"
            run(DLAUNCH, "-n", "2", "--trace", trace, COLLPERF, "all_reduce", "--bytes", "1K", "--point-ms", "300")
            why = self.valid("why", run(DLAUNCH, "why", "--json", trace))
            self.assertEqual(why["trace"], trace)
            self.assertGreater(why["steps"]["count"], 0)
            step = self.valid("why", run(DLAUNCH, "why", "--json", "--step", str(why["steps"]["first"]), trace))
            self.assertEqual(step["step"]["number"], why["steps"]["first"])

    def test_why_of_a_job_that_ends_meanwhile(self):
        job = self.start("-n", "2", COLLPERF, "all_reduce", "--point-ms", "6000")
        with subprocess.Popen([DLAUNCH, "why", "--json", "--for", "50s", job], stdout=subprocess.PIPE, text=True) as look:
            self.await_connection(look)
            run(DLAUNCH, "kill", job)
            why = self.valid("why", look.communicate(timeout=DEADLINE_S)[0])
        self.assertEqual(look.returncode, 0)
        self.assertEqual(why["asked_seconds"], 50)
        self.assertLess(why["look_seconds"], 50)

    def test_why_of_a_job_with_a_rank_that_has_not_joined(self):
        late = 'test "$RANK" = 1 && sleep 600; exec "$@"'
        job = self.start("-n", "2", "sh", "-c", late, "sh", COLLPERF, "all_reduce", "--bytes", "1K")
        found = self.ask_until(lambda found: "unjoined" in found.get("culprit", {}), "why", "why", "--json", "--for", "2s",
                               job)  # rank 0 has yet to wait
        self.assertEqual([rank["rank"] for rank in found["culprit"]["unjoined"]], [1])

    def test_no_job(self):
        self.assertEqual(run(DLAUNCH, "status", "--json", "job-zz", status=1), "")

    def test_doctor(self):
        found = self.valid("doctor", subprocess.run([DLAUNCH, "doctor", "--json"], capture_output=True, text=True,
                                                    timeout=DEADLINE_S, check=False).stdout)
        self.assertEqual([source["name"] for source in found["sources"] if source["chosen"]], ["local"])
        self.assertIn("trial job", [finding["subject"] for finding in found["findings"]])

    def test_dry_run(self):
        plan = self.valid("dry-run", run(DLAUNCH, "--dry-run", "--json", "--simulate-nodes", "3", "--nnodes", "2",
                                         "--spares", "1", "--simulate-gpus", "2", "--on-failure", "restart", "true"))
        self.assertEqual([len(node["ranks"]) for node in plan["nodes"]], [2, 2])
        self.assertEqual(plan["nodes"][0]["ranks"][1]["devices"], [{"kind": "simulated", "index": 1, "id": "sim:1"}])
        self.assertEqual(len(plan["spares"]), 1)
        explained = self.valid("dry-run", run(DLAUNCH, "--explain", "--json", "true"))
        self.assertIn("local", [source["name"] for source in explained["sources"]])
        self.assertEqual(explained["bind"], "core")
        self.assertNotIn("variables", explained)  # all ranks are here
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/ssh", "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
            os.chmod(folder + "/ssh", 0o755)
            explained = self.valid("dry-run", run(DLAUNCH, "--explain", "--json", "--hosts", "127.0.0.2", "--ssh", folder + "/ssh",
                                                  "--env-pass", "PATH", "--bind", "none", "true"))
        self.assertIn("PATH", explained["variables"])
        self.assertEqual(explained["bind"], "none")

    def test_several_programs(self):
        plan = self.valid("dry-run", run(DLAUNCH, "--dry-run", "--json", "-n", "1", "true", ":", "-n", "2", "sleep", "1"))
        self.assertEqual([program["ranks"] for program in plan["programs"]], [[[0, 0]], [[1, 2]]])

    def test_reports(self):
        for words, status in ((["true"], 0), (["sh", "-c", "echo bad >&2; exit 3"], 3),
                              (["-n", "1", "true", ":", "-n", "1", "false"], 1),
                              (["--max-restarts", "1", "--nproc-per-node", "2", "sh", "-c", "exit $((RANK * 5))"], 5)):
            with tempfile.TemporaryDirectory() as folder:
                run(DLAUNCH, "--log-dir", folder, *words, status=status)
                with open(folder + "/report.json", encoding="utf-8") as file:
                    report = self.valid("report", file.read())
                self.assertEqual(report["exit_code"], status)

    def test_plan_explain(self):
        for words in (["--bytes", "64K", "--ranks", "16", "--hosts", "2"], ["--windows"]):
            found = self.valid("plan-explain", run(PLAN, "explain", "all_reduce", "--json", *words))
            self.assertEqual(len([one for one in found["algorithms"] if one["chosen"]]), 1)


if __name__ == "__main__":
    os.environ.pop("COHORT_AGENT", None)
    unittest.main(argv=sys.argv[:1], verbosity=2)
