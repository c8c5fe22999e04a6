"""From what a machine is, what was built, what the model's header says and what the owner wants, to decisions.

Pure: documents in, the body of the plan document out. Each decision carries its reason in words and numbers. Everything
is planned against the memory that the host has for us at all times (``usable_bytes``), never against what happens to be
free, so that the same host gets the same plan each time.

This is the first version: it places everything in RAM (or leaves routed experts on the disk), nothing on GPUs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ansible_collections.llamarack.core.plugins.module_utils import memory
from ansible_collections.llamarack.core.plugins.module_utils.memory import GIB, MIB, gib

FITS = ("ram", "hybrid", "mmap")
LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
FLASH_MODES = ("on", "off", "auto")
POLICY_KEYS = ("fit", "context", "slots", "cache_type_k", "cache_type_v", "pins")

DEFAULT_CONTEXT = 32768
# What "auto" tries, largest first; a conversation of less than the last is of no use.
CONTEXT_LADDER = (1048576, 524288, 262144, 131072, 65536, 32768, 16384, 8192, 4096)
# Half precision first: under MLA it is faster than a quantised cache, and elsewhere it is the more exact one.
AUTO_CACHE_TYPES = ("f16", "q8_0")
SMALLER_CACHE_TYPES = ("q8_0", "q5_1", "q4_0")
MOST_SLOTS = 256

# What llama-server takes by itself, said aloud so that an upgrade does not change it.
BATCH = 2048
UBATCH = 512
# Its own bound for the cache of earlier prompts is 8 GiB of RAM, whether they are there or not.
MOST_PROMPT_CACHE_MIB = 8192
PROMPT_CACHE_STEP_MIB = 256

# Kept for the system and everything else on the host: 5 % of the memory, half a GiB at least, 8 GiB at most.
RESERVE_SHARE = 20
RESERVE_LEAST_BYTES = GIB // 2
RESERVE_MOST_BYTES = 8 * GIB

# What llama-server can number (GGML_MAX_N_THREADS).
MOST_THREADS = 512


class PlanError(Exception):
    """The wish cannot be met; the message is one sentence with the arithmetic and with what would do."""


@dataclass(frozen=True)
class Decision:
    """One decided setting: ``source`` is measured, computed, policy or pinned."""

    key: str
    value: Any
    reason: str
    source: str
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wish:
    """The instance and its policy, checked. None means: the plan decides."""

    name: str
    model: str
    host: str
    port: int
    fit: str
    context: int | str
    slots: int
    key_type: str | None
    value_type: str | None
    asked: frozenset[str]
    pins: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shape:
    """A size that the server could have: tokens of all slots together, and the types of the cache."""

    tokens: int
    key_type: str
    value_type: str


@dataclass(frozen=True)
class Need:
    """Bytes that a shape keeps in RAM."""

    weights_bytes: int
    kv_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it, without the cache of earlier prompts."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


@dataclass(frozen=True)
class Room:
    """Bytes there are: for this instance and its share of what all could use, and what the others take at least."""

    usable_bytes: int
    reserve_bytes: int
    siblings_bytes: int
    limit_bytes: int

    @property
    def available_bytes(self) -> int:
        """What is left when the system and the other instances have what they need."""
        return max(0, self.usable_bytes - self.reserve_bytes - self.siblings_bytes)


# --- what the owner wants -------------------------------------------------------------------------------------------


def read_wish(instance: Mapping[str, Any]) -> Wish:
    """Check an instance and its policy.

    :raises PlanError: for a missing or wrong value, or an unknown key, with the nearest right one.
    """
    name = str(instance.get("name") or "instance")
    policy = instance.get("policy") or {}
    if not isinstance(policy, Mapping):
        raise PlanError(f"{name}: policy is {policy!r}, but should be a mapping such as {{fit: ram, context: 32768}}.")
    refuse_unknown(name, "policy", policy, POLICY_KEYS)
    model = instance.get("model")
    if not isinstance(model, str) or not model:
        raise PlanError(f"{name}: model is not set: name an entry of the catalogue.")
    context: int | str = policy.get("context", DEFAULT_CONTEXT)
    if context != "auto":
        context = whole(name, "policy context", context, memory.CONTEXT_STEP, 2**24, ' or "auto"')
    pins = policy.get("pins") or {}
    if not isinstance(pins, Mapping):
        raise PlanError(f"{name}: policy pins is {pins!r}, but should be a mapping such as {{threads: 48}}.")
    return Wish(
        name=name,
        model=model,
        host=str(instance.get("host") or "127.0.0.1"),
        port=whole(name, "port", instance.get("port"), 1, 65535),
        fit=one_of(name, "policy fit", policy.get("fit", "ram"), FITS),
        context=context,
        slots=whole(name, "policy slots", policy.get("slots", 1), 1, MOST_SLOTS),
        key_type=cache_type(name, policy, "cache_type_k"),
        value_type=cache_type(name, policy, "cache_type_v"),
        asked=frozenset(key for key in policy if policy[key] is not None),
        pins=read_pins(name, pins),
    )


def read_pins(name: str, pins: Mapping[str, Any]) -> dict[str, Any]:
    """Check the decisions that the owner fixed.

    :raises PlanError: for an unknown key (with the nearest right one) or a value of the wrong kind.
    """
    whole_pins = {
        "threads": (1, MOST_THREADS),
        "threads_batch": (1, MOST_THREADS),
        "context": (memory.CONTEXT_STEP, 2**24),
        "slots": (1, MOST_SLOTS),
        "prompt_cache_mib": (0, 2**22),
        "batch": (32, 2**16),
        "ubatch": (32, 2**16),
    }
    word_pins = {
        "cache_type_k": tuple(memory.CACHE_BLOCK_BYTES),
        "cache_type_v": tuple(memory.CACHE_BLOCK_BYTES),
        "flash_attention": FLASH_MODES,
        "load_mode": LOAD_MODES,
    }
    switch_pins = ("repack", "ui", "metrics", "slots_endpoint")
    elsewhere = {
        "model": "set it in the instance itself",
        "host": "set it in the instance itself",
        "port": "set it in the instance itself",
        "alias": "set it in the catalogue's entry",
        "fit": "it is always off, so that a restart never decides anew",
    }
    for key, instead in elsewhere.items():
        if key in pins:
            raise PlanError(f"{name}: {key} cannot be pinned: {instead}.")
    refuse_unknown(name, "policy pins", pins, (*whole_pins, *word_pins, *switch_pins))
    checked: dict[str, Any] = {}
    for key, value in pins.items():
        if key in whole_pins:
            checked[key] = whole(name, f"pin {key}", value, *whole_pins[key])
        elif key in word_pins:
            # YAML reads a bare on or off as true or false.
            word = {True: "on", False: "off"}.get(value, value) if key == "flash_attention" else value
            checked[key] = one_of(name, f"pin {key}", word, word_pins[key])
        elif isinstance(value, bool):
            checked[key] = value
        else:
            raise PlanError(f"{name}: pin {key} is {value!r}, but should be true or false.")
    return checked


def refuse_unknown(name: str, what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """:raises PlanError: when a key is not one of the known ones."""
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
            raise PlanError(f"{name}: {what} has no key {key}: {hint}")


def whole(name: str, what: str, value: Any, least: int, most: int, other: str = "") -> int:
    """A whole number within bounds (or its digits in a string).

    :raises PlanError: when it is none.
    """
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PlanError(f"{name}: {what} is {value!r}, but should be a whole number from {least} to {most}{other}.")
    return value


def one_of(name: str, what: str, value: Any, choices: Sequence[str]) -> str:
    """One of the choices.

    :raises PlanError: when it is none, with the nearest.
    """
    if value in choices and isinstance(value, str):
        return value
    near = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise PlanError(f"{name}: {what} is {value!r}, but should be one of {', '.join(choices)}{hint}")


def cache_type(name: str, policy: Mapping[str, Any], key: str) -> str | None:
    """The type of the cache that the policy asks for, None when it leaves it to the plan."""
    value = policy.get(key)
    return None if value is None else one_of(name, f"policy {key}", value, tuple(memory.CACHE_BLOCK_BYTES))


# --- how large it may be --------------------------------------------------------------------------------------------


def trained_context(model: Mapping[str, Any]) -> int:
    """Tokens that the model was trained for; a header that does not say gets the default."""
    return int(model["gguf"].get("context_length") or DEFAULT_CONTEXT)


def slots_of(wish: Wish) -> int:
    """Conversations at a time."""
    return int(wish.pins.get("slots", wish.slots))


def contexts(wish: Wish, model: Mapping[str, Any]) -> list[int]:
    """Tokens per conversation to try, in order of preference."""
    trained = trained_context(model)
    if wish.context == "auto":
        return sorted({min(step, trained) for step in CONTEXT_LADDER}, reverse=True)
    return [min(int(wish.context), trained)]


def cache_types(wish: Wish, model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Types of K and V to try, in order of preference.

    :raises PlanError: when they differ for a model that reads V out of K.
    """
    key_type = wish.pins.get("cache_type_k", wish.key_type)
    value_type = wish.pins.get("cache_type_v", wish.value_type)
    if memory.is_mla(model["gguf"]):
        if key_type and value_type and key_type != value_type:
            raise PlanError(
                f"{wish.name}: cache_type_k is {key_type} and cache_type_v is {value_type}, but {wish.model} keeps "
                "only K and reads V out of it (MLA), so that llama-server refuses two types: set both to the same."
            )
        key_type = value_type = key_type or value_type
    return list(dict.fromkeys((key_type or kind, value_type or kind) for kind in AUTO_CACHE_TYPES))


def shapes(wish: Wish, model: Mapping[str, Any]) -> list[Shape]:
    """The sizes to try, in order of preference: long enough before exact, exact before longer."""
    if "context" in wish.pins:
        totals = [int(wish.pins["context"])]
        enough = 0
    else:
        slots = slots_of(wish)
        totals = [memory.padded(tokens) * slots for tokens in contexts(wish, model)]
        enough = min(DEFAULT_CONTEXT, trained_context(model)) * slots
    types = cache_types(wish, model)
    long = [tokens for tokens in totals if tokens >= enough]
    short = [tokens for tokens in totals if tokens < enough]
    return [Shape(tokens, *kinds) for group in (long, short) for kinds in types for tokens in group]


def is_mapped(wish: Wish) -> bool:
    """Whether the routed experts may stay on the disk: the file is mapped and nothing copies them into RAM."""
    return (
        wish.fit == "mmap"
        and wish.pins.get("load_mode", "mmap") in ("mmap", "auto")
        and not wish.pins.get("repack", False)
    )


def ubatch_of(wish: Wish) -> int:
    """Tokens that are computed at once."""
    return min(int(wish.pins.get("ubatch", UBATCH)), int(wish.pins.get("batch", BATCH)))


def need_of(shape: Shape, wish: Wish, model: Mapping[str, Any]) -> Need:
    """What a shape keeps in RAM.

    :raises memory.MemoryFactsError: when the header does not tell, or the type does not suit the model.
    """
    gguf = model["gguf"]
    weights = memory.weight_bytes(model) - (memory.expert_bytes(model) if is_mapped(wish) else 0)
    flash = wish.pins.get("flash_attention") != "off"
    return Need(
        weights_bytes=weights,
        kv_bytes=memory.kv_bytes(gguf, shape.tokens, shape.key_type, shape.value_type, slots_of(wish)),
        compute_bytes=memory.compute_bytes(gguf, shape.tokens, ubatch_of(wish), flash),
    )


def needs_of(wish: Wish, model: Mapping[str, Any]) -> list[tuple[Shape, Need]]:
    """Each shape that suits the model, with its need, in order of preference.

    :raises PlanError: when none suits it.
    """
    found = []
    problem = ""
    for shape in shapes(wish, model):
        if wish.pins.get("flash_attention") == "off" and shape.value_type not in memory.WHOLE_CACHE_TYPES:
            problem = f"a V cache in {shape.value_type} needs flash attention, which is pinned off"
            continue
        try:
            found.append((shape, need_of(shape, wish, model)))
        except memory.MemoryFactsError as error:
            problem = str(error)
    if not found:
        raise PlanError(f"{wish.name}: {wish.model} cannot be planned: {problem}.")
    return found


def pinned_prompt_cache(wish: Wish) -> int:
    """Bytes of the prompt cache that the owner insists on."""
    return int(wish.pins.get("prompt_cache_mib", 0)) * MIB


def least_bytes(wish: Wish, model: Mapping[str, Any]) -> int:
    """The least that an instance can live on."""
    return min(need.total_bytes for _shape, need in needs_of(wish, model)) + pinned_prompt_cache(wish)


def reserve_bytes(usable_bytes: int) -> int:
    """What is kept for the system."""
    return min(RESERVE_MOST_BYTES, max(RESERVE_LEAST_BYTES, usable_bytes // RESERVE_SHARE))


def room_for(wish: Wish, model: Mapping[str, Any], usable_bytes: int, siblings_bytes: Sequence[int]) -> Room:
    """The memory of an instance: what it needs at least, and an equal share of what all instances need not.

    Each instance reckons the same way, so that together they never plan more than there is, whoever is planned first.
    """
    reserve = reserve_bytes(usable_bytes)
    others = sum(siblings_bytes)
    left = max(0, usable_bytes - reserve - others)
    least = least_bytes(wish, model)
    limit = least + (left - least) // (len(siblings_bytes) + 1) if left > least else left
    return Room(usable_bytes=usable_bytes, reserve_bytes=reserve, siblings_bytes=others, limit_bytes=limit)


def choose(wish: Wish, model: Mapping[str, Any], room: Room) -> tuple[Shape, Need]:
    """The first shape that fits.

    :raises PlanError: when none does, with the arithmetic and what would do.
    """
    candidates = needs_of(wish, model)
    for shape, need in candidates:
        if need.total_bytes + pinned_prompt_cache(wish) <= room.limit_bytes:
            return shape, need
    raise PlanError(refusal(wish, model, room, *min(candidates, key=lambda item: item[1].total_bytes)))


def refusal(wish: Wish, model: Mapping[str, Any], room: Room, shape: Shape, need: Need) -> str:
    """One sentence: what does not fit, by how much, and what would."""
    pinned = pinned_prompt_cache(wish)
    parts = [
        f"{'weights outside the experts' if is_mapped(wish) else 'weights'} {gib(need.weights_bytes)}",
        f"KV cache of {shape.tokens} tokens in {kinds_text(shape)} {gib(need.kv_bytes)}",
        f"buffers {gib(need.compute_bytes)}",
    ]
    if pinned:
        parts.append(f"pinned prompt cache {gib(pinned)}")
    there = f"{gib(room.usable_bytes)} usable less {gib(room.reserve_bytes)} for the system"
    if room.siblings_bytes:
        there += f" and {gib(room.siblings_bytes)} for the other instances"
    ways = remedies(wish, model, room, shape, need)
    return (
        f"{wish.name}: {wish.model} does not fit: it needs {gib(need.total_bytes + pinned)} of RAM "
        f"({', '.join(parts)}), but there are {gib(room.available_bytes)} ({there}); "
        f"what would do: {', or '.join(ways)}."
    )


def remedies(wish: Wish, model: Mapping[str, Any], room: Room, shape: Shape, need: Need) -> list[str]:
    """Changes that would each make it fit, the cheapest first; more memory always would."""
    limit = room.available_bytes - pinned_prompt_cache(wish)
    slots = slots_of(wish)
    ways = []
    if pinned_prompt_cache(wish) and need.total_bytes <= room.available_bytes:
        ways.append("a smaller prompt_cache_mib")
    for tokens in CONTEXT_LADDER:
        smaller = replace(shape, tokens=tokens * slots)
        if smaller.tokens < shape.tokens and need_of(smaller, wish, model).total_bytes <= limit:
            ways.append(f"context {smaller.tokens if 'context' in wish.pins else tokens}")
            break
    for kind in SMALLER_CACHE_TYPES:
        try:
            smaller_need = need_of(replace(shape, key_type=kind, value_type=kind), wish, model)
        except memory.MemoryFactsError:
            continue
        if smaller_need.kv_bytes < need.kv_bytes and smaller_need.total_bytes <= limit:
            ways.append(f"cache_type_k and cache_type_v {kind}")
            break
    if not is_mapped(wish) and memory.expert_bytes(model):
        pins = {key: value for key, value in wish.pins.items() if key not in ("load_mode", "repack")}
        mapped = replace(wish, fit="mmap", pins=pins)
        if need_of(shape, mapped, model).total_bytes <= limit:
            ways.append("policy fit: mmap (experts are read from the disk as they are needed: slow, but it runs)")
    left = limit - need.kv_bytes - need.compute_bytes
    if not is_mapped(wish) and left >= GIB // 4:
        ways.append(f"a model or quant of at most {gib(left)}")
    required = need.total_bytes + pinned_prompt_cache(wish) + room.siblings_bytes
    # The memory of which 5 % (within the bounds of the reserve) are not ours.
    with_reserve = required + min(RESERVE_MOST_BYTES, max(RESERVE_LEAST_BYTES, required // (RESERVE_SHARE - 1) + 1))
    ways.append(f"a host with {gib(with_reserve)} of usable RAM")
    return ways


def kinds_text(shape: Shape) -> str:
    """The types of the cache in a word or two."""
    return shape.key_type if shape.key_type == shape.value_type else f"{shape.key_type}/{shape.value_type}"


# --- the decisions --------------------------------------------------------------------------------------------------


def make_plan(
    profile: Mapping[str, Any],
    build: Mapping[str, Any],
    model: Mapping[str, Any],
    instance: Mapping[str, Any],
    siblings: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = (),
) -> dict[str, Any]:
    """The body of the plan document.

    :param profile: the host profile document.
    :param build: the build document.
    :param model: the model document.
    :param instance: name, model, port, host, policy.
    :param siblings: model document and instance of each other instance on the same host: they need memory, too.
    :raises PlanError: when it cannot be done, in one sentence.
    """
    wish = read_wish(instance)
    others = []
    for sibling_model, sibling in siblings:
        other = read_wish(sibling)
        if other.port == wish.port:
            raise PlanError(
                f"{wish.name} and {other.name} both want port {wish.port} on this host: give each its own port."
            )
        others.append(least_bytes(other, sibling_model))
    room = room_for(wish, model, int(profile["memory"]["usable_bytes"]), others)
    shape, need = choose(wish, model, room)
    prompt_cache = prompt_cache_decision(wish, room, need)
    prompt_cache_bytes = int(prompt_cache.value) * MIB
    decisions = [
        *identity_decisions(wish, model),
        *thread_decisions(wish, profile),
        *size_decisions(wish, model, room, shape, need),
        *loading_decisions(wish, build, model, room, need),
        prompt_cache,
        *fixed_decisions(wish),
    ]
    return {
        "instance": wish.name,
        "model": str(model["name"]),
        "build_id": str(build["build_id"]),
        "model_path": str(model["first_split"]),
        "model_bytes": int(model["bytes"]),
        "alias": str(model.get("alias") or model["name"]),
        "decisions": [{**asdict(item), "alternatives": list(item.alternatives)} for item in decisions],
        "memory": {
            "weights_bytes": need.weights_bytes,
            "kv_bytes": need.kv_bytes,
            "compute_bytes": need.compute_bytes,
            "prompt_cache_bytes": prompt_cache_bytes,
            "total_bytes": need.total_bytes + prompt_cache_bytes,
            "available_bytes": room.available_bytes,
            "reserve_bytes": room.reserve_bytes,
            "siblings_bytes": room.siblings_bytes,
        },
    }


def pinned_or(wish: Wish, decision: Decision) -> Decision:
    """The decision, or the owner's word over it."""
    if decision.key not in wish.pins:
        return decision
    value = wish.pins[decision.key]
    if value == decision.value:
        return replace(decision, reason=f"pinned; the plan would say the same: {decision.reason}", source="pinned")
    return Decision(
        decision.key, value, f"pinned; the plan would say {text(decision.value)}: {decision.reason}", "pinned"
    )


def text(value: Any) -> str:
    """A value as it is written in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def identity_decisions(wish: Wish, model: Mapping[str, Any]) -> list[Decision]:
    """Which model, under which name and address."""
    splits = len(model.get("splits") or [None])
    return [
        Decision(
            "model",
            str(model["first_split"]),
            f"{model['name']}: {gib(int(model['bytes']))} in {splits} split{'s' if splits != 1 else ''}, "
            "of which the first is named",
            "policy",
        ),
        Decision("alias", str(model.get("alias") or model["name"]), "the name that clients ask for", "policy"),
        Decision("host", wish.host, "the address that the owner gave, or else loopback alone", "policy"),
        Decision("port", wish.port, "said aloud, because upstream's own default port changes", "policy"),
    ]


def thread_decisions(wish: Wish, profile: Mapping[str, Any]) -> list[Decision]:
    """One thread for each core that can compute at full speed."""
    cpu = profile["cpu"]
    usable = max(1, int(cpu["usable_physical_cores"]))
    performance = int(cpu.get("performance_cores") or 0)
    threads = min(usable, performance or usable, MOST_THREADS)
    reason = f"{usable} of {cpu['physical_cores']} physical cores are usable"
    if cpu.get("quota_cpus"):
        reason += f" under a quota of {cpu['quota_cpus']:g} CPUs"
    if threads < usable and performance:
        reason += f", {performance} of them performance cores: slower ones would hold up each step"
    elif int(cpu["logical_cpus"]) > int(cpu["physical_cores"]):
        reason += "; a second thread on a core only takes turns"
    most = len(cpu.get("usable_cpus") or []) or int(cpu["logical_cpus"])
    for key in ("threads", "threads_batch"):
        if key in wish.pins and wish.pins[key] > most:
            raise PlanError(
                f"{wish.name}: {key} is pinned to {wish.pins[key]}, but only {most} CPUs of the host are usable: "
                f"pin at most {most}, or leave it to the plan, which says {threads}."
            )
    decided = pinned_or(wish, Decision("threads", threads, reason, "measured"))
    batch = Decision("threads_batch", threads, f"as for generation: {reason}", "measured")
    return [decided, pinned_or(wish, batch)]


def size_decisions(wish: Wish, model: Mapping[str, Any], room: Room, shape: Shape, need: Need) -> list[Decision]:
    """How much it can keep in mind, and in what form."""
    slots = slots_of(wish)
    gguf = model["gguf"]
    per_token = memory.kv_bytes_per_token(gguf, shape.key_type, shape.value_type)
    kv_text = f"{shape.tokens} tokens take {gib(need.kv_bytes)} ({per_token} bytes each)"
    return [
        context_decision(wish, model, room, shape, kv_text),
        pinned_or(
            wish,
            Decision(
                "slots",
                wish.slots,
                "one conversation at a time has the whole context and the whole speed"
                if wish.slots == 1
                else f"{wish.slots} conversations at a time share the speed",
                "policy",
            ),
        )
        if slots == wish.slots
        else Decision("slots", slots, f"pinned; the policy says {wish.slots}", "pinned"),
        *cache_decisions(wish, model, shape, need),
        flash_decision(wish, shape),
    ]


def context_decision(wish: Wish, model: Mapping[str, Any], room: Room, shape: Shape, kv_text: str) -> Decision:
    """Tokens of all slots together."""
    trained = trained_context(model)
    slots = slots_of(wish)
    each = shape.tokens // slots
    share = f", {each} for each of {slots} conversations" if slots > 1 else ""
    if "context" in wish.pins:
        beyond = f"; beyond the {trained} tokens it was trained for, answers get worse" if each > trained else ""
        return Decision("context", shape.tokens, f"pinned; {kv_text}{share}{beyond}", "pinned")
    if wish.context == "auto":
        larger = [tokens for tokens in contexts(wish, model) if memory.padded(tokens) > each]
        reason = f"the model was trained for {trained} tokens and there is room: {kv_text}{share}"
        if larger:
            step = Shape(memory.padded(larger[-1]) * slots, shape.key_type, shape.value_type)
            reason = (
                f"the most that fits in {gib(room.limit_bytes)}: {kv_text}{share}; {step.tokens} tokens would need "
                f"{gib(need_of(step, wish, model).total_bytes)}"
            )
        return Decision("context", shape.tokens, reason, "computed", tuple(str(tokens) for tokens in larger))
    asked = f"{wish.context} tokens were asked for" if "context" in wish.asked else f"{wish.context} is the default"
    if int(wish.context) > trained:
        return Decision(
            "context", shape.tokens, f"{asked}, but the model was trained for {trained}: {kv_text}{share}", "computed"
        )
    return Decision("context", shape.tokens, f"{asked}: {kv_text}{share}", "policy")


def cache_decisions(wish: Wish, model: Mapping[str, Any], shape: Shape, need: Need) -> list[Decision]:
    """The types of K and V."""
    mla = memory.is_mla(model["gguf"])
    others = []
    for kind in ("f16", *SMALLER_CACHE_TYPES):
        try:
            other = need_of(replace(shape, key_type=kind, value_type=kind), wish, model)
        except memory.MemoryFactsError:
            continue
        if other.kv_bytes != need.kv_bytes:
            others.append(f"{kind}: {gib(other.kv_bytes)}")
    decisions = []
    for key, kind, asked in (
        ("cache_type_k", shape.key_type, wish.key_type),
        ("cache_type_v", shape.value_type, wish.value_type),
    ):
        if key in wish.pins:
            decisions.append(Decision(key, kind, f"pinned; {gib(need.kv_bytes)} for K and V", "pinned", tuple(others)))
            continue
        if asked == kind:
            reason, source = f"asked for; {gib(need.kv_bytes)} for K and V", "policy"
        elif mla and key == "cache_type_v":
            reason, source = "V is read out of K (MLA), so that both are of one type", "computed"
        elif kind == "f16" and mla:
            reason = f"it fits ({gib(need.kv_bytes)}), and with MLA half precision is faster than a quantised cache"
            source = "computed"
        elif kind == "f16":
            reason, source = f"it fits ({gib(need.kv_bytes)}) and is the most exact", "computed"
        else:
            reason, source = f"f16 does not fit; in {kind} K and V take {gib(need.kv_bytes)}", "computed"
        decisions.append(Decision(key, kind, reason, source, tuple(others)))
    return decisions


def flash_decision(wish: Wish, shape: Shape) -> Decision:
    """Whether attention is computed without keeping all scores."""
    if shape.value_type in memory.WHOLE_CACHE_TYPES:
        decision = Decision(
            "flash_attention", "auto", "llama-server uses it where the backend has it, as the CPU has", "policy"
        )
    else:
        decision = Decision("flash_attention", "on", f"a V cache in {shape.value_type} needs it", "computed")
    return pinned_or(wish, decision)


def loading_decisions(
    wish: Wish, build: Mapping[str, Any], model: Mapping[str, Any], room: Room, need: Need
) -> list[Decision]:
    """How the weights get into memory, and that nothing is decided again at the start."""
    weights = memory.weight_bytes(model)
    backends = [str(name) for name in build.get("backends") or ["cpu"]]
    on_gpu = [name for name in backends if name != "cpu"]
    if wish.fit == "mmap" and memory.expert_bytes(model):
        reason = (
            f"the policy is mmap: of {gib(weights)} of weights {gib(need.weights_bytes)} are used for every token and "
            f"kept in RAM, {gib(memory.expert_bytes(model))} of experts are read from the disk as they are needed"
        )
    elif wish.fit == "mmap":
        reason = f"the policy is mmap, and all {gib(weights)} fit in RAM: the model has no experts to leave on the disk"
    else:
        reason = f"{gib(weights)} of weights fit in {gib(room.limit_bytes)}: mapped, the page cache serves a restart"
    if wish.fit == "hybrid":
        why = (
            f"this version places nothing on the GPU ({', '.join(on_gpu)})"
            if on_gpu
            else f"the build {build['build_id']} has no GPU backend ({', '.join(backends)})"
        )
        reason = f"{why}, so that everything stays in RAM; {reason}"
    load_mode = Decision(
        "load_mode", "mmap", reason, "policy" if wish.fit == "mmap" else "computed", ("none", "mlock", "dio")
    )
    if wish.fit == "mmap":
        repack = Decision("repack", False, "a copy for faster arithmetic would bring the experts into RAM", "computed")
    else:
        repack = Decision("repack", True, "the CPU computes faster on weights in its own order", "computed")
    decisions = [
        pinned_or(wish, load_mode),
        pinned_or(wish, repack),
        Decision("fit", False, "the plan has decided; llama-server must not decide anew at a restart", "policy"),
    ]
    if on_gpu:
        decisions.append(
            Decision("gpu_layers", 0, f"nothing is placed on the GPU ({', '.join(on_gpu)}) by this version", "policy")
        )
    return decisions


def prompt_cache_decision(wish: Wish, room: Room, need: Need) -> Decision:
    """RAM for earlier prompts: a part of what is left, no more than upstream's own bound."""
    left = max(0, room.limit_bytes - need.total_bytes)
    # What is left under mmap is what keeps experts from being read again.
    share, share_text = (8, "an eighth") if is_mapped(wish) else (2, "half")
    steps = min(MOST_PROMPT_CACHE_MIB, left // share // MIB) // PROMPT_CACHE_STEP_MIB
    value = steps * PROMPT_CACHE_STEP_MIB
    if value == MOST_PROMPT_CACHE_MIB:
        reason = f"upstream's own bound; {gib(left)} are left"
    elif value:
        reason = f"{share_text} of the {gib(left)} that are left, in steps of {PROMPT_CACHE_STEP_MIB} MiB"
    else:
        reason = f"only {gib(left)} are left: earlier prompts are computed again"
    return pinned_or(wish, Decision("prompt_cache_mib", value, reason, "computed"))


def fixed_decisions(wish: Wish) -> list[Decision]:
    """What is the same on every host, until the owner pins it."""
    batch = int(wish.pins.get("batch", BATCH))
    return [
        pinned_or(wish, decision)
        for decision in (
            Decision("batch", BATCH, "upstream's own, said aloud so that an upgrade does not change it", "policy"),
            Decision(
                "ubatch",
                min(UBATCH, batch),
                "upstream's own; more would take more memory and help a GPU, not a CPU",
                "policy",
            ),
            Decision("ui", False, "the API is what is served; the web page is one more thing to guard", "policy"),
            Decision("metrics", True, "counters for monitoring; they need the API key as everything else", "policy"),
            Decision("slots_endpoint", False, "it shows what others are asking", "policy"),
        )
    ]
