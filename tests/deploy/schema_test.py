"""The manifests of deploy/kubernetes are what the schemas of their kinds allow, without a field those do not know."""
import copy
import json
import pathlib
import re
import sys
import unittest

try:
    import jsonschema
    import yaml
except ImportError as missing:
    print(f"skipped: no Python {missing.name} here; install python3-jsonschema and python3-yaml")
    sys.exit(77)

FOLDER, SCHEMAS = (pathlib.Path(path) for path in sys.argv[1:])
del sys.argv[1:]

DEFINITIONS = {}
for file in sorted(SCHEMAS.glob("*.json")):
    DEFINITIONS |= json.loads(file.read_text())["$defs"]


class UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice, of which PyYAML silently takes the last."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.constructor.ConstructorError(None, None, "a key stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def load(text):
    return list(yaml.load_all(text, UniqueKeys))


def kinds_of(definition):
    """The (apiVersion, kind) that a definition describes, or None where it is only a part of one."""
    properties = definition.get("properties", {})
    words = [properties.get(key, {}).get("enum", []) for key in ("apiVersion", "kind")]
    return (words[0][0], words[1][0]) if all(words) else None


KINDS = {kinds_of(definition): name for name, definition in DEFINITIONS.items() if kinds_of(definition)}


def faults(document):
    """["$.path: what is wrong there"]"""
    kind = document.get("apiVersion"), document.get("kind")
    if kind not in KINDS:
        return [f"$: no schema for {kind}"]
    validator = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{KINDS[kind]}", "$defs": DEFINITIONS})
    return sorted(f"{error.json_path}: {error.message}" for error in validator.iter_errors(document))


def manifests():
    """{(file, kind): document}"""
    return {(path.name, document["kind"]): document
            for path in sorted(FOLDER.glob("*.yaml")) for document in load(path.read_text())}


DROP = object()
JOB, SERVICE = ("indexed-job.yaml", "Job"), ("indexed-job.yaml", "Service")
JOB_SET, GROUP = ("jobset.yaml", "JobSet"), ("leaderworkerset.yaml", "LeaderWorkerSet")
JOB_POD = "spec.template.spec"
SET_JOB = "spec.replicatedJobs.0"
SET_POD = f"{SET_JOB}.template.spec.template.spec"
GROUP_POD = "spec.leaderWorkerTemplate.workerTemplate.spec"

# manifest, what changes, to what, where that must be told, what must be told
REFUSED = (
    # A field that is misspelt, or stands one level too high or too low.
    (SERVICE, "spec.publishNotReadyAddress", True, "$.spec", "'publishNotReadyAddress' was unexpected"),
    (JOB, "specs", {}, "$", "'specs' was unexpected"),
    (JOB, "metadata.label", {}, "$.metadata", "'label' was unexpected"),
    (JOB, "spec.completionmode", "Indexed", "$.spec", "'completionmode' was unexpected"),
    (JOB, "spec.restartPolicy", "Never", "$.spec", "'restartPolicy' was unexpected"),
    (JOB, f"{JOB_POD}.backoffLimit", 0, "$.spec.template.spec", "'backoffLimit' was unexpected"),
    (JOB, f"{JOB_POD}.containers.0.volumeMounts.0.readonly", True,
     "$.spec.template.spec.containers[0].volumeMounts[0]", "'readonly' was unexpected"),
    (JOB_SET, "spec.network.enableDnsHostnames", True, "$.spec.network", "'enableDnsHostnames' was unexpected"),
    (JOB_SET, "spec.completions", 2, "$.spec", "'completions' was unexpected"),
    (JOB_SET, f"{SET_POD}.volumes.0.secret.name", "cohort-token",
     "$.spec.replicatedJobs[0].template.spec.template.spec.volumes[0].secret", "'name' was unexpected"),
    (GROUP, "spec.size", 2, "$.spec", "'size' was unexpected"),
    (GROUP, f"{GROUP_POD}.terminationGracePeriod", 60, "$.spec.leaderWorkerTemplate.workerTemplate.spec",
     "'terminationGracePeriod' was unexpected"),
    # A value of the wrong type.
    (SERVICE, "spec.selector", ["train"], "$.spec.selector", "['train'] is not of type 'object'"),
    (JOB, "spec.completions", "2", "$.spec.completions", "'2' is not of type 'integer'"),
    (JOB, "spec.template", None, "$.spec.template", "None is not of type 'object'"),
    (JOB, f"{JOB_POD}.containers.0.command.2", 2, "$.spec.template.spec.containers[0].command[2]",
     "2 is not of type 'string'"),
    (JOB, f"{JOB_POD}.containers.0.resources", {"limits": {"memory": []}},
     "$.spec.template.spec.containers[0].resources.limits.memory", "[] is not valid under any of the given schemas"),
    (JOB_SET, "spec.network.enableDNSHostnames", "yes", "$.spec.network.enableDNSHostnames",
     "'yes' is not of type 'boolean'"),
    (JOB_SET, "spec.failurePolicy.maxRestarts", True, "$.spec.failurePolicy.maxRestarts",
     "True is not of type 'integer'"),
    (GROUP, "spec.leaderWorkerTemplate.size", "2", "$.spec.leaderWorkerTemplate.size", "'2' is not of type 'integer'"),
    # A field that must be there.
    (JOB, "spec.template", DROP, "$.spec", "'template' is a required property"),
    (JOB, f"{JOB_POD}.containers", DROP, "$.spec.template.spec", "'containers' is a required property"),
    (JOB, f"{JOB_POD}.containers.0.volumeMounts.0.mountPath", DROP,
     "$.spec.template.spec.containers[0].volumeMounts[0]", "'mountPath' is a required property"),
    (JOB_SET, f"{SET_JOB}.name", DROP, "$.spec.replicatedJobs[0]", "'name' is a required property"),
    (GROUP, "spec.leaderWorkerTemplate", DROP, "$.spec", "'leaderWorkerTemplate' is a required property"),
    (GROUP, "spec.leaderWorkerTemplate.workerTemplate", DROP, "$.spec.leaderWorkerTemplate",
     "'workerTemplate' is a required property"),
    # A word that is none of those allowed.
    (SERVICE, "spec.type", "Headless", "$.spec.type", "'Headless' is not one of ["),
    (JOB, "spec.completionMode", "indexed", "$.spec.completionMode", "'indexed' is not one of ["),
    (JOB, f"{JOB_POD}.restartPolicy", "OnError", "$.spec.template.spec.restartPolicy", "'OnError' is not one of ["),
    (JOB_SET, "spec.successPolicy", {"operator": "Most"}, "$.spec.successPolicy.operator", "'Most' is not one of ["),
    (GROUP, "spec.leaderWorkerTemplate.restartPolicy", "Never", "$.spec.leaderWorkerTemplate.restartPolicy",
     "'Never' is not one of ["),
    # A kind, or a version of one, of which nothing is known.
    (JOB, "apiVersion", "batch/v1beta1", "$", "no schema for ('batch/v1beta1', 'Job')"),
    (JOB_SET, "apiVersion", "jobset.x-k8s.io/v1", "$", "no schema for ('jobset.x-k8s.io/v1', 'JobSet')"),
    (GROUP, "kind", "LeaderWorkerset", "$", "no schema for ('leaderworkerset.x-k8s.io/v1', 'LeaderWorkerset')"),
)


def changed(document, path, value):
    document = copy.deepcopy(document)
    *way, last = (int(word) if word.isdigit() else word for word in path.split("."))
    place = document
    for word in way:
        place = place[word]
    if value is DROP:
        del place[last]
    else:
        place[last] = value
    return document


class Schemas(unittest.TestCase):
    def test_allow_the_manifests(self):
        found = manifests()
        self.assertEqual(set(found), {SERVICE, JOB, JOB_SET, GROUP})
        for name, document in found.items():
            with self.subTest(manifest=name):
                self.assertEqual(faults(document), [])

    def test_allow_the_failure_policy_of_the_read_me(self):
        (policy,) = re.findall(r"`(podFailurePolicy: [^`]*)`", (FOLDER / "README.md").read_text())
        (addition,) = load(policy)
        job = changed(manifests()[JOB], "spec.podFailurePolicy", addition["podFailurePolicy"])
        self.assertEqual(faults(job), [])
        job = changed(job, "spec.podFailurePolicy.rules.0.action", "Retry")
        self.assertRegex("\n".join(faults(job)), r"^\$\.spec\.podFailurePolicy\.rules\[0\]\.action: 'Retry' is not one of")

    def test_refuse_a_change_and_tell_where(self):
        found = manifests()
        for manifest, path, value, place, what in REFUSED:
            with self.subTest(manifest=manifest, path=path, value=value):
                (fault,) = faults(changed(found[manifest], path, value))
                self.assertTrue(fault.startswith(f"{place}: "), fault)
                self.assertIn(what, fault)

    def test_know_every_field_by_name(self):
        """An object that may hold anything, or a reference to nothing, would let mistakes through."""
        for name, definition in DEFINITIONS.items():
            jsonschema.Draft202012Validator.check_schema(definition)
            if "properties" in definition:
                self.assertIs(definition.get("additionalProperties"), False, name)
            for reference in re.findall(r'"\$ref": "([^"]*)"', json.dumps(definition)):
                self.assertIn(reference.removeprefix("#/$defs/"), DEFINITIONS, name)


class Reader(unittest.TestCase):
    def test_refuses_a_key_that_stands_twice(self):
        with self.assertRaisesRegex(yaml.YAMLError, "a key stands twice"):
            load("spec: {completions: 2, parallelism: 2, completions: 3}")


unittest.main()
