"""Fail if an object file built for one instruction set holds a symbol that the linker may share.

Each kernel source is compiled once for every instruction set.  An inline or
template function with external linkage is emitted as a weak symbol in each of
those objects, the linker keeps any one of the copies, and if that is the
AVX-512 copy the library crashes on CPUs without it.

    python tools/check_weak_symbols.py BUILD_FOLDER
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# The CMake targets that compile the kernels are named kernels_<instruction set>_<precision>.
OBJECT = re.compile(r"/kernels_(?P<target>[^_/]+)_[^/]+\.dir/.*\.o$")
# Weak (W, w), weak object (V, v) and GNU unique (u) symbols.
SHARED_TYPES = frozenset("WwVvu")


def shared_symbols(listing: str) -> list[str]:
    """Return the symbols of an `nm` listing that are defined and that another object may replace."""
    shared = []
    for line in listing.splitlines():
        # An undefined symbol has no address: what is weak there is not ours.
        match = re.match(r"[0-9a-fA-F]+ (?P<kind>\S) (?P<name>.+)", line)
        if match and match["kind"] in SHARED_TYPES:
            shared.append(f"{match['kind']} {match['name']}")
    return shared


def main() -> int:
    """Run the check; 1 if it finds symbols, 2 if it finds nothing to check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="a CMake build folder")
    parser.add_argument("--nm", default="nm", help="the nm to call")
    arguments = parser.parse_args()

    objects: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(arguments.build.rglob("*.o")):
        if match := OBJECT.search(path.as_posix()):
            objects[match["target"]].append(path)
    if not objects:
        print(f"no per-instruction-set objects under {arguments.build}: nothing was checked", file=sys.stderr)
        return 2

    faults = 0
    for path in (path for paths in objects.values() for path in paths):
        listing = subprocess.run([arguments.nm, "-C", str(path)], check=True, capture_output=True, text=True).stdout
        for symbol in shared_symbols(listing):
            print(f"{path.name}: {symbol}", file=sys.stderr)
            faults += 1
    counts = ", ".join(f"{len(paths)} {target}" for target, paths in objects.items())
    print(f"weak symbols: {faults or 'none'} in {counts} objects")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
