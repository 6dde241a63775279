#!/usr/bin/env python3
"""Makes kubernetes.json and jobset.json beside this file from two wheels, whose versions README.md names.

    reduce.py kubernetes_validate-*.whl kubeflow_trainer_api-*.whl

Drops descriptions and what no kind that is used here refers to; the rest is as published."""
import ast
import json
import pathlib
import re
import sys
import zipfile

FOLDER = pathlib.Path(__file__).parent
# Kinds of Kubernetes itself. Definitions that other kinds refer to are found in these.
KINDS = ("io.k8s.api.batch.v1.Job", "io.k8s.api.core.v1.Service")

# Some fields take a few words only. The published schemas name them in the description, which is dropped.
_WORDS = {
    "io.k8s.api.batch.v1.JobSpec": {
        "completionMode": ("NonIndexed", "Indexed"),
        "podReplacementPolicy": ("TerminatingOrFailed", "Failed"),
    },
    "io.k8s.api.batch.v1.PodFailurePolicyOnExitCodesRequirement": {"operator": ("In", "NotIn")},
    "io.k8s.api.batch.v1.PodFailurePolicyRule": {"action": ("FailJob", "FailIndex", "Ignore", "Count")},
    "io.k8s.api.core.v1.Container": {"imagePullPolicy": ("Always", "Never", "IfNotPresent")},
    "io.k8s.api.core.v1.PodSpec": {
        "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
        "restartPolicy": ("Always", "OnFailure", "Never"),
    },
    "io.k8s.api.core.v1.ServiceSpec": {"type": ("ExternalName", "ClusterIP", "NodePort", "LoadBalancer")},
    "jobset.v1alpha2.DependsOn": {"status": ("Ready", "Complete")},
    "jobset.v1alpha2.FailurePolicyRule": {
        "action": ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob",
                   "RestartJobAndIgnoreMaxRestarts"),
    },
    "jobset.v1alpha2.StartupPolicy": {"startupPolicyOrder": ("AnyOrder", "InOrder")},
    "jobset.v1alpha2.SuccessPolicy": {"operator": ("All", "Any")},
}
_TYPES = {"StrictStr": "string", "StrictInt": "integer", "StrictBool": "boolean"}


def references(schema):
    """The names of the definitions that the schema refers to."""
    return re.findall(r'"\$ref": "[^"]*/([^"/]+)"', json.dumps(schema))


def reduced(node):
    """The schema without what checks nothing."""
    if isinstance(node, list):
        return [reduced(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: reduced(schema) for name, schema in value.items()}
        elif key == "$ref":
            kept[key] = "#/$defs/" + references(node)[0]
        elif key == "type" and isinstance(value, list):
            # The wheel allows null everywhere, which Kubernetes' own description does not.
            (kept[key],) = (name for name in value if name != "null")
        elif key != "description" and not key.startswith("x-"):
            kept[key] = reduced(value)
    return kept


def named_words(name, schema):
    """Adds the words that a property takes."""
    for key, words in _WORDS.get(name, {}).items():
        description = schema["properties"][key]["description"]
        unnamed = [word for word in words if not re.search(rf"\b{word}\b", description)]
        if unnamed:
            raise SystemExit(f"reduce.py: the description of {name}.{key} does not name {unnamed}")
        schema["properties"][key]["enum"] = list(words)
    return schema


def kubernetes(wheel):
    """All definitions of the newest Kubernetes in the wheel kubernetes-validate, and its version."""
    with zipfile.ZipFile(wheel) as archive:
        found = {}
        for path in archive.namelist():
            match = re.search(r"/v(\d+)\.(\d+)\.(\d+)-local-strict/_definitions\.json$", path)
            if match:
                found[tuple(int(number) for number in match.groups())] = path
        version = max(found)
        return json.loads(archive.read(found[version]))["$defs"], ".".join(map(str, version))


def model_property(annotation, classes):
    """The schema of a pydantic annotation such as Optional[List[StrictStr]]."""
    if isinstance(annotation, ast.Name):
        known = _TYPES.get(annotation.id)
        return {"type": known} if known else {"$ref": "/" + classes[annotation.id]}
    inner = model_property(annotation.slice, classes)
    return {"Optional": inner, "List": {"type": "array", "items": inner}}[annotation.value.id]


def model(node, classes):
    """The schema of a class that the OpenAPI generator wrote."""
    properties, required = {}, []
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or field.target.id.startswith("_"):
            continue
        arguments = field.value.keywords if isinstance(field.value, ast.Call) else ()
        told = {word.arg: ast.literal_eval(word.value) for word in arguments}
        name = told.get("alias", field.target.id)
        properties[name] = {**model_property(field.annotation, classes), "description": told.get("description", "")}
        if field.value is None or isinstance(field.value, ast.Call) and "default" not in told:
            required.append(name)
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def job_set(wheel, definitions):
    """The definitions of JobSet in the wheel kubeflow-trainer-api, which has them as Python classes."""
    nodes = {}
    with zipfile.ZipFile(wheel) as archive:
        for path in archive.namelist():
            if re.search(r"/models/jobset_v1alpha2_\w+\.py$", path):
                module = ast.parse(archive.read(path))
                nodes |= {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    classes = {"".join(part[0].upper() + part[1:] for part in name.split(".")): name for name in definitions}
    classes |= {name: name.replace("JobsetV1alpha2", "jobset.v1alpha2.") for name in nodes}
    found = {classes[name]: model(node, classes) for name, node in nodes.items()}
    del found["jobset.v1alpha2.JobSetList"]
    top = found["jobset.v1alpha2.JobSet"]["properties"]
    top["apiVersion"]["enum"] = ["jobset.x-k8s.io/v1alpha2"]
    top["kind"]["enum"] = ["JobSet"]
    return found


def write(name, comment, definitions):
    lines = (f'{json.dumps(key)}:{json.dumps(value, separators=(",", ":"), sort_keys=True)}'
             for key, value in sorted(definitions.items()))
    (FOLDER / name).write_text(f'{{"$comment":{json.dumps(comment)},"$defs":{{\n' + ",\n".join(lines) + "\n}}\n")


def main(kubernetes_wheel, trainer_wheel):
    definitions, version = kubernetes(kubernetes_wheel)
    sets = job_set(trainer_wheel, definitions)
    others = {**sets, **json.loads((FOLDER / "leaderworkerset.json").read_text())["$defs"]}
    used, rest = set(), list(KINDS) + references(others)
    while rest:
        name = rest.pop()
        if name not in used and name not in others:
            used.add(name)
            rest += references(definitions[name])
    made = "Apache-2.0; made by reduce.py from "
    write("kubernetes.json", f"{made}{pathlib.Path(kubernetes_wheel).name}: Kubernetes {version}",
          {name: reduced(named_words(name, definitions[name])) for name in used})
    write("jobset.json", f"{made}{pathlib.Path(trainer_wheel).name}: JobSet v1alpha2",
          {name: reduced(named_words(name, schema)) for name, schema in sets.items()})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
