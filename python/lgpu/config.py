"""The calls of TensorFlow's tf.config, on one Config of this process. Once a setter was called here, or list_logical_devices,
a Context without config= is made from it: the arguments of the Context are merged over it. `lgpu.Config` makes others.

Sizes are bytes or texts such as "2GiB". TensorFlow's memory_limit counts MiB: so does a number below 2**20 in a
LogicalDeviceConfiguration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

from lgpu import _core
from lgpu._arguments import Size, sink, size, text
from lgpu._context import LogicalDevice, current

_MIB = 1 << 20


@dataclass(frozen=True)
class PhysicalDevice:
    """TensorFlow's PhysicalDevice, and what is known of the card."""

    name: str
    device_type: str
    card_uuid: str = ""
    card_name: str = ""
    pci_bus_id: str = ""
    total: int = 0
    free: Optional[int] = None
    simulated: bool = False


@dataclass(frozen=True)
class LogicalDeviceConfiguration:
    """One logical device of a physical one; without a limit it is all that the card has. memory_limit: a text such as
    "2GiB", or a number of bytes; a number below 2**20 counts MiB, as TensorFlow's does."""

    memory_limit: Optional[Size] = None
    experimental_priority: Optional[int] = None
    experimental_device_ordinal: Optional[int] = None
    guarantee: Size = 0

    def _options(self) -> Any:
        limit = None if self.memory_limit is None else size(self.memory_limit, "memory_limit")
        if limit is not None and limit < _MIB and not isinstance(self.memory_limit, str):
            limit *= _MIB
        return _core.LogicalDeviceConfiguration(limit, size(self.guarantee, "guarantee"), self.experimental_priority,
                                                self.experimental_device_ordinal)


def _name(device: Union[PhysicalDevice, str]) -> str:
    if isinstance(device, str):
        return device
    if not isinstance(device, PhysicalDevice):
        raise TypeError(f"a device is one of list_physical_devices() or its name, not {device!r}")
    return device.name


def _type(device_type: Optional[str]) -> str:
    if device_type is not None and not isinstance(device_type, str):
        raise TypeError(f"device_type is 'GPU', 'CPU' or None, not {device_type!r}")
    return device_type or ""


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")
    return value


class _Locked:
    """A _core.Config, whose methods are for one thread at a time."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.lock = threading.RLock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.core, name)

        def call(*args: Any) -> Any:
            with self.lock:
                return method(*args)

        return call


class Config:
    """Which devices a Context will have: `lgpu.Context(config=...)`. strict: TensorFlow's rules and refusals."""

    def __init__(self, *, strict: bool = False, endpoint: str = "",
                 log_sink: Optional[Callable[[str], None]] = None) -> None:
        self._core = _Locked(_core.Config(_flag(strict, "strict"), text(endpoint, "endpoint"), sink(log_sink)))

    def list_physical_devices(self, device_type: Optional[str] = None) -> list[PhysicalDevice]:
        """The CPU, then the GPUs that CUDA_VISIBLE_DEVICES leaves."""
        return [PhysicalDevice(**device) for device in self._core.list_physical_devices(_type(device_type))]

    def list_logical_devices(self, device_type: Optional[str] = None) -> list[LogicalDevice]:
        """What the Context has, or would have now; this starts nothing."""
        return [LogicalDevice(*device) for device in self._core.list_logical_devices(_type(device_type))]

    def get_device_details(self, device: Union[PhysicalDevice, str]) -> dict[str, Any]:
        """{"device_name": ..., "compute_capability": (major, minor)} of a GPU."""
        return self._core.get_device_details(_name(device))

    def set_visible_devices(self, devices: Union[PhysicalDevice, str, Sequence[Union[PhysicalDevice, str]]],
                            device_type: Optional[str] = None) -> None:
        """Only these are used; with a device_type the devices of other types stay as they are."""
        many = devices if isinstance(devices, Sequence) and not isinstance(devices, str) else [devices]
        self._core.set_visible_devices([_name(device) for device in many], _type(device_type))

    def get_visible_devices(self, device_type: Optional[str] = None) -> list[PhysicalDevice]:
        """Those that are used."""
        return [PhysicalDevice(**device) for device in self._core.get_visible_devices(_type(device_type))]

    def set_memory_growth(self, device: Union[PhysicalDevice, str], enable: bool) -> None:
        """Whether the GPU's memory is taken as it is needed."""
        self._core.set_memory_growth(_name(device), _flag(enable, "enable"))

    def get_memory_growth(self, device: Union[PhysicalDevice, str]) -> Optional[bool]:
        """None: it was never set."""
        return self._core.get_memory_growth(_name(device))

    def set_logical_device_configuration(self, device: Union[PhysicalDevice, str],
                                         logical_devices: Sequence[LogicalDeviceConfiguration]) -> None:
        """Splits a GPU."""
        name = _name(device)
        if not isinstance(logical_devices, Sequence) or not all(
                isinstance(one, LogicalDeviceConfiguration) for one in logical_devices):
            raise TypeError(f"logical_devices is a list of LogicalDeviceConfiguration, not {logical_devices!r}")
        self._core.set_logical_device_configuration(name, [one._options() for one in logical_devices])

    def get_logical_device_configuration(
            self, device: Union[PhysicalDevice, str]) -> Optional[list[LogicalDeviceConfiguration]]:
        """None: the device is not split."""
        found = [LogicalDeviceConfiguration(one.memory_limit, one.priority, one.device_ordinal, one.guarantee)
                 for one in self._core.get_logical_device_configuration(_name(device))]
        return found or None

    def set_per_process_gpu_memory_fraction(self, fraction: float) -> None:
        """The share of a card for a logical device without a limit of its own."""
        self._core.set_per_process_gpu_memory_fraction(fraction)

    def set_soft_device_placement(self, enabled: bool) -> None:
        """Whether an op may run on another device than it asked for."""
        self._core.set_soft_device_placement(_flag(enabled, "enabled"))

    def get_soft_device_placement(self) -> bool:
        return self._core.get_soft_device_placement()

    def set_log_device_placement(self, enabled: bool) -> None:
        """Whether each op's device is logged."""
        self._core.set_log_device_placement(_flag(enabled, "enabled"))

    def get_log_device_placement(self) -> bool:
        return self._core.get_log_device_placement()

    def set_device_policy(self, device_policy: Optional[str]) -> None:
        """What happens when an op needs a tensor of another device: "silent", "silent_for_int32", "warn", "explicit"."""
        self._core.set_device_policy(device_policy)

    def get_device_policy(self) -> str:
        return self._core.get_device_policy()


class _Told(NamedTuple):
    """The Config of this module after a setter was called. devices: a setter of devices, and not of switches alone."""

    config: Config
    devices: bool


_lock = threading.Lock()
_default: Optional[Config] = None
_is_told = False
_is_told_devices = False
_was_listed = False


def _config() -> Config:
    global _default
    with _lock:
        if _default is None:
            _default = Config()
        return _default


def _tell(*, devices: bool) -> None:
    """A setter was called and did not fail."""
    global _is_told, _is_told_devices
    with _lock:
        _is_told, _is_told_devices = True, _is_told_devices or devices


def _told() -> Optional[_Told]:
    with _lock:
        return _Told(_default, _is_told_devices) if _default is not None and _is_told else None


def _listed() -> Optional[Config]:
    """list_logical_devices was called, and no setter: a Config of its own, since such a program may make several Contexts."""
    with _lock:
        was_listed = _was_listed
    return Config() if was_listed else None


def _forget() -> None:
    """Starts again with a Config that nothing was said to; for tests."""
    global _default, _is_told, _is_told_devices, _was_listed
    with _lock:
        _default, _is_told, _is_told_devices, _was_listed = None, False, False, False


def list_physical_devices(device_type: Optional[str] = None) -> list[PhysicalDevice]:
    return _config().list_physical_devices(device_type)


def list_logical_devices(device_type: Optional[str] = None) -> list[LogicalDevice]:
    """The devices that lgpu.Context() makes: from here on it has all of them."""
    global _was_listed
    devices = _config().list_logical_devices(device_type)
    with _lock:
        _was_listed = True
    return devices


def get_visible_devices(device_type: Optional[str] = None) -> list[PhysicalDevice]:
    return _config().get_visible_devices(device_type)


def set_visible_devices(devices: Any, device_type: Optional[str] = None) -> None:
    _config().set_visible_devices(devices, device_type)
    _tell(devices=True)


def get_logical_device_configuration(
        device: Union[PhysicalDevice, str]) -> Optional[list[LogicalDeviceConfiguration]]:
    return _config().get_logical_device_configuration(device)


def set_logical_device_configuration(device: Union[PhysicalDevice, str],
                                     logical_devices: Sequence[LogicalDeviceConfiguration]) -> None:
    _config().set_logical_device_configuration(device, logical_devices)
    _tell(devices=True)


def set_soft_device_placement(enabled: bool) -> None:
    _config().set_soft_device_placement(enabled)
    _tell(devices=False)


def get_soft_device_placement() -> bool:
    return _config().get_soft_device_placement()


def _set_log_device_placement(enabled: bool) -> None:
    """lgpu.debugging has it."""
    _config().set_log_device_placement(enabled)
    _tell(devices=False)


class experimental:
    """tf.config.experimental. Names of earlier editions of TensorFlow's guide are the same functions under another name."""

    VirtualDeviceConfiguration = LogicalDeviceConfiguration
    list_physical_devices = staticmethod(list_physical_devices)
    list_logical_devices = staticmethod(list_logical_devices)
    get_visible_devices = staticmethod(get_visible_devices)
    set_visible_devices = staticmethod(set_visible_devices)
    get_virtual_device_configuration = staticmethod(get_logical_device_configuration)
    set_virtual_device_configuration = staticmethod(set_logical_device_configuration)

    @staticmethod
    def set_memory_growth(device: Union[PhysicalDevice, str], enable: bool) -> None:
        _config().set_memory_growth(device, enable)
        _tell(devices=True)

    @staticmethod
    def get_memory_growth(device: Union[PhysicalDevice, str]) -> Optional[bool]:
        return _config().get_memory_growth(device)

    @staticmethod
    def get_device_details(device: Union[PhysicalDevice, str]) -> dict[str, Any]:
        return _config().get_device_details(device)

    @staticmethod
    def set_device_policy(device_policy: Optional[str]) -> None:
        _config().set_device_policy(device_policy)
        _tell(devices=False)

    @staticmethod
    def get_device_policy() -> str:
        return _config().get_device_policy()

    @staticmethod
    def get_memory_info(device: str) -> dict[str, int]:
        """Of the current Context."""
        return current().memory_info(device)

    @staticmethod
    def reset_memory_stats(device: str) -> None:
        """Of the current Context."""
        current().reset_memory_stats(device)
