"""`python -m tools.image`: the image as an archive, or its layers as folders."""

import argparse
import sys
import time
from pathlib import Path

from tools.image.errors import ImageError
from tools.image.layers import DEFAULT_NAME, build_archive, build_folders


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.image", description="Make Tessera's container image."
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", default=Path("out/tessera-image.tar"),
                        help="the archive to write (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--name", default=DEFAULT_NAME, help="the image's name and tag (default: %(default)s)"
    )
    parser.add_argument("--folders", type=Path, metavar="DIR",
                        help="write the layers as folders in DIR instead, for the Dockerfile")  # fmt: skip
    chosen = parser.parse_args()
    started = time.monotonic()
    try:
        if chosen.folders:
            build_folders(chosen.folders)
        else:
            build_archive(chosen.output, chosen.name)
    except ImageError as error:
        sys.exit(f"Error: {error}")
    what = chosen.folders or f"{chosen.name} in {chosen.output}"
    sys.stderr.write(f"{what}, made in {time.monotonic() - started:.1f} s\n")


if __name__ == "__main__":
    main()
