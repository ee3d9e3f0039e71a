"""tf.debugging, as far as lgpu has it."""

from lgpu import config as _config


def set_log_device_placement(enabled: bool) -> None:
    """Whether the device of each op is logged, in Contexts that are made of lgpu.config."""
    _config._set_log_device_placement(enabled)


def get_log_device_placement() -> bool:
    return _config._config().get_log_device_placement()
