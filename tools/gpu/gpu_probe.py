#!/usr/bin/env python3
"""Checks within seconds that a machine has everything for gptrain's CUDA build: adds rows to tools/gpu_check.sh's
table, and exits with 1 and the missing item if the build would fail. The last check compiles a kernel, and runs it if
there is a GPU."""
import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_runs import Rows, ask_nvidia_smi

HERE = Path(__file__).resolve().parent
LEAST_GCC, LEAST_MESON = 12, (1, 0, 1)
HEADERS = {"fmt": "fmt/format.h", "nlohmann-json": "nlohmann/json.hpp", "CLI11": "CLI/CLI.hpp",
           "oneDNN": "oneapi/dnnl/dnnl.hpp", "libsodium": "sodium.h", "Boost.Context": "boost/context/fiber.hpp"}
CATCH2 = ("catch2/catch_all.hpp", "catch2/catch.hpp")  # version 3, then 2
LIBRARIES = ("fmt", "dnnl", "sodium", "boost_context")
CUDA_LIBRARIES = ("cudart", "cublasLt", "cudnn", "nvrtc")
VERSION_CALLS = {"cublasLt": "cublasLtGetVersion", "cudnn": "cudnnGetVersion"}
TOOLS = ("compute-sanitizer", "ncu", "cuobjdump", "nvdisasm")
SECONDS = 60  # limit for any command
MOST_PINNED_BYTES = 4 << 30
KERNEL = r"""
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
__global__ void add_one(int* value) { *value += 1; }
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
// What pages of the host cost that the device may read: lines of their own.
void measure_pinned(size_t bytes) {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  std::printf("memory of the device: %zu MiB free of %zu MiB\n", free >> 20, total >> 20);
  void *host = nullptr, *device = nullptr;
  const double start = now();
  if (cudaMallocHost(&host, bytes) != cudaSuccess) {
    cudaGetLastError();
    std::printf("pinned memory: no %zu MiB of it\n", bytes >> 20);
    return;
  }
  std::printf("pinned memory: %zu MiB in %.2f s\n", bytes >> 20, now() - start);
  const size_t copied = std::min(bytes, free / 2);
  if (cudaMalloc(&device, copied) != cudaSuccess) {
    cudaGetLastError();
  } else {
    for (const auto kind : {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost}) {
      const bool up = kind == cudaMemcpyHostToDevice;
      void *const to = up ? device : host, *const from = up ? host : device;
      cudaMemcpy(to, from, copied, kind);
      const double before = now();
      cudaMemcpy(to, from, copied, kind);
      std::printf("pinned copy to the %s: %.1f GB/s\n", up ? "device" : "host", copied / (now() - before) / 1e9);
    }
    cudaFree(device);
  }
  cudaFreeHost(host);
}
int main(int count_of_arguments, char** arguments) {
  int count = 0, value = 41, *device = nullptr;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 77;
  cudaDeviceProp p{};
  cudaGetDeviceProperties(&p, 0);
  cudaMalloc(&device, sizeof value);
  cudaMemcpy(device, &value, sizeof value, cudaMemcpyHostToDevice);
  if (count_of_arguments > 1) measure_pinned(std::strtoull(arguments[1], nullptr, 10));
  add_one<<<1, 1>>>(device);
  cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost);
  std::printf("%d devices, %d multiprocessors, L2 %d MB, %zu KB shared memory a block, %zu MiB", count,
              p.multiProcessorCount, p.l2CacheSize >> 20, p.sharedMemPerBlockOptin >> 10, p.totalGlobalMem >> 20);
  return value == 42 && cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}
"""

LIBRARIES_MEMORY = r"""
#include <cstdio>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>
int main() {
  cublasLtHandle_t products;
  cudnnHandle_t attention;
  size_t free = 0, total = 0;
  if (cudaFree(nullptr) != cudaSuccess) return 77;
  if (cublasLtCreate(&products) != CUBLAS_STATUS_SUCCESS || cudnnCreate(&attention) != CUDNN_STATUS_SUCCESS) return 1;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 1;
  std::printf("%zu MiB free of %zu MiB", free >> 20, total >> 20);
}
"""


def run(*command):
    """Returns (exit status or None, output)."""
    try:
        done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, done.stdout


class Probe:
    def __init__(self, rows):
        self.rows, self.missing = rows, []

    def note(self, name, figure, unit="", mark=""):
        print(f"{name}: {figure} {unit} {mark}".rstrip(), flush=True)
        self.rows.add(name, str(figure), unit, mark)

    def require(self, name, found, text):
        """Notes a requirement. `text`: the version found, or how to get it."""
        print(f"{name}: {text if found else 'MISSING: ' + text}", flush=True)
        if not found:
            self.missing.append(name)
            self.rows.add(f"needed by the build: {name}", "", mark=text[:60], status="fail")
        return found

    def gpu(self):
        for field, unit in (("name", ""), ("driver_version", ""), ("compute_cap", ""), ("memory.total", "MiB"),
                            ("memory.free", "MiB"), ("clocks.sm", "MHz"), ("clocks.max.sm", "MHz"),
                            ("clocks.max.mem", "MHz"), ("power.limit", "W"), ("temperature.gpu", "C")):
            value = ask_nvidia_smi(field)
            if value is not None:
                self.note(f"GPU, {field}", value, unit)

    def host_memory(self):
        """Notes the host's memory and returns the available bytes."""
        try:
            text = Path("/proc/meminfo").read_text(encoding="utf-8")
        except OSError:
            return 0
        kibibytes = {name: int(value) for name, value in re.findall(r"(?m)^(MemTotal|MemAvailable): +(\d+) kB$", text)}
        for name, value in kibibytes.items():
            self.note(f"host, {name}", value >> 10, "MiB")
        return kibibytes.get("MemAvailable", 0) << 10

    def tools(self):
        compiler = os.environ.get("CXX", "g++")
        status, version = run(compiler, "-dumpversion")
        major = int(version.split(".")[0]) if status == 0 and version.split(".")[0].strip().isdigit() else 0
        self.require("C++ compiler", major >= LEAST_GCC, f"{compiler} {version.strip()}" if major >= LEAST_GCC else
                     f"{compiler} of at least {LEAST_GCC}")
        status, version = run("meson", "--version")
        numbers = tuple(map(int, re.findall(r"\d+", version)[:3])) if status == 0 else ()
        self.require("meson", numbers >= LEAST_MESON, version.strip() if numbers >= LEAST_MESON else
                     "python3 -m pip install meson, 1.0.1 or later")
        self.require("ninja", run("ninja", "--version")[0] == 0, shutil.which("ninja") or "ninja-build")
        finder = shutil.which("pkg-config") or shutil.which("pkgconf") or shutil.which("cmake")
        self.require("pkg-config", finder is not None, finder or "pkg-config, or CMake")
        for tool in TOOLS:
            self.note(f"tool {tool}", "there" if shutil.which(tool) else "not there", "", shutil.which(tool) or "")
        return compiler

    def headers(self, compiler, folder, includes):
        """Checks the headers. `includes`: folders of CUDA's headers, which cudnn-frontend includes."""
        def has(header):
            file = folder / f"{header.replace('/', '-')}.cpp"
            file.write_text(f"#include <{header}>\n", encoding="utf-8")
            places = [part for include in includes for part in ("-isystem", include)]
            return run(compiler, "-std=c++20", *places, "-E", "-o", os.devnull, file)[0] == 0

        frontend = run(sys.executable, HERE.parent / "find_cudnn_frontend.py")[1].strip()
        with ThreadPoolExecutor() as pool:
            found = dict(zip([*HEADERS, *CATCH2, "cudnn"], pool.map(has, [*HEADERS.values(), *CATCH2,
                                                                          "cudnn_frontend.h"]), strict=True))
        for name, header in HEADERS.items():
            self.require(name, found[name], header)
        self.require("Catch2", any(found[header] for header in CATCH2), CATCH2[1])
        self.require("cudnn-frontend", found["cudnn"] or bool(frontend), frontend or "cudnn_frontend.h")
        source = folder / "link.cpp"
        source.write_text("int main() {}\n", encoding="utf-8")
        for library in LIBRARIES:
            status, output = run(compiler, source, f"-l{library}", "-o", folder / "linked")
            self.require(f"lib{library}", status == 0, "links" if status == 0 else output.strip()[-120:])

    def cuda_libraries(self, nvcc):
        found = {}
        for line in run(sys.executable, HERE.parent / "find_cuda_libraries.py", nvcc)[1].splitlines():
            name, *rest = line.split("|")
            if len(rest) == 2:
                found[name] = rest
        for name in CUDA_LIBRARIES:
            self.require(f"CUDA's {name}", name in found,
                         found[name][1] if name in found else "in no toolkit, system folder or Python wheel")
        self.note("NCCL", "there" if "nccl" in found else "not there", "",
                  found["nccl"][1] if "nccl" in found else "ranks exchange through the host")
        for name, (_, library) in found.items():
            version = self.version_of(name, library)
            if version:
                self.note(f"version of {name}", version)
        return found

    @staticmethod
    def version_of(name, library):
        """Returns the version that the library reports, asked in a separate process, as loading a broken library may
        end it."""
        if name == "nccl":
            code = "v = ctypes.c_int(); l.ncclGetVersion(ctypes.byref(v)); print(v.value)"
        elif name == "cudart":
            code = "v = ctypes.c_int(); l.cudaRuntimeGetVersion(ctypes.byref(v)); print(v.value)"
        elif name in VERSION_CALLS:
            code = f"f = l.{VERSION_CALLS[name]}; f.restype = ctypes.c_size_t; print(f())"
        else:
            return None
        status, output = run(sys.executable, "-c", f"import ctypes; l = ctypes.CDLL({str(library)!r}); {code}")
        return output.strip() if status == 0 else "cannot be loaded: " + output.strip().splitlines()[-1][:100]

    def kernel(self, nvcc, compiler, found, folder, available):
        """Checks that a compiled kernel runs here, and times allocating and copying pinned memory: 4 GiB, or a quarter
        of the host's available bytes if that is less."""
        program = folder / "kernel"
        arch, why_not = self.compile(nvcc, compiler, found, KERNEL, program, ("cudart",))
        if not self.require(f"nvcc compiles for {arch}", why_not is None, why_not or "yes"):
            return
        status, output = run(program, min(MOST_PINNED_BYTES, available // 4))
        *measured, output = output.splitlines() or [""]
        for line in measured:
            self.note(*line.split(": ", 1))
        if status == 77:
            self.rows.add("a kernel runs", "", mark="there is no GPU", status="skipped")
            print("a kernel runs: skipped: there is no GPU")
        else:
            print(f"a kernel runs: exit {status}: {output}")
            self.rows.add("a kernel runs", "", mark=output[:80], status="pass" if status == 0 else "fail")
            if status != 0:
                self.missing.append("a GPU that runs what this nvcc makes")

    def libraries_memory(self, nvcc, compiler, found, folder):
        """Notes the free device memory after a step's libraries have been initialised."""
        name, program = "memory of the device with cuBLASLt and cuDNN", folder / "libraries"
        _, why_not = self.compile(nvcc, compiler, found, LIBRARIES_MEMORY, program, ("cudart", "cublasLt", "cudnn"))
        status, output = (None, why_not) if why_not else run(program)
        if status == 0:
            self.note(name, output)
        else:
            why_not = "there is no GPU" if status == 77 else f"exit {status}: {output.strip()}"
            print(f"{name}: skipped: {why_not}")
            self.rows.add(name, "", mark=why_not[:60], status="skipped")

    @staticmethod
    def compile(nvcc, compiler, found, text, program, libraries):
        """Returns (architecture, None or nvcc's messages on failure)."""
        source = program.with_suffix(".cu")
        source.write_text(text, encoding="utf-8")
        capability = ask_nvidia_smi("compute_cap")
        arch = f"sm_{capability.replace('.', '')}" if capability else "sm_90"
        places = []
        for name in libraries:
            include, library = found.get(name, ("", ""))
            places += ["-isystem", include] if include else []
            places += ["-L", Path(library).parent, "-Xlinker", f"-rpath,{Path(library).parent}"] if library else []
            places += ["-Xlinker", library] if library and name != "cudart" else []
        status, output = run(nvcc, f"-arch={arch}", "-std=c++20", "-cudart", "shared", "-ccbin", compiler, source,
                             *places, "-o", program)
        return arch, None if status == 0 else " ".join(output.split())[-200:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="lines for the table of tools/gpu_check.sh are added to it")
    options = parser.parse_args()
    probe = Probe(Rows(options.rows))
    probe.gpu()
    available = probe.host_memory()
    with tempfile.TemporaryDirectory(prefix="gptrain-probe-") as scratch:
        folder = Path(scratch)
        compiler, found = probe.tools(), {}
        nvcc = shutil.which("nvcc")
        if probe.require("nvcc", nvcc is not None, nvcc or "the CUDA toolkit's compiler, on the path"):
            probe.note("version of nvcc", (re.findall(r"V([\d.]+)", run(nvcc, "--version")[1]) or ["?"])[0])
            found = probe.cuda_libraries(nvcc)
        probe.headers(compiler, folder, list(dict.fromkeys(include for include, _ in found.values() if include)))
        if nvcc:
            probe.kernel(nvcc, compiler, found, folder, available)
            probe.libraries_memory(nvcc, compiler, found, folder)
    for package in ("torch", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "nvidia-cudnn-frontend"):
        try:
            probe.note(f"Python package {package}", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            pass
    if probe.missing:
        print("a build would fail: there is no " + ", no ".join(probe.missing))
    return 1 if probe.missing else 0


if __name__ == "__main__":
    sys.exit(main())
