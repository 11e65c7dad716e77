#!/usr/bin/env python3
"""Prints the include folder of NVIDIA's cudnn-frontend where its Python wheel has been installed: for this Python, or
in build-deps/site by tools/setup.sh. Prints nothing where it has not."""
import importlib.metadata
import pathlib

HEADER = "cudnn_frontend.h"


def include_folder(distribution):
    for file in distribution.files or []:
        if file.name == HEADER and file.locate().is_file():
            return pathlib.Path(file.locate()).resolve().parent
    return None


def main():
    own = pathlib.Path(__file__).resolve().parent.parent / "build-deps" / "site"
    for path in ([str(own)], None):
        found = importlib.metadata.distributions(name="nvidia-cudnn-frontend", **({"path": path} if path else {}))
        for folder in map(include_folder, found):
            if folder:
                print(folder)
                return


main()
