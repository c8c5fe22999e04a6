# `make help` lists the targets.
PYTHON ?= python3
SCENARIO ?= default

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# Python 3.11 takes the last ansible-core that runs on it (2.19); newer ones take the newest.
LOCK := requirements/dev-$(shell $(PYTHON) -c 'import sys; print("py311" if sys.version_info[:2] == (3, 11) else "py312")').txt
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
BECOME := $(shell [ "$$(id -u)" = 0 ] || sudo -n true 2>/dev/null || echo --ask-become-pass)
# LC_ALL: Ansible refuses to start without a UTF-8 locale, and a bare machine has C.UTF-8 alone.
export LC_ALL := C.UTF-8
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg

.PHONY: help env demo demo-clean test lint unit molecule lock

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(VENV)/lock.txt ## the virtual environment, with what requirements/ locks

# The copy of the lock is written last: an interrupted install is done again.
$(VENV)/lock.txt: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Llamarack needs Python 3.11 or newer on the control node; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends python3-venv; } || \
	  { echo "$(PYTHON) cannot make virtual environments: install its venv package and run again."; exit 1; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCK)
	cp $(LOCK) $@

demo: env ## the main job on this machine, with a tiny model of Kimi K2's shape
	$(BIN)/python tests/hub/with_hub.py --root .cache/hub --port 18765 -- \
	  $(BIN)/ansible-playbook site.yml -i inventories/demo $(BECOME)

demo-clean: env ## take away everything that `make demo` brought
	$(BIN)/ansible-playbook playbooks/remove.yml -i inventories/demo $(BECOME) -e llamarack_remove=everything
	rm -rf .cache $(VENV)

test: env ## every test: lint, unit and molecule, side by side
	$(MAKE) --jobs=3 --output-sync=target lint unit molecule

lint: env ## ansible-lint (production), yamllint, ruff, mypy --strict
	$(BIN)/yamllint --strict .
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/ansible-lint --strict

unit: env ## unit, property and golden tests
	$(BIN)/pytest -q

molecule: env ## SCENARIO=default: real systemd hosts over SSH
	PATH="$(BIN):$$PATH" $(BIN)/molecule test --scenario-name $(SCENARIO)

lock: ## pin the dependencies again (needs uv)
	for version in 3.11 3.12; do \
	  uv pip compile requirements/dev.in --universal --python-version $$version --generate-hashes \
	    --no-header --no-annotate --quiet --output-file requirements/dev-py$$(echo $$version | tr -d .).txt; \
	done
	for lock in roles/python_environment/files/*.in; do \
	  uv pip compile $$lock --universal --python-version 3.10 --generate-hashes \
	    --no-header --no-annotate --quiet --output-file $${lock%.in}.txt; \
	done
