#!/usr/bin/env python3
"""The manifests of packaging/kubernetes: each object has the fields that the API client knows, and they agree with the driver.

manifests_test.py ROOT   shapes only: no server has seen them"""

import pathlib
import re
import sys

import yaml
from kubernetes import client

KINDS = {"ServiceAccount": client.V1ServiceAccount, "ClusterRole": client.V1ClusterRole, "Namespace": client.V1Namespace,
         "ClusterRoleBinding": client.V1ClusterRoleBinding, "DeviceClass": client.V1DeviceClass, "DaemonSet": client.V1DaemonSet,
         "ResourceClaimTemplate": client.V1ResourceClaimTemplate, "Pod": client.V1Pod}


class Text:
    """A response of the server, as far as the client reads it."""

    def __init__(self, text):
        self.data = text


def check_fields(written, read, where):
    """The client drops fields that it does not know: everything written must come back."""
    if isinstance(written, dict):
        for key, value in written.items():
            assert key in read, f"{where}.{key} is no field of Kubernetes'"
            check_fields(value, read[key], f"{where}.{key}")
    elif isinstance(written, list):
        assert len(written) == len(read), where
        for number, (one, other) in enumerate(zip(written, read)):
            check_fields(one, other, f"{where}[{number}]")
    else:
        assert written == read, f"{where}: {written!r} became {read!r}"


def main():
    root = pathlib.Path(sys.argv[1])
    folder = root / "packaging/kubernetes"
    sys.path.insert(0, str(folder))
    from lgpu_dra.__main__ import parse
    api, seen = client.ApiClient(), {}
    for file in sorted((folder / "manifests").glob("*.yaml")):
        for written in yaml.safe_load_all(file.read_text()):
            kind = written["kind"]
            model = KINDS[kind].from_dict(written) if hasattr(KINDS[kind], "from_dict") else KINDS[kind](**written)
            check_fields(written, api.sanitize_for_serialization(model), f"{file.name}: {kind}")
            seen[kind] = written
    assert set(seen) == set(KINDS), f"{set(KINDS) - set(seen)} are missing"
    container = seen["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]
    options = parse(["--node", "n", *container["args"]])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {options.endpoint, f"{options.kubelet}/plugins", f"{options.kubelet}/plugins_registry", options.cdi_folder} == mounted
    assert f'"{options.driver}"' in seen["DeviceClass"]["spec"]["selectors"][0]["cel"]["expression"]
    asked = seen["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert asked["deviceClassName"] == seen["DeviceClass"]["metadata"]["name"]
    # The driver has the right to exactly the calls that it makes.
    allowed = {(resource, verb) for rule in seen["ClusterRole"]["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    calls = re.findall(r"self\._(?:resource|core)\.(read|replace|create)_(?:namespaced_)?(\w+?)\b[,)]", (folder / "lgpu_dra/api.py").read_text())
    verbs = {"read": "get", "replace": "update", "create": "create"}
    needed = {(name.replace("_", "") + "s", verbs[verb]) for verb, name in calls}
    assert needed == allowed, f"needed and not allowed: {needed - allowed}; allowed and not needed: {allowed - needed}"
    print(f"{len(KINDS)} kinds of objects are as the client knows them")


if __name__ == "__main__":
    main()
