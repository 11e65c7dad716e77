#!/usr/bin/env python3
"""The rules of the source tree: each folder includes only from folders above it, no units include each other in a ring,
each room has its namespace, no file is too long, none names a machine.

Run as test_house.py SOURCE_ROOT. Prints each fault as PATH:LINE: MESSAGE.
"""
import re
import sys
import tempfile
from pathlib import Path

# Folders of src/ in order: a folder includes from itself and from earlier ones.
ROOM_LIST = "src/rooms.txt"
ROOMS = [line.split()[0] for line in (Path(__file__).parents[2] / ROOM_LIST).read_text(encoding="utf-8").splitlines()]
# Folders that cuda/ implements or uses; nothing includes cuda/.
CUDA_ROOMS = ["base", "config", "ops", "comm"]
# Files that define functions of C only.
C_FILES = ["src/cli/main.cpp", "cuda/device/cublaslt.cpp"]
MAX_LINES = 600
MAX_OWN_LINES = 500  # of a file in src or cuda
MAX_PARAMETERS = 7
# Rooms that may take a run config whole, and how often all of them together do; others take the sections they need.
WHOLE_CONFIG_ROOMS = {"config", "step", "fit", "planner", "train", "cli"}
WHOLE_CONFIG = "const RunConfig&"
MAX_WHOLE_CONFIGS = 120
# At most MAX_OFFLOAD_FILES files name offload_activations, a method that saves memory: those that carry it out, and few
# others.
OFFLOAD_CHOICE = re.compile(r"offload_activations|OffloadChoice")
MAX_OFFLOAD_FILES = 10
# Headers that the files of the README's reading path include and that it does not list: their lines, all together.
MAX_PATH_HEADER_LINES = 2000
# Expressions of one place only: the paths that may have them, and the remedy elsewhere.
SEAMS = [(re.compile(r"\bdata_rank(\(\))? *\*"), ("src/parallel/parameters.",), "ParameterStore::piece gives a rank's piece"),
         (re.compile(r"\btensor \* [\w.]*pipeline\b"), ("src/config/parallelism.h",), "ranks_of_model gives the product"),
         (re.compile(r"% *\(?[\w.>()-]*\bsequence_length\b"), ("src/base/token_rows.h",), "TokenRows says which token a row is"),
         (re.compile(r"\bzero *([=!]=|[<>]=?) *\d"), ("src/parallel/", "src/config/"), "config/parallelism.h says what a stage cuts"),
         (re.compile(r"\bcuts_(state|gradients|weights)\([^)]"),
          ("src/parallel/", "src/config/", "src/fit/", "src/machine/", "src/planner/"),
          "ParameterFlow and Sharding say what moves in a step")]
STRING = re.compile(r'"(?:[^"\\]|\\.)*"|//.*')
SOURCE_SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".inc", ".py", ".sh"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".build", ".json", ".md", ".supp", ".txt", ".yml", ""}
# Printing throws if a stream is closed or full, also while an error is reported; src/base/output.h does not throw.
PRINTING = re.compile(r"\bfmt::print\(|std::(cout|cerr)\b")
NAMESPACE = re.compile(r"(?:inline )?namespace\b ?(.*?) ?\{$|\}  // namespace ?(.*)$")
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
# Two files or more in a list of meson.build.
FILE_LIST = re.compile(r"'[\w./-]+\.cpp'(?:,\s*'[\w./-]+\.cpp')+")
# A function that starts at the beginning of a line: all but those inside a class.
PARAMETER_LIST = re.compile(r"^(?!using |#|//|struct |class |enum |return |static_assert)[\w\[][^=(;{}\n]*?[ &*:](\w+)\(",
                            re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.*-])/(?:work|home|root|Users)/")


def room_of(path):
    """Returns the room that holds PATH (relative to src/), by its longest prefix; None if there is none."""
    parents = [parent.as_posix() for parent in Path(path).parents]
    return next((parent for parent in parents if parent in ROOMS), None)


def repository_files(root):
    """Yields the files of the source tree, without output of builds and runs."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not (parts[0].startswith(("build", ".git", "runs")) or parts[:2] == ("data", "corpus")
                                   or parts[0] == "shared" or "__pycache__" in parts):
            yield path


def include_faults(root):
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in SOURCE_SUFFIXES:
            continue
        own = room_of(path.relative_to(root / "src"))
        if own is None:
            yield f"{path}: in no room of the house"
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            included = match.group(1)
            room = room_of(included)
            if not (root / "src" / included).is_file() or room is None:
                yield f"{path}:{number}: \"{included}\" is no file of src/ by its full name"
            elif ROOMS.index(room) > ROOMS.index(own):
                yield f"{path}:{number}: {own} may not include {room}, which stands below it"


def units_reached_from(unit, includes):
    """The units that UNIT includes, and those that they include; UNIT itself where they lead back to it."""
    reached, open_units = set(), [unit]
    while open_units:
        for included in includes.get(open_units.pop(), ()):
            if included not in reached:
                reached.add(included)
                open_units.append(included)
    return reached


def ring_faults(root):
    """X.h and X.cpp are one unit."""
    includes = {}
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in SOURCE_SUFFIXES:
            continue
        unit = path.relative_to(root / "src").with_suffix("").as_posix()
        matches = map(INCLUDE.match, path.read_text(encoding="utf-8").splitlines())
        units = {Path(match.group(1)).with_suffix("").as_posix() for match in matches if match}
        includes.setdefault(unit, set()).update(units - {unit})
    reached = {unit: units_reached_from(unit, includes) for unit in includes}
    for unit in includes:
        ring = sorted(other for other in reached[unit] if unit in reached.get(other, ()))
        if ring and unit == ring[0]:
            yield f"{root / 'src' / unit}: units include each other in a ring: {', '.join(ring)}"


def cuda_include_faults(root):
    for path in sorted((root / "cuda").rglob("*")):
        if path.suffix not in SOURCE_SUFFIXES:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match or (root / "cuda" / match.group(1)).is_file():
                continue
            room = room_of(match.group(1))
            if room not in CUDA_ROOMS:
                yield f"{path}:{number}: cuda may not include {match.group(1)}"


def map_faults(root):
    """The README's map shows the list of rooms as it is."""
    rooms = "".join(f"src/{line}\n" for line in (root / ROOM_LIST).read_text(encoding="utf-8").splitlines())
    if rooms not in (root / "README.md").read_text(encoding="utf-8"):
        yield f"{root / 'README.md'}: its map of src is not {ROOM_LIST}, line by line"


def printing_faults(root):
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in SOURCE_SUFFIXES:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if PRINTING.search(line):
                yield f"{path}:{number}: prints by itself, not by base/output.h"


def list_faults(root):
    """Yields the lists of files in meson.build that are not one file a line and sorted."""
    for path in sorted([*(root / "src").rglob("meson.build"), *(root / "tests" / "unit").rglob("meson.build")]):
        text = path.read_text(encoding="utf-8")
        for match in FILE_LIST.finditer(text):
            files = [line.strip(" ,") for line in match[0].split("\n")]
            has_lines = all(file.count("'") == 2 for file in files)
            begins_line = not text[:match.start()].rpartition("\n")[2].strip()
            if not (has_lines and begins_line and files == sorted(files)):
                number = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{number}: a list of files has each on a line of its own, sorted"


def namespaces_of(path):
    """Returns the namespaces that PATH (relative to the root) may open: its room's; in cuda also the rooms' whose
    functions cuda defines, and that of the host harness."""
    if path.parts[0] == "cuda":
        return [f"gptrain::inline {room}" for room in ["cuda", *CUDA_ROOMS]] + ["gptrain::simt"]
    room = room_of(path.relative_to("src")) if path.parts[0] == "src" else None
    return [f"gptrain::inline {room.split('/')[-1]}"] if room else []


def namespace_faults(root):
    """Yields wrong namespaces, and wrong comments at their ends, which clang-format 14 cannot check if one is inline."""
    for path in repository_files(root):
        relative = path.relative_to(root)
        own = namespaces_of(relative)
        if path.suffix not in {".cpp", ".cu", ".h"}:
            continue
        opened, has_own = [], False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = NAMESPACE.match(line)
            if match and match[1] is not None:
                name = "::".join(match[1].split("::")[:2])
                has_own = has_own or name in own
                if own and name.startswith("gptrain") and name not in own:
                    yield f"{path}:{number}: opens another namespace than {own[0]}"
                opened.append(match[1].replace("inline ", ""))
            elif match and (not opened or opened.pop() != match[2]):
                yield f"{path}:{number}: ends another namespace than it names"
        if opened or not (has_own or not own or relative.as_posix() in C_FILES):
            yield f"{path}: lacks the namespace {own[0] if own else opened[-1]}, or the comment at its end"


def source_texts(root):
    """Yields (path, text) for the files of src and cuda."""
    for path in [*sorted((root / "src").rglob("*")), *sorted((root / "cuda").rglob("*"))]:
        if path.suffix in {".cpp", ".h", ".cu", ".cuh", ".inc"}:
            yield path, path.read_text(encoding="utf-8")


def num_parameters(text, begin):
    """Returns the number of parameters in the list that begins behind the parenthesis at BEGIN - 1."""
    depth, commas = 0, 0
    for end in range(begin, len(text)):
        if text[end] in "([{<":
            depth += 1
        elif text[end] in ")]}>" and depth == 0:
            return commas + 1 if text[begin:end].strip() else 0
        elif text[end] in ")]}>":
            depth -= 1
        elif text[end] == "," and depth == 0:
            commas += 1
    return 0


def size_faults(root):
    """Yields files that are too long, and functions with too many parameters."""
    for path, text in source_texts(root):
        if (lines := len(text.splitlines())) > MAX_OWN_LINES:
            yield f"{path}: {lines} lines, at most {MAX_OWN_LINES}"
        for match in PARAMETER_LIST.finditer(text):
            if (count := num_parameters(text, match.end())) > MAX_PARAMETERS:
                number = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{number}: {match.group(1)} has {count} parameters, at most {MAX_PARAMETERS}"


def seam_faults(root):
    """Yields the expressions that only one place may have; those in comments and texts do not count."""
    for path, text in source_texts(root):
        for number, line in enumerate(text.splitlines(), 1):
            for expression, allowed, remedy in SEAMS:
                if expression.search(STRING.sub("", line)) and not path.relative_to(root).as_posix().startswith(allowed):
                    yield f"{path}:{number}: {remedy}"


def config_faults(root):
    """Yields uses of a whole run config where sections are taken, and too many of them or of a memory choice."""
    whole, offloading = 0, 0
    for path, text in source_texts(root):
        offloading += 1 if OFFLOAD_CHOICE.search(text) else 0
        whole += text.count(WHOLE_CONFIG)
        if WHOLE_CONFIG in text and room_of(path.relative_to(root / path.relative_to(root).parts[0])) not in WHOLE_CONFIG_ROOMS:
            yield f"{path}: takes RunConfig whole; take the sections that it needs"
    if whole > MAX_WHOLE_CONFIGS:
        yield f"{root / 'src'}: RunConfig is taken whole {whole} times, at most {MAX_WHOLE_CONFIGS}"
    if offloading > MAX_OFFLOAD_FILES:
        yield f"{root / 'src'}: {offloading} files name an offload choice, at most {MAX_OFFLOAD_FILES}"


def reading_path_faults(root):
    """Yields a reading path in the README whose files include more lines of other headers than a reader looks up."""
    readme = root / "README.md"
    before, _, after = readme.read_text(encoding="utf-8").partition("## The reading path")
    listed = re.findall(r"^\| `(src/[^`]+)`", after.partition("\n## ")[0], re.MULTILINE)
    matches = [INCLUDE.match(line) for name in listed if (root / name).is_file()
               for line in (root / name).read_text(encoding="utf-8").splitlines()]
    headers = {f"src/{match[1]}" for match in matches if match} - set(listed)
    lines = sum(len((root / name).read_text(encoding="utf-8").splitlines()) for name in headers)
    if lines > MAX_PATH_HEADER_LINES:
        number = before.count("\n") + 1
        yield f"{readme}:{number}: the path's files include {lines} lines of other headers, at most {MAX_PATH_HEADER_LINES}"


def file_faults(root):
    for path in repository_files(root):
        if path.suffix not in TEXT_SUFFIXES:
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        if path.suffix in SOURCE_SUFFIXES and len(lines) > MAX_LINES:
            yield f"{path}: {len(lines)} lines, at most {MAX_LINES}"
        for number, line in enumerate(lines, 1):
            if MACHINE_PATH.search(line) and path.resolve() != Path(__file__).resolve():
                yield f"{path}:{number}: names a folder of one machine"


def all_faults(root):
    return [*include_faults(root), *ring_faults(root), *cuda_include_faults(root), *map_faults(root),
            *printing_faults(root), *namespace_faults(root), *list_faults(root), *size_faults(root),
            *config_faults(root), *seam_faults(root), *reading_path_faults(root), *file_faults(root)]


def check_that_faults_are_found():
    """Checks the checks: each must find a planted fault."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        num_long = MAX_PATH_HEADER_LINES // MAX_OWN_LINES + 1
        files = {
            "src/base/a.h": '#include <vector>\n#include "ops/b.h"\n',
            "src/ops/b.h": '#include "base/a.h"\n#include "model/spec/c.h"\n#include "model/d.h"\n#include "b.h"\n',
            "src/model/spec/c.h": '#include "ops/b.h"\nfmt::print(stderr, "x");\nwrite_out("fmt::printed");\n',
            "src/model/d.h": '#include "model/spec/c.h"\n#include "ops/b.h"\n',
            "src/elsewhere/e.h": "\n",
            "cuda/f.cu": '#include "base/a.h"\n#include "g.h"\n#include "model/d.h"\n',
            "cuda/g.h": "\n",
            "src/data/h.cpp": "namespace gptrain::inline data {\n}  // namespace gptrain::data\n"
                              "namespace gptrain {\n}  // namespace gptrain\n",
            "src/data/i.cpp": "namespace {\n}  // namespace\n",
            "src/data/j.cpp": "namespace gptrain::inline data {\n}\n",
            "cuda/p.cpp": "namespace gptrain::inline comm {\n}  // namespace gptrain::comm\n"
                          "namespace gptrain::inline data {\n}  // namespace gptrain::ops\n",
            "src/data/meson.build": "files('i.cpp', 'h.cpp')\nfiles(\n  'h.cpp',\n  'i.cpp',\n)\n"
                                    "files(\n  'i.cpp',\n  'h.cpp',\n)\n",
            "src/comm/meson.build": "files('a.cpp',\n  'b.cpp')\nx ? files('a.cpp') : files('b.cpp')\n",
            "src/optim/l.h": '#include "optim/m.h"\n',
            "src/optim/m.cpp": '#include "optim/m.h"\n#include "optim/n.h"\n',
            "src/optim/m.h": "\n",
            "src/optim/n.h": '#include "base/o.h"\n#include "optim/l.h"\n',
            "src/base/o.h": "\n",
            "src/base/q.cpp": "\n" * (MAX_OWN_LINES + 1),
            "src/optim/u.cpp": 'first = data_rank * piece;\nranks = tensor * config.pipeline;\nif (zero >= 2) {}\n'
                               'token = row % op.sequence_length;\nif (sequence_length % 8) {}\n'
                               'if (cuts_state(zero) || sharding.cuts_state()) {}\n'
                               'print("tensor * pipeline");  // zero == 3\n',
            "src/ops/r.h": "void f(int a, std::map<int, int> b, int c, int d, int e, int f, int g,\n       int h);\n"
                           "void g(const RunConfig& config);\n",
            "src/train/s.h": "void g(const RunConfig& config);\n" * MAX_WHOLE_CONFIGS,
            **{f"src/fit/t{i}.h": "OffloadChoice choice;\n" for i in range(MAX_OFFLOAD_FILES + 1)},
            "tests/long.cpp": "\n" * (MAX_LINES + 1),
            ROOM_LIST: "base   errors\n",
            **{f"src/train/w{i}.h": "\n" * (MAX_OWN_LINES - 2) for i in range(num_long)},
            "src/train/x.h": "".join(f'#include "train/w{i}.h"\n' for i in range(num_long)),
            "README.md": "see /" + "work/notes and src/work/notes\n## The reading path\n| `src/train/x.h` | |\n",
            "build/made.cpp": '"/' + 'work/"\n',
        }
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            if name.startswith(("src/", "cuda/")) and "namespace" not in text:
                own = (namespaces_of(Path(name)) or ["gptrain"])[0]
                text += f"namespace {own} {{\n}}  // namespace {own.replace('inline ', '')}\n"
            (root / name).write_text(text, encoding="utf-8")
        found = {fault.removeprefix(folder + "/").split(": ")[0] for fault in all_faults(root)}
    expected = {"src/base/a.h:2", "src/ops/b.h:3", "src/ops/b.h:4", "src/model/spec/c.h:1", "src/model/spec/c.h:2", "src/elsewhere/e.h", "cuda/f.cu:3",
                "src/base/q.cpp", "src/ops/r.h:1", "src/ops/r.h", "src",
                "src/optim/u.cpp:1", "src/optim/u.cpp:2", "src/optim/u.cpp:3", "src/optim/u.cpp:4", "src/optim/u.cpp:6",
                "src/base/a", "src/data/h.cpp:3", "src/data/i.cpp", "src/data/j.cpp", "cuda/p.cpp:3", "cuda/p.cpp:4", "src/optim/l",
                "src/data/meson.build:1", "src/data/meson.build:7", "src/comm/meson.build:1",
                "tests/long.cpp", "README.md", "README.md:1", "README.md:2"}
    if found != expected:
        sys.exit(f"the check itself is wrong: found {sorted(found)}, expected {sorted(expected)}")


def main():
    check_that_faults_are_found()
    root = Path(sys.argv[1])
    if not (root / "src" / "base").is_dir():
        sys.exit(f"{root} is not the source tree")
    faults = all_faults(root)
    print("\n".join(faults) or "no faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
