"""The protocols between kubelet and a driver: the messages and fields of kubelet's plugin registration (v1) and of dynamic
resource allocation (v1) that this driver uses, under upstream's names and numbers."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

REGISTRATION = "pluginregistration"
DRA = "k8s.io.kubelet.pkg.apis.dra.v1"
REGISTRATION_SERVICE = f"{REGISTRATION}.Registration"
DRA_SERVICE = f"{DRA}.DRAPlugin"
# kubelet's name for the service in PluginInfo.supported_versions.
DRA_VERSION = "v1.DRAPlugin"

_Field = descriptor_pb2.FieldDescriptorProto
# Message -> (field, number, type); "*" before a type: repeated; "map:TYPE": from strings to TYPE; other names are messages.
_REGISTRATION = {
    "PluginInfo": [("type", 1, "string"), ("name", 2, "string"), ("endpoint", 3, "string"), ("supported_versions", 4, "*string")],
    "RegistrationStatus": [("plugin_registered", 1, "bool"), ("error", 2, "string")],
    "RegistrationStatusResponse": [],
    "InfoRequest": [],
}
_DRA = {
    "Claim": [("namespace", 1, "string"), ("uid", 2, "string"), ("name", 3, "string")],
    "Device": [("request_names", 1, "*string"), ("pool_name", 2, "string"), ("device_name", 3, "string"), ("cdi_device_ids", 4, "*string")],
    "NodePrepareResourcesRequest": [("claims", 1, "*Claim")],
    "NodePrepareResourceResponse": [("devices", 1, "*Device"), ("error", 2, "string")],
    "NodePrepareResourcesResponse": [("claims", 1, "map:NodePrepareResourceResponse")],
    "NodeUnprepareResourcesRequest": [("claims", 1, "*Claim")],
    "NodeUnprepareResourceResponse": [("error", 1, "string")],
    "NodeUnprepareResourcesResponse": [("claims", 1, "map:NodeUnprepareResourceResponse")],
}
_SCALARS = {"string": _Field.TYPE_STRING, "bool": _Field.TYPE_BOOL}


def _set_type(field, package, kind):
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"


def _add_map(message, package, field, kind):
    """As the protobuf compiler writes a map: a nested message of key and value."""
    entry = message.nested_type.add(name=field.name.title().replace("_", "") + "Entry")
    entry.options.map_entry = True
    for name, number, part in (("key", 1, "string"), ("value", 2, kind)):
        _set_type(entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL), package, part)
    field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
    field.type_name = f".{package}.{message.name}.{entry.name}"


def _classes(pool, package, messages):
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number, label=_Field.LABEL_OPTIONAL)
            if kind.startswith("map:"):
                _add_map(message, package, field, kind.removeprefix("map:"))
                continue
            if kind.startswith("*"):
                field.label = _Field.LABEL_REPEATED
            _set_type(field, package, kind.removeprefix("*"))
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


_pool = descriptor_pool.DescriptorPool()
_made = {**_classes(_pool, REGISTRATION, _REGISTRATION), **_classes(_pool, DRA, _DRA)}
PluginInfo = _made["PluginInfo"]
RegistrationStatus = _made["RegistrationStatus"]
RegistrationStatusResponse = _made["RegistrationStatusResponse"]
InfoRequest = _made["InfoRequest"]
Claim = _made["Claim"]
Device = _made["Device"]
NodePrepareResourcesRequest = _made["NodePrepareResourcesRequest"]
NodePrepareResourceResponse = _made["NodePrepareResourceResponse"]
NodePrepareResourcesResponse = _made["NodePrepareResourcesResponse"]
NodeUnprepareResourcesRequest = _made["NodeUnprepareResourcesRequest"]
NodeUnprepareResourceResponse = _made["NodeUnprepareResourceResponse"]
NodeUnprepareResourcesResponse = _made["NodeUnprepareResourcesResponse"]
