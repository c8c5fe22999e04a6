"""Read the header of a GGUF file: metadata and tensor descriptions, never the tensors.

The format is ggml's (docs/gguf.md upstream), little endian, versions 2 and 3. A header comes from the network: no
length in it is believed before it is compared with what the file can hold, and a damaged one ends in a sentence, never
in an exhausted memory. What llama.cpp refuses to load (ggml/src/gguf.cpp, src/llama-model-loader.cpp) is refused here,
before hundreds of gigabytes are served from it.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Bounds of a header that is meant. The largest models have some thousand tensors, a hundred keys and a vocabulary of
# some hundred thousand tokens, which makes 6 to 10 MB.
MOST_HEADER_BYTES = 64 * 1024**2
MOST_TENSORS = 65_536
MOST_KEYS = 65_536
MOST_KEY_BYTES = 65_535  # the format's own bound
MOST_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME, less the end of the string
MOST_DIMENSIONS = 4  # GGML_MAX_DIMS
MOST_ELEMENTS = 2**63 - 1  # ggml counts them in an int64_t
# A tensor and a key take at least so many bytes: lengths, types and offsets, with an empty name.
LEAST_TENSOR_BYTES = 24
LEAST_KEY_BYTES = 13

# Numbers for each layer are kept; longer arrays (scores, token types) are counted only, as are all arrays of strings.
KEPT_ELEMENTS = 4096
KEPT_BYTES = 4 * 1024**2
# What a number in a list takes in Python.
ELEMENT_BYTES = 32

# Scalar value types by their id. 8 is a string, 9 an array.
SCALARS = {
    kind: struct.Struct(f"<{code}")
    for kind, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
UINT32, STRING, ARRAY, UINT64 = 4, 8, 9, 10

# Tensor types: id → name, elements of a block, bytes of a block. Ids are those of enum ggml_type (ggml/include/ggml.h),
# layouts those of the structs in ggml/src/ggml-common.h; a test compares them with the package gguf.
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
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
# Ids that ggml once gave and took back, and from where on ik_llama.cpp numbers its own.
REMOVED_TYPES = frozenset({4, 5, 31, 32, 33, 36, 37, 38})
FORK_TYPES_FROM = 96

SPLIT_SUFFIX = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")

# Files that lie beside models and are none, by general.type.
COMPANIONS = {
    "mmproj": "the vision part that accompanies a model (mmproj)",
    "imatrix": "an importance matrix, which is for quantising",
    "adapter": "an adapter (LoRA), which changes a model",
}

# What a tensor is for, by its name (src/llama-arch.cpp); the first that matches. "exps" are the routed experts, and so
# are numbered ones ("ffn_up.3", as old files have them); "shexp" is the one that every token uses.
ROLES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("embedding", re.compile(r"^(per_layer_)?token_embd\.|^token_types\.|^position_embd\.")),
    ("output", re.compile(r"^output")),
    ("routed_experts", re.compile(r"\.ffn_(gate|up|down|gate_up)(_(ch)?exps|\.\d+)\.")),
    ("shared_experts", re.compile(r"\.ffn_\w+_shexp\.")),
    ("attention", re.compile(r"\.attn_|\.ssm_|\.time_mix_|\.shortconv\.|\.indexer")),
    ("dense_ffn", re.compile(r"\.ffn_(gate|up|down|gate_up|latent_\w+|routed_\w+)\.|\.channel_mix_")),
)
OTHER_ROLE = "other"


class GgufError(Exception):
    """A file is not what it should be; the message says which, what is wrong and what to do."""


@dataclass(frozen=True)
class Tensor:
    """A tensor's description: ``offset`` counts from where the data begins, and a row's length leads the shape."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    bytes: int

    @property
    def type_name(self) -> str:
        """The type as ggml calls it."""
        return TENSOR_TYPES[self.type_id][0]


@dataclass(frozen=True)
class ArrayValue:
    """An array of the metadata that was counted and not kept."""

    length: int


@dataclass(frozen=True)
class Header:
    """Everything in a GGUF file but the tensors' contents.

    ``metadata`` holds numbers, strings, lists of numbers, and an ``ArrayValue`` for each other array. The tensors begin
    at ``data_offset``, each at a multiple of ``alignment`` bytes after it.
    """

    path: str
    file_bytes: int
    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    alignment: int
    data_offset: int

    @property
    def name(self) -> str:
        """The file's name, for sentences."""
        return Path(self.path).name


class _Reader:
    """Reads little-endian values, never past the file's end or a header's bounds, and counts what it keeps."""

    def __init__(self, stream: BinaryIO, file_bytes: int, name: str) -> None:
        self.stream = stream
        self.file_bytes = file_bytes
        self.name = name
        self.position = 0
        self.keepable_bytes = KEPT_BYTES

    def refuse(self, what: str) -> GgufError:
        """The error about a header that cannot be believed."""
        return GgufError(f"{self.name} is damaged: {what}; fetch it again (gguf_model_verify: full).")

    @property
    def left(self) -> int:
        """Bytes that the header can still have."""
        return min(self.file_bytes, MOST_HEADER_BYTES) - self.position

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if self.position + count > self.file_bytes:
            raise self.refuse(f"it ends within its header, after {self.file_bytes} bytes")
        if count > self.left:
            raise self.refuse(f"its header is longer than the {MOST_HEADER_BYTES} bytes that one may have")
        data = self.stream.read(count)
        if len(data) != count:
            raise self.refuse(f"it ends within its header, after {self.position + len(data)} bytes")
        self.position += count
        return data

    def skip(self, count: int) -> None:
        """Pass over bytes without keeping them."""
        while count:
            count -= len(self.take(min(count, 1 << 16)))

    def keep(self, count: int) -> None:
        """Account for what stays in memory."""
        self.keepable_bytes -= count
        if self.keepable_bytes < 0:
            raise self.refuse("it holds more metadata than any model needs")

    def number(self, kind: int) -> Any:
        """One scalar."""
        scalar = SCALARS[kind]
        return scalar.unpack(self.take(scalar.size))[0]

    def count(self, what: str, most: int = MOST_HEADER_BYTES, least_bytes: int = 1) -> int:
        """A count of things, each of which takes at least so many bytes."""
        value = int(self.number(UINT64))
        if value > most or value * least_bytes > self.left:
            raise self.refuse(f"it announces {value} {what}, more than it can hold")
        return value

    def text(self, what: str, most: int = KEPT_BYTES) -> str:
        """A string. Bytes that are no UTF-8 stay visible."""
        length = self.count(f"bytes of {what}", most)
        self.keep(length)
        return self.take(length).decode("utf-8", "backslashreplace")

    def value(self, key: str) -> Any:
        """A value of the metadata, with its type before it."""
        kind = int(self.number(UINT32))
        if kind in SCALARS:
            return self.number(kind)
        if kind == STRING:
            return self.text(f"the text {key[:80]!r}")
        if kind == ARRAY:
            return self.array(key)
        raise self.refuse(f"its key {key[:80]!r} has the unknown type {kind}")

    def array(self, key: str) -> list[Any] | ArrayValue:
        """An array: its numbers when they are few, else its length."""
        kind = int(self.number(UINT32))
        elements = f"elements of the array {key[:80]!r}"
        if kind == STRING:
            length = self.count(elements, least_bytes=8)
            for _ in range(length):
                self.skip(self.count("bytes of a token"))
            return ArrayValue(length)
        if kind not in SCALARS:
            raise self.refuse(f"its key {key[:80]!r} is an array of the unknown type {kind}")
        size = SCALARS[kind].size
        length = self.count(elements, least_bytes=size)
        if length > KEPT_ELEMENTS:
            self.skip(length * size)
            return ArrayValue(length)
        self.keep(length * ELEMENT_BYTES)
        return [value for (value,) in SCALARS[kind].iter_unpack(self.take(length * size))]


def read_header(path: str) -> Header:
    """Read a file's header.

    :raises GgufError: when it cannot be read, is not a GGUF file, or a damaged or unknown one.
    """
    try:
        with Path(path).open("rb") as stream:
            return parse_header(stream, os.fstat(stream.fileno()).st_size, path)
    except OSError as error:
        raise GgufError(f"{path} cannot be read ({error.strerror}): see that it is there and may be read.") from error


def parse_header(stream: BinaryIO, file_bytes: int, name: str) -> Header:
    """Read a header from a buffered stream that stands at its beginning.

    :param file_bytes: how long the whole file is; the stream need not hold more of it than the header.
    :param name: the file's path or name.
    :raises GgufError: when it is not a GGUF file, or a damaged or unknown one.
    """
    reader = _Reader(stream, file_bytes, Path(name).name)
    version = _version(reader)
    tensor_count = reader.count("tensors", MOST_TENSORS, LEAST_TENSOR_BYTES)
    key_count = reader.count("keys", MOST_KEYS, LEAST_KEY_BYTES)
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = reader.text("a key", MOST_KEY_BYTES)
        if not key or key in metadata:
            raise reader.refuse(f"it has the key {key[:80]!r} twice" if key else "it has a key without a name")
        metadata[key] = reader.value(key)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise reader.refuse("its alignment is not a power of two")
    tensors = tuple(_tensor(reader) for _ in range(tensor_count))
    data_offset = padded(reader.position, alignment)
    return Header(name, file_bytes, version, metadata, tensors, alignment, data_offset)


def padded(count: int, alignment: int) -> int:
    """A count of bytes, rounded up to whole alignments."""
    return -(-count // alignment) * alignment


def _version(reader: _Reader) -> int:
    """The version of what is a GGUF file, from its first eight bytes."""
    magic = reader.take(min(len(MAGIC), reader.file_bytes))
    if magic != MAGIC:
        raise GgufError(
            f"{reader.name} is not a GGUF file (it begins with {magic!r}): a web page or a pointer may have been "
            "saved in its place; fetch it again, or correct the catalogue."
        )
    version = int(reader.number(UINT32))
    if version in VERSIONS:
        return version
    if version and version & 0xFFFF == 0:
        raise GgufError(
            f"{reader.name} is written in big-endian order, which is not served here: take a little-endian upload."
        )
    if version == 1:
        raise GgufError(f"{reader.name} is of GGUF version 1, which llama.cpp has given up: take a newer upload.")
    raise GgufError(
        f"{reader.name} is of GGUF version {version}, and 2 and 3 are known here: it needs a newer Llamarack, or is "
        "damaged."
    )


def _tensor(reader: _Reader) -> Tensor:
    """The next tensor's description."""
    name = reader.text("a tensor's name", MOST_TENSOR_NAME_BYTES)
    dimensions = int(reader.number(UINT32))
    if dimensions > MOST_DIMENSIONS:
        raise reader.refuse(f"its tensor {name!r} has {dimensions} dimensions")
    shape = tuple(int(reader.number(UINT64)) for _ in range(dimensions))
    type_id = int(reader.number(UINT32))
    offset = int(reader.number(UINT64))
    if type_id not in TENSOR_TYPES:
        raise GgufError(f"{reader.name} has the tensor {name!r} of type {type_id}, {_unknown_type(type_id)}.")
    _, block_elements, block_bytes = TENSOR_TYPES[type_id]
    row = shape[0] if shape else 1
    if row % block_elements:
        raise reader.refuse(f"its tensor {name!r} has rows of {row} elements, and its blocks are of {block_elements}")
    if math.prod(size or 1 for size in shape) > MOST_ELEMENTS:
        raise reader.refuse(f"its tensor {name!r} has more elements than can be counted")
    return Tensor(name, shape, type_id, offset, math.prod(shape) // block_elements * block_bytes)


def _unknown_type(type_id: int) -> str:
    """Why a tensor's type is not in the table, and what to do."""
    if type_id in REMOVED_TYPES:
        return "which llama.cpp has given up: take a newer upload"
    if type_id >= FORK_TYPES_FROM:
        return "which llama.cpp does not have: it was made for a fork (ik_llama.cpp), so choose another quant"
    return "which is not known here: it needs a newer Llamarack, or choose another quant"


def check_set(headers: Sequence[Header]) -> None:
    """See that files are one whole model: all splits of one set, in order, with every tensor inside its file.

    :raises GgufError: with one sentence about the first thing that is wrong.
    """
    if not headers:
        raise GgufError("There is no file in the set: correct the catalogue.")
    for header in headers:
        _check_is_model(header)
    for header in headers:
        _check_belongs(header, len(headers))
    _check_numbers(headers)
    first = headers[0]
    if not _text(first.metadata.get("general.architecture")):
        raise GgufError(f"{first.name} names no architecture: it is not a model that can be served; take another.")
    if not any(header.tensors for header in headers):
        raise GgufError(f"{first.name} holds a vocabulary and no tensors: choose a file with the model's weights.")
    for header in headers:
        _check_bounds(header)
    _check_tensors(headers)


def _check_is_model(header: Header) -> None:
    """Refuse what lies beside models and is none."""
    kind = str(header.metadata.get("general.type", "model"))
    if kind == "model" and header.metadata.get("general.architecture") == "clip":
        # Files from before general.type was written.
        kind = "mmproj"
    if kind != "model":
        what = COMPANIONS.get(kind, f"a GGUF file of type {kind[:80]!r}")
        raise GgufError(f"{header.name} is {what}, not a model that can be served: correct quant in the catalogue.")


def _check_belongs(header: Header, count: int) -> None:
    """See that a file says that it is one of so many splits."""
    announced = _whole(header.metadata.get("split.count", 1))
    if not isinstance(announced, int):
        raise GgufError(f"{header.name} is damaged: it does not say how many splits its set has; fetch it again.")
    # Splits that llama-gguf-split merged into one file say 0.
    announced = announced or 1
    if announced == count:
        return
    if announced == 1:
        raise GgufError(
            f"{header.name} is a whole model by itself, but lies among {count} files of one set: keep one model in a "
            "directory, or name its quant more closely."
        )
    raise GgufError(
        f"{header.name} is one of {announced} splits, and {count} of them {'is' if count == 1 else 'are'} there: "
        "fetch the whole set."
    )


def _check_numbers(headers: Sequence[Header]) -> None:
    """See that each split is the one that its place and its name say; llama.cpp finds them by their names."""
    count = len(headers)
    if count == 1:
        return
    stems: dict[str, str] = {}
    places: dict[int, str] = {}
    for position, header in enumerate(headers):
        number = _whole(header.metadata.get("split.no"))
        if not isinstance(number, int) or not 0 <= number < count:
            raise GgufError(f"{header.name} does not say which of the {count} splits it is: fetch it again.")
        if number in places:
            raise GgufError(
                f"{header.name} and {places[number]} are both split {number + 1} of {count} inside: one of them is a "
                "copy; fetch the set again."
            )
        places[number] = header.name
        if number != position:
            raise GgufError(
                f"{header.name} is split {number + 1} inside, but lies in the place of split {position + 1}: the "
                "files were renamed or mixed up; fetch the set again."
            )
        suffix = SPLIT_SUFFIX.search(header.name)
        if suffix is None or (int(suffix[1]), int(suffix[2])) != (number + 1, count):
            raise GgufError(
                f"{header.name} must end in -{number + 1:05d}-of-{count:05d}.gguf, for llama.cpp finds splits by "
                "their names: give the set the names it was published under."
            )
        stems.setdefault(header.name[: suffix.start()], header.name)
    if len(stems) > 1:
        raise GgufError(
            f"{' and '.join(list(stems.values())[:2])} are named after different models: one set has one name before "
            "the numbers; fetch the set again."
        )


def _check_bounds(header: Header) -> None:
    """See that a file's tensors lie one after the other, as llama.cpp wants them, and that the last is there whole."""
    expected = 0
    for tensor in header.tensors:
        if tensor.offset != expected:
            raise GgufError(
                f"{header.name} is damaged: its tensor {tensor.name!r} is announced at byte {tensor.offset} of the "
                f"data, where {expected} must be; fetch it again."
            )
        if header.data_offset + tensor.offset + tensor.bytes > header.file_bytes:
            raise GgufError(
                f"{header.name} is cut short: it has {header.file_bytes} bytes, and its tensor {tensor.name!r} ends at "
                f"{header.data_offset + tensor.offset + tensor.bytes}; fetch it again."
            )
        expected += padded(tensor.bytes, header.alignment)


def _check_tensors(headers: Sequence[Header]) -> None:
    """See that the set's tensors are as many as each split says, and each there once."""
    owners: dict[str, str] = {}
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in owners:
                raise GgufError(
                    f"{header.name} holds the tensor {tensor.name!r}, which {owners[tensor.name]} holds already: the "
                    "splits are of different uploads; fetch the set again."
                )
            owners[tensor.name] = header.name
    for header in headers:
        announced = _whole(header.metadata.get("split.tensors.count", len(owners) if len(headers) == 1 else None))
        if not isinstance(announced, int):
            raise GgufError(f"{header.name} is damaged: it does not say how many tensors its set has; fetch it again.")
        if announced != len(owners):
            raise GgufError(
                f"{header.name} announces {announced} tensors in its set, which holds {len(owners)}: the splits are of "
                "different uploads; fetch the set again."
            )


def role_of(tensor_name: str) -> str:
    """What a tensor is for: one of the keys of ``tensor_bytes_by_role``."""
    return next((role for role, pattern in ROLES if pattern.search(tensor_name)), OTHER_ROLE)


def model_facts(headers: Sequence[Header]) -> dict[str, Any]:
    """What the planner wants to know of a whole set that ``check_set`` has passed; what the header lacks is None.

    ``tensor_bytes_by_role`` and ``quant_types`` (bytes by type) both add up to ``tensor_bytes``. ``active_bytes`` is
    what one decoded token reads of the weights::

        tensor_bytes - embedding - routed_experts + routed_experts * expert_used_count / expert_count

    A row of the embedding table is read, which counts for nothing. Only a model without an output matrix multiplies
    with its embedding table in its place, and so reads all of it.
    """
    metadata = headers[0].metadata
    architecture = _text(metadata.get("general.architecture")) or ""
    tensors = [tensor for header in headers for tensor in header.tensors]
    by_role = dict.fromkeys([*(role for role, _ in ROLES), OTHER_ROLE], 0)
    by_type: dict[str, int] = {}
    for tensor in tensors:
        by_role[role_of(tensor.name)] += tensor.bytes
        by_type[tensor.type_name] = by_type.get(tensor.type_name, 0) + tensor.bytes
    total = sum(by_role.values())

    def of(key: str) -> int | list[int] | None:
        return _whole(metadata.get(f"{architecture}.{key}"))

    routed = by_role["routed_experts"]
    experts, used = _largest(of("expert_count")), _largest(of("expert_used_count"))
    idle = routed - routed * min(used, experts) // experts if experts and used else 0
    sizes = {tensor.name: tensor.bytes for tensor in tensors}
    tied = 0 if "output.weight" in sizes else sizes.get("token_embd.weight", 0)
    return {
        "architecture": architecture,
        "name": _text(metadata.get("general.name")),
        "file_type": _whole(metadata.get("general.file_type")),
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
        "has_chat_template": bool(_text(metadata.get("tokenizer.chat_template"))),
        "tensor_count": len(tensors),
        "tensor_bytes": total,
        "tensor_bytes_by_role": by_role,
        "quant_types": dict(sorted(by_type.items())),
        "active_bytes": total - by_role["embedding"] + tied - idle,
    }


def _text(value: Any) -> str | None:
    """A string of the metadata."""
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | list[int] | None:
    """A whole number of the metadata, or a list with one for each layer."""
    if isinstance(value, list):
        return value if all(isinstance(item, int) for item in value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _largest(value: int | list[int] | None) -> int:
    """The number that stands for all layers, 0 when there is none."""
    return max(value, default=0) if isinstance(value, list) else value or 0


def _vocabulary(metadata: Mapping[str, Any], tensors: Sequence[Tensor]) -> int | None:
    """How many tokens the model knows: the length of its list, or the rows of its embedding table."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, ArrayValue):
        return tokens.length
    table = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    return table.shape[1] if table and len(table.shape) > 1 else None
