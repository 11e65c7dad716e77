#!/usr/bin/env python3
"""Prints the include folder of NVIDIA's cudnn-frontend if its Python wheel is installed: for this Python or the
python3 on the path, or in build-deps/site by tools/setup.sh. Prints nothing if it is not."""
import importlib.metadata
import pathlib
import sys

sys.dont_write_bytecode = True

from find_cuda_libraries import site_folders  # noqa: E402

HEADER = "cudnn_frontend.h"


def include_folder(distribution):
    for file in distribution.files or []:
        if file.name == HEADER and file.locate().is_file():
            return pathlib.Path(file.locate()).resolve().parent
    return None


def main():
    for site in site_folders():
        for folder in map(include_folder,
                          importlib.metadata.distributions(name="nvidia-cudnn-frontend", path=[str(site)])):
            if folder:
                print(folder)
                return


main()
