"""Which llama.cpp is too old for which model."""

from __future__ import annotations

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import catalogue


@pytest.mark.parametrize(
    ("architecture", "build_number", "projector", "needed"),
    [
        ("deepseek2", 5890, "", "b5900"),
        ("deepseek2", 5900, "", None),
        ("deepseek2", 7738, "kimik25", "b8050"),
        ("kimi-linear", 7000, "", "b8050"),
        ("kimi-k3", 10440, "", "b10448"),
        ("kimi-k3", 11311, "", None),
        ("gemma3", 1, "", None),
    ],
)
def test_an_older_build_is_refused_with_the_number_that_is_needed(
    architecture: str, build_number: int, projector: str, needed: str | None
) -> None:
    problem = catalogue.floor_problem(architecture, build_number, projector)
    assert (problem is None) == (needed is None)
    if needed:
        assert f"{needed} or newer, this is b{build_number}" in str(problem)


def test_a_library_says_itself_which_architectures_it_loads() -> None:
    library = b"\0deepseek2\0kimi-linear\0"
    assert catalogue.knows_architecture(library, "deepseek2")
    assert not catalogue.knows_architecture(library, "kimi-k3")
    assert not catalogue.knows_architecture(library, "deepseek")
