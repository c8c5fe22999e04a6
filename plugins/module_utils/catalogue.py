"""Which llama.cpp can load which model: the oldest build for each architecture, and what a library says itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Floor:
    """The oldest build that loads a kind of model.

    :param architecture: ``general.architecture`` of the GGUF.
    :param projector: what the model's mmproj file is, where that is what needs the build; else "".
    :param build_number: of the first release that has it.
    :param models: what is served with it, for the message.
    :param source: where the number comes from. Where only the day of the merge is known, the number is that day's by
        counting between known releases, rounded up.
    """

    architecture: str
    projector: str
    build_number: int
    models: str
    source: str


FLOORS = (
    Floor("deepseek2", "", 5900, "Kimi K2 and K2 Thinking", "PR 14654, merged in July 2025 after b5890"),
    Floor("deepseek2", "kimik25", 8050, "Kimi K2.5 with images", "PR 19170, merged on 2026-02-11"),
    Floor("kimi-linear", "", 8050, "Kimi Linear", "PR 18755, on b7738 in January 2026"),
    Floor("kimi-k3", "", 10448, "Kimi K3", "PR 26185, merged on 2026-08-15 between b10441 and b10448"),
)


def floor_problem(architecture: str, build_number: int, projector: str = "") -> str | None:
    """Why a build is too old for a model, in words that follow "because" or "and"; None where it is not.

    :param architecture: ``general.architecture`` of the GGUF.
    :param projector: ``clip.projector_type`` of the mmproj file that is served with it, "" where there is none.
    """
    for floor in FLOORS:
        applies = floor.architecture == architecture and floor.projector in ("", projector)
        if applies and build_number < floor.build_number:
            return (
                f"{floor.models} ({architecture}) needs llama.cpp b{floor.build_number} or newer, this is "
                f"b{build_number}: pin a newer llama_cpp_source"
            )
    return None


def knows_architecture(library: bytes, architecture: str) -> bool:
    """Whether a ``libllama`` can load an architecture: the names of those it can stand in it, each ended by a zero."""
    return architecture.encode() + b"\0" in library
