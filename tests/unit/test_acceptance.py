"""What counts as a server that works."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import acceptance
from ansible_collections.llamarack.core.plugins.module_utils.acceptance import Answer
from hypothesis import given
from hypothesis import strategies as st

BUILD = {"build_number": 11311, "commit": "0c1e57098bba43ac29e6e3b677cdceebdd22334f"}
PLAN = {"instance": "main", "model": "kimi", "alias": "kimi-k2", "model_path": "/m/kimi-00001-of-00003.gguf"}


def answer(body: Any, status: int = 200) -> Answer:
    """A JSON answer."""
    return Answer(status, json.dumps(body))


def props(**change: str) -> Answer:
    """What the planned server says of itself, with a change."""
    return answer({"build_info": "b11311-0c1e570", "model_path": PLAN["model_path"], **change})


@pytest.mark.parametrize(
    ("told", "passed"),
    [
        ("b11311-0c1e570", True),
        ("b11311-0c1e57098", True),
        ("b11312-0c1e570", False),
        ("b11311-fffffff", False),
        ("b11311-", False),
        ("b0-unknown", False),
        ("", False),
    ],
)
def test_a_server_of_another_build_is_not_the_one_that_was_deployed(told: str, passed: bool) -> None:
    assert acceptance.check_build(props(build_info=told), BUILD).passed is passed


def test_what_came_instead_is_told() -> None:
    check = acceptance.check_build(Answer(503, '{"error": "Loading model"}'), BUILD)
    assert not check.passed
    assert "HTTP 503" in check.detail
    assert "b11311-0c1e570 is installed" in check.detail
    assert "no answer" in acceptance.check_chat(Answer(0, "no answer from http://x: refused")).detail


def test_another_model_is_not_the_planned_one() -> None:
    assert acceptance.check_model(props(), PLAN).passed
    assert not acceptance.check_model(props(model_path="/m/other.gguf"), PLAN).passed


def test_the_alias_is_listed() -> None:
    models = answer({"data": [{"id": "kimi-k2"}, {"id": "x"}]})
    assert acceptance.check_alias(models, "kimi-k2").passed
    assert not acceptance.check_alias(models, "kimi").passed
    assert not acceptance.check_alias(answer({"error": "x"}, 401), "kimi").passed


def test_a_chat_has_tokens_and_an_end() -> None:
    chat = {"choices": [{"finish_reason": "length", "message": {}}], "usage": {"completion_tokens": 16}}
    assert acceptance.check_chat(answer(chat)).passed
    assert not acceptance.check_chat(answer({**chat, "usage": {"completion_tokens": 0}})).passed
    assert not acceptance.check_chat(answer(chat, 500)).passed
    assert not acceptance.check_chat(answer({"choices": []})).passed


def test_a_stream_that_breaks_off_is_no_stream() -> None:
    whole = 'data: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n'
    assert acceptance.check_stream(Answer(200, whole)).passed
    assert not acceptance.check_stream(Answer(200, whole.replace("data: [DONE]\n", ""))).passed
    assert not acceptance.check_stream(Answer(200, "data: [DONE]\n")).passed


def test_a_lock_is_closed_or_meant_to_be_open() -> None:
    assert acceptance.check_locked(Answer(401, ""), key_required=True).passed
    assert not acceptance.check_locked(Answer(200, ""), key_required=True).passed
    assert not acceptance.check_locked(Answer(0, "no answer"), key_required=True).passed
    assert acceptance.check_locked(Answer(200, ""), key_required=False).passed


def test_speeds_are_the_servers_own_and_of_enough_tokens() -> None:
    timings = {"prompt_n": 120, "prompt_per_second": 300.5, "predicted_n": 32, "predicted_per_second": 40.25}
    check, prefill, decode = acceptance.speeds(answer({"timings": timings}))
    assert (check.passed, prefill, decode) == (True, 300.5, 40.25)
    assert not acceptance.speeds(answer({"timings": {**timings, "predicted_n": 3}}))[0].passed
    assert acceptance.speeds(answer({}))[1:] == (0.0, 0.0)


def test_one_failed_check_fails_the_record() -> None:
    good = acceptance.Check("chat", True, "")
    record = acceptance.record(PLAN, "d", "http://x", props(), [good], 1.234, 5.678)
    assert record["verdict"] == "passed"
    assert record["build_info"] == "b11311-0c1e570"
    assert record["decode_tokens_per_second"] == 5.68
    bad = acceptance.Check("lock", False, "")
    assert acceptance.record(PLAN, "d", "http://x", props(), [good, bad], 0, 0)["verdict"] == "failed"


@given(status=st.integers(0, 599), body=st.text() | st.from_regex(r"[{\[].*[}\]]"))
def test_no_answer_breaks_the_judge_or_passes_by_accident(status: int, body: str) -> None:
    came = Answer(status, body)
    assert not acceptance.check_build(came, BUILD).passed
    assert not acceptance.check_model(came, PLAN).passed
    assert not acceptance.check_chat(came).passed
    assert not acceptance.speeds(came)[0].passed
    acceptance.check_alias(came, "x")
    acceptance.check_stream(came)
    acceptance.check_locked(came, key_required=True)
