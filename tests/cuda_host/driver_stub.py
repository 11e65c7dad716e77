#!/usr/bin/env python3
"""Writes the source of a CUDA driver that says that there is no device. cuDNN opens a driver when it is loaded; with
this one it plans for devices that are only described: code can be loaded, and hands out kernels that nothing can run.

    driver_stub.py CUDA_H OUTPUT
"""
import re
import sys
from pathlib import Path

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
# Calls that give a handle in their first argument.
GIVES_HANDLE = {"cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction"}
# Other calls that succeed: they are about code alone.
ABOUT_CODE = r"cu(Library|Kernel)\w+|cuFunc(Set|Get)Attribute|cuFuncLoad"


def function(name):
    if name in GIVES_HANDLE:
        return f"int {name}(void** handle, ...) {{ *handle = &loaded; return 0; }}\n"
    return f"int {name}() {{ return {0 if re.fullmatch(ABOUT_CODE, name) else NO_DEVICE}; }}\n"


header, output = map(Path, sys.argv[1:])
text = header.read_text(encoding="utf-8")
names = set(re.findall(r"CUDAAPI\s+(cu\w+)\s*\(", text))
# The header gives some functions the names of their newer versions.
names |= {new for old, new in re.findall(r"(?m)^\s*#define\s+(cu\w+)\s+(cu\w+_v\d+)\s*$", text) if old in names}
output.write_text("static char loaded;\nextern \"C\" {\n" + "".join(map(function, sorted(names))) + "}\n",
                  encoding="utf-8")
