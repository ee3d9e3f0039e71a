"""Doubles of the programs that a node's driver talks to: the API server (real HTTP) and kubelet (real gRPC over unix sockets). Each
has only the calls that this driver uses, and checks shapes. There is no scheduler, and no validation as in a cluster."""

import http.server
import json
import pathlib
import threading

import grpc
from lgpu_dra import messages

RESOURCE = "/apis/resource.k8s.io/v1"


class ApiServer:
    """Objects by their paths. `fail`: the status of every answer, or 0; `failing`: paths that alone are answered by 500."""

    def __init__(self, node):
        self.objects = {f"/api/v1/nodes/{node}": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "uid": "node-uid"}}}
        self.lock, self.fail, self.writes = threading.Lock(), 0, 0
        self.failing = set()
        double = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def refuse(self, status):
                self.answer(status, {"kind": "Status", "status": "Failure", "code": status})

            def body(self):
                return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

            def do_GET(self):
                path = self.path.split("?")[0]
                with double.lock:
                    found = double.objects.get(path)
                    if path in double.failing:
                        return self.refuse(500)
                    if double.fail or found is None:
                        return self.refuse(double.fail or 404)
                    return self.answer(200, found)

            def do_POST(self):
                self.write(self.path.split("?")[0] + "/", is_new=True)

            def do_PUT(self):
                self.write(self.path.split("?")[0], is_new=False)

            def write(self, path, is_new):
                body = self.body()
                path += body["metadata"]["name"] if is_new else ""
                with double.lock:
                    before = double.objects.get(path)
                    if double.fail or (before is None) != is_new:
                        return self.refuse(double.fail or (409 if is_new else 404))
                    if before and body["metadata"].get("resourceVersion") != before["metadata"]["resourceVersion"]:
                        return self.refuse(409)
                    double.writes += 1
                    body["metadata"]["resourceVersion"] = str(double.writes)
                    double.objects[path] = body
                    return self.answer(201 if is_new else 200, body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def kubeconfig(self, file):
        url = f"http://127.0.0.1:{self.server.server_port}"
        pathlib.Path(file).write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}))

    def slice(self):
        with self.lock:
            found = [value for key, value in self.objects.items() if key.startswith(f"{RESOURCE}/resourceslices/")]
        return found[0] if found else None

    def delete_slices(self):
        """As a kubelet does that starts."""
        with self.lock:
            for path in [path for path in self.objects if path.startswith(f"{RESOURCE}/resourceslices/")]:
                del self.objects[path]

    @staticmethod
    def path_of(namespace, name):
        return f"{RESOURCE}/namespaces/{namespace}/resourceclaims/{name}"

    def put_claim(self, namespace, name, uid, results):
        """A claim as the scheduler leaves it: `results` of (request, node, device, size or None)."""
        given = [{"request": request, "driver": "lgpu.io", "pool": pool, "device": device,
                  **({"shareID": "00000000-0000-4000-8000-000000000000", "consumedCapacity": {"memory": size}} if size else {})}
                 for request, pool, device, size in results]
        path = self.path_of(namespace, name)
        with self.lock:
            self.objects[path] = {
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"namespace": namespace, "name": name, "uid": uid}, "spec": {"devices": {}},
                "status": {"allocation": {"devices": {"results": given}}} if given else {}}

    def delete_claim(self, namespace, name):
        with self.lock:
            del self.objects[self.path_of(namespace, name)]


class Kubelet:
    """Registers the driver that it finds in its folder, and calls it."""

    def __init__(self, folder, driver="lgpu.io"):
        self.registry = pathlib.Path(folder) / "plugins_registry" / f"{driver}-reg.sock"
        self.channel = None

    @staticmethod
    def call(channel, service, method, request, answer):
        function = channel.unary_unary(f"/{service}/{method}", request_serializer=lambda message: message.SerializeToString(),
                                       response_deserializer=answer.FromString)
        return function(request, timeout=60, wait_for_ready=True)

    def register(self):
        with grpc.insecure_channel(f"unix://{self.registry}") as channel:
            info = self.call(channel, "pluginregistration.Registration", "GetInfo", messages.InfoRequest(), messages.PluginInfo)
            status = messages.RegistrationStatus(plugin_registered=True)
            self.call(channel, "pluginregistration.Registration", "NotifyRegistrationStatus", status,
                      messages.RegistrationStatusResponse)
        if self.channel is not None:
            self.channel.close()
        self.channel = grpc.insecure_channel(f"unix://{info.endpoint}")
        return info

    def prepare(self, *claims):
        """{uid: (devices, error)}; a claim is (namespace, name, uid)."""
        request = messages.NodePrepareResourcesRequest(
            claims=[messages.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims])
        response = self.call(self.channel, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "NodePrepareResources", request,
                             messages.NodePrepareResourcesResponse)
        return {uid: (list(entry.devices), entry.error) for uid, entry in response.claims.items()}

    def unprepare(self, *claims):
        request = messages.NodeUnprepareResourcesRequest(
            claims=[messages.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims])
        response = self.call(self.channel, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "NodeUnprepareResources", request,
                             messages.NodeUnprepareResourcesResponse)
        return {uid: entry.error for uid, entry in response.claims.items()}
