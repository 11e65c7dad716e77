#!/usr/bin/env python3
"""Comments are plain: each room has at most as many hard ones as the table below allows. Figures may only fall.

Run as test_words.py SOURCE_ROOT. Prints each room that has too many, with the file and line of each.
Run as test_words.py --lower SOURCE_ROOT, it lowers the figures of the table to those of the tree.

A sentence is hard if its first word has no noun (FIRST_WORDS). Counted are sentences of comments on lines of their own
and of Python's docstrings, comments behind code, and every "what". A room is a folder of src/, or cuda, tests or tools.
A room that is not in the table has no hard comment.
"""
import ast
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Most sentences and comments behind code that may begin with a hard word, and most uses of "what", in a room.
MOST = {
    "cuda": (0, 0, 3),
    "src/base": (0, 0, 1),
    "src/cli": (0, 0, 2),
    "src/comm": (0, 0, 2),
    "src/machine": (0, 0, 1),
    "tools": (0, 0, 2),
}
KINDS = ("sentences that begin without a noun", "comments behind code that begin without a noun", 'uses of "what"')
FIRST_WORDS = ("of", "that", "what", "those", "which", "whose", "such", "likewise")
HARD = re.compile(rf"(?:{'|'.join(FIRST_WORDS)})\b", re.IGNORECASE)
WHAT = re.compile(r"\bwhat\b", re.IGNORECASE)
SENTENCE_END = re.compile(r"(?<=[.;:])\s+(?=[A-Z`])")
# A comment behind code. A quote after the mark means that the mark is probably within a text.
BEHIND_CODE = re.compile(r"\s//\s*(\S[^\"]*)$")
NO_PROSE = re.compile(r"namespace|clang-format|NOLINT|SPDX")
C_SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".in"}
SCRIPT_SUFFIXES = {".py", ".sh"}


def c_comments(lines):
    """Yields (line number, True if behind code, text) for each line of C++ or CUDA that has a comment."""
    in_block = False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if in_block or text.startswith("/*"):
            in_block = "*/" not in text
            yield number, False, text.removesuffix("*/").strip("/* ")
        elif text.startswith("//"):
            yield number, False, text.strip("/ ")
        elif behind := BEHIND_CODE.search(line.rstrip()):
            yield number, True, behind[1]


def script_comments(lines):
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#") and not line.startswith("#!"):
            yield number, False, line.strip().strip("# ")


def docstrings(source):
    """Yields the comment of each docstring, line by line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
            for number, line in enumerate(text.splitlines(), node.body[0].lineno):
                yield number, False, line.strip()


def sentences(comments):
    """Yields (line number, True if behind code, sentence). Neighbouring lines of whole comments are one text."""
    start, end, text = 0, 0, ""
    for number, behind, words in [*comments, (0, True, "")]:
        if text and (behind or number != end + 1):
            for sentence in SENTENCE_END.split(text):
                yield start, False, sentence
            text = ""
        if behind and number > 0:
            yield number, True, words
        elif not behind:
            start, end, text = start if text else number, number, f"{text} {words}".strip()


def room_of(path):
    return "/".join(path.parts[:2]) if path.parts[0] == "src" else path.parts[0]


def comments_of(path):
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    if path.suffix in C_SUFFIXES:
        return [c_comments(lines)]
    return [script_comments(lines), docstrings(source)] if path.suffix == ".py" else [script_comments(lines)]


def hard_comments(root):
    """Returns {room: for each of KINDS a list of "PATH:LINE: sentence"}."""
    found = defaultdict(lambda: [[] for _ in KINDS])
    for path in sorted(file for folder in ("src", "cuda", "tests", "tools") for file in (root / folder).rglob("*.*")):
        if path.suffix not in C_SUFFIXES | SCRIPT_SUFFIXES or path == Path(__file__).resolve():
            continue
        name = path.relative_to(root)
        hard = found[room_of(name)]
        for comments in comments_of(path):
            for line, behind, sentence in sentences(comments):
                if not re.search("[a-z]{3}", sentence) or NO_PROSE.match(sentence):
                    continue
                place = f"{name}:{line}: {sentence}"
                if HARD.match(sentence):
                    hard[1 if behind else 0].append(place)
                hard[2] += [place] * len(WHAT.findall(sentence))
    return found


def faults(root, most):
    found = hard_comments(root)
    for room, hard in sorted(found.items()):
        for kind, places, allowed in zip(KINDS, hard, most.get(room, (0, 0, 0)), strict=True):
            if len(places) > allowed:
                yield f"{room}: {len(places)} {kind}, at most {allowed} may be there: begin with a noun or a verb"
                yield from (f"  {place}" for place in places)


def lower(root):
    """Rewrites the table in this file. No figure rises."""
    found = hard_comments(root)
    rows = ""
    for room, allowed in sorted(MOST.items()):
        figures = tuple(min(len(places), old) for places, old in zip(found[room], allowed, strict=True))
        if any(figures):
            rows += f'    "{room}": {figures},\n'
    path = Path(__file__)
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"(?ms)^MOST = \{\n.*?^\}", lambda _: f"MOST = {{\n{rows}}}", text), encoding="utf-8")


def check_that_faults_are_found():
    """Checks the check: it must find planted comments, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = {
            "src/base/a.h": "// Of\n// two lines. Says what it is.\nint b;  // of the file\nint c;  // its size\n",
            "src/base/b.cpp": '#include <x>\nf("a // of b");\n/* Those\n * of a block */\n}  // namespace what\n',
            "tools/c.py": '"""Text.\n\n  Whose is it: Which one\n"""\nd = "# of"  # of it\n\n\ndef e():\n    """What."""\n',
            "tests/f.sh": "#!/bin/sh of\n# Such a thing\n",
        }
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        found = {room: [[place.split(": ")[0] for place in places] for places in hard]
                 for room, hard in hard_comments(root).items()}
        unlimited = list(faults(root, {room: (9, 9, 9) for room in found}))
        strict = list(faults(root, {"src/base": (2, 0, 1), "tests": (1, 0, 0), "tools": (3, 0, 1)}))
    expected = {"src/base": [["src/base/a.h:1", "src/base/b.cpp:3"], ["src/base/a.h:3"], ["src/base/a.h:1"]],
                "tests": [["tests/f.sh:2"], [], []],
                "tools": [["tools/c.py:1", "tools/c.py:1", "tools/c.py:9"], [], ["tools/c.py:9"]]}
    if found != expected or unlimited or len(strict) != 2 or "src/base/a.h:3: of the file" not in strict[1]:
        sys.exit(f"the check itself is wrong: found {found}, {unlimited} and {strict}")


def main():
    check_that_faults_are_found()
    root = Path(sys.argv[-1]).resolve()
    if not (root / "src" / "base").is_dir():
        sys.exit(f"{root} is not the source tree")
    if "--lower" in sys.argv:
        lower(root)
        return 0
    found = list(faults(root, MOST))
    print("\n".join(found) or "no faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
