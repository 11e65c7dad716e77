#!/usr/bin/env python3
"""Tests that the pages are true: runs their commands, and compares their lists with the program.

Run as test_readme.py SOURCE_ROOT GPTRAIN. Prints each fault.
With --write SOURCE_ROOT GPTRAIN, rewrites the table of keys and the tables of settings.
With --long SOURCE_ROOT GPTRAIN, tests only the figures below commands that take minutes; with --write, too, rewrites them.

README.md comes first, then every other page (*.md) of the tree. Every ```sh block is run, in order, in one copy of the
tree in which build/gptrain is GPTRAIN, so files left by README.md exist for the other pages. A command may only be in
a ```sh block. The first line of a block may be
    # takes minutes    not run: its scripts must exist and parse
    # needs a cluster  the same
    # needs a GPU      the same
    # needs PROGRAM    run if this program exists
    # exits N          the exit code, by default 0
A ```text block right after it shows its output: each line except "..." must be printed, in this order. Figures of
plans for named devices must be equal. Elsewhere numbers and their units may differ, but losses by 1% only, and numbers
with commas (bytes, parameters) not at all.
A table whose head begins with settings and peak shows the results of the preceding ```sh block's dry run with each
row's settings; --write updates these figures, too. In it, "lossy: METHOD +N%" is a row of the measured losses.
Tables of published figures: figures.py.
"""
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import figures

RUN = "runs/tiny"  # run.out of the walk-through
LOSS = re.compile(r"\bloss (\d+\.\d+)")
EXACT = re.compile(r"\b\d{1,3}(?:,\d{3})+\b")
# Recognises commands.
COMMAND = re.compile(r"\$ |(?:build\S*/)?gptrain [a-z]|tools/\S|"
                     r"(?:python3?|bash|meson|ninja|srun|sbatch|mpirun|export) ")
NUMBER = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?[kMGTPE]?(?: ?(?:ms|s|m|h|d|B|KiB|MiB|GiB|TiB)\b)?")


def copy_source_tree(root, folder):
    """Copies the tree without the output of builds and runs."""
    def left_out(parent, names):
        inside = Path(parent).relative_to(root).parts
        if inside == ("data",):
            return [name for name in names if name != "README.md"]
        return [name for name in names
                if name == "__pycache__" or not inside and name.startswith((".git", "build", "runs", "shared"))]

    shutil.copytree(root, folder, ignore=left_out)


def fenced_blocks(text):
    """Yields (language, lines, number of the first line, follows): follows is True if only blank lines separate the
    block from the previous one."""
    blocks, lines, language, follows = [], None, None, False
    for number, line in enumerate(text.splitlines(), 1):
        if lines is not None:
            if line == "```":
                blocks.append((language, lines, start, follows))
                lines, follows = None, True
            else:
                lines.append(line)
        elif line.startswith("```"):
            language, lines, start = line[3:], [], number + 1
        elif line.strip():
            follows = False
    return blocks


def read_pages(root):
    """Returns {path: text}, README.md first."""
    folders = [path for path in sorted(root.iterdir())
               if path.is_dir() and not path.name.startswith((".", "build", "runs", "shared"))]
    paths = [root / "README.md", *(page for folder in folders for page in sorted(folder.rglob("*.md"))
                                   if page.relative_to(root).parts[:2] != ("data", "corpus"))]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def without_blocks(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def section_of(text, heading):
    """Returns the text from a heading to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def table_keys(section):
    """Returns the words in code in the first column of a table."""
    rows = re.findall(r"^\| *(`[^|]*?) *\|", section, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`([^`]+)`", row)}


class Program:
    """The executable that the pages describe."""

    def __init__(self, path):
        self.path = path

    def output(self, *arguments):
        return subprocess.run([self.path, *arguments], check=True, capture_output=True, text=True).stdout

    def helps(self, command=()):
        """Returns {command: its help}, subcommands included."""
        text = self.output(*command, "--help")
        helps = {" ".join(command): text}
        listed = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.MULTILINE)
        for name in re.findall(r"^  (\S+)", listed.group(1), re.MULTILINE) if listed else []:
            helps.update(self.helps((*command, name)))
        return helps


def check_scripts(root, lines):
    for line in lines:
        for word in line.split("#")[0].split():
            script = root / word
            if not word.startswith("tools/"):
                continue
            if not os.access(script, os.R_OK if script.suffix == ".sbatch" else os.X_OK):
                yield f"{word}: no such script, or it cannot be executed"
            elif script.suffix != ".py" and subprocess.run(["bash", "-n", script], check=False).returncode != 0:
                yield f"{word} does not parse"


def masked(line):
    return " ".join(NUMBER.sub("#", line).replace("# #", "#").split())


def is_plan(lines):
    """Returns True if every command of a block is a plan or a dry run for a named device.

    Its output then does not depend on this machine.
    """
    commands = "\n".join(lines).replace("\\\n", " ").splitlines()
    named = re.compile(r"gptrain plan (?!.*--target \S*[./])|gptrain train .*--dry-run.* --target [\w-]+(?: |$)")
    return all(named.search(command) for command in commands if not command.startswith("#"))


def agree(shown, printed, exactly):
    if exactly:
        return shown.split() == printed.split()
    losses = zip(LOSS.findall(shown), LOSS.findall(printed))
    return (masked(shown) == masked(printed) and EXACT.findall(shown) == EXACT.findall(printed) and
            all(abs(float(a) - float(b)) <= 0.01 * float(b) for a, b in losses))


def output_faults(shown, printed, exactly):
    remaining = iter(printed.splitlines())
    for line in shown:
        if line.strip() not in ("", "...") and not any(agree(line, other, exactly) for other in remaining):
            return [f"shows a line that is not printed, or not in this place: {line}"]
    return []


def run_blocks(page, text, folder):
    """Runs the blocks of a page in `folder`; yields faults."""
    environment = dict(os.environ, OMP_WAIT_POLICY="passive")  # other tests need the cores, too
    printed, exactly = None, False
    for language, lines, number, follows in fenced_blocks(text):
        where = f"{page}:{number}"
        if language not in ("sh", "text"):
            yield from (f"{where}: a command in a block that is not run: {line}" for line in lines
                        if COMMAND.match(line))
        if language == "text" and follows and printed is not None:
            yield from (f"{where}: {fault}" for fault in output_faults(lines, printed, exactly))
        printed = None
        if language != "sh":
            continue
        first = lines[0] if lines else ""
        needed = re.fullmatch(r"# needs (\S+)", first)
        if needed and not shutil.which(needed.group(1)):
            print(f"{where}: not run, there is no {needed.group(1)}: {'; '.join(lines[1:])}")
            continue
        if first in ("# takes minutes", "# needs a cluster", "# needs a GPU"):
            print(f"{where}: not run, it {first[2:]}: {'; '.join(lines[1:])}")
            yield from (f"{where}: {fault}" for fault in check_scripts(folder, lines[1:]))
            continue
        expected = re.fullmatch(r"# exits (\d+)", first)
        status = int(expected.group(1)) if expected else 0
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join(lines)], cwd=folder, env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False)
        printed, exactly = done.stdout, is_plan(lines)
        if done.returncode != status:
            yield f"{where}: exit code {done.returncode}, not {status}:\n{printed}"


def key_table(text):
    """Returns the table of keys with its head lines."""
    return re.search(r"^\| key \| default \|.*\n(?:\|.*\n)*", section_of(text, "Every key"), re.MULTILINE).group()


def config_faults(text, program):
    shown, printed = key_table(text).splitlines(), program.output("config", "keys").splitlines()
    yield from (f"the table of keys lacks this row: {row}" for row in printed if row not in shown)
    yield from (f"no key has this row: {row}" for row in shown if row not in printed)
    if not set(shown) ^ set(printed) and shown != printed:
        yield "the rows of the table of keys are in another order than gptrain config keys prints them"
    presets = section_of(text, "Presets")
    schema = json.loads(program.output("config", "schema"))
    for preset in schema["properties"]["model"]["properties"]["preset"]["enum"]:
        if f"`{preset}`" not in presets:
            yield f"the preset {preset} is not named"


READING = "The reading path"
READING_ROW = re.compile(r"^\| `([\w./]+)` \|", re.MULTILINE)


def reading_faults(text, root):
    """Yields the files that the reading path names and that do not exist."""
    for name in READING_ROW.findall(section_of(text, READING)):
        if not (root / name).is_file():
            yield f"the reading path: there is no {name}"


SETTINGS_HEAD = "| settings | peak | saved | step | longer |"
LOSSES = "tests/bench/NOTES.md"


def sh_blocks(text):
    return {number: lines for language, lines, number, _ in fenced_blocks(text) if language == "sh"}


def settings_rows(text):
    """Yields (line number, row index, command, cells) of each row of the tables of settings."""
    blocks = sh_blocks(text)
    command, row = None, None
    for number, line in enumerate(text.splitlines(), 1):
        if number in blocks:
            command = shlex.split("\n".join(blocks[number]).replace("\\\n", " "), comments=True)
        if line.startswith(SETTINGS_HEAD):
            row = -2  # the head, and the line below it
        elif not line.startswith("|"):
            row = None
        elif row is not None:
            row += 1
            if row >= 0:
                yield number, row, command, [cell.strip() for cell in line.strip("|").split("|")]


def settings_faults(page, text, root, program, losses):
    """Yields, for each wrong row, its place, its content, and the correct content; None if that is unknown."""
    given = None
    for number, row, command, cells in settings_rows(text):
        where = f"{page}:{number}"
        sets = [word for setting in re.findall(r"`([^`]+)`", cells[0]) for word in ("--set", setting)]
        done = subprocess.run([program.path, *command[1:], "--json", *sets], cwd=root, capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            yield where, f"cannot be planned: {done.stderr.strip()}", None
            continue
        plan = json.loads(done.stdout)
        given = plan if row == 0 else given
        saved = (given["peak_bytes"] - plan["peak_bytes"]) / 2**30
        longer = 100 * (plan["step_seconds"] / given["step_seconds"] - 1)
        figures = [f"{plan['peak_bytes'] / 2**30:.1f} GiB" + ("" if plan["fits"] else ", too large"),
                   f"{saved:.1f} GiB", f"{plan['step_seconds']:.2f} s", f"{round(longer, 1) + 0.0:+.1f}%"]
        if row == 0:
            figures[1] = figures[3] = ""
        if cells[1:5] != figures:
            yield where, f"{cells[1:5]}, and the dry run says {figures} (--write corrects it)", figures
        for method, change in re.findall(r"lossy: (.+) ([+-]\d+\.\d\d%)", cells[-1]):
            if not re.search(rf"^\| {re.escape(method)} \|.*\| {re.escape(change)} \|", losses, re.MULTILINE):
                yield where, f"no loss of {LOSSES} is {method} {change}", None


def write_pages(root, program):
    """Rewrites the table of keys and the tables of settings."""
    pages = read_pages(root)
    for page, text in pages.items():
        lines = text.splitlines()
        for where, fault, wanted in settings_faults(page, text, root, program, pages[LOSSES]):
            if wanted is None:
                print(f"{where}: {fault}")
                continue
            number = int(where.rsplit(":", 1)[1])
            cells = [cell.strip() for cell in lines[number - 1].strip("|").split("|")]
            lines[number - 1] = re.sub(" {2,}", " ", f"| {' | '.join([cells[0], *wanted, *cells[5:]])} |")
        new = figures.corrected("\n".join(lines) + "\n", sh_blocks(text), figures.Printed(program.path, root))
        if new != text:
            (root / page).write_text(new, encoding="utf-8")
    page = root / "configs" / "README.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace(key_table(text), program.output("config", "keys")), encoding="utf-8")


def command_faults(text, program):
    helps = program.helps()
    for command, help_text in helps.items():
        if f"gptrain {command}".strip() not in text:
            yield f"the command is not named: gptrain {command}"
        for option in re.findall(r"^  (?:-\w,)?(--[a-z-]+)", help_text, re.MULTILINE):
            if not re.search(re.escape(option) + r"(?![\w-])", text):
                yield f"the option {option} of gptrain {command} is not named"
    every = " ".join(helps.values())
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section_of(text, "Commands"))):
        if option not in every:
            yield f"there is no option {option}"
    footer = helps[""].split("Exit codes: ")[1].replace("\n", " ")
    codes = dict(re.findall(r"(\d+) ([^,.]+)", footer))
    table = dict(re.findall(r"^\| (\d+) \| ([^|]+?) \|", section_of(text, "Exit codes"), re.MULTILINE))
    for code in sorted(codes.keys() | table.keys(), key=int):
        if not table.get(code, "").startswith(codes.get(code, "?")):
            yield f"exit code {code}: \"{codes.get(code)}\" in the help, \"{table.get(code)}\" in the table"


def house_faults(text, root):
    rooms = [line.split()[0] for line in (root / "src" / "rooms.txt").read_text(encoding="utf-8").splitlines()]
    listed = re.findall(r"^src/(\S+)", "\n".join(sum((lines for _, lines, _, _ in fenced_blocks(text)), [])),
                        re.MULTILINE)
    if listed != rooms:
        yield f"the map lists {listed}, and the house is built as {rooms}"
    for folder in sorted(path.name for path in (root / "tests").iterdir() if (path / "meson.build").is_file()):
        if not re.search(rf"^tests/.*\b{folder}\b", text, re.MULTILINE):
            yield f"the map does not name tests/{folder}"


def run_faults(text, folder, program):
    """Compares the files left by the walk-through with the lists of files and keys."""
    run = folder / RUN
    files = table_keys(section_of(text, "The run's folder"))
    for name in sorted(files):
        if not list(run.glob(name)):
            yield f"the run's folder holds no {name}"
    for name in sorted(path.name for path in run.iterdir()):
        if not any(fnmatch.fnmatch(name, listed.split("/")[0]) for listed in files):
            yield f"{name} of the run's folder is not described"
    with open(run / "metrics.jsonl", encoding="utf-8") as metrics:
        written = {key for line in metrics for key in json.loads(line)}
    described = table_keys(section_of(text, "metrics.jsonl"))
    for key in sorted(written ^ described):
        yield f"metrics.jsonl: {key} is {'not described' if key in written else 'described, but not written'}"
    dry_run = subprocess.run([program.path, "train", "runs/tiny.json", "--dry-run", "--json"], cwd=folder,
                             capture_output=True, text=True, check=True).stdout
    for key in json.loads(dry_run):
        if f"`{key}`" not in text:
            yield f"the key {key} of the dry run's JSON is not named"


def anchors(text):
    """Returns the link fragments of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def path_faults(page, text, folder, pages):
    """Yields paths that exist neither in the source tree nor after the walk-through, and dangling links."""
    prose = without_blocks(text)
    # Pages other than READMEs name paths of formats or older trees.
    named = re.findall(r"`([\w.*-]+(?:/[\w.*-]*)+)`", prose) if page.endswith("README.md") else []
    here = (folder / page).parent
    for path in sorted(set(named)):
        if path.startswith(("OUT/", "data/corpus/")):  # written by a run and by the quickstart
            continue
        if not any(list(start.glob(path)) for start in (folder, here, folder / RUN)):
            yield f"{page}: there is no {path}"
    for link in sorted(set(re.findall(r"\]\(([^)]+)\)", prose))):
        if "://" in link:
            continue
        name, _, fragment = link.partition("#")
        target = (here / name).resolve() if name else folder / page
        if not target.is_file():
            yield f"{page}: there is no {name}"
        elif fragment and fragment not in anchors(pages.get(target.relative_to(folder.resolve()).as_posix(), "")
                                                  if name else text):
            yield f"{page}: no heading for the link {link}"


def check_that_faults_are_found(pages, root, folder, program):
    """Checks the checks: each must find a planted fault."""
    text = "\n".join(pages.values())

    def without(old, new=""):
        if old not in text:
            sys.exit(f"no page holds \"{old}\", which this test changes to see whether it notices")
        return text.replace(old, new)

    def paths(added):
        return path_faults("README.md", pages["README.md"] + added, folder, pages)

    def runs(added):
        return run_blocks("README.md", added, folder)

    def settings(cells):
        added = ("```sh\nbuild/gptrain train configs/gpt2-124m.json --dry-run --target h100\n```\n\n"
                 f"{SETTINGS_HEAD} result |\n|---|---|---|---|---|---|\n| {cells} |\n")
        return settings_faults("README.md", added, folder, program, pages[LOSSES])

    def published(cells):
        added = ("```sh\nbuild/gptrain train configs/gpt2-124m.json --dry-run --target h100\n```\n\n"
                 f"{figures.FIGURES_HEAD}\n|---|---|---|---|---|---|---|\n| size | | {cells} |\n")
        return figures.figures_faults("README.md", added, sh_blocks(added), figures.Printed(program.path, folder))

    planned = list(settings("as given | | | | | "))[0][2]

    checks = [
        ("a saving", settings("as given | 0.1 GiB | | 0.10 s | | ")),
        ("a measured loss", settings(f"as given | {' | '.join(planned)} | lossy: adamw-8bit +9.99%")),
        ("a figure of ours", published("`total_parameters / 1e6` | 124.5 M | 117 M | +6.4% | ")),
        ("a large difference", published("`total_parameters / 1e6` | 124.4 M | 100 M | +24.4% | ")),
        ("a default", config_faults(without("| `0.02` |", "| `0.03` |"), program)),
        ("a preset", config_faults(without("`gpt2-124m`, "), program)),
        ("an option", command_faults(without("--top-k"), program)),
        ("an exit code", command_faults(without("| 75 |", "| 76 |"), program)),
        ("a room", house_faults(without("src/mesh "), root)),
        ("a file to read", reading_faults(without("`src/ops/linear_ops.h` | ", "`src/ops/linear_ops_h` | "), root)),
        ("a metric", run_faults(without("`grad_norm`"), folder, program)),
        ("a path", paths("\n`src/base/nothing.h`\n")),
        ("a link", paths("\n[a](nothing.md)\n")),
        ("a link to a heading", paths("\n[a](configs/README.md#nothing)\n")),
        ("an exit status", runs("```sh\n# exits 3\nexit 2\n```\n")),
        ("an output", runs("```sh\necho loss 1.5\n```\n```text\nlosses 1.5\n```\n")),
        ("a figure", runs("```sh\necho peak 5,852,910,848\n```\n```text\npeak 5,852,910,849\n```\n")),
        ("a figure of a plan", runs("```sh\ntrue build/gptrain plan x; echo 21.57%\n```\n"
                                    "```text\n21.56%\n```\n")),
        ("a block that is not run", runs("```\ngptrain train CONFIG\n```\n")),
        ("a script", check_scripts(folder, ["tools/nothing.sh"])),
    ]
    return [f"the check of the pages does not notice {what} that is wrong" for what, faults in checks
            if not list(faults)]


def check_long_figures(root, program, write):
    """Tests or rewrites the figures below commands that take minutes. Returns the exit code."""
    printed, faults = figures.Printed(program.path, root), []
    for page, text in read_pages(root).items():
        if write:
            (root / page).write_text(figures.corrected(text, sh_blocks(text), printed, True), encoding="utf-8")
        else:
            faults += [f"{where}: {fault}" for where, fault, _ in figures.figures_faults(page, text, sh_blocks(text), printed, True)]
    print("\n".join(faults) or "the figures below commands that take minutes are the program's")
    return 1 if faults else 0


def main():
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--write", "--long")]
    root, program = Path(arguments[0]).resolve(), Program(os.path.abspath(arguments[1]))
    if "--long" in sys.argv[1:]:
        return check_long_figures(root, program, "--write" in sys.argv[1:])
    if "--write" in sys.argv[1:]:
        write_pages(root, program)
        return 0
    pages = read_pages(root)
    text = "\n".join(pages.values())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "gptrain"
        copy_source_tree(root, folder)
        (folder / "build").mkdir()
        (folder / "build" / "gptrain").symlink_to(program.path)
        faults = [*config_faults(text, program), *command_faults(text, program),
                  *house_faults(pages["README.md"], root), *reading_faults(pages["README.md"], root)]
        printed = figures.Printed(program.path, folder)
        for page, content in pages.items():
            faults += run_blocks(page, content, folder)
            faults += [f"{where}: {fault}"
                       for where, fault, _ in [*settings_faults(page, content, folder, program, pages[LOSSES]),
                                               *figures.figures_faults(page, content, sh_blocks(content), printed)]]
        if (folder / RUN).is_dir():
            faults += run_faults(text, folder, program)
            for page, content in pages.items():
                faults += path_faults(page, content, folder, pages)
        if not faults:
            faults = check_that_faults_are_found(pages, root, folder, program)
    print("\n".join(faults) or "the pages and the program agree")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
