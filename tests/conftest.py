"""Make the collection importable under its one name, for plain pytest from any directory."""

from pathlib import Path

from ansible.plugins.loader import init_plugin_loader

REPO = Path(__file__).resolve().parents[1]

init_plugin_loader([str(REPO / "collections")])
