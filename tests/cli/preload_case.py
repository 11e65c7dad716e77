"""The test case of runs whose calls of the C library a preload library changes or counts."""
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from cli_case import CliCase


class PreloadCase(CliCase):
    """Compiles the library of a file beside this one, once for the class; skips the class where there is no compiler."""
    source = None  # name of the file, in C

    @classmethod
    def setUpClass(cls):
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise unittest.SkipTest("no C compiler")
        folder = Path(tempfile.mkdtemp(prefix="gptrain-preload-"))
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.library = (folder / cls.source).with_suffix(".so")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", cls.library, Path(__file__).with_name(cls.source), "-ldl"],
                       check=True)
