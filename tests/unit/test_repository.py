"""The promises that the tree itself makes: inventories that read cleanly, policy that the owner overrides, no leaks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"}


def ansible(program: str, *arguments: str) -> str:
    """Run one of Ansible's programs; it must succeed without a warning."""
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search("WARNING|DEPRECATION", done.stderr), done.stderr
    return done.stdout


@pytest.mark.parametrize("inventory", ["lab", "demo"])
@pytest.mark.parametrize("option", ["--syntax-check", "--list-tasks"])
def test_the_main_job_reads_cleanly(inventory: str, option: str) -> None:
    ansible("ansible-playbook", "site.yml", "-i", f"inventories/{inventory}", option)


def test_the_lab_has_one_host_per_profile() -> None:
    graph = ansible("ansible-inventory", "-i", "inventories/lab", "--graph")
    for profile in ("epyc_cpu", "hybrid_gpu", "nvme_mmap", "apple_metal", "amd_rocm"):
        assert re.search(rf"@{profile}:\n +\|  \|--\w+", graph), graph
        assert (REPO / "group_vars" / profile / "main.yml").exists()


def test_the_owners_inventory_wins_over_the_products_policy(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("epyc_cpu: {hosts: {mine: {}}}\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("llama_cpp_build_number: 1\nllama_server_instances: {}\n")
    seen = json.loads(
        ansible("ansible-inventory", "-i", str(tmp_path), "--playbook-dir", "playbooks", "--host", "mine")
    )
    assert seen["llama_cpp_build_number"] == 1
    assert seen["llama_server_instances"] == {}, "all in the inventory wins over epyc_cpu in the product"
    assert "llamarack_models" in seen, "what the owner does not say comes from the product"


def test_every_instance_of_the_lab_names_a_model_of_the_catalogue() -> None:
    listing = json.loads(ansible("ansible-inventory", "-i", "inventories/lab", "--list", "--playbook-dir", "playbooks"))
    for name, seen in listing["_meta"]["hostvars"].items():
        for instance in seen["llama_server_instances"].values():
            assert instance["model"] in seen["llamarack_models"], name


def test_locked_dependencies_have_digests_and_no_addresses() -> None:
    for lock in [*REPO.glob("requirements/*.txt"), *REPO.glob("roles/*/files/*.txt")]:
        text = lock.read_text()
        assert len(re.findall(r"^\S+==", text, re.MULTILINE)) <= text.count("--hash=sha256:"), lock
        assert "://" not in text, lock
