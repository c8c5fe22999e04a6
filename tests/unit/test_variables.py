"""A misspelt variable is named, with the right one; a foreign variable is left in peace."""

from pathlib import Path

import yaml
from ansible_collections.llamarack.core.plugins.action import check_variables
from ansible_collections.llamarack.core.plugins.module_utils.variables import Misspelt, misspelt_variables

KNOWN = ["llama_server_instances", "llama_server_user", "llama_cpp_source", "llamarack_models"]
PREFIXES = ["llama_server_", "llama_cpp_", "llamarack_"]


def test_a_slip_in_the_name_is_answered_with_the_nearest_right_one() -> None:
    assert misspelt_variables(["llama_server_instnaces"], KNOWN, PREFIXES) == [
        Misspelt("llama_server_instnaces", "llama_server_instances")
    ]


def test_a_slip_in_the_prefix_is_found_too() -> None:
    assert misspelt_variables(["lama_server_instances"], KNOWN, PREFIXES)[0].nearest == "llama_server_instances"


def test_what_is_near_nothing_is_still_refused_under_our_prefix() -> None:
    (found,) = misspelt_variables(["llama_cpp_zzzzzzzzzzzzzzzzzz"], KNOWN, PREFIXES)
    assert found.nearest == ""
    assert "not a variable of Llamarack" in found.sentence()


def test_foreign_private_and_right_names_pass() -> None:
    assert misspelt_variables(["ansible_host", "ntp_servers", "__llama_cpp_plan", *KNOWN], KNOWN, PREFIXES) == []


def test_every_role_says_what_it_understands() -> None:
    roles = {path.name for path in (check_variables.ROOT / "roles").iterdir() if path.is_dir()}
    assert set(check_variables.role_names()) == roles
    known = set(check_variables.known_variables())
    assert "llama_server_instances" in known
    assert "llamarack_models" in known


def test_defaults_and_specifications_name_the_same_variables() -> None:
    for spec in (check_variables.ROOT / "roles").glob("*/meta/argument_specs.yml"):
        role = spec.parent.parent
        defaults_file: Path = role / "defaults" / "main.yml"
        defaults = yaml.safe_load(defaults_file.read_text(encoding="utf-8")) or {} if defaults_file.exists() else {}
        entries = yaml.safe_load(spec.read_text(encoding="utf-8"))["argument_specs"].values()
        options = {name: option for entry in entries for name, option in entry.get("options", {}).items()}
        required = {name for name, option in options.items() if option.get("required")}
        assert set(defaults) == set(options) - required, role.name
        assert all(name.startswith(f"{role.name}_") for name in options), role.name
