"""The summary: endpoint, plan with reasons, speed, and a call that works and shows no key."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.llamarack.core.plugins.module_utils import documents
from ansible_collections.llamarack.core.plugins.modules import llama_report

PROFILE = {
    "cpu": {"model": "AMD EPYC 9354P", "usable_physical_cores": 30, "physical_cores": 32},
    "memory": {"usable_bytes": 384 * 2**30},
    "gpus": [],
}
PLAN = {
    "instance": "main",
    "alias": "kimi-k2.5",
    "model_bytes": 240 * 10**9,
    "memory": {"total_bytes": 250 * 2**30, "available_bytes": 384 * 2**30},
    "decisions": [
        {"key": "threads", "value": 30, "reason": "30 physical cores are usable", "source": "measured"},
        {"key": "fit", "value": False, "reason": "a restart decides nothing anew", "source": "computed"},
    ],
}
RECORD = {
    "instance": "main",
    "endpoint": "http://127.0.0.1:8080",
    "verdict": "passed",
    "build_info": "b11311-0c1e570",
    "prefill_tokens_per_second": 80.04,
    "decode_tokens_per_second": 9.96,
}


def summarise(capsys: pytest.CaptureFixture[str], tmp_path: Path, **arguments: object) -> dict[str, Any]:
    paths = {"state_dir": str(tmp_path / "state"), "config_dir": str(tmp_path / "etc")}
    with patch_module_args({**paths, **arguments}), pytest.raises(SystemExit):
        llama_report.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture
def accepted(tmp_path: Path) -> Path:
    state = str(tmp_path / "state")
    documents.write_document(f"{state}/host_profile.json", "host_profile", PROFILE, False)
    documents.write_document(documents.plan_path("main", state), "plan", PLAN, False)
    documents.write_document(documents.acceptance_path("main", state), "acceptance", RECORD, False)
    key = tmp_path / "etc" / "main" / "api.key"
    key.parent.mkdir(parents=True)
    key.write_text("sk-secret")
    return tmp_path


def test_the_summary_has_the_machine_the_endpoint_the_reasons_and_the_speed(
    accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = summarise(capsys, accepted)
    text = "\n".join(result["lines"])
    for expected in (
        "AMD EPYC 9354P, 30 of 32 cores usable, 384.0 GiB RAM, no GPU",
        "main: http://127.0.0.1:8080 serves kimi-k2.5, passed",
        "30 physical cores are usable [measured]",
        "prefill 80.0 tokens/s, decode 10.0 tokens/s",
    ):
        assert expected in text
    assert result["changed"] is False


def test_the_call_is_one_a_shell_understands_and_reads_the_key_from_its_file(
    accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = summarise(capsys, accepted)
    call = result["lines"][-1]
    words = shlex.split(call)
    assert words[:2] == ["curl", "http://127.0.0.1:8080/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "kimi-k2.5"
    assert f"cat {accepted}/etc/main/api.key)" in call
    assert "sk-secret" not in json.dumps(result)


def test_a_planned_instance_without_a_record_is_said_to_be_unproven(
    accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(documents.acceptance_path("main", str(accepted / "state"))).unlink()
    assert "not accepted" in summarise(capsys, accepted)["lines"][-1]


def test_a_fresh_host_fails_in_words_and_passes_in_check_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is not there yet" in str(summarise(capsys, tmp_path)["msg"])
    assert "nothing yet" in str(summarise(capsys, tmp_path, _ansible_check_mode=True)["lines"])
