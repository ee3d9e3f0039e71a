"""The driver's requests to the API server: claims, and its node's ResourceSlice."""

import logging

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

log = logging.getLogger(__name__)
PATIENCE = 10  # seconds


class ApiError(Exception):
    """The API server does not answer, or refuses; the text is for people."""


class ApiSilent(ApiError):
    """The API server does not answer at all."""


class Api:
    """Thread-safe."""

    def __init__(self, driver, node, kubeconfig=None):
        self._driver, self._node = driver, node
        if kubeconfig:
            config.load_kube_config(config_file=kubeconfig)
        else:
            config.load_incluster_config()
        self._resource, self._core = client.ResourceV1Api(), client.CoreV1Api()
        self._to_json = client.ApiClient().sanitize_for_serialization

    def _call(self, what, method, *args):
        """The method's result, or None: there is no such object."""
        try:
            return method(*args, _request_timeout=PATIENCE)
        except ApiException as error:
            if error.status == 404:
                return None
            raise ApiError(f"the API server refuses to {what}: {error.status} {error.reason}") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiSilent(f"the API server cannot be reached to {what}: {error}") from error

    def claim(self, namespace, name):
        """The ResourceClaim, or None."""
        return self._call(f"read claim {namespace}/{name}", self._resource.read_namespaced_resource_claim, name, namespace)

    def publish(self, devices):
        """Writes exactly these devices to the node's slice. True: the slice has changed."""
        name = f"{self._node}-{self._driver}"
        found = self._call(f"read slice {name}", self._resource.read_resource_slice, name)
        pool = client.V1ResourcePool(name=self._node, generation=1, resource_slice_count=1)
        spec = client.V1ResourceSliceSpec(driver=self._driver, node_name=self._node, pool=pool, devices=devices)
        if found is not None:
            if self._to_json(found.spec.devices or []) == self._to_json(devices):
                return False
            pool.generation = found.spec.pool.generation + 1
            found.spec = spec
            if self._call(f"replace slice {name}", self._resource.replace_resource_slice, name, found) is not None:
                return True
            pool.generation = 1  # it was deleted meanwhile
        body = client.V1ResourceSlice(api_version="resource.k8s.io/v1", kind="ResourceSlice",
                                      metadata=client.V1ObjectMeta(name=name, owner_references=self._owners()), spec=spec)
        self._call(f"make slice {name}", self._resource.create_resource_slice, body)
        return True

    def _owners(self):
        """The owner of the slice is its node, so the slice is deleted with the node."""
        node = self._call(f"read node {self._node}", self._core.read_node, self._node)
        if node is None:
            raise ApiError(f"there is no node {self._node}: NODE_NAME must be the name that kubelet has registered")
        return [client.V1OwnerReference(api_version="v1", kind="Node", name=self._node, uid=node.metadata.uid, controller=True)]
