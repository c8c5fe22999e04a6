"""Read the header of a GGUF file: metadata and tensor descriptions, never the tensors.

The format is ggml's (docs/gguf.md upstream), little endian, versions 2 and 3. A header comes from the network: no
length in it is believed before it is compared with what the file can hold, and a damaged one ends in a sentence, never
in an exhausted memory.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Bounds of a header that is meant: the largest models have some thousand tensors, a few hundred keys and a vocabulary
# of some hundred thousand tokens.
MOST_TENSORS = 1_000_000
MOST_KEYS = 1_000_000
MOST_NAME_BYTES = 65_535
MOST_STRING_BYTES = 64 * 1024**2
MOST_DIMENSIONS = 4
# Longer arrays (tokens, merges, scores) are counted, not kept.
KEPT_ELEMENTS = 4096

# Scalar value types: id → struct code. 8 is a string, 9 an array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

# Tensor types: id → name, elements of a block, bytes of a block (ggml's type traits; a test compares them with the
# package gguf).
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}

SPLIT_SUFFIX = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)

# What a tensor is for, by its name; the first that matches. "exps" are the routed experts, "shexp" the shared one.
ROLES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("embedding", re.compile(r"^token_embd|^per_layer_token_embd|^token_types|^position_embd")),
    ("output", re.compile(r"^output")),
    ("routed_experts", re.compile(r"\.ffn_\w*_(ch)?exps(\.|$)")),
    ("shared_experts", re.compile(r"\.ffn_\w*_shexp(\.|$)|\.ffn_gate_inp_shexp")),
    ("attention", re.compile(r"\.attn_|\.ssm_|\.indexer")),
    ("dense_ffn", re.compile(r"\.ffn_(up|down|gate|gate_up)(\.|$)")),
)
OTHER_ROLE = "other"


class GgufError(Exception):
    """A file is not what it should be; the message says which, what is wrong and what to do."""


@dataclass(frozen=True)
class Tensor:
    """A tensor's description: ``offset`` counts from the beginning of the data."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Skipped:
    """An array that was too long to keep."""

    length: int


@dataclass(frozen=True)
class Header:
    """Everything in a GGUF file but the tensors' contents."""

    path: str
    file_bytes: int
    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    data_offset: int

    @property
    def name(self) -> str:
        """The file's name, for sentences."""
        return Path(self.path).name


class _Reader:
    """Reads little-endian values and never past the end of the file."""

    def __init__(self, stream: BinaryIO, file_bytes: int, name: str) -> None:
        self.stream = stream
        self.left = file_bytes
        self.read_bytes = 0
        self.name = name

    def refuse(self, what: str) -> GgufError:
        """The error about a header that cannot be believed."""
        return GgufError(f"{self.name} is damaged: {what}; fetch it again (gguf_model_verify: full).")

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > self.left:
            raise self.refuse(f"it ends within its header, after {self.read_bytes} bytes")
        data = self.stream.read(count)
        if len(data) != count:
            raise self.refuse(f"it ends within its header, after {self.read_bytes + len(data)} bytes")
        self.left -= count
        self.read_bytes += count
        return data

    def skip(self, count: int) -> None:
        """Pass over bytes without keeping them."""
        while count:
            count -= len(self.take(min(count, 1 << 16)))

    def number(self, code: str) -> Any:
        """One scalar."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, most: int, what: str) -> int:
        """A count of things, each of which takes at least a byte."""
        value = int(self.number("Q"))
        if value > min(most, self.left):
            raise self.refuse(f"it announces {value} {what}")
        return value

    def text(self, most: int = MOST_STRING_BYTES) -> str:
        """A string. Bytes that are no UTF-8 are kept visible: names of tokens may be anything."""
        return self.take(self.count(most, "bytes of text")).decode("utf-8", "backslashreplace")

    def value(self, kind: int) -> Any:
        """A value of a metadata type."""
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise self.refuse(f"it has a metadata value of the unknown type {kind}")
        element = int(self.number("I"))
        length = self.count(self.left, "elements")
        if element in SCALARS:
            size = struct.calcsize(f"<{SCALARS[element]}")
            if length * size > self.left:
                raise self.refuse(f"it announces {length} elements")
            if length > KEPT_ELEMENTS:
                self.skip(length * size)
                return Skipped(length)
            return list(struct.unpack(f"<{length}{SCALARS[element]}", self.take(length * size)))
        if element != STRING:
            raise self.refuse(f"it has an array of the unknown type {element}")
        if length > KEPT_ELEMENTS:
            for _ in range(length):
                self.skip(self.count(MOST_STRING_BYTES, "bytes of text"))
            return Skipped(length)
        return [self.text() for _ in range(length)]


def read_header(path: str) -> Header:
    """Read a file's header.

    :raises GgufError: when it is not a GGUF file, or a damaged or unknown one.
    :raises OSError: when it cannot be read.
    """
    with Path(path).open("rb") as stream:
        return parse_header(stream, Path(path).stat().st_size, path)


def parse_header(stream: BinaryIO, file_bytes: int, path: str) -> Header:
    """Read a header from a stream that stands at its beginning.

    :param file_bytes: how long the whole file is.
    :raises GgufError: when it is not a GGUF file, or a damaged or unknown one.
    """
    reader = _Reader(stream, file_bytes, Path(path).name)
    magic = stream.read(4) if file_bytes >= 4 else b""
    if magic != MAGIC:
        raise GgufError(
            f"{reader.name} is not a GGUF file (it begins with {magic!r}): a web page or a pointer may have been "
            "saved in its place; fetch it again, or correct the catalogue."
        )
    reader.left -= 4
    reader.read_bytes = 4
    version = int(reader.number("I"))
    if version not in VERSIONS:
        if version & 0xFFFF == 0:
            raise GgufError(f"{reader.name} is written in big-endian order, which is not served here: take another.")
        raise GgufError(f"{reader.name} is of GGUF version {version}; versions 2 and 3 are read: take a newer upload.")
    tensor_count = reader.count(MOST_TENSORS, "tensors")
    key_count = reader.count(MOST_KEYS, "keys")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = reader.text(MOST_NAME_BYTES)
        metadata[key] = reader.value(int(reader.number("I")))
    tensors = tuple(_tensor(reader) for _ in range(tensor_count))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise reader.refuse(f"its alignment is {alignment!r}")
    data_offset = -(-reader.read_bytes // alignment) * alignment
    return Header(path, file_bytes, version, metadata, tensors, data_offset)


def _tensor(reader: _Reader) -> Tensor:
    """The next tensor's description."""
    name = reader.text(MOST_NAME_BYTES)
    dimensions = int(reader.number("I"))
    if not 0 < dimensions <= MOST_DIMENSIONS:
        raise reader.refuse(f"its tensor {name[:80]!r} has {dimensions} dimensions")
    shape = tuple(int(reader.number("Q")) for _ in range(dimensions))
    kind = int(reader.number("I"))
    offset = int(reader.number("Q"))
    if kind not in TENSOR_TYPES:
        raise GgufError(
            f"{reader.name} has a tensor of the unknown type {kind}: it needs a newer Llamarack and llama.cpp, or was "
            "made for a fork; choose another quant."
        )
    type_name, block_elements, block_bytes = TENSOR_TYPES[kind]
    if shape[0] % block_elements:
        raise reader.refuse(f"its tensor {name[:80]!r} has rows of {shape[0]} elements in blocks of {block_elements}")
    return Tensor(name, shape, type_name, offset, math.prod(shape) // block_elements * block_bytes)


def check_set(headers: Sequence[Header]) -> None:
    """See that files are one whole model: all splits of one set, in order, with every tensor inside its file.

    :raises GgufError: with one sentence about the first thing that is wrong.
    """
    if not headers:
        raise GgufError("There is no file in the set: correct the catalogue.")
    first = headers[0]
    kind = first.metadata.get("general.type", "model")
    if kind != "model":
        raise GgufError(f"{first.name} is a GGUF file of type {kind}, not a model: correct quant in the catalogue.")
    if not first.metadata.get("general.architecture"):
        raise GgufError(f"{first.name} names no architecture: it is not a model that can be served; take another.")
    for position, header in enumerate(headers):
        _check_place(header, position, len(headers))
        for tensor in header.tensors:
            if header.data_offset + tensor.offset + tensor.bytes > header.file_bytes:
                raise GgufError(
                    f"{header.name} is cut short: its tensor {tensor.name} ends beyond the end of the file; "
                    "fetch it again."
                )
    names = [tensor.name for header in headers for tensor in header.tensors]
    if not names:
        raise GgufError(f"{first.name} holds no tensors, only a vocabulary: choose another file.")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise GgufError(f"The set of {first.name} holds the tensor {twice} twice: its splits are of different uploads.")
    announced = first.metadata.get("split.tensors.count")
    if len(headers) > 1 and announced != len(names):
        raise GgufError(
            f"The set of {first.name} announces {announced} tensors and holds {len(names)}: its splits do not belong "
            "together; take another revision."
        )


def _check_place(header: Header, position: int, count: int) -> None:
    """See that a file is the split that its place and name say."""
    number = header.metadata.get("split.no", 0)
    announced = header.metadata.get("split.count", 0) or 1
    if announced != count:
        raise GgufError(f"{header.name} is one of {announced} splits, but {count} are there: the set is not whole.")
    if count > 1 and number != position:
        raise GgufError(
            f"{header.name} is split {number + 1} inside, but lies in the place of split {position + 1}: the files "
            "were renamed or mixed up; fetch the set again."
        )
    named = SPLIT_SUFFIX.search(header.name)
    if count > 1 and (named is None or (int(named[1]), int(named[2])) != (position + 1, count)):
        raise GgufError(
            f"{header.name} must end in -{position + 1:05d}-of-{count:05d}.gguf, for llama.cpp finds splits by their "
            "names: rename the set."
        )


def role_of(tensor_name: str) -> str:
    """What a tensor is for."""
    return next((role for role, pattern in ROLES if pattern.search(tensor_name)), OTHER_ROLE)


def model_facts(headers: Sequence[Header]) -> dict[str, Any]:
    """What the planner wants to know of a whole set; keys that the header lacks are None.

    ``tensor_bytes_by_role`` adds up to ``tensor_bytes``. ``active_bytes`` is what one decoded token reads: everything
    but the embedding table (one row of it is), with the routed experts in the share that a token uses of them.
    """
    metadata = headers[0].metadata
    architecture = str(metadata.get("general.architecture"))
    tensors = [tensor for header in headers for tensor in header.tensors]
    by_role = dict.fromkeys([*(role for role, _ in ROLES), OTHER_ROLE], 0)
    by_type: dict[str, int] = {}
    for tensor in tensors:
        by_role[role_of(tensor.name)] += tensor.bytes
        by_type[tensor.type_name] = by_type.get(tensor.type_name, 0) + tensor.bytes
    total = sum(by_role.values())

    def of(key: str) -> Any:
        value = metadata.get(f"{architecture}.{key}")
        return None if isinstance(value, Skipped) else value

    experts, used = of("expert_count") or 0, of("expert_used_count") or 0
    share = used / experts if experts else 1.0
    routed = by_role["routed_experts"]
    # A model without an output matrix multiplies with its embedding table instead, and reads all of it.
    tied = by_role["embedding"] if not any(tensor.name == "output.weight" for tensor in tensors) else 0
    return {
        "architecture": architecture,
        "name": metadata.get("general.name"),
        "file_type": metadata.get("general.file_type"),
        "block_count": of("block_count"),
        "context_length": of("context_length"),
        "embedding_length": of("embedding_length"),
        "head_count": of("attention.head_count"),
        "head_count_kv": of("attention.head_count_kv"),
        "key_length": of("attention.key_length"),
        "value_length": of("attention.value_length"),
        "key_length_mla": of("attention.key_length_mla"),
        "value_length_mla": of("attention.value_length_mla"),
        "kv_lora_rank": of("attention.kv_lora_rank"),
        "q_lora_rank": of("attention.q_lora_rank"),
        "sliding_window": of("attention.sliding_window"),
        "rope_dimension_count": of("rope.dimension_count"),
        "leading_dense_block_count": of("leading_dense_block_count"),
        "expert_count": of("expert_count"),
        "expert_used_count": of("expert_used_count"),
        "vocab_size": _vocabulary(metadata, tensors),
        "has_chat_template": bool(metadata.get("tokenizer.chat_template")),
        "tensor_count": len(tensors),
        "tensor_bytes": total,
        "tensor_bytes_by_role": by_role,
        "tensor_bytes_by_type": dict(sorted(by_type.items())),
        "active_bytes": int(total - by_role["embedding"] + tied - routed + routed * share),
    }


def _vocabulary(metadata: Mapping[str, Any], tensors: Sequence[Tensor]) -> int | None:
    """How many tokens the model knows: the length of its list, or the rows of its embedding table."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Skipped):
        return tokens.length
    if isinstance(tokens, list):
        return len(tokens)
    table = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    return table.shape[1] if table and len(table.shape) > 1 else None
