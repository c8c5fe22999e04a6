"""Which GPUs a machine has, from what the vendors' own tools print. Pure: text in, plain data and sentences out.

Every tool may be absent, print an error instead of a table, or leave fields out; a GPU that is there and cannot be
asked is said to be unseen, never left out in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

MIB = 1024**2

NVIDIA_FIELDS = ("index", "name", "uuid", "memory.total", "memory.free", "driver_version", "compute_cap")


@dataclass(frozen=True)
class Gpu:
    """One GPU. What its tool does not tell is None; bytes that are not told are 0."""

    index: int
    vendor: str
    name: str
    uuid: str
    vram_total_bytes: int
    vram_free_bytes: int
    driver_version: str | None
    compute_capability: str | None
    gfx_target: str | None

    def document(self) -> dict[str, Any]:
        """As it stands in the host profile."""
        return asdict(self)


@dataclass(frozen=True)
class Seen:
    """The GPUs that were seen, and sentences about what was not."""

    gpus: tuple[Gpu, ...] = ()
    unseen: tuple[str, ...] = ()


def told(value: Any) -> str | None:
    """A field's text, or None where the tool has nothing to say (``N/A``, ``[Not Supported]``)."""
    text = str(value or "").strip()
    return (
        None if not text or re.fullmatch(r"\[?(N/A|Not Supported|Unknown Error|None)\]?", text, re.IGNORECASE) else text
    )


def whole(value: Any) -> int:
    """The first whole number of a field; 0 where there is none."""
    if isinstance(value, bool):
        return 0
    found = re.search(r"\d+", str(value if value is not None else ""))
    return int(found[0]) if found else 0


def last_line(output: str) -> str:
    """What a tool said last, for a sentence."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing"


def nvidia(output: str) -> Seen:
    """The cards of ``nvidia-smi --query-gpu=… --format=csv,noheader,nounits`` with :data:`NVIDIA_FIELDS`, in MiB."""
    gpus = []
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(NVIDIA_FIELDS) or not fields[0].isdigit():
            continue
        index, name, uuid, total, free, driver, capability = fields
        gpus.append(
            Gpu(
                int(index), "NVIDIA", name, uuid, whole(told(total)) * MIB, whole(told(free)) * MIB, told(driver),
                told(capability), None,
            )
        )  # fmt: skip
    if gpus or "No devices were found" in output:
        return Seen(tuple(gpus))
    return Seen(unseen=(f"nvidia-smi shows no card and says: {last_line(output)}",))


def lower_keys(card: Mapping[str, Any]) -> dict[str, Any]:
    """Names of a card's fields without case: they differ between releases of the tool."""
    return {str(key).lower(): value for key, value in card.items()}


def field(card: Mapping[str, Any], *names: str) -> Any:
    """The first of some names that a card has (lower case)."""
    return next((card[name] for name in names if told(card.get(name)) is not None), None)


def loaded(output: str) -> Any:
    """The JSON in a tool's output, after warnings that it may print before it; None when there is none."""
    for start in (position for position, sign in enumerate(output) if sign in "{["):
        try:
            return json.JSONDecoder().raw_decode(output[start:])[0]
        except ValueError:
            continue
    return None


def part(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section of a tool's document; empty when it is none."""
    value = entry.get(name)
    return value if isinstance(value, dict) else {}


def rocm(output: str) -> Seen:
    """The cards of ``rocm-smi --showproductname --showmeminfo vram --showdriverversion --showuniqueid --json``."""
    document = loaded(output)
    if not isinstance(document, dict):
        return Seen(unseen=(f"rocm-smi shows no card and says: {last_line(output)}",))
    system = lower_keys(part(document, "system"))
    gpus = []
    for name in sorted((key for key in document if re.fullmatch(r"card\d+", str(key))), key=whole):
        if not isinstance(document[name], dict):
            continue
        card = lower_keys(document[name])
        total = whole(field(card, "vram total memory (b)"))
        gpus.append(
            Gpu(
                index=whole(name),
                vendor="AMD",
                # "Card model" is a number in newer releases, "Card series" the name in all.
                name=str(field(card, "card series", "card model", "device name") or "AMD GPU"),
                uuid=str(field(card, "unique id") or ""),
                vram_total_bytes=total,
                vram_free_bytes=max(0, total - whole(field(card, "vram total used memory (b)"))),
                driver_version=told(field(system, "driver version")),
                compute_capability=None,
                gfx_target=told(field(card, "gfx version")),
            )
        )
    return Seen(tuple(gpus))


def amd_entries(document: Any) -> Iterator[Mapping[str, Any]]:
    """The GPUs of an amd-smi document: a list, or a mapping with one under ``gpu_data``."""
    entries = document.get("gpu_data", []) if isinstance(document, dict) else document
    yield from (entry for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else ()


def measured_bytes(value: Any) -> int:
    """A size as amd-smi tells it: a number of MiB, or a mapping of ``value`` and ``unit`` (MB means MiB there)."""
    if isinstance(value, dict):
        unit = {"B": 1, "KB": 1024, "MB": MIB, "GB": 1024 * MIB}.get(str(value.get("unit", "MB")).upper(), MIB)
        return whole(value.get("value")) * unit
    return whole(value) * MIB


def amd(static: str, metric: str = "") -> Seen:
    """The cards of ``amd-smi static --json``, with the free memory of ``amd-smi metric --mem-usage --json``."""
    document = loaded(static)
    if document is None:
        return Seen(unseen=(f"amd-smi shows no card and says: {last_line(static)}",))
    usage = {whole(entry.get("gpu")): part(entry, "mem_usage") for entry in amd_entries(loaded(metric))}
    gpus = []
    for entry in amd_entries(document):
        index, asic, vram = whole(entry.get("gpu")), part(entry, "asic"), part(entry, "vram")
        total = measured_bytes(vram.get("size"))
        gpus.append(
            Gpu(
                index=index,
                vendor="AMD",
                name=str(told(asic.get("market_name")) or "AMD GPU"),
                uuid=str(told(asic.get("asic_serial")) or ""),
                vram_total_bytes=total,
                vram_free_bytes=measured_bytes(usage.get(index, {}).get("free_vram")) if usage.get(index) else total,
                driver_version=told(part(entry, "driver").get("version")),
                compute_capability=None,
                gfx_target=told(asic.get("target_graphics_version")),
            )
        )
    return Seen(tuple(gpus))


def metal(profiler: str, memory_bytes: int) -> Seen:
    """The GPU of ``system_profiler SPDisplaysDataType -json``.

    :param memory_bytes: the machine's memory: it is the GPU's, too. How much of it the GPU may wire is a policy.
    """
    document = loaded(profiler)
    if not isinstance(document, dict):
        return Seen(unseen=(f"system_profiler shows no GPU and says: {last_line(profiler)}",))
    displays = document.get("SPDisplaysDataType")
    gpus: list[Gpu] = []
    for entry in displays if isinstance(displays, list) else []:
        if not isinstance(entry, dict) or not told(entry.get("sppci_model")):
            continue
        family = told(entry.get("spdisplays_mtlgpufamilysupport"))
        gpus.append(
            Gpu(
                index=len(gpus),
                vendor="Apple",
                name=str(entry["sppci_model"]),
                uuid="",
                vram_total_bytes=memory_bytes,
                vram_free_bytes=memory_bytes,
                driver_version=family.replace("spdisplays_", "") if family else None,
                compute_capability=None,
                gfx_target=None,
            )
        )
    return Seen(tuple(gpus))


def together(*parts: Seen) -> Seen:
    """What several tools saw."""
    return Seen(
        tuple(gpu for seen in parts for gpu in seen.gpus), tuple(sentence for seen in parts for sentence in seen.unseen)
    )


# Vendors by their number on the PCI bus.
PCI_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
# Display controllers and processing accelerators: VGA, 3D, other display; accelerators.
PCI_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")


def on_the_bus(devices: Iterable[tuple[str, str]]) -> dict[str, int]:
    """How many GPUs of each vendor are on the PCI bus, from the ``class`` and ``vendor`` of its devices in /sys."""
    found: dict[str, int] = {}
    for kind, vendor in devices:
        name = PCI_VENDORS.get(vendor.strip().lower())
        if name and kind.strip().lower().startswith(PCI_CLASSES):
            found[name] = found.get(name, 0) + 1
    return found
