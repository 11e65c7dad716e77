#!/usr/bin/env python3
"""Prints INCLUDE_FOLDER|LIBPARQUET|LIBARROW of the Arrow C++ library in pyarrow's wheel, if that is installed: for
this Python or the python3 on the path, or in build-deps/site by tools/setup.sh --parquet. Prints nothing if it is not.
"""
import sys

sys.dont_write_bytecode = True

from find_cuda_libraries import site_folders  # noqa: E402


def main():
    for site in site_folders():
        folder = site / "pyarrow"
        # The wheel's library names end in the ABI version.
        libraries = [sorted(folder.glob(f"lib{name}.so.*")) for name in ("parquet", "arrow")]
        include = folder / "include"
        if all(libraries) and (include / "parquet/file_reader.h").is_file():
            print("|".join(str(path.resolve()) for path in (include, libraries[0][0], libraries[1][0])))
            return


main()
