"""What notebooks show."""

from __future__ import annotations

from html import escape
from typing import Any

from lgpu import _core
from lgpu.errors import Error

_BAR = ("<div style='display:inline-block;width:320px;height:14px;background:#ddd;position:relative'>"
        "<div style='position:absolute;height:14px;width:{held:.1f}%;background:#9cf'></div>"
        "<div style='position:absolute;height:14px;width:{used:.1f}%;background:#36c'></div></div>")


def of_context(context: Any) -> str:
    """A bar for each GPU: dark is used, light is held, the whole is the limit."""
    rows = []
    for index, _ in enumerate(context.logical_devices()):
        try:
            stats = context.memory_stats(f"GPU:{index}")
        except Error as error:
            return f"<p>{escape(repr(context))}: {escape(str(error))}</p>"
        limit = max(1, stats["limit"])
        bar = _BAR.format(held=min(100.0, 100.0 * stats["held"] / limit), used=min(100.0, 100.0 * stats["used"] / limit))
        text = " · ".join(f"{_core.format_bytes(stats[name])} {name}" for name in ("used", "held", "limit"))
        rows.append(f"<tr><td>GPU:{index}</td><td>{bar}</td><td>{escape(text)}</td></tr>")
    arrays, lent = context.exports()
    outside = f"<p>{arrays} arrays of other libraries use {_core.format_bytes(lent)}</p>" if arrays else ""
    return f"<table>{''.join(rows)}</table>{outside}<pre>{escape(context.memory_summary())}</pre>"
