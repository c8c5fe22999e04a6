"""Headers of GGUF files: read as the package gguf reads them, refused when they lie, and summed up for the planner."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import struct
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest
from ansible_collections.llamarack.core.plugins.module_utils import gguf, memory
from ansible_collections.llamarack.core.plugins.module_utils.gguf import (
    ArrayValue,
    GgufError,
    Header,
    Tensor,
    check_set,
    model_facts,
    parse_header,
    read_header,
    role_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

HUB = Path(__file__).resolve().parents[1] / "hub"
NAME = "model.gguf"
F32, Q8_0 = 0, 8
KINDS = package.GGUFValueType


# Bytes made by hand: what no writer would write.


def text(value: str | bytes) -> bytes:
    """A string as it lies in a file."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, data: bytes) -> bytes:
    """A key and its value."""
    return text(name) + struct.pack("<I", kind) + data


def number(name: str, value: int) -> bytes:
    """A key with a 32-bit number."""
    return key(name, KINDS.UINT32, struct.pack("<I", value))


def tensor(name: str, shape: Sequence[int], kind: int = F32, offset: int = 0) -> bytes:
    """A tensor's description."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def whole(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A header of these parts, whatever counts it announces."""
    tensor_count, key_count = counts or (len(tensors), len(keys))
    return b"".join([b"GGUF", struct.pack("<IQQ", version, tensor_count, key_count), *keys, *tensors])


def parsed(data: bytes, file_bytes: int | None = None) -> Header:
    """Read bytes as a header."""
    return parse_header(io.BytesIO(data), len(data) if file_bytes is None else file_bytes, NAME)


ARCHITECTURE = key("general.architecture", KINDS.STRING, text("llama"))
SMALL = whole(
    [
        ARCHITECTURE,
        number("general.alignment", 64),
        number("llama.block_count", 2),
        key("llama.attention.head_count_kv", KINDS.ARRAY, struct.pack("<IQ2i", KINDS.INT32, 2, 8, 4)),
        key("tokenizer.ggml.tokens", KINDS.ARRAY, struct.pack("<IQ", KINDS.STRING, 2) + text("a") + text("bc")),
        key("tokenizer.ggml.scores", KINDS.ARRAY, struct.pack("<IQ", KINDS.FLOAT32, 5000) + bytes(20000)),
        key("tokenizer.chat_template", KINDS.STRING, text("{{ messages }}")),
    ],
    [tensor("token_embd.weight", [32, 2], Q8_0), tensor("output_norm.weight", [3], offset=128)],
)


def test_a_header_is_read_and_what_is_long_is_counted() -> None:
    header = parsed(SMALL)

    assert header.version == 3
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["llama.attention.head_count_kv"] == [8, 4]
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayValue(2)
    assert header.metadata["tokenizer.ggml.scores"] == ArrayValue(5000)
    assert header.tensors == (
        Tensor("token_embd.weight", (32, 2), Q8_0, 0, 68),
        Tensor("output_norm.weight", (3,), F32, 128, 12),
    )
    assert header.alignment == 64
    assert header.data_offset == math.ceil(len(SMALL) / 64) * 64


def test_version_2_is_laid_out_alike() -> None:
    older = SMALL[:4] + struct.pack("<I", 2) + SMALL[8:]

    assert replace(parsed(older), version=3) == parsed(SMALL)


def test_the_beginning_of_a_file_is_enough() -> None:
    assert replace(parsed(SMALL, 10**12), file_bytes=len(SMALL)) == parsed(SMALL)


# What the package gguf knows is known here, and is the same.


def test_types_are_those_of_the_package() -> None:
    theirs = {kind.value: (kind.name, *sizes) for kind, sizes in package.GGML_QUANT_SIZES.items()}
    # Younger than the package: from ggml's own block_q2_0.
    assert {**theirs, 42: ("Q2_0", 64, 18)} == gguf.TENSOR_TYPES


def agrees(path: Path) -> None:
    """See that a file reads as the package reads it, mapping the whole of it."""
    ours, theirs = read_header(str(path)), package.GGUFReader(path)
    their_tensors = [
        (item.name, tuple(item.shape.tolist()), int(item.tensor_type), int(item.data_offset), int(item.n_bytes))
        for item in theirs.tensors
    ]
    assert their_tensors == [
        (item.name, item.shape, item.type_id, ours.data_offset + item.offset, item.bytes) for item in ours.tensors
    ]
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        value = ours.metadata[name]
        assert (value.length if isinstance(value, ArrayValue) else value) == (
            len(field.data) if isinstance(value, ArrayValue) else field.contents()
        ), name


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The splits of the small model of Kimi K2's shape."""
    spec = importlib.util.spec_from_file_location("for_gguf_tiny_k2", HUB / "tiny_k2.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = maker
    spec.loader.exec_module(maker)
    made: list[Path] = maker.make(tmp_path_factory.mktemp("tiny"))
    return made


def test_each_split_reads_as_the_package_reads_it(tiny: list[Path]) -> None:
    for path in tiny:
        agrees(path)


def writer_of(path: Path, architecture: str = "llama", **options: Any) -> package.GGUFWriter:
    """The package's writer."""
    return package.GGUFWriter(path, architecture, **options)


def finish(writer: package.GGUFWriter) -> None:
    """Write everything."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_every_type_has_the_size_that_the_package_writes(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / NAME)
    for kind, (_, size) in package.GGML_QUANT_SIZES.items():
        if kind.name.startswith(("F", "I8", "I16", "I32", "I64")):
            continue
        # Two rows of three blocks, as bytes.
        writer.add_tensor(f"blk.0.{kind.name}", np.zeros((2, 3 * size), dtype=np.uint8), raw_dtype=kind)
    finish(writer)

    agrees(tmp_path / NAME)


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    """All whole numbers of a width."""
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


SCALAR_VALUES: dict[package.GGUFValueType, st.SearchStrategy[Any]] = {
    KINDS.UINT8: integers(8, signed=False),
    KINDS.INT8: integers(8, signed=True),
    KINDS.UINT16: integers(16, signed=False),
    KINDS.INT16: integers(16, signed=True),
    KINDS.UINT32: integers(32, signed=False),
    KINDS.INT32: integers(32, signed=True),
    KINDS.UINT64: integers(64, signed=False),
    KINDS.INT64: integers(64, signed=True),
    KINDS.FLOAT32: st.floats(width=32, allow_nan=False),
    KINDS.FLOAT64: st.floats(allow_nan=False),
    KINDS.BOOL: st.booleans(),
}


@st.composite
def values(draw: st.DrawFn) -> tuple[Any, package.GGUFValueType, package.GGUFValueType | None]:
    """A value of the metadata with its type, and its elements' type when it is an array."""
    kind = draw(st.sampled_from([*SCALAR_VALUES, KINDS.STRING]))
    one = SCALAR_VALUES.get(kind, st.text(max_size=30))
    if draw(st.booleans()):
        return draw(one), kind, None
    # The package writes no empty arrays.
    return draw(st.lists(one, min_size=1, max_size=20)), KINDS.ARRAY, kind


@given(
    metadata=st.dictionaries(st.text(min_size=1, max_size=30).filter(lambda name: "." not in name), values()),
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_what_the_package_writes_is_read_back(
    metadata: dict[str, tuple[Any, package.GGUFValueType, package.GGUFValueType | None]], shapes: list[list[int]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, NAME)
        writer = writer_of(path)
        for name, (value, kind, element) in metadata.items():
            writer.add_key_value(name, value, kind, sub_type=element)
        for index, shape in enumerate(shapes):
            writer.add_tensor(f"blk.{index}.attn_q.weight", np.zeros(shape, dtype=np.float32))
        finish(writer)
        header = read_header(str(path))

    expected = {
        name: ArrayValue(len(value)) if element == KINDS.STRING else value
        for name, (value, _, element) in metadata.items()
    }
    assert {name: value for name, value in header.metadata.items() if name in metadata} == expected
    # The package has the longest dimension last, the file first.
    assert [item.shape for item in header.tensors] == [tuple(reversed(shape)) for shape in shapes]
    if shapes:
        check_set([header])


# Headers that lie.


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", r"^model\.gguf is not a GGUF file \(it begins with b''\)"),
        (b"<!DOCTYPE html>", r"it begins with b'<!DO'\): a web page or a pointer may .* fetch it again"),
        (whole(version=1), r"of GGUF version 1, which llama\.cpp has given up: take a newer upload"),
        (whole(version=4), r"of GGUF version 4, and 2 and 3 are known here: it needs a newer Llamarack"),
        (whole(version=0), r"of GGUF version 0"),
        (whole(version=0x03000000), r"big-endian order, which is not served here: take a little-endian upload"),
        (b"GGUF\3\0", r"is damaged: it ends within its header, after 6 bytes; fetch it again"),
        (whole(counts=(2**63, 0)), r"it announces 9223372036854775808 tensors, more than it can hold"),
        (whole(counts=(0, 2**64 - 1)), r"it announces 18446744073709551615 keys, more than it can hold"),
        (whole([text("k") + struct.pack("<IQ", 8, 2**62)]), r"announces 4611686018427387904 bytes of the text 'k'"),
        (whole([struct.pack("<Q", 2**40) + bytes(8)]), r"announces 1099511627776 bytes of a key"),
        (whole([key("k", 13, bytes(8))]), r"its key 'k' has the unknown type 13"),
        (whole([key("k", KINDS.ARRAY, struct.pack("<IQ", 9, 1))]), r"its key 'k' is an array of the unknown type 9"),
        (whole([key("k", KINDS.ARRAY, struct.pack("<IQ", 12, 2**61))]), r"announces 2305843009213693952 elements "),
        (whole([key("k", KINDS.ARRAY, struct.pack("<IQ", 8, 2**32))]), r"4294967296 elements of the array 'k'"),
        (whole([ARCHITECTURE, ARCHITECTURE]), r"it has the key 'general\.architecture' twice"),
        (whole([number("", 1)]), r"it has a key without a name"),
        (whole([number("general.alignment", 0)]), r"its alignment is not a power of two"),
        (whole([number("general.alignment", 48)]), r"its alignment is not a power of two"),
        (whole([key("general.alignment", KINDS.STRING, text("32"))]), r"its alignment is not a power of two"),
        (whole([key("general.alignment", KINDS.BOOL, b"\1")]), r"its alignment is not a power of two"),
        (whole([], [tensor("t", [1] * 5)]), r"its tensor 't' has 5 dimensions"),
        (whole([], [tensor("t" * 64, [1])]), r"announces 64 bytes of a tensor's name"),
        (whole([], [tensor("t", [33], Q8_0)]), r"its tensor 't' has rows of 33 elements, and its blocks are of 32"),
        (whole([], [tensor("t", [2**32, 2**31])]), r"its tensor 't' has more elements than can be counted"),
        (whole([], [tensor("t", [2**63, 0, 2])]), r"its tensor 't' has more elements than can be counted"),
        (whole([], [tensor("t", [1], 63)]), r"has the tensor 't' of type 63, .* needs a newer Llamarack"),
        (whole([], [tensor("t", [1], 31)]), r"of type 31, which llama\.cpp has given up: take a newer upload"),
        (whole([], [tensor("t", [1], 138)]), r"of type 138, .* made for a fork .*, so choose another quant"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_a_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(GgufError, match=sentence) as caught:
        parsed(data)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=rf"^{tmp_path}/none\.gguf cannot be read \(No such file or directory\)"):
        read_header(f"{tmp_path}/none.gguf")
    with pytest.raises(GgufError, match=r"cannot be read \(Is a directory\)"):
        read_header(str(tmp_path))


class Endless(io.RawIOBase):
    """A file that goes on with zeros for ever after its header."""

    def __init__(self, header: bytes) -> None:
        super().__init__()
        self.header = header

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = len(buffer)
        buffer[:] = self.header[:size].ljust(size, b"\0")
        self.header = self.header[size:]
        return size


def peak_of(action: Callable[[], None]) -> int:
    """The most memory that something takes."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def is_told_or_read(data: bytes, file_bytes: int) -> None:
    """See that bytes end in facts or in a sentence, whatever they are."""
    said = ""
    try:
        header = parsed(data, file_bytes)
        json.dumps(model_facts([header]))
        check_set([header])
    except GgufError as error:
        said = str(error)
    assert "\n" not in said
    assert said[-1:] in ("", ".")


# An array that ends where a header must have ended, and a key after it.
FULL = whole([key("k", KINDS.ARRAY, struct.pack("<IQ", 0, 2**26 - 4 - 49))], counts=(0, 2))


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (whole([key("k", KINDS.ARRAY, struct.pack("<IQ", 0, 2**26))]), r"announces 67108864 elements"),
        (FULL, r"its header is longer than the 67108864 bytes that one may have"),
        (whole([key("k", KINDS.STRING, struct.pack("<Q", 2**23))]), r"announces 8388608 bytes of the text 'k'"),
        (whole(counts=(0, 60000)), r"it has a key without a name"),
        (whole(counts=(2**16 + 1, 0)), r"announces 65537 tensors, more than it can hold"),
    ],
)
def test_a_file_of_any_length_takes_little_memory_and_an_end(header: bytes, sentence: str) -> None:
    def refused() -> None:
        with pytest.raises(GgufError, match=sentence):
            parse_header(io.BufferedReader(Endless(header)), 10**15, NAME)

    assert peak_of(refused) < 4 * 1024**2


def test_many_tensors_take_little_memory() -> None:
    data = whole([], [tensor("", [])] * 20000)

    assert peak_of(lambda: is_told_or_read(data, 10**15)) < 10 * 1024**2


def test_texts_and_lists_are_kept_within_bounds() -> None:
    numbers = [key(f"k{index}", KINDS.ARRAY, struct.pack("<IQ", 0, 4096) + bytes(4096)) for index in range(40)]
    with pytest.raises(GgufError, match="it holds more metadata than any model needs"):
        parsed(whole(numbers))
    texts = [key(f"k{index}", KINDS.STRING, text(bytes(2**20))) for index in range(4)]
    with pytest.raises(GgufError, match="it holds more metadata than any model needs"):
        parsed(whole(texts))


@given(cut=st.integers(0, len(SMALL) - 1), is_announced=st.booleans())
@settings(deadline=None)
def test_a_header_cut_anywhere_is_refused(cut: int, is_announced: bool) -> None:
    with pytest.raises(GgufError):
        parsed(SMALL[:cut], len(SMALL) if is_announced else cut)


# Most of the bytes are the array of scores, where a changed bit changes nothing.
TELLING = [*range(SMALL.index(bytes(1000))), *range(len(SMALL) - 250, len(SMALL))]


@given(
    flips=st.lists(st.tuples(st.sampled_from(TELLING), st.integers(0, 7)), min_size=1, max_size=4),
    file_bytes=st.sampled_from([len(SMALL), len(SMALL) + 512, 10**15]),
)
@settings(max_examples=300, deadline=None)
def test_flipped_bits_end_in_facts_or_in_a_sentence(flips: list[tuple[int, int]], file_bytes: int) -> None:
    data = bytearray(SMALL)
    for place, bit in flips:
        data[place] ^= 1 << bit

    assert peak_of(lambda: is_told_or_read(bytes(data), file_bytes)) < 4 * 1024**2


@given(place=st.sampled_from(TELLING), value=integers(64, signed=False), file_bytes=st.integers(0, 2**63))
@settings(max_examples=200, deadline=None)
def test_a_length_that_lies_ends_in_facts_or_in_a_sentence(place: int, value: int, file_bytes: int) -> None:
    data = bytearray(SMALL)
    data[place : place + 8] = struct.pack("<Q", value)

    assert peak_of(lambda: is_told_or_read(bytes(data), file_bytes)) < 4 * 1024**2


@given(tail=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_noise_after_the_magic_ends_in_facts_or_in_a_sentence(tail: bytes) -> None:
    is_told_or_read(b"GGUF\3\0\0\0" + tail, 8 + len(tail))


# Whole sets and broken ones.


def header_of(name: str, metadata: dict[str, Any], *tensors: Tensor, file_bytes: int = 4096) -> Header:
    """A header as it would have been read."""
    return Header(f"/models/{name}", file_bytes, 3, metadata, tensors, 32, 1024)


SPLIT_KEYS = {"split.count": 3, "split.tensors.count": 3}
SET = [
    header_of(
        "m-00001-of-00003.gguf",
        {"general.architecture": "llama", **SPLIT_KEYS, "split.no": 0},
        Tensor("token_embd.weight", (100,), F32, 0, 400),
        Tensor("output.weight", (2,), F32, 416, 8),
    ),
    header_of("m-00002-of-00003.gguf", {**SPLIT_KEYS, "split.no": 1}, Tensor("blk.0.attn_q.weight", (2,), F32, 0, 8)),
    header_of("m-00003-of-00003.gguf", {**SPLIT_KEYS, "split.no": 2}),
]


def changed(index: int, metadata: dict[str, Any] | None = None, **fields: Any) -> list[Header]:
    """The set with one split changed; a key of None is taken away."""
    headers = list(SET)
    keys = {**headers[index].metadata, **(metadata or {})}
    kept = {name: value for name, value in keys.items() if value is not None}
    headers[index] = replace(headers[index], metadata=kept, **fields)
    return headers


def test_whole_sets_pass(tiny: list[Path]) -> None:
    check_set(SET)
    check_set([read_header(str(path)) for path in tiny])
    alone = {name: value for name, value in SET[0].metadata.items() if not name.startswith("split.")}
    check_set([replace(SET[0], metadata=alone, path="/models/any.gguf")])
    # One split, and splits that were merged.
    for count in (1, 0):
        check_set([replace(SET[0], metadata={**alone, "split.no": 0, "split.count": count, "split.tensors.count": 2})])


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ([], r"^There is no file in the set: correct the catalogue"),
        (SET[:1], r"^m-00001-of-00003\.gguf is one of 3 splits, and 1 of them is there: fetch the whole set"),
        (SET[:2], r"^m-00001-of-00003\.gguf is one of 3 splits, and 2 of them are there: fetch the whole set"),
        (changed(1, {"split.count": 4}), r"^m-00002-of-00003\.gguf is one of 4 splits, and 3 of them are there"),
        (changed(1, {"split.count": None}), r"^m-00002-of-00003\.gguf is a whole model by itself, but lies among 3 "),
        (changed(1, {"split.count": "3"}), r"^m-00002-\S+ is damaged: it does not say how many splits its set has"),
        (changed(1, {"split.no": 0}), r"^m-00002-\S+ and m-00001-\S+ are both split 1 of 3 inside: one "),
        (changed(1, {"split.no": None}), r"^m-00002-of-00003\.gguf does not say which of the 3 splits it is"),
        (changed(1, {"split.no": 3}), r"^m-00002-of-00003\.gguf does not say which of the 3 splits it is"),
        (changed(1, {"split.no": [1]}), r"^m-00002-of-00003\.gguf does not say which of the 3 splits it is"),
        ([SET[1], SET[0], SET[2]], r"^m-00002-\S+ is split 2 inside, but lies in the place of split 1: "),
        (changed(1, path="m.part2.gguf"), r"^m\.part2\.gguf must end in -00002-of-00003\.gguf, for llama\.cpp finds"),
        (changed(1, path="m-00003-of-00003.gguf"), r"^m-00003-of-00003\.gguf must end in -00002-of-00003\.gguf"),
        (changed(1, path="n-00002-of-00003.gguf"), r"^m-00001-\S+ and n-00002-\S+ are named after different models"),
        (changed(1, {"split.tensors.count": 4}), r"^m-00002-\S+ announces 4 tensors in its set, which holds 3: "),
        (changed(2, {"split.tensors.count": None}), r"^m-00003-\S+ is damaged: it does not say how many tensors"),
        (changed(1, tensors=SET[0].tensors[:1]), r"^m-00002-\S+ holds the tensor 'token_embd.weight', which m-00001-"),
        (changed(1, tensors=()), r"^m-00001-of-00003\.gguf announces 3 tensors in its set, which holds 2"),
        (changed(0, file_bytes=1447), r"^m-00001-\S+ is cut short: it has 1447 bytes, .* ends at 1448; fetch"),
        (changed(0, alignment=64), r"^m-00001-\S+ is damaged: its tensor .* announced at byte 416 .* 448 must "),
        (changed(0, {"general.architecture": None}), r"^m-00001-of-00003\.gguf names no architecture"),
    ],
)  # fmt: skip
def test_a_broken_set_is_told_by_the_file_that_breaks_it(headers: list[Header], sentence: str) -> None:
    with pytest.raises(GgufError, match=sentence):
        check_set(headers)


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"general.type": "mmproj"}, r"^x\.gguf is the vision part that accompanies .*, not a model that"),
        ({"general.architecture": "clip"}, r"^x\.gguf is the vision part"),
        ({"general.type": "imatrix"}, r"^x\.gguf is an importance matrix, which is for quantising, not a model"),
        ({"general.type": "adapter"}, r"^x\.gguf is an adapter \(LoRA\), which changes a model, not a model"),
        ({"general.type": "data\nset"}, r"^x\.gguf is a GGUF file of type 'data\\nset', not a model"),
        ({"general.type": ["model"]}, r"^x\.gguf is a GGUF file of type "),
        ({"general.architecture": "llama"}, r"^x\.gguf holds a vocabulary and no tensors: choose a file"),
    ],
)  # fmt: skip
def test_what_lies_beside_models_is_no_model(metadata: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GgufError, match=sentence):
        check_set([header_of("x.gguf", metadata)])


def test_a_split_that_did_not_arrive_whole_is_found_on_disk(tiny: list[Path], tmp_path: Path) -> None:
    copies = [tmp_path / path.name for path in tiny]
    for path, copy in zip(tiny, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    with copies[1].open("r+b") as stream:
        stream.truncate(copies[1].stat().st_size - 4096)

    with pytest.raises(GgufError, match=r"^tiny-kimi-k2-Q8_0-00002-of-00003\.gguf is cut short"):
        check_set([read_header(str(copy)) for copy in copies])


# Facts for the planner.


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("token_embd.weight", "embedding"),
        ("per_layer_token_embd.weight", "embedding"),
        ("token_embd_norm.weight", "other"),
        ("output.weight", "output"),
        ("output_norm.weight", "output"),
        ("blk.0.attn_norm.weight", "attention"),
        ("blk.0.attn_kv_a_mqa.weight", "attention"),
        ("blk.0.ssm_in.weight", "attention"),
        ("blk.0.indexer.attn_k.weight", "attention"),
        ("blk.0.ffn_gate.weight", "dense_ffn"),
        ("blk.0.ffn_up.bias", "dense_ffn"),
        ("blk.1.ffn_gate_exps.weight", "routed_experts"),
        ("blk.1.ffn_gate_up_exps.weight", "routed_experts"),
        ("blk.1.ffn_down_exps.bias", "routed_experts"),
        ("blk.1.ffn_up_chexps.weight", "routed_experts"),
        ("blk.1.ffn_down.7.weight", "routed_experts"),
        ("blk.1.ffn_down_shexp.weight", "shared_experts"),
        ("blk.1.ffn_gate_inp_shexp.weight", "shared_experts"),
        ("blk.1.ffn_gate_inp.weight", "other"),
        ("blk.1.exp_probs_b.bias", "other"),
        ("blk.1.ffn_norm.weight", "other"),
        ("blk.1.ffn_norm_exps.weight", "other"),
        ("rope_freqs.weight", "other"),
    ],
)
def test_a_tensor_is_told_by_its_name(name: str, role: str) -> None:
    assert role_of(name) == role


def test_the_facts_of_the_small_k2(tiny: list[Path]) -> None:
    facts = model_facts([read_header(str(path)) for path in tiny])
    roles = facts["tensor_bytes_by_role"]

    assert facts["architecture"] == "deepseek2"
    assert facts["name"] == "Tiny Kimi K2"
    assert (facts["expert_count"], facts["expert_used_count"]) == (16, 4)
    assert facts["has_chat_template"] is True
    assert facts["file_type"] == package.LlamaFileType.MOSTLY_Q8_0
    assert facts["sliding_window"] is None
    assert set(facts["quant_types"]) == {"F32", "Q8_0"}
    assert sum(roles.values()) == sum(facts["quant_types"].values()) == facts["tensor_bytes"]
    assert 0 < facts["tensor_bytes"] < sum(path.stat().st_size for path in tiny)
    # Five blocks with three matrices of 16 experts.
    assert roles["routed_experts"] == 5 * 3 * 16 * 256 * 256 * 34 // 32
    assert facts["active_bytes"] == facts["tensor_bytes"] - roles["embedding"] - roles["routed_experts"] * 12 // 16


def k2_tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of Kimi K2, the row's length last."""
    yield "token_embd.weight", (163840, 7168)
    for block in range(61):
        parts: dict[str, tuple[int, ...]] = {
            "attn_norm": (7168,),
            "attn_q_a": (1536, 7168),
            "attn_q_a_norm": (1536,),
            "attn_q_b": (64 * 192, 1536),
            "attn_kv_a_mqa": (576, 7168),
            "attn_kv_a_norm": (512,),
            "attn_k_b": (64, 512, 128),
            "attn_v_b": (64, 128, 512),
            "attn_output": (7168, 8192),
            "ffn_norm": (7168,),
        }
        if block == 0:
            parts |= {"ffn_gate": (18432, 7168), "ffn_up": (18432, 7168), "ffn_down": (7168, 18432)}
        else:
            parts |= {"ffn_gate_inp": (384, 7168), "exp_probs_b": (384,)}
            for end, experts in (("exps", (384,)), ("shexp", ())):
                parts |= {
                    f"ffn_gate_{end}": (*experts, 2048, 7168),
                    f"ffn_up_{end}": (*experts, 2048, 7168),
                    f"ffn_down_{end}": (*experts, 7168, 2048),
                }
        yield from ((f"blk.{block}.{part}.weight", shape) for part, shape in parts.items())
    yield "output_norm.weight", (7168,)
    yield "output.weight", (163840, 7168)


def test_kimi_k2_at_its_true_size(tmp_path: Path) -> None:
    path = tmp_path / "Kimi-K2.gguf"
    writer = writer_of(path, "deepseek2")
    writer.add_block_count(61)
    writer.add_embedding_length(7168)
    writer.add_head_count(64)
    writer.add_head_count_kv(1)
    writer.add_key_length(576)
    writer.add_value_length(512)
    writer.add_key_length_mla(192)
    writer.add_value_length_mla(128)
    writer.add_expert_count(384)
    writer.add_expert_used_count(8)
    for name, shape in k2_tensors():
        writer.add_tensor_info(name, shape, np.dtype(np.float16), math.prod(shape) * 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header = read_header(str(path))
    end = header.data_offset + header.tensors[-1].offset + header.tensors[-1].bytes
    with pytest.raises(GgufError, match="is cut short"):
        check_set([header])
    # A file with holes: two terabytes long, and next to nothing on the disk.
    with path.open("r+b") as stream:
        stream.truncate(end)

    header = read_header(str(path))
    check_set([header])
    facts = model_facts([header])

    assert facts["tensor_count"] == 1096
    assert facts["vocab_size"] == 163840
    # Its makers say: a trillion parameters, of which 32 billion are active.
    assert facts["tensor_bytes"] / 2 == pytest.approx(1.026e12, rel=0.01)
    assert facts["active_bytes"] / 2 == pytest.approx(32e9, rel=0.03)
    assert memory.kv_bytes_per_token(facts, "f16", "f16") == 70272
    assert memory.expert_bytes({"gguf": facts}) / facts["tensor_bytes"] > 0.98


def test_a_tied_model_reads_its_embedding_table_as_output() -> None:
    table = Tensor("token_embd.weight", (8, 5), F32, 0, 160)
    per_layer = Tensor("per_layer_token_embd.weight", (8, 5), F32, 160, 160)
    norm = Tensor("output_norm.weight", (8,), F32, 320, 32)
    tied = model_facts([header_of("x.gguf", {"general.architecture": "gemma3n"}, table, per_layer, norm)])
    output = Tensor("output.weight", (8, 5), F32, 352, 160)
    untied = model_facts([header_of("x.gguf", {"general.architecture": "gemma3n"}, table, per_layer, norm, output)])

    assert tied["active_bytes"] == 160 + 32
    assert untied["active_bytes"] == 32 + 160
    assert tied["vocab_size"] == 5


def test_facts_may_differ_from_layer_to_layer() -> None:
    experts = Tensor("blk.0.ffn_up_exps.weight", (8, 2, 4), F32, 0, 256)
    metadata = {
        "general.architecture": "a",
        "a.attention.head_count_kv": [8, 0, 8],
        "a.expert_count": 4,
        "a.expert_used_count": [0, 1, 2],
    }
    facts = model_facts([header_of("x.gguf", metadata, experts)])

    assert facts["head_count_kv"] == [8, 0, 8]
    assert facts["active_bytes"] == 128


def test_facts_of_the_wrong_kind_are_no_facts() -> None:
    metadata = {
        "general.architecture": "a",
        "general.name": 7,
        "general.file_type": "Q8",
        "a.block_count": "many",
        "a.context_length": 1.5,
        "a.attention.head_count": [1.5],
        "a.attention.head_count_kv": ArrayValue(5000),
        "a.expert_count": True,
        "tokenizer.chat_template": 1,
    }
    facts = model_facts([header_of("x.gguf", metadata, Tensor("token_embd.weight", (8,), F32, 0, 32))])

    told = {name: value for name, value in facts.items() if value is not None}
    assert told == {
        "architecture": "a",
        "has_chat_template": False,
        "tensor_count": 1,
        "tensor_bytes": 32,
        "tensor_bytes_by_role": {**dict.fromkeys(facts["tensor_bytes_by_role"], 0), "embedding": 32},
        "quant_types": {"F32": 32},
        "active_bytes": 32,
    }
