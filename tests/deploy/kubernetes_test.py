"""The manifests of deploy/kubernetes agree with themselves and with what dlaunch looks for in a pod."""
import pathlib
import sys
import unittest

try:
    import yaml
except ImportError:
    print("skipped: no Python yaml here; install python3-yaml")
    sys.exit(77)

FOLDER = pathlib.Path(sys.argv.pop(1))


def documents(name):
    return {d["kind"]: d for d in yaml.safe_load_all((FOLDER / name).read_text())}


class Manifests(unittest.TestCase):
    def check_pod(self, spec, nodes):
        (container,) = spec["containers"]
        command = container["command"]
        self.assertEqual(command[0], "dlaunch")
        self.assertTrue(all(isinstance(word, str) for word in command), "numbers must be quoted")
        if nodes is not None:
            self.assertEqual(command[command.index("--nnodes") + 1], str(nodes))
        token = pathlib.PurePosixPath(command[command.index("--token-file") + 1])
        mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
        volumes = {v["name"]: v for v in spec["volumes"]}
        self.assertIn("secret", volumes[mounts[str(token.parent)]])
        grace = float(command[command.index("--grace") + 1])
        self.assertLess(grace, spec["terminationGracePeriodSeconds"], "dlaunch must end its ranks before the kubelet does")

    def check_job(self, spec):
        self.assertEqual(spec["completionMode"], "Indexed")
        self.assertEqual(spec["completions"], spec["parallelism"], "all pods must run at once")
        pod = spec["template"]["spec"]
        self.assertEqual(pod["restartPolicy"], "Never")
        self.check_pod(pod, spec["completions"])
        return pod

    def test_indexed_job(self):
        found = documents("indexed-job.yaml")
        job, service = found["Job"], found["Service"]
        pod = self.check_job(job["spec"])
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertTrue(service["spec"]["publishNotReadyAddresses"], "pods look for pod 0 before it is ready")
        self.assertEqual(service["spec"]["selector"], {"job-name": job["metadata"]["name"]})

    def test_job_set(self):
        spec = documents("jobset.yaml")["JobSet"]["spec"]
        self.assertTrue(spec["network"]["enableDNSHostnames"])
        (job,) = spec["replicatedJobs"]
        self.assertEqual(job["replicas"], 1, "pods of several jobs have no common pod 0")
        self.check_job(job["template"]["spec"])

    def test_leader_worker_set(self):
        template = documents("leaderworkerset.yaml")["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
        self.assertGreater(template["size"], 1)
        self.check_pod(template["workerTemplate"]["spec"], None)


unittest.main()
