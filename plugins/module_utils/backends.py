"""Which backends a host's llama.cpp is built with, and for which targets. Pure: profile and wishes in, choice out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.llamarack.core.plugins.module_utils import toolkits
from ansible_collections.llamarack.core.plugins.module_utils.build import BACKENDS, PLAIN_PAIRS, BuildError
from ansible_collections.llamarack.core.plugins.module_utils.plan import Decision

# Whose hardware a backend needs.
VENDORS = {"cuda": ("NVIDIA",), "hip": ("AMD",), "metal": ("Apple",), "vulkan": ("NVIDIA", "AMD", "Intel")}

# What a decision about a card of a vendor that llama.cpp has several backends for can be instead.
AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """What is built for a host, and why."""

    backends: tuple[str, ...]
    targets: tuple[str, ...]
    native: bool
    cache_pairs: tuple[str, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Wish:
    """What the owner says.

    :param backends: ``auto`` alone, or names of backends.
    :param targets: GPUs to compile for (``89``, ``8.9``, ``gfx1100``); none: those that are here.
    :param native: whether to use every instruction of this CPU.
    :param builder: whether the host compiles for others, so that it needs no hardware of its own.
    :param flash_attention: ``all`` or ``used``.
    :param cache_pairs: pairs of K and V cache types that instances use (``q8_0-q8_0``).
    """

    backends: tuple[str, ...] = (AUTO,)
    targets: tuple[str, ...] = ()
    native: bool = True
    builder: bool = False
    flash_attention: str = "all"
    cache_pairs: tuple[str, ...] = ()


def choose(wish: Wish, profile: Mapping[str, Any], rocm_version: str | None) -> Choice:
    """Decide backends and targets.

    :param profile: the host profile.
    :param rocm_version: the installed ROCm's version, None where there is none.
    :raises BuildError: when the owner wants what the host has no hardware for.
    """
    gpus: Sequence[Mapping[str, Any]] = profile["gpus"]
    if wish.backends == (AUTO,):
        backend, reason = automatic(gpus, profile, rocm_version)
        chosen = Decision("backend", [backend], reason, "measured", tuple(b for b in BACKENDS if b != backend))
    else:
        chosen = pinned(wish, gpus, profile)
    backends = tuple(chosen.value)
    targets, why = targets_of(wish, backends, gpus)
    decisions = [chosen]
    if targets:
        decisions.append(Decision("targets", list(targets), why, "pinned" if wish.targets else "measured"))
    decisions.append(native_decision(wish))
    pairs: tuple[str, ...] = ()
    if set(backends) & {"cuda", "hip"}:
        pairs = ("all",) if wish.flash_attention == "all" else tuple(sorted({*wish.cache_pairs, *PLAIN_PAIRS}))
        decisions.append(pairs_decision(wish, pairs))
    return Choice(backends, targets, wish.native, pairs, tuple(decisions))


def automatic(
    gpus: Sequence[Mapping[str, Any]], profile: Mapping[str, Any], rocm_version: str | None
) -> tuple[str, str]:
    """The backend for what is there, and the reason."""
    vendors = {gpu["vendor"] for gpu in gpus}
    if "Apple" in vendors:
        return "metal", f"{named(gpus, 'Apple')} computes with Metal"
    if "NVIDIA" in vendors:
        others = sorted(vendors - {"NVIDIA"})
        beside = (
            f"; {' and '.join(others)} is left alone (pin llama_cpp_backend: [cuda, hip] for both)" if others else ""
        )
        return "cuda", f"{named(gpus, 'NVIDIA')} computes with CUDA{beside}"
    if "AMD" in vendors:
        return amd(gpus, rocm_version)
    unseen = [str(line) for line in profile.get("unseen", []) if "GPU" in line or "card" in line]
    return "cpu", "no GPU was seen" + (f" ({'; '.join(unseen)})" if unseen else "")


def amd(gpus: Sequence[Mapping[str, Any]], rocm_version: str | None) -> tuple[str, str]:
    """HIP where ROCm knows every card, else Vulkan, which needs Mesa's driver alone."""
    cards = [gpu for gpu in gpus if gpu["vendor"] == "AMD"]
    unknown = [gpu for gpu in cards if not gpu.get("gfx_target")]
    if unknown:
        return "vulkan", f"the gfx target of {unknown[0]['name']} is not known (rocminfo is missing), Vulkan needs none"
    version = rocm_version or toolkits.ROCM_NEWEST
    alien = [gpu for gpu in cards if not toolkits.rocm_supports(version, str(gpu["gfx_target"]))]
    if alien:
        return "vulkan", f"ROCm {version} has no code for {alien[0]['name']} ({alien[0]['gfx_target']}), Vulkan does"
    return "hip", f"{named(gpus, 'AMD')} computes with HIP"


def named(gpus: Iterable[Mapping[str, Any]], vendor: str) -> str:
    """The cards of a vendor in words: ``2 x NVIDIA H100``."""
    names = [str(gpu["name"]) for gpu in gpus if gpu["vendor"] == vendor]
    kinds = list(dict.fromkeys(names))
    return " and ".join(f"{names.count(kind)} x {kind}" if names.count(kind) > 1 else kind for kind in kinds)


def pinned(wish: Wish, gpus: Sequence[Mapping[str, Any]], profile: Mapping[str, Any]) -> Decision:
    """The owner's backends, if the host has their hardware or compiles for others.

    :raises BuildError: when it has not.
    """
    if AUTO in wish.backends:
        raise BuildError("llama_cpp_backend has auto beside others: say auto alone, or name every backend.")
    unknown = sorted(set(wish.backends) - set(BACKENDS))
    if unknown or not wish.backends:
        what = ", ".join(unknown) or "an empty list"
        raise BuildError(f"llama_cpp_backend is {what}: use auto or some of {', '.join(BACKENDS)}.")
    mac = profile["system"] == "Darwin"
    for backend in wish.backends:
        if backend == "metal" and not mac:
            raise BuildError(f"llama_cpp_backend is metal, but this host runs {profile['system']}: Metal is Apple's.")
        if backend in ("cuda", "hip") and mac:
            raise BuildError(f"llama_cpp_backend is {backend}, but this host is a Mac: use auto or metal.")
        there = any(gpu["vendor"] in VENDORS.get(backend, ()) for gpu in gpus)
        if backend != "cpu" and not there and not wish.builder:
            unseen = [str(line) for line in profile.get("unseen", []) if "card" in line or "GPU" in line]
            raise BuildError(
                f"llama_cpp_backend is {backend}, but no GPU for it was seen on this host"
                f"{' (' + '; '.join(unseen) + ')' if unseen else ''}: install its driver, set llama_cpp_backend: auto, "
                "or put the host into the group builders if it compiles for others."
            )
    # The CPU is in every build; it gives the name only to a build that has nothing else.
    backends = sorted(set(wish.backends) - {"cpu"}) or ["cpu"]
    return Decision("backend", backends, "the owner pins it", "pinned")


def targets_of(wish: Wish, backends: Sequence[str], gpus: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], str]:
    """The GPUs that code is made for, and why these.

    :raises BuildError: when a backend that needs targets has none.
    """
    if wish.targets:
        given = [normal_target(target) for target in wish.targets]
        kept = sorted(
            target for target in set(given) if ("hip" if target.startswith("gfx") else "cuda") in backends
        )  # fmt: skip
        return tuple(kept), "the owner lists them"
    found = {
        "cuda": {normal_target(str(gpu["compute_capability"])) for gpu in gpus if gpu.get("compute_capability")},
        "hip": {str(gpu["gfx_target"]) for gpu in gpus if gpu.get("gfx_target")},
    }
    targets: list[str] = []
    for backend in ("cuda", "hip"):
        if backend not in backends:
            continue
        if not found[backend]:
            raise BuildError(
                f"The host does not say which GPU the {backend} backend is for: list it in llama_cpp_gpu_targets "
                f"({'for example [89]' if backend == 'cuda' else 'for example [gfx1100]'})."
            )
        targets += sorted(found[backend])
    return tuple(targets), "exactly the cards of this host"


def normal_target(target: str) -> str:
    """A target as its compiler spells it: ``8.9``, ``sm_89`` and ``89`` are one.

    :raises BuildError: for one that is none, ``native`` among them.
    """
    text = str(target).strip().lower()
    if (
        text.startswith("gfx")
        and len(text) > 5
        and text[3:].replace(":", "").replace("+", "").replace("-", "").isalnum()
    ):
        return text
    digits = text.replace("sm_", "").replace(".", "").rstrip("af")
    if not digits.isdigit() or not 2 <= len(digits) <= 3:
        raise BuildError(
            f"llama_cpp_gpu_targets has {target!r}: write a compute capability (89) or a gfx target (gfx1100)."
        )
    return digits


def native_decision(wish: Wish) -> Decision:
    """Whether the CPU's code is for this machine alone."""
    if wish.native:
        return Decision(
            "native", True, "it runs on this CPU and equal ones, with every instruction", "policy", ("false",)
        )
    return Decision(
        "native", False, "it may travel: the best code for each generation of CPUs is loaded at the start", "policy",
        ("true",),
    )  # fmt: skip


def pairs_decision(wish: Wish, pairs: Sequence[str]) -> Decision:
    """For which cache types FlashAttention is compiled."""
    if wish.flash_attention == "all":
        return Decision("cache_pairs", "all", "any K and V cache type runs at full speed", "policy", ("used",))
    return Decision(
        "cache_pairs", list(pairs), "upstream's and those that instances use; it compiles faster", "policy", ("all",)
    )
