"""The modules llama_plan and llama_argv: documents and a binary in, a plan and a command line out."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.llamarack.core.plugins.modules import llama_argv, llama_plan

TESTS = Path(__file__).resolve().parents[1]
SPEC = {"model": "tiny-k2", "port": 8080, "policy": {"context": 4096}}


def result_of(module: Any, capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A host on which everything before the plan was done."""
    facts = TESTS / "golden" / "facts"
    for name, target in (
        ("container_24", "host_profile.json"),
        ("build", "build.json"),
        ("tiny_k2", "models/tiny-k2/model.json"),
        ("gemma3_270m", "models/gemma3-270m/model.json"),
    ):
        path = tmp_path / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((facts / f"{name}.json").read_text())
    return tmp_path


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """A llama-server that says what the real one says."""
    path = tmp_path / "llama-server"
    path.write_text(f"#!/bin/sh\ncat {TESTS}/recorded/help/b11311.txt\n")
    path.chmod(0o755)
    return path


def test_the_first_run_writes_the_plan_and_the_second_changes_nothing(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    arguments = {"instance": "main", "spec": SPEC, "state_dir": str(state)}
    first = result_of(llama_plan, capsys, **arguments)
    assert first["changed"]
    assert "4096 tokens were asked for" in first["diff"]["after"]
    written = json.loads((state / "instances/main/plan.json").read_text())
    assert written == {"kind": "plan", "schema": 1, **first["plan"]}
    second = result_of(llama_plan, capsys, **arguments)
    assert not second["changed"]
    assert second["plan"] == first["plan"]


def test_check_mode_tells_and_writes_nothing(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    result = result_of(llama_plan, capsys, instance="main", spec=SPEC, state_dir=str(state), _ansible_check_mode=True)
    assert result["changed"]
    assert result["plan"]["alias"] == "tiny-k2"
    assert not (state / "instances").exists()


def test_check_mode_on_a_fresh_host_says_what_is_not_there_yet(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = result_of(
        llama_plan, capsys, instance="main", spec=SPEC, state_dir=str(tmp_path), _ansible_check_mode=True
    )
    assert (result["changed"], result["plan"]) == (True, {})
    assert "host_profile.json is not there yet" in result["msg"]
    failed = result_of(llama_plan, capsys, instance="main", spec=SPEC, state_dir=str(tmp_path))
    assert failed["failed"]


def test_a_slip_is_told_even_on_a_fresh_host(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    spec = {**SPEC, "policy": {"contxt": 1}}
    result = result_of(llama_plan, capsys, instance="main", spec=spec, state_dir=str(state))
    assert result["msg"] == "main: policy has no key contxt: did you mean context?"


def test_the_neighbours_are_counted_and_the_instance_itself_is_none(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    siblings = {"main": SPEC, "other": {"model": "gemma3-270m", "port": 8081}}
    result = result_of(llama_plan, capsys, instance="main", spec=SPEC, siblings=siblings, state_dir=str(state))
    assert result["plan"]["memory"]["siblings_bytes"] > 0
    siblings["other"]["port"] = 8080
    result = result_of(llama_plan, capsys, instance="main", spec=SPEC, siblings=siblings, state_dir=str(state))
    assert "main and other both want port 8080" in result["msg"]


@pytest.mark.parametrize("text", ["{", '{"kind": "host_profile", "schema": 1}', '{"kind": "x"}'])
def test_a_damaged_document_is_named(capsys: pytest.CaptureFixture[str], state: Path, text: str) -> None:
    (state / "host_profile.json").write_text(text)
    result = result_of(llama_plan, capsys, instance="main", spec=SPEC, state_dir=str(state))
    assert result["failed"]
    assert str(state) in result["msg"]


def test_a_state_directory_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    (state / "instances").write_text("a file in the way")
    result = result_of(llama_plan, capsys, instance="main", spec=SPEC, state_dir=str(state))
    assert "cannot be written" in result["msg"]


def test_the_command_line_begins_with_the_program(
    capsys: pytest.CaptureFixture[str], state: Path, binary: Path
) -> None:
    result_of(llama_plan, capsys, instance="main", spec=SPEC, state_dir=str(state))
    result = result_of(
        llama_argv, capsys, instance="main", state_dir=str(state), binary=str(binary), api_key_file="/etc/key"
    )
    assert not result["changed"]
    assert result["argv"][0] == str(binary)
    assert result["argv"][-2:] == ["--api-key-file", "/etc/key"]
    assert result["omitted"] == []
    by_path = result_of(llama_argv, capsys, path=str(state / "instances/main/plan.json"), binary=str(binary))
    assert by_path["argv"] == result["argv"][:-2]


def test_without_a_plan_or_a_program_check_mode_returns_nothing_and_a_run_fails(
    capsys: pytest.CaptureFixture[str], state: Path, binary: Path
) -> None:
    no_plan = {"instance": "main", "state_dir": str(state), "binary": str(binary)}
    assert result_of(llama_argv, capsys, **no_plan)["failed"]
    assert result_of(llama_argv, capsys, **no_plan, _ansible_check_mode=True)["argv"] == []
    result_of(llama_plan, capsys, instance="main", spec=SPEC, state_dir=str(state))
    no_program = {**no_plan, "binary": str(state / "nowhere")}
    assert "is not there yet" in result_of(llama_argv, capsys, **no_program)["msg"]
    assert "is not there yet" in result_of(llama_argv, capsys, **no_program, _ansible_check_mode=True)["msg"]


def test_a_program_that_does_not_run_is_diagnosed(
    capsys: pytest.CaptureFixture[str], state: Path, binary: Path
) -> None:
    result_of(llama_plan, capsys, instance="main", spec=SPEC, state_dir=str(state))
    binary.write_text("#!/bin/sh\nkill -ILL $$\n")
    result = result_of(llama_argv, capsys, instance="main", state_dir=str(state), binary=str(binary))
    assert "instructions that this CPU does not have" in result["msg"]
    binary.write_text("#!/bin/sh\necho hello\n")
    result = result_of(llama_argv, capsys, instance="main", state_dir=str(state), binary=str(binary))
    assert "said: 'hello'" in result["msg"]


def test_a_build_without_a_required_option_is_named(
    capsys: pytest.CaptureFixture[str], state: Path, binary: Path
) -> None:
    result_of(llama_plan, capsys, instance="main", spec=SPEC, state_dir=str(state))
    binary.write_text("#!/bin/sh\necho '--model FNAME    path'\n")
    result = result_of(llama_argv, capsys, instance="main", state_dir=str(state), binary=str(binary))
    assert "b11311-cpu-native-0123abcd knows no --alias" in result["msg"]
