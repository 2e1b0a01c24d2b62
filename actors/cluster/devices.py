"""Which device of the host an engine computes on, whatever it is called inside its process. Pure.

A process numbers the devices that it may see from 0 on, so "device 0" of one engine is another than
that of its neighbour. What a variable of its environment says of the host's own numbers, or of a
device's unique name, is the same for whoever reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_VISIBLE: Final = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "hip": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
}
_LONGEST: Final = 200


def device_id(device: str, environ: Mapping[str, str]) -> str:
    """``cuda:1``, ``cuda:0,1`` or the unique name (``GPU-…``) of what this environment lets a
    process of this ``device`` see; "" where it does not say.

    As CUDA does, the list ends at the first entry that names no device.
    """
    said = [environ[name] for name in _VISIBLE.get(device, ()) if environ.get(name, "").strip()]
    if not said:
        return ""
    names: list[str] = []
    for part in said[0].split(","):
        name = part.strip()
        if not name or name.startswith("-") or not name.isascii() or not name.isprintable():
            break
        names.append(name)
    if not names or any(" " in name for name in names):
        return ""
    whole = ",".join(names)
    told = f"{device}:{whole}" if names[0][0].isdigit() else whole
    return told if len(told) <= _LONGEST else ""
