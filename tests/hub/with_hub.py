#!/usr/bin/env python3
"""Run a command while the loopback hub offers the tiny Kimi-K2-shaped model.

``with_hub.py --root DIR --port N -- COMMAND…`` makes the model in DIR unless it is there, serves it, runs the command
and ends with its exit status.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from pathlib import Path

import tiny_k2
from hub import make_server

REPOSITORY = "llamarack/tiny-kimi-k2-GGUF"


def main() -> int:
    """Parse, make, serve, run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="where the hub's repositories lie")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()

    tiny_k2.make(arguments.root / REPOSITORY)
    try:
        server = make_server(arguments.root, "127.0.0.1", arguments.port)
    except OSError as error:
        print(f"The hub cannot listen on 127.0.0.1:{arguments.port} ({error}): stop what does, and run again.")
        return 1
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        return subprocess.run(arguments.command, check=False).returncode
    finally:
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
