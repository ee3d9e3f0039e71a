#!/usr/bin/env python3
"""has_package.py torch|training|triton|jax|cupy|numba|rmm: whether this Python has what that step of scripts/gpu-check needs.

Exit code 77, with the reason: a package is not installed, or PyTorch is built without CUDA. No package is imported, so that one that
is installed and does not work fails in its step."""

import importlib.util
import os
import sys

# Of each list one has to be there.
NEEDS = {"torch": [["torch"]], "training": [["torch"]], "triton": [["torch"], ["triton"]], "cupy": [["cupy"]], "rmm": [["rmm"]],
         "jax": [["jax"], ["jax_cuda13_plugin", "jax_cuda12_plugin"]], "numba": [["numba"], ["numba_cuda"]]}


def torch_has_cuda():
    """As torch/version.py says, which can be read alone."""
    folder = importlib.util.find_spec("torch").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("torch_version", os.path.join(folder, "version.py"))
    version = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(version)
    return version.cuda is not None


def missing(name):
    for modules in NEEDS[name]:
        if all(importlib.util.find_spec(module) is None for module in modules):
            return f"{sys.executable} has no {' and no '.join(modules)}"
    if ["torch"] in NEEDS[name] and not torch_has_cuda():
        return "torch is built without CUDA"
    return None


if __name__ == "__main__":
    reason = missing(sys.argv[1])
    if reason is not None:
        print(reason)
        sys.exit(77)
