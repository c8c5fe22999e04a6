"""The tiny model has Kimi K2's own shape, in three proper splits, the same bytes each time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import tiny_k2
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor


def digests(splits: list[Path]) -> list[str]:
    """The SHA-256 of each split."""
    return [hashlib.sha256(split.read_bytes()).hexdigest() for split in splits]


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The model, made once."""
    return list(tiny_k2.make(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def readers(splits: list[Path]) -> list[GGUFReader]:
    """Its splits, opened by the reference reader."""
    return [GGUFReader(split) for split in splits]


@pytest.fixture(scope="module")
def tensors(readers: list[GGUFReader]) -> dict[str, ReaderTensor]:
    """All tensors of all splits."""
    return {tensor.name: tensor for reader in readers for tensor in reader.tensors}


def value(reader: GGUFReader, key: str) -> object:
    """One key's value."""
    field = reader.get_field(key)
    assert field is not None, f"{key} is missing"
    return field.contents()


def test_there_are_three_splits_that_know_each_other(splits: list[Path], readers: list[GGUFReader]) -> None:
    assert [split.name for split in splits] == [f"tiny-kimi-k2-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert 18_000_000 < sum(split.stat().st_size for split in splits) < 21_000_000
    assert [value(reader, "split.no") for reader in readers] == [0, 1, 2]
    assert {value(reader, "split.count") for reader in readers} == {3}
    assert {value(reader, "split.tensors.count") for reader in readers} == {sum(len(r.tensors) for r in readers)}
    assert min(len(reader.tensors) for reader in readers) > 0


def test_the_first_split_describes_kimi_k2s_network(readers: list[GGUFReader]) -> None:
    first = readers[0]
    expected = {
        "general.architecture": "deepseek2",
        "deepseek2.block_count": 6,
        "deepseek2.leading_dense_block_count": 1,
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.q_lora_rank": 128,
        "deepseek2.attention.kv_lora_rank": 64,
        "deepseek2.attention.key_length": 64 + 32,
        "deepseek2.attention.value_length": 64,
        "deepseek2.attention.key_length_mla": 64 + 32,
        "deepseek2.attention.value_length_mla": 64,
        "deepseek2.expert_count": 16,
        "deepseek2.expert_used_count": 4,
        "deepseek2.expert_shared_count": 1,
        "deepseek2.expert_gating_func": 2,
        "deepseek2.expert_weights_scale": pytest.approx(2.827),
        "deepseek2.expert_weights_norm": True,
        "deepseek2.rope.scaling.type": "yarn",
        "deepseek2.rope.scaling.factor": 32.0,
        "tokenizer.ggml.pre": "kimi-k2",
    }

    assert {key: value(first, key) for key in expected} == expected
    assert "<|im_assistant|>assistant<|im_middle|>" in str(value(first, "tokenizer.chat_template"))


def test_blocks_have_latent_attention_and_experts_after_the_dense_one(tensors: dict[str, ReaderTensor]) -> None:
    blocks = [{name.split(".", 2)[2] for name in tensors if name.startswith(f"blk.{block}.")} for block in range(6)]

    assert all({"attn_k_b.weight", "attn_v_b.weight"} < block for block in blocks)
    assert "ffn_gate.weight" in blocks[0]
    for block in blocks[1:]:
        assert {"ffn_gate_inp.weight", "exp_probs_b.bias", "ffn_up_exps.weight", "ffn_up_shexp.weight"} < block
    assert tensors["blk.1.ffn_down_exps.weight"].shape.tolist() == [256, 256, 16]
    assert tensors["blk.1.attn_k_b.weight"].shape.tolist() == [64, 64, 4]


def test_matrices_are_quantised_and_the_rest_is_exact(tensors: dict[str, ReaderTensor]) -> None:
    exact = {name for name, tensor in tensors.items() if tensor.tensor_type == GGMLQuantizationType.F32}

    assert {tensor.tensor_type for tensor in tensors.values()} == {GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0}
    assert all("norm" in name or "gate_inp" in name or "exp_probs_b" in name for name in exact)


def test_each_token_has_a_type_and_a_row(readers: list[GGUFReader], tensors: dict[str, ReaderTensor]) -> None:
    tokens = value(readers[0], "tokenizer.ggml.tokens")
    types = value(readers[0], "tokenizer.ggml.token_type")
    merges = value(readers[0], "tokenizer.ggml.merges")

    assert isinstance(tokens, list)
    assert isinstance(types, list)
    assert isinstance(merges, list)
    assert len(set(tokens)) == len(tokens) == len(types) == tensors["output.weight"].shape[1]
    assert {merge.replace(" ", "") for merge in merges} < set(tokens)
    assert all(part in tokens for merge in merges for part in merge.split(" "))
    assert types[tokens.index("<|im_end|>")] == 3


def test_it_is_the_same_each_time_and_made_only_when_a_split_is_missing(splits: list[Path], tmp_path: Path) -> None:
    again = tiny_k2.make(tmp_path)
    assert digests(again) == digests(splits)

    written = [split.stat().st_mtime_ns for split in again]
    tiny_k2.make(tmp_path)
    assert [split.stat().st_mtime_ns for split in again] == written

    again[1].unlink()
    assert digests(tiny_k2.make(tmp_path)) == digests(splits)
    assert [path.name for path in tmp_path.iterdir()] == ["Q8_0"], "nothing half-made is left"
