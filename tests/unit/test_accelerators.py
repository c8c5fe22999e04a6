"""GPUs of recorded machines, tools that fail, and tools of other years."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import accelerators
from ansible_collections.llamarack.core.plugins.module_utils.accelerators import Seen
from hypothesis import given
from hypothesis import strategies as st

HOSTS = Path(__file__).resolve().parents[1] / "recorded" / "hosts"


def seen(host: Path) -> Seen:
    """What a recorded machine's own tools show."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in host.iterdir()}
    found = []
    if "nvidia-smi.txt" in texts:
        found.append(accelerators.nvidia(texts["nvidia-smi.txt"]))
    if "rocm-smi.json" in texts:
        found.append(accelerators.rocm(texts["rocm-smi.json"]))
    if "amd-smi.json" in texts:
        found.append(accelerators.amd(texts["amd-smi.json"], texts["amd-smi-metric.json"]))
    if "system_profiler.json" in texts:
        found.append(accelerators.metal(texts["system_profiler.json"], 512 * 1024**3))
    return accelerators.together(*found)


@pytest.mark.parametrize("host", sorted(path for path in HOSTS.iterdir() if path.is_dir()), ids=lambda path: path.name)
def test_a_recorded_machines_gpus_are_seen(host: Path) -> None:
    expected = json.loads((host / "expected.json").read_text())["gpus"]
    result = seen(host)
    assert result.unseen == ()
    assert len(result.gpus) == len(expected)
    for index, (gpu, wanted) in enumerate(zip(result.gpus, expected, strict=True)):
        document = gpu.document()
        assert document["index"] == index
        assert {key: document[key] for key in wanted} == wanted
        assert 0 < gpu.vram_free_bytes <= gpu.vram_total_bytes


@pytest.mark.parametrize(
    "output",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it is running.\n",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n",
        "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error\n",
        "",
    ],
)
def test_a_card_that_cannot_be_asked_is_said_to_be_unseen(output: str) -> None:
    result = accelerators.nvidia(output)
    assert result.gpus == ()
    assert len(result.unseen) == 1
    assert accelerators.last_line(output) in result.unseen[0]


def test_no_card_is_no_mystery() -> None:
    assert accelerators.nvidia("No devices were found\n") == Seen()


def test_what_a_card_does_not_tell_is_none() -> None:
    gpu = accelerators.nvidia("0, GRID A100D-7-80C MIG 1g.10gb, GPU-1, [N/A], [N/A], 550.54, [Not Supported]\n").gpus[0]
    assert (gpu.vram_total_bytes, gpu.compute_capability) == (0, None)


def test_rocm_of_another_year_spells_its_fields_otherwise() -> None:
    card = {
        "Card series": "Instinct MI210",
        "Unique ID": "N/A",
        "VRAM Total Memory (B)": "68702699520",
        "VRAM Total Used Memory (B)": "10960896",
    }
    output = "WARNING: AMD GPU device(s) is/are in a low-power state.\n" + json.dumps({"card1": card, "card0": card})
    gpus = accelerators.rocm(output).gpus
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert (gpus[0].name, gpus[0].uuid, gpus[0].gfx_target) == ("Instinct MI210", "", None)


def test_an_older_amd_smi_has_a_bare_list_and_bare_numbers() -> None:
    old = [{"gpu": 0, "asic": {"market_name": "N/A"}, "vram": {"size": 24560}, "driver": "N/A"}]
    gpu = accelerators.amd(json.dumps(old)).gpus[0]
    assert (gpu.name, gpu.vram_total_bytes, gpu.vram_free_bytes) == ("AMD GPU", 24560 * 1024**2, 24560 * 1024**2)


def test_cards_on_the_bus_are_counted_by_vendor() -> None:
    devices = [
        ("0x030000\n", "0x10de\n"),
        ("0x030200\n", "0x10DE\n"),
        ("0x040300\n", "0x10de\n"),
        ("0x120000\n", "0x1002\n"),
        ("0x030000\n", "0x1a03\n"),
        ("", ""),
    ]
    assert accelerators.on_the_bus(devices) == {"NVIDIA": 2, "AMD": 1}


NAMES = ("gpu_data", "card0", "system", "gpu", "asic", "vram", "size", "value", "SPDisplaysDataType")
DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(NAMES), inner),
).map(json.dumps)


@given(st.text() | DOCUMENTS)
def test_no_output_breaks_a_reader(output: str) -> None:
    for result in (
        accelerators.nvidia(output),
        accelerators.rocm(output),
        accelerators.amd(output, output),
        accelerators.metal(output, 1),
    ):
        assert all(gpu.vram_total_bytes >= 0 for gpu in result.gpus)
