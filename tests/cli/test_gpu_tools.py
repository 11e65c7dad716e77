#!/usr/bin/env python3
"""Tests the helpers of tools/gpu_check.sh without a GPU: finding CUDA's libraries, the probe's report of missing
items, and stages that end in skips. Run as test_gpu_tools.py SOURCE_ROOT."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1)).resolve()
HEADERS = {"cudart": "cuda_runtime.h", "cublasLt": "cublasLt.h", "cudnn": "cudnn.h", "nvrtc": "nvrtc.h",
           "nccl": "nccl.h"}
WHEELS = {"cudart": "cu13", "cublasLt": "cu13", "nvrtc": "cu13", "cudnn": "cudnn", "nccl": "nccl"}
VERSIONS = {"cudart": "13", "cublasLt": "13", "nvrtc": "13", "cudnn": "9", "nccl": "2"}


def write(file, text="", executable=False):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    if executable:
        file.chmod(0o755)
    return file


class Libraries(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name).resolve()
        self.nvcc = write(self.folder / "toolkit/bin/nvcc",
                          "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n", executable=True)

    def add_to_toolkit(self, name):
        write(self.folder / "toolkit/include" / HEADERS[name])
        write(self.folder / f"toolkit/lib64/lib{name}.so")

    def add_wheel(self, name, wheel=None, version=None):
        folder = self.folder / "site/nvidia" / (wheel or WHEELS[name])
        write(folder / "include" / HEADERS[name])
        return write(folder / f"lib/lib{name}.so.{version or VERSIONS[name]}")

    def find(self, *names):
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(self.folder / "site")}
        done = subprocess.run([sys.executable, "-B", ROOT / "tools/find_cuda_libraries.py", self.nvcc, *names],
                              env=environment, capture_output=True, text=True, check=True)
        return {line.split("|")[0]: tuple(line.split("|")[1:]) for line in done.stdout.splitlines()}

    def own(self, found):
        """Keeps libraries found in the test's folder: the machine itself may have some."""
        return {name: (include, library) for name, (include, library) in found.items()
                if library.startswith(str(self.folder))}

    def test_the_toolkit_comes_first(self):
        for name in HEADERS:
            self.add_to_toolkit(name)
            self.add_wheel(name)
        toolkit = self.folder / "toolkit"
        self.assertEqual(self.find(), {name: (str(toolkit / "include"), str(toolkit / f"lib64/lib{name}.so"))
                                       for name in HEADERS})

    def test_what_the_toolkit_lacks_is_found_in_wheels(self):
        self.add_to_toolkit("cudart")
        for name in ("cublasLt", "cudnn", "nvrtc", "nccl"):
            self.add_wheel(name)
        site = self.folder / "site/nvidia"
        found = self.own(self.find())
        self.assertEqual(found["cudart"][0], str(self.folder / "toolkit/include"))
        for name in set(found) - {"cudart"}:
            self.assertEqual(found[name], (str(site / WHEELS[name] / "include"),
                                           str(site / WHEELS[name] / f"lib/lib{name}.so.{VERSIONS[name]}")))
        self.assertIn("cublasLt", found)

    def test_another_cudas_wheels_are_left(self):
        self.add_wheel("cublasLt", wheel="cublas", version="12")
        self.assertNotIn("cublasLt", self.own(self.find("cublasLt")))
        right = self.add_wheel("cublasLt")
        self.assertEqual(self.own(self.find("cublasLt"))["cublasLt"][1], str(right))

    def test_a_library_without_its_header_is_not_enough(self):
        write(self.folder / "site/nvidia/cudnn/lib/libcudnn.so.9")
        self.assertNotIn("cudnn", self.own(self.find("cudnn")))
        write(self.folder / "site/nvidia/cudnn/lib/libcudnn_graph.so.9")
        write(self.folder / "site/nvidia/cudnn/include/cudnn.h")
        self.assertTrue(self.own(self.find("cudnn"))["cudnn"][1].endswith("libcudnn.so.9"))

    def test_a_program_links_and_starts_with_a_wheels_library(self):
        library = self.add_wheel("nccl")
        source = write(self.folder / "library.c", "int answer(void) { return 42; }\n")
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", source, "-o", library], check=True)
        header, file = self.own(self.find("nccl"))["nccl"]
        self.assertTrue((Path(header) / "nccl.h").is_file())
        main = write(self.folder / "main.c", "int answer(void);\nint main(void) { return answer() != 42; }\n")
        program = self.folder / "program"
        subprocess.run(["gcc", main, file, f"-Wl,-rpath,{Path(file).parent}", "-o", program], check=True)
        subprocess.run([program], env={}, check=True)


def bare(text):
    return re.sub("[-_.]", "", text.lower())


class Probe(unittest.TestCase):
    def test_all_that_the_build_requires_is_looked_for_and_carried(self):
        required = set()
        for file in [ROOT / "meson.build", *ROOT.glob("src/*/meson.build"), ROOT / "cuda/meson.build"]:
            for call in re.findall(r"\b(?:dependency|find_library)\((.*)\)", file.read_text(encoding="utf-8")):
                if match := re.match(r"'(?:lib)?([^']+)'", call):
                    if "required: false" not in call and match[1] not in ("openmp", "threads"):  # the compiler's own
                        required.add(match[1])
        self.assertGreaterEqual(required, {"fmt", "dnnl", "sodium", "boost_context"})
        with tempfile.TemporaryDirectory() as empty:
            looked_for = subprocess.run([sys.executable, "-B", ROOT / "tools/gpu/gpu_probe.py"], env={"PATH": empty},
                                        capture_output=True, text=True, check=False).stdout.splitlines()[-1]
        deps = (ROOT / "tools/gpu_deps.sh").read_text(encoding="utf-8")
        carried = re.search(r"gpu_deps_packages=\(([^)]*)\)", deps)[1]
        for name in required:
            with self.subTest(dependency=name):
                self.assertIn(bare(name), bare(looked_for))
                self.assertIn(bare(name), bare(carried))

    def test_what_is_missing_is_named_before_a_build_starts(self):
        with tempfile.TemporaryDirectory() as scratch:
            rows = Path(scratch) / "rows.tsv"
            done = subprocess.run([sys.executable, "-B", ROOT / "tools/gpu/gpu_probe.py", "--rows", rows],
                                  env={"PATH": scratch}, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            last = done.stdout.splitlines()[-1]
            for name in ("C++ compiler", "meson", "ninja", "nvcc", "fmt"):
                self.assertIn(name, last)
            self.assertRegex(rows.read_text(encoding="utf-8"), r"(?m)^host, MemTotal\t\d+\tMiB\t")
            failed = [line for line in rows.read_text(encoding="utf-8").splitlines() if line.endswith("\tfail")]
            self.assertTrue(any(line.startswith("needed by the build: nvcc") for line in failed))


class Parts(unittest.TestCase):
    def test_sanitizers_leave_the_libraries_kernels_and_calls_alone(self):
        for tool, limits in (("racecheck", "--kernel-name kns=gptrain"), ("memcheck", "--report-api-errors no")):
            with self.subTest(tool=tool), tempfile.TemporaryDirectory() as scratch:
                write(Path(scratch) / "compute-sanitizer", "#!/bin/sh\necho \"$@\"\n", executable=True)
                done = subprocess.run([sys.executable, "-B", ROOT / "tools/gpu/gpu_check_parts.py", "sanitize",
                                       "test_ops", "--tool", tool, "--gptrain", "gptrain"],
                                      env=os.environ | {"PATH": f"{scratch}:{os.environ['PATH']}"},
                                      capture_output=True, text=True, check=True)
                self.assertIn(f"--tool {tool} --error-exitcode 99 {limits} ", done.stdout)

    def test_a_sanitizer_that_runs_out_of_time_is_skipped(self):
        code = ("import sys; from gpu_check_parts import run_each; from gpu_runs import Deadline, Rows; "
                "print([run_each({'op': ['sleep', '5']}, 'memcheck', Deadline(0.2), Rows(None), late) "
                "for late in (None, False)])")
        done = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT / "tools/gpu", capture_output=True,
                              text=True, check=True)
        self.assertTrue(done.stdout.endswith("[True, False]\n"), done.stdout)

    def test_figures_are_passed_from_one_bench_to_the_other(self):
        with tempfile.TemporaryDirectory() as scratch:
            file = write(Path(scratch) / "figures.json",
                         '{"case": {"micro": 8, "seconds": 0.5, "mfu": 0.4, "matrix_rate": 1e12, "model_flops": 7, '
                         '"arena_bytes": 9, "total_bytes": null}}')
            code = f"from pathlib import Path; from bench_gpu import kept_figures; print(kept_figures(Path('{file}')))"
            done = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT / "tools/gpu", capture_output=True,
                                  text=True, check=True)
            self.assertIn("'case': Figures(micro=8, seconds=0.5,", done.stdout)

    def test_every_program_that_a_stage_starts_is_built_for_it(self):
        script = (ROOT / "tools/gpu_check.sh").read_text(encoding="utf-8")
        built = set(re.search(r"-j \"\$\(nproc\)\" ((?:.|\\\n)*)\n}", script)[1].replace("\\\n", " ").split())
        started = set(re.findall(r'"\$folder/(tests/[^"]+)"', script))
        self.assertIn("tests/parallel/test_cuda_ranks", started)
        self.assertLessEqual(started, built)

    def test_steps_run_with_variables_of_their_own(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            program = write(folder / "gptrain", f"#!/bin/sh\necho \"$CUDA_MODULE_LOADING\" >{folder}/value\n"
                            f"echo '{{}}' >{folder}/metrics.jsonl\necho 'step 1'\n", executable=True)
            config = write(folder / "config.json", f'{{"run": {{"out": "{folder}"}}}}')
            code = (f"from pathlib import Path; from gpu_runs import train_steps; train_steps('{program}', "
                    f"Path('{config}'), 1, 20, variables={{'CUDA_MODULE_LOADING': 'EAGER'}})")
            subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT / "tools/gpu", check=True)
            self.assertEqual((folder / "value").read_text(encoding="utf-8"), "EAGER\n")

    def test_what_fails_likeliest_or_has_marks_comes_early_in_its_stage(self):
        script = (ROOT / "tools/gpu_check.sh").read_text(encoding="utf-8")

        def parts(stage):
            text = script[script.index(f"\nstage_{stage}() {{"):]
            named = r"(?m)^ +(?:XDG_CACHE_HOME='' )?(?:python_)?part ['\"]([^'\"]+)"
            return re.findall(named, text[:text.index("\n}")])

        self.assertEqual([part.split(" (")[0] for part in parts("A")],
                         ["every op", "attention patterns: $pattern", "ops with $option", "steps beside the CPU",
                          "profile of 124M", "memcheck", "racecheck"])
        self.assertEqual(parts("B")[:4], ["products, by algorithm", "what the rules cost", "benches of kernels",
                                          "kernels at their marks"])
        self.assertEqual(parts("D")[0], "stop and resume")


@unittest.skipIf(os.path.exists("/dev/nvidia0"), "this machine has a GPU")
class Stages(unittest.TestCase):
    def test_without_a_gpu_every_stage_ends_in_skips(self):
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "tree"
            for folder in ("tools", "tests/golden"):
                shutil.copytree(ROOT / folder, copy / folder)
            done = subprocess.run(["bash", copy / "tools/gpu_check.sh", "correctness", "kernels", "C", "ranks",
                                   "--no-build"],
                                  env=os.environ | {"OUT": str(Path(scratch) / "out")}, capture_output=True, text=True,
                                  check=False)
            for stage in "ABCD":
                with self.subTest(stage=stage):
                    table = (Path(scratch) / "out" / f"{stage}.txt").read_text(encoding="utf-8")
                    self.assertRegex(table, rf"(?m)^stage {stage} .* there is no GPU +skipped$")
                    self.assertRegex(table, r"(?m)^build .* there is no build-cuda/gptrain +skipped$")
            # Only the checks of programs and libraries that a build needs may fail: this machine may lack some.
            failed = [line for line in done.stdout.splitlines() if line.endswith(" fail")]
            for line in failed:
                self.assertRegex(line, "^(needed by the build|what this machine has)", done.stdout)
            self.assertEqual(done.returncode, 1 if failed else 0)


if __name__ == "__main__":
    unittest.main()
