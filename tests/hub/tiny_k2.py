#!/usr/bin/env python3
"""Make a model of Kimi K2's own architecture that is small enough for tests: 20 MB in three splits, random weights.

``tiny_k2.py DIRECTORY`` writes DIRECTORY/Q8_0/tiny-kimi-k2-Q8_0-0000N-of-00003.gguf, the same bytes each time.
llama-server loads it as it loads the real one and answers with printable noise.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

QUANT = "Q8_0"
STEM = f"tiny-kimi-k2-{QUANT}"
SPLITS = 3
SEED = 2

# Kimi K2 has 61 blocks, 7168 wide, with 64 heads and 8 of 384 experts. The ratios that decide how it is computed stay:
# latent attention with one KV head, a dense first block, a shared expert, and more experts than are used.
BLOCKS = 6
DENSE_BLOCKS = 1
CONTEXT = 131072
EMBEDDING = 256
HEADS = 4
Q_RANK = 128
KV_RANK = 64
ROPE = 32
KEY_NOPE = 64
VALUE = 64
DENSE_FFN = 512
EXPERT_FFN = 256
EXPERTS = 16
EXPERTS_USED = 4
EXPERTS_SHARED = 1
# Kimi K2's own: routed_scaling_factor, rope_theta and rope_scaling of its config.json.
EXPERT_SCALE = 2.827
ROPE_BASE = 50000.0
YARN_FACTOR = 32.0
YARN_CONTEXT = 4096

SPECIAL = ("[BOS]", "[EOS]", "[PAD]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
WORDS = ("the", "and", "of", "to", "is", "in", "answer", "model", "question", "hello", "world", "one", "three", "four")
# How strongly printable tokens stand out from the others, whose score is nought: enough to be the only ones drawn.
LOUDNESS = 12.0

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- set speaker = message.role if message.role in ("user", "assistant") else "system" -%}
<|im_{{ speaker }}|>{{ message.role }}<|im_middle|>{{ message.content }}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}
"""

Array = npt.NDArray[np.float32]


def byte_tokens() -> list[str]:
    """Return the character that stands for each byte in a byte-level BPE vocabulary, in the order of the bytes."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """Return the tokens without the special ones, and the merges that lead from bytes to words."""
    tokens = byte_tokens()
    space = tokens[ord(" ")]
    merges = []
    for word in WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    # After all words: merges apply in their order, and a space that joined a first letter would part it from its word.
    for word in WORDS:
        tokens.append(space + word)
        merges.append(f"{space} {word}")
    return tokens, merges


def is_printable(token: str) -> bool:
    """Whether a token of the vocabulary is ASCII text that can be shown."""
    return all("!" <= character <= "~" for character in token.replace(byte_tokens()[ord(" ")], "_"))


class Weights:
    """The tensors in the order they are written, filled from one stream of random numbers."""

    def __init__(self) -> None:
        # The legacy generator, and its uniform numbers alone: numpy promises the same stream from every version.
        self._random = np.random.RandomState(SEED)
        self.tensors: dict[str, tuple[npt.NDArray[np.generic], gguf.GGMLQuantizationType]] = {}

    def uniform(self, *shape: int) -> Array:
        """Draw numbers whose sum of squares over a row is about 1, so that blocks neither fade nor explode."""
        bound = math.sqrt(3 / shape[-1])
        return (self._random.random_sample(shape) * 2 * bound - bound).astype(np.float32)

    def quantised(self, name: str, values: Array) -> None:
        """Add a matrix in the model's quant."""
        kind = gguf.GGMLQuantizationType.Q8_0
        self.tensors[name] = gguf.quants.quantize(values, kind), kind

    def exact(self, name: str, values: Array) -> None:
        """Add what quantised models keep as it is: norms and the router."""
        self.tensors[name] = values, gguf.GGMLQuantizationType.F32

    def matrix(self, name: str, *shape: int) -> None:
        """Add a random matrix in the model's quant; the shape has its rows' length last."""
        self.quantised(name, self.uniform(*shape))

    def norm(self, name: str, length: int) -> None:
        """Add a norm that changes nothing."""
        self.exact(name, np.ones(length, dtype=np.float32))


def weights(tokens: list[str]) -> Weights:
    """Draw all tensors of the model."""
    made = Weights()
    made.matrix("token_embd.weight", len(tokens), EMBEDDING)
    for block in range(BLOCKS):
        add_attention(made, f"blk.{block}")
        add_feed_forward(made, f"blk.{block}", is_dense=block < DENSE_BLOCKS)
    made.norm("output_norm.weight", EMBEDDING)
    output = made.uniform(len(tokens), EMBEDDING) * np.float32(LOUDNESS)
    # Bytes that are no text by themselves and the tokens that end an answer would make answers broken or empty.
    output[[not is_printable(token) or token in SPECIAL for token in tokens]] = 0
    made.quantised("output.weight", output)
    return made


def add_attention(made: Weights, block: str) -> None:
    """Add one block's latent attention, with the key and value halves split as llama.cpp takes them."""
    made.norm(f"{block}.attn_norm.weight", EMBEDDING)
    made.matrix(f"{block}.attn_q_a.weight", Q_RANK, EMBEDDING)
    made.norm(f"{block}.attn_q_a_norm.weight", Q_RANK)
    made.matrix(f"{block}.attn_q_b.weight", HEADS * (KEY_NOPE + ROPE), Q_RANK)
    made.matrix(f"{block}.attn_kv_a_mqa.weight", KV_RANK + ROPE, EMBEDDING)
    made.norm(f"{block}.attn_kv_a_norm.weight", KV_RANK)
    made.matrix(f"{block}.attn_k_b.weight", HEADS, KV_RANK, KEY_NOPE)
    made.matrix(f"{block}.attn_v_b.weight", HEADS, VALUE, KV_RANK)
    made.matrix(f"{block}.attn_output.weight", EMBEDDING, HEADS * VALUE)


def add_feed_forward(made: Weights, block: str, is_dense: bool) -> None:
    """Add one block's feed-forward part: a plain one, or the router, its experts and the shared expert."""
    made.norm(f"{block}.ffn_norm.weight", EMBEDDING)
    if is_dense:
        made.matrix(f"{block}.ffn_gate.weight", DENSE_FFN, EMBEDDING)
        made.matrix(f"{block}.ffn_up.weight", DENSE_FFN, EMBEDDING)
        made.matrix(f"{block}.ffn_down.weight", EMBEDDING, DENSE_FFN)
        return
    made.exact(f"{block}.ffn_gate_inp.weight", made.uniform(EXPERTS, EMBEDDING))
    made.exact(f"{block}.exp_probs_b.bias", made.uniform(EXPERTS))
    made.matrix(f"{block}.ffn_gate_exps.weight", EXPERTS, EXPERT_FFN, EMBEDDING)
    made.matrix(f"{block}.ffn_up_exps.weight", EXPERTS, EXPERT_FFN, EMBEDDING)
    made.matrix(f"{block}.ffn_down_exps.weight", EXPERTS, EMBEDDING, EXPERT_FFN)
    shared_ffn = EXPERT_FFN * EXPERTS_SHARED
    made.matrix(f"{block}.ffn_gate_shexp.weight", shared_ffn, EMBEDDING)
    made.matrix(f"{block}.ffn_up_shexp.weight", shared_ffn, EMBEDDING)
    made.matrix(f"{block}.ffn_down_shexp.weight", EMBEDDING, shared_ffn)


def add_architecture(writer: gguf.GGUFWriter, vocabulary_size: int) -> None:
    """Add the keys that describe the network."""
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name("Tiny Kimi K2")
    writer.add_size_label(f"{EXPERTS}x1M")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(BLOCKS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBEDDING)
    writer.add_feed_forward_length(DENSE_FFN)
    writer.add_head_count(HEADS)
    # Latent attention is computed as multi-query attention over the latent vector: one head of its length plus RoPE's.
    writer.add_head_count_kv(1)
    writer.add_key_length(KV_RANK + ROPE)
    writer.add_value_length(KV_RANK)
    writer.add_key_length_mla(KEY_NOPE + ROPE)
    writer.add_value_length_mla(VALUE)
    writer.add_q_lora_rank(Q_RANK)
    writer.add_kv_lora_rank(KV_RANK)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(vocabulary_size)
    writer.add_leading_dense_block_count(DENSE_BLOCKS)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS_USED)
    writer.add_expert_shared_count(EXPERTS_SHARED)
    writer.add_expert_group_count(1)
    writer.add_expert_group_used_count(1)
    writer.add_expert_feed_forward_length(EXPERT_FFN)
    writer.add_expert_weights_scale(EXPERT_SCALE)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_rope_dimension_count(ROPE)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(YARN_FACTOR)
    writer.add_rope_scaling_orig_ctx_len(YARN_CONTEXT)
    writer.add_rope_scaling_yarn_beta_fast(1.0)
    writer.add_rope_scaling_yarn_beta_slow(1.0)
    writer.add_rope_scaling_yarn_log_mul(0.1)


def add_tokenizer(writer: gguf.GGUFWriter, tokens: list[str], merges: list[str]) -> None:
    """Add the vocabulary and the chat template, under the names that make llama.cpp take Kimi K2's ways."""
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("kimi-k2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("[BOS]"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("[PAD]"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write(path: Path) -> None:
    """Write the model as splits beside this path, named after it."""
    plain, merges = vocabulary()
    tokens = [*plain, *SPECIAL]
    tensors = weights(tokens).tensors
    writer = gguf.GGUFWriter(path, "deepseek2", split_max_tensors=math.ceil(len(tensors) / SPLITS))
    add_architecture(writer, len(tokens))
    add_tokenizer(writer, tokens, merges)
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(directory: Path) -> list[Path]:
    """Make the model's splits in a directory's Q8_0, unless all are there; return their paths in order."""
    home = directory / QUANT
    splits = [home / f"{STEM}-{number:05d}-of-{SPLITS:05d}.gguf" for number in range(1, SPLITS + 1)]
    if all(split.is_file() for split in splits):
        return splits
    home.mkdir(parents=True, exist_ok=True)
    # Hidden, so that a hub which already serves the directory does not offer what is half written.
    with tempfile.TemporaryDirectory(dir=directory, prefix=".making-") as unfinished:
        write(Path(unfinished, f"{STEM}.gguf"))
        for split in splits:
            Path(unfinished, split.name).replace(split)
    return splits


def main() -> int:
    """Make it where the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="the repository's directory")
    for split in make(parser.parse_args().directory):
        print(split)
    return 0


if __name__ == "__main__":
    sys.exit(main())
