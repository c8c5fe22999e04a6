"""What a model takes: the figures that upstream's own llama-fit-params printed for the same headers."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import memory

FACTS = Path(__file__).resolve().parents[1] / "golden" / "facts"
MIB = 1024**2


def gguf(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((FACTS / f"{name}.json").read_text())["gguf"]
    return facts


@pytest.mark.parametrize(("kind", "per_token"), [("f16", 70272), ("bf16", 70272), ("q8_0", 37332), ("q4_0", 19764)])
def test_kimi_k2_keeps_576_elements_per_layer_and_token(kind: str, per_token: int) -> None:
    assert memory.kv_bytes_per_token(gguf("kimi_k2"), kind, kind) == per_token


@pytest.mark.parametrize(
    ("tokens", "kind", "mib"),
    [
        (32768, "f16", 2196),
        (131072, "f16", 8784),
        (131072, "q8_0", 4666.5),
        (131072, "q4_0", 2470.5),
        (262144, "f16", 17568),
    ],
)
def test_the_cache_of_kimi_k2_is_what_upstream_says(tokens: int, kind: str, mib: float) -> None:
    assert memory.kv_bytes(gguf("kimi_k2"), tokens, kind, kind) == mib * MIB


def test_a_header_without_the_mla_keys_costs_35_times_as_much() -> None:
    old = {
        **gguf("kimi_k2"),
        "key_length_mla": None,
        "value_length_mla": None,
        "head_count_kv": 64,
        "key_length": 192,
        "value_length": 128,
    }
    assert memory.kv_bytes_per_token(old, "f16", "f16") == 2_498_560


def test_a_list_of_heads_counts_each_layer_by_itself() -> None:
    mixed = {**gguf("gemma3_270m"), "block_count": 3, "head_count_kv": [0, 1, 4]}
    assert memory.kv_bytes_per_token(mixed, "f16", "f16") == 2 * (256 + 256) * (1 + 4)


def test_a_list_of_another_length_is_counted_at_its_largest() -> None:
    mixed = {**gguf("gemma3_270m"), "block_count": 3, "head_count_kv": [1, 4]}
    assert memory.kv_bytes_per_token(mixed, "f16", "f16") == 2 * (256 + 256) * 12


def test_heads_without_a_length_share_the_embedding() -> None:
    plain = {"block_count": 2, "embedding_length": 64, "head_count": 4, "head_count_kv": None}
    assert memory.kv_bytes_per_token(plain, "f32", "f32") == 2 * 4 * (64 + 64)


def test_each_slot_is_rounded_up_by_itself() -> None:
    facts = gguf("kimi_k2")
    assert memory.kv_bytes(facts, 1000, "f16", "f16") == 1024 * 70272
    assert memory.kv_bytes(facts, 1000, "f16", "f16", slots=4) == 4 * 256 * 70272


def test_blocks_that_do_not_divide_a_head_are_refused() -> None:
    with pytest.raises(memory.MemoryFactsError, match="keys of a head have 80: use f16"):
        memory.kv_bytes_per_token({**gguf("gemma3_270m"), "key_length": 80}, "q8_0", "f16")


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(memory.MemoryFactsError, match="q8_1 is not a type"):
        memory.kv_bytes_per_token(gguf("gemma3_270m"), "q8_1", "f16")


@pytest.mark.parametrize("facts", [{}, {"block_count": 4}, {"block_count": "4"}, {"block_count": -1}])
def test_a_header_that_does_not_say_enough_is_named(facts: dict[str, Any]) -> None:
    with pytest.raises(memory.MemoryFactsError, match="header"):
        memory.layer_caches(facts)


# llama-fit-params -fitp on, same build: MiB of compute buffers on the host.
@pytest.mark.parametrize(
    ("model", "tokens", "ubatch", "flash", "upstream_mib"),
    [
        ("kimi_k2", 4096, 512, True, 380),
        ("kimi_k2", 32768, 512, True, 376),
        ("kimi_k2", 131072, 512, True, 394),
        ("kimi_k2", 131072, 2048, True, 1576),
        ("kimi_k2", 4096, 4096, True, 3040),
        ("kimi_k2", 262144, 4096, True, 4578),
        ("kimi_k2", 131072, 512, False, 16984),
        ("gemma3_270m", 4096, 512, True, 514),
        ("gemma3_270m", 32768, 2048, True, 2058),
        ("tiny_k2", 4096, 512, True, 12),
        ("tiny_k2", 32768, 512, True, 40),
        ("tiny_k2", 32768, 4096, True, 320),
    ],
)
def test_buffers_are_never_estimated_too_small(
    model: str, tokens: int, ubatch: int, flash: bool, upstream_mib: int
) -> None:
    estimate = memory.compute_bytes(gguf(model), tokens, ubatch, flash)
    assert upstream_mib * MIB <= estimate <= 1.7 * upstream_mib * MIB + 128 * MIB


def test_an_unknown_vocabulary_is_taken_for_a_large_one() -> None:
    facts = gguf("kimi_k2")
    assert memory.compute_bytes({**facts, "vocab_size": None}, 4096, 512) > memory.compute_bytes(facts, 4096, 512)


def test_weights_without_the_headers_sum_are_the_files() -> None:
    assert memory.weight_bytes({"bytes": 7, "gguf": {"tensor_bytes": None}}) == 7
    assert memory.expert_bytes({"bytes": 7, "gguf": {"tensor_bytes_by_role": {"routed_experts": 9}}}) == 7
