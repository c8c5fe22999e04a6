"""How much memory a model takes to serve, from the facts of its header: pure arithmetic, no host, no file.

Cache and weights are exact. Compute buffers are a conservative estimate: upstream builds the real graph to know them,
which needs the build and the file; the estimate is compared with upstream's own figures in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MIB = 1024**2
GIB = 1024**3

# Bytes that a block of 32 elements takes, by the type of the KV cache: the types that llama-server accepts, with the
# block layouts of ggml (q8_0 is 32 bytes and a half-precision scale, q5_1 20 bytes and two, and so on).
BLOCK_ELEMENTS = 32
CACHE_BLOCK_BYTES: dict[str, int] = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}
WHOLE_CACHE_TYPES = frozenset({"f32", "f16", "bf16"})

# llama.cpp rounds the cache of a sequence up to whole steps of this many tokens.
CONTEXT_STEP = 256

# Tokenizer, graph, request buffers and the threads' work areas; the least that a server takes besides its weights.
COMPUTE_BASE_BYTES = 64 * MIB

# Taken for the vocabulary when the header does not tell it: as large as the largest in use.
LARGEST_VOCABULARY = 262144


class MemoryFactsError(Exception):
    """The header's facts do not suffice, or contradict what was asked; the message says which."""


@dataclass(frozen=True)
class LayerCache:
    """Elements that one token leaves in the cache of one layer."""

    key_elements: int
    value_elements: int


def is_mla(gguf: Mapping[str, Any]) -> bool:
    """Whether only K is cached and V is read out of it (multi-head latent attention, as upstream decides it)."""
    return bool(gguf.get("key_length_mla")) and bool(gguf.get("value_length_mla"))


def layer_caches(gguf: Mapping[str, Any]) -> list[LayerCache]:
    """What each layer caches per token.

    A sliding window is not taken off: which layers it covers differs by architecture, and too much is planned rather
    than too little. A layer whose ``head_count_kv`` is 0 (recurrent) caches nothing here.

    :raises MemoryFactsError: when the header lacks what the arithmetic needs.
    """
    layers = number(gguf, "block_count")
    if is_mla(gguf):
        key_length = gguf.get("key_length") or number(gguf, "kv_lora_rank") + number(gguf, "rope_dimension_count")
        return [LayerCache(int(key_length), 0)] * layers
    heads = per_layer(gguf.get("head_count") or 0, layers)
    kv_heads = per_layer(gguf.get("head_count_kv") if gguf.get("head_count_kv") is not None else heads, layers)
    most_heads = max(heads, default=0)
    default_length = number(gguf, "embedding_length") // most_heads if most_heads else 0
    key_length = int(gguf.get("key_length") or default_length)
    value_length = int(gguf.get("value_length") or default_length)
    if not key_length or not value_length:
        raise MemoryFactsError("the header says neither how many attention heads there are nor how long their keys are")
    return [LayerCache(count * key_length, count * value_length) for count in kv_heads]


def per_layer(value: Any, layers: int) -> list[int]:
    """A header value that is one number for all layers, or a list with one for each."""
    if isinstance(value, (list, tuple)):
        values = [int(item) for item in value]
        # A list of another length cannot be laid over the layers: count its largest everywhere.
        return values if len(values) == layers else [max(values, default=0)] * layers
    return [int(value)] * layers


def number(gguf: Mapping[str, Any], key: str) -> int:
    """A number that the header must hold.

    :raises MemoryFactsError: when it does not.
    """
    value = gguf.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MemoryFactsError(f"the header does not say {key} (it says {value!r})")
    return value


def row_bytes(elements: int, cache_type: str) -> int:
    """Bytes of so many elements in a cache type.

    :raises MemoryFactsError: for an unknown type.
    """
    if cache_type not in CACHE_BLOCK_BYTES:
        raise MemoryFactsError(f"{cache_type} is not a type of the KV cache ({', '.join(CACHE_BLOCK_BYTES)})")
    return elements * CACHE_BLOCK_BYTES[cache_type] // BLOCK_ELEMENTS


def kv_bytes_per_token(gguf: Mapping[str, Any], key_type: str, value_type: str) -> int:
    """Bytes that one token takes in the caches of all layers. Kimi K2 in f16: 70,272.

    :raises MemoryFactsError: when the blocks of a quantised type do not divide a head, which llama.cpp refuses.
    """
    for what, kind, length in (
        ("keys", key_type, gguf.get("key_length")),
        ("values", value_type, gguf.get("value_length")),
    ):
        if kind not in WHOLE_CACHE_TYPES and length and int(length) % BLOCK_ELEMENTS:
            raise MemoryFactsError(
                f"{kind} stores blocks of {BLOCK_ELEMENTS} elements, and the {what} of a head have {length}: use f16"
            )
    return sum(
        row_bytes(layer.key_elements, key_type) + row_bytes(layer.value_elements, value_type)
        for layer in layer_caches(gguf)
    )


def padded(tokens: int) -> int:
    """Tokens rounded up to whole steps of the cache."""
    return -(-tokens // CONTEXT_STEP) * CONTEXT_STEP


def kv_bytes(gguf: Mapping[str, Any], tokens: int, key_type: str, value_type: str, slots: int = 1) -> int:
    """Bytes of the whole cache: ``tokens`` is what all slots hold together, each padded by itself."""
    return kv_bytes_per_token(gguf, key_type, value_type) * padded(-(-tokens // slots)) * slots


def compute_bytes(gguf: Mapping[str, Any], tokens: int, ubatch: int, flash_attention: bool = True) -> int:
    """An estimate, from above, of the buffers of one batch.

    For each token of a batch: the logits of the vocabulary (4 bytes each), the attention mask (2 bytes for each token
    of the context), a few activations as wide as the embedding, the queries of all heads; without flash attention
    the scores of all heads over the whole context as well, which at 131072 tokens are 16 GiB for Kimi K2.
    """
    heads = max(per_layer(gguf.get("head_count") or 0, 1))
    embedding = number(gguf, "embedding_length")
    key_length = int(gguf.get("key_length") or (embedding // heads if heads else 0))
    vocabulary = int(gguf.get("vocab_size") or LARGEST_VOCABULARY)
    per_token = 4 * vocabulary + 2 * padded(tokens) + 4 * (4 * embedding + heads * key_length)
    if not flash_attention:
        per_token += 4 * heads * padded(tokens)
    return COMPUTE_BASE_BYTES + min(ubatch, padded(tokens)) * per_token


def weight_bytes(model: Mapping[str, Any]) -> int:
    """Bytes of all tensors: the header's sum, or the files' size where it is not known."""
    return int(model["gguf"].get("tensor_bytes") or model["bytes"])


def expert_bytes(model: Mapping[str, Any]) -> int:
    """Bytes of the routed experts: what a memory-mapped model may leave on the disk until it is needed."""
    roles = model["gguf"].get("tensor_bytes_by_role") or {}
    return min(int(roles.get("routed_experts") or 0), weight_bytes(model))


def gib(size_bytes: int) -> str:
    """Bytes as GiB (or MiB, for little), for a sentence."""
    value = size_bytes / GIB
    if value < 1:
        return f"{size_bytes / MIB:.0f} MiB"
    return f"{value:.2f} GiB" if value < 10 else f"{value:.1f} GiB"
