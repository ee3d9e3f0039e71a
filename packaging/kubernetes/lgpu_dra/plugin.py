"""The two sockets of a driver: kubelet finds the driver by the first and prepares claims by the second."""

import logging
import pathlib
from concurrent import futures

import grpc

from lgpu_dra import messages
from lgpu_dra.api import ApiError
from lgpu_dra.driver import ClaimError
from lgpu_dra.leases import LeaseError

log = logging.getLogger(__name__)
CALLS_AT_ONCE = 8


def _method(function, request):
    return grpc.unary_unary_rpc_method_handler(function, request_deserializer=request.FromString,
                                               response_serializer=lambda message: message.SerializeToString())


class Plugin:
    """Serves from construction until stop(). `on_registered` is called, on a thread of the server's, when kubelet has registered the
    driver."""

    def __init__(self, driver, plugin_folder, registry_folder, on_registered):
        self._driver, self._on_registered = driver, on_registered
        self._dra_socket = pathlib.Path(plugin_folder) / "dra.sock"
        self._registry_socket = pathlib.Path(registry_folder) / f"{driver.name}-reg.sock"
        self.registered = None  # kubelet's last answer
        self._servers = [
            # Registration last: kubelet calls as soon as it sees that socket.
            self._serve(self._dra_socket, messages.DRA_SERVICE, {
                "NodePrepareResources": _method(self._prepare, messages.NodePrepareResourcesRequest),
                "NodeUnprepareResources": _method(self._unprepare, messages.NodeUnprepareResourcesRequest)}),
            self._serve(self._registry_socket, messages.REGISTRATION_SERVICE, {
                "GetInfo": _method(self._info, messages.InfoRequest),
                "NotifyRegistrationStatus": _method(self._status, messages.RegistrationStatus)})]

    @staticmethod
    def _serve(socket, service, methods):
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)  # of an earlier process
        server = grpc.server(futures.ThreadPoolExecutor(CALLS_AT_ONCE))
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, methods)])
        server.add_insecure_port(f"unix://{socket}")
        server.start()
        return server

    def stop(self):
        self._registry_socket.unlink(missing_ok=True)
        for server in reversed(self._servers):
            server.stop(grace=5).wait()
        self._dra_socket.unlink(missing_ok=True)

    # --- registration

    def _info(self, request, context):
        return messages.PluginInfo(type="DRAPlugin", name=self._driver.name, endpoint=str(self._dra_socket),
                                   supported_versions=[messages.DRA_VERSION])

    def _status(self, request, context):
        self.registered = request.plugin_registered
        if request.plugin_registered:
            log.info("kubelet has registered the driver")
            self._on_registered()
        else:
            log.error("kubelet does not register the driver: %s", request.error)
        return messages.RegistrationStatusResponse()

    # --- claims

    def _each(self, claims, call):
        """{uid: (result, error)}: a claim that fails has the reason as its error, and does not stop the other claims."""
        answers = {}
        for claim in claims:
            try:
                answers[claim.uid] = call(claim), ""
            except (ClaimError, LeaseError, ApiError) as error:
                log.warning("claim %s/%s (%s): %s", claim.namespace, claim.name, claim.uid, error)
                answers[claim.uid] = None, f"lgpu: {error}"
            except Exception as error:  # a bug here must be seen at the pod, not only in this log
                log.exception("claim %s/%s (%s)", claim.namespace, claim.name, claim.uid)
                answers[claim.uid] = None, f"lgpu: the driver failed: {type(error).__name__}: {error}"
        return answers

    def _prepare(self, request, context):
        response = messages.NodePrepareResourcesResponse()
        for uid, (prepared, error) in self._each(request.claims, self._driver.prepare).items():
            entry = response.claims[uid]
            entry.error = error
            for name, pool, device, ids in prepared or []:
                entry.devices.add(request_names=[name], pool_name=pool, device_name=device, cdi_device_ids=ids)
            if prepared:
                log.info("prepared claim %s: %s", uid, ", ".join(device for _, _, device, _ in prepared))
        return response

    def _unprepare(self, request, context):
        response = messages.NodeUnprepareResourcesResponse()
        for uid, (_, error) in self._each(request.claims, self._driver.unprepare).items():
            response.claims[uid].error = error
        return response
