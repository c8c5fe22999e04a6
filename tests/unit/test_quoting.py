"""Arguments arrive at the server as they were meant, whatever stands in them."""

from __future__ import annotations

import configparser
import re
import shlex

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llamarack.core.plugins.filter.quoting import supervisor_command, systemd_command
from hypothesis import given
from hypothesis import strategies as st

CREDENTIAL = "${CREDENTIALS_DIRECTORY}/api_key"
ARGUMENTS = st.lists(st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1)


def as_systemd_reads(line: str) -> list[str]:
    """What systemd.service(5) makes of a command line: words, escapes, then % and $."""
    words = []
    for word in re.findall(r'"(?:[^"\\]|\\.)*"|\S+', line):
        bare = re.sub(r"\\(.)", r"\1", word[1:-1]) if word.startswith('"') else word
        words.append(bare.replace("%%", "%").replace("$$", "$"))
    return words


@given(ARGUMENTS)
def test_systemd_gives_back_what_was_put_in(argv: list[str]) -> None:
    assert as_systemd_reads(systemd_command(argv)) == argv


def test_only_what_is_meant_to_be_expanded_is() -> None:
    line = systemd_command(["/bin/llama-server", "--api-key-file", CREDENTIAL, "--alias", "50% of $HOME"], [CREDENTIAL])
    assert line == '/bin/llama-server --api-key-file ${CREDENTIALS_DIRECTORY}/api_key --alias "50%% of $$HOME"'


@given(ARGUMENTS)
def test_supervisord_gives_back_what_was_put_in_or_refuses_it(argv: list[str]) -> None:
    try:
        line = supervisor_command(argv)
    except AnsibleFilterError:
        assert any(re.search(r"(^|\s)[;#]", argument) for argument in argv)
        return
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"), strict=False)
    parser.read_string(f"[program:x]\ncommand={line}\n")
    assert shlex.split(parser["program:x"]["command"] % {}) == argv


@pytest.mark.parametrize("quote", [systemd_command, supervisor_command])
def test_a_line_break_cannot_begin_a_setting_of_its_own(quote: object) -> None:
    assert callable(quote)
    with pytest.raises(AnsibleFilterError, match="control character"):
        quote(["llama-server", "--alias", "x\nUser=root"])
