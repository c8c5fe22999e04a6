"""Each known message of a failed start becomes a cause and a remedy."""

from pathlib import Path

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import diagnosis

LOGS = Path(__file__).resolve().parents[1] / "recorded" / "logs"


@pytest.mark.parametrize(
    ("log", "name", "said"),
    [
        ("wrong_magic", "wrong_magic", "not a GGUF file"),
        ("truncated", "truncated", "cut short"),
        ("missing_file", "model_missing", "nothere.gguf is not there"),
        ("removed_flag", "unknown_argument", "does not know --no-mmap"),
        ("bad_value", "wrong_argument_value", "refuses the value of --load-mode (invalid value)"),
        ("cache_types_differ", "cache_types_differ", "q8_0 and f16 were given"),
        ("key_file", "key_file_unreadable", "/nonexistent/api.key"),
        ("unknown_arch", "unknown_architecture", "the architecture deepseekX"),
        ("missing_split", "missing_split", "miss/gs-00002-of-00004.gguf"),
        ("not_first_split", "not_first_split", "gs-00002-of-00004.gguf is not the first split"),
        ("stale_count", "stale_split_count", "announces 241 tensors, the set holds 236"),
        ("port_in_use", "port_in_use", "127.0.0.1:18471"),
        ("mlock", "mlock_failed", "LimitMEMLOCK"),
        ("permission", "model_permission", "may not read /srv/models/model.gguf"),
        ("shared_library", "shared_library", "libllama-server-impl.so"),
        ("kv_cache_allocation", "kv_cache_memory", "smaller context"),
        ("aligned_malloc", "out_of_memory", "not enough memory"),
    ],
)
def test_a_recorded_failure_is_named(log: str, name: str, said: str) -> None:
    text = (LOGS / f"{log}.log").read_text()
    found = diagnosis.diagnose(text, exit_status=1)
    assert found[0].name == name
    assert said in found[0].sentence()
    assert found[0].evidence in text
    assert "{" not in found[0].sentence()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("ggml_cuda_init: failed to initialize CUDA: unknown error", "cuda_no_device"),
        ("CUDA error: no kernel image is available for execution on the device", "cuda_no_kernel"),
        ("CUDA error: CUDA driver version is insufficient for CUDA runtime version", "cuda_driver_too_old"),
        ("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 20000.00 MiB on device 0: cudaMalloc failed: "
         "out of memory", "gpu_memory"),
        ("/opt/llamarack/bin/llama-server: /lib/libc.so.6: version `GLIBC_2.38' not found", "glibc_too_old"),
        ("gguf_init_from_reader: tensor 'blk.0.x' has invalid ggml type 152. should be in [0, 42)",
         "unknown_tensor_type"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "out_of_memory"),
        ("K cache type q8_0 with block size 32 does not divide n_embd_head_k=80", "cache_blocks"),
        ("kernel: Out of memory: Killed process 4242 (llama-server)", "out_of_memory"),
        ("error loading model: unheard of", "model_failed"),
    ],
)  # fmt: skip
def test_a_message_of_a_driver_or_the_system_is_named(line: str, name: str) -> None:
    assert diagnosis.diagnose(f"before\n{line}\nafter\n")[0].name == name


@pytest.mark.parametrize(
    ("status", "signal", "name"),
    [
        (137, None, "out_of_memory"),
        (-9, None, "out_of_memory"),
        (None, 9, "out_of_memory"),
        (132, None, "illegal_instruction"),
        (134, None, "aborted"),
        (139, None, "crashed"),
        (127, None, "not_found"),
    ],
)
def test_a_death_without_words_is_told_by_its_signal(status: int | None, signal: int | None, name: str) -> None:
    assert [item.name for item in diagnosis.diagnose("", status, signal)] == [name]


def test_a_warning_does_not_hide_what_killed_the_server() -> None:
    found = diagnosis.diagnose((LOGS / "mlock.log").read_text(), exit_status=137)
    assert [item.name for item in found] == ["out_of_memory", "mlock_failed"]


def test_words_of_the_log_come_before_the_signal() -> None:
    found = diagnosis.diagnose((LOGS / "aligned_malloc.log").read_text(), exit_status=134)
    assert [item.name for item in found] == ["out_of_memory"]


def test_nothing_known_is_nothing_said() -> None:
    assert diagnosis.diagnose("all is well\n", exit_status=0) == []
    assert diagnosis.diagnose("", exit_status=1) == []
