#!/usr/bin/env python3
"""Finds CUDA's libraries and headers: in nvcc's toolkit, on this system, or in NVIDIA's Python wheels, whose file
names have versions and no unversioned link. Prints NAME|INCLUDE|LIBRARY for each one found: INCLUDE is empty if the
compiler searches that folder anyway; LIBRARY is the file to link.

    find_cuda_libraries.py NVCC [NAME...]    NAME: cudart, cublasLt, cudnn, nvrtc or nccl; default: all
"""
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HEADERS = {"cudart": "cuda_runtime.h", "cublasLt": "cublasLt.h", "cudnn": "cudnn.h", "nvrtc": "nvrtc.h",
           "nccl": "nccl.h"}
OF_THE_TOOLKIT = ("cudart", "cublasLt", "nvrtc")  # must be from the same CUDA version as the toolkit
OWN_SITE = Path(__file__).resolve().parent.parent / "build-deps" / "site"  # filled by tools/setup.sh


def site_folders():
    """Returns the folders of Python packages: those of this Python, and those of the python3 on the path, which may be
    another one (meson may bring its own)."""
    paths = [str(OWN_SITE), *sys.path]
    other = shutil.which("python3")
    if other and Path(other).absolute() != Path(sys.executable).absolute():
        done = subprocess.run([other, "-c", "import sys; print(*sys.path, sep='\\n')"], capture_output=True, text=True,
                              check=False)
        paths += done.stdout.splitlines()
    return [Path(path) for path in dict.fromkeys(paths) if path and Path(path).is_dir()]


def environment_folders(name):
    return [Path(folder) for folder in os.environ.get(name, "").split(os.pathsep) if folder]


def toolkits(nvcc):
    """Returns nvcc's own toolkit, by its path and by its resolved link, and the ones named in the environment."""
    folders = [Path(nvcc).parent.parent, Path(nvcc).resolve().parent.parent]
    folders += [folder for name in ("CUDA_PATH", "CUDA_HOME") for folder in environment_folders(name)]
    return [folder for folder in dict.fromkeys(folders) if folder != Path("/usr")]


def cuda_major(nvcc):
    """Returns the number of nvcc's CUDA; None if there is no nvcc, or it does not say."""
    if not shutil.which(nvcc):
        return None
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"release (\d+)\.", done.stdout)
    return release.group(1) if release else None


def library_in(folder, name, major):
    """Returns the file to link: the unversioned one, else the one with the shortest version. `major`: required
    version."""
    found = [file for file in folder.glob(f"lib{name}.so*") if re.fullmatch(rf"lib{name}\.so(\.\d+)*", file.name)]
    if major:
        found = [file for file in found if file.name in (f"lib{name}.so", f"lib{name}.so.{major}")
                 or file.name.startswith(f"lib{name}.so.{major}.")]
    return min(found, key=lambda file: len(file.name), default=None)


def first(values):
    return next((value for value in values if value is not None), None)


def places_of_toolkits(nvcc):
    """Returns the header folders, each with the include option for it, and the library folders."""
    headers, libraries = [], []
    for toolkit in toolkits(nvcc):
        headers += [(folder, str(folder)) for folder in [toolkit / "include", *toolkit.glob("targets/*/include")]]
        libraries += [toolkit / "lib64", *toolkit.glob("targets/*/lib"), toolkit / "lib"]
    return headers, libraries


def places_of_system():
    headers = [(folder, "") for folder in [*environment_folders("CPATH"), Path("/usr/include"),
                                           Path("/usr/local/include")]]
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    return headers, [*environment_folders("LIBRARY_PATH"), Path("/usr/lib") / multiarch, Path("/usr/lib64"),
                     Path("/usr/lib"), Path("/usr/local/lib")]


def find_among(name, headers, libraries):
    """Returns (include folder or "", library)."""
    include = first(shown for folder, shown in headers if (folder / HEADERS[name]).is_file())
    library = first(library_in(folder, name, None) for folder in libraries)
    return (include, library) if include is not None and library else None


def find_in_wheels(name, major):
    for site in site_folders():
        for wheel in sorted(site.glob("nvidia/*")):
            library = library_in(wheel / "lib", name, major if name in OF_THE_TOOLKIT else None)
            if library and (wheel / "include" / HEADERS[name]).is_file():
                return str(wheel / "include"), library
    return None


def main():
    nvcc, *names = sys.argv[1:]
    major = cuda_major(nvcc)
    toolkit, system = places_of_toolkits(nvcc), places_of_system()
    both = (toolkit[0] + system[0], toolkit[1] + system[1])
    for name in names or HEADERS:
        found = (find_among(name, *toolkit) or find_among(name, *system) or find_in_wheels(name, major) or
                 find_among(name, *both))
        if found:
            print(name, *found, sep="|")


if __name__ == "__main__":
    main()
