#!/usr/bin/env python3
"""README.md says what gptrain does: its commands are run and what it lists is compared with the program.

Run as test_readme.py SOURCE_ROOT GPTRAIN. Prints each fault.

Every ```sh block is run, in order, in one copy of the source tree where build/gptrain is GPTRAIN. The first line of a
block may be
    # takes minutes    not run: its scripts must exist and parse
    # needs a cluster  the same
    # needs a GPU      the same
    # needs PROGRAM    run where there is this program
    # exits N          the exit code, which is 0 otherwise
A ```text block right after it shows its output: each line, "..." apart, must be printed in this order; numbers and
their units may differ, but losses by 1% only, and numbers with commas (bytes, parameters) not at all.
"""
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = "runs/tiny"  # run.out of the walk-through
PAGES = ["src/data/README.md"]  # their blocks are run, too, and name commands and options
LOSS = re.compile(r"\bloss (\d+\.\d+)")
EXACT = re.compile(r"\b\d{1,3}(?:,\d{3})+\b")
NUMBER = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?[kMGTPE]?(?: ?(?:ms|s|m|h|d|B|KiB|MiB|GiB|TiB)\b)?")


def copy_source_tree(root, folder):
    """Without what builds and runs leave behind."""
    def left_out(parent, names):
        inside = Path(parent).relative_to(root).parts
        if inside == ("data",):
            return [name for name in names if name != "README.md"]
        return [name for name in names
                if name == "__pycache__" or not inside and name.startswith((".git", "build", "runs", "shared"))]

    shutil.copytree(root, folder, ignore=left_out)


def fenced_blocks(text):
    """(language, lines, number of the first line, follows): follows is True where only blank lines part it from the
    block before it."""
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


def without_blocks(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def section_of(text, heading):
    """The text from a heading to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def table_keys(section):
    """The words in code of the first column of a table."""
    rows = re.findall(r"^\| *(`[^|]*?) *\|", section, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`([^`]+)`", row)}


class Program:
    """The executable that is described."""

    def __init__(self, path):
        self.path = path

    def output(self, *arguments):
        return subprocess.run([self.path, *arguments], check=True, capture_output=True, text=True).stdout

    def helps(self, command=()):
        """{command: its help}, subcommands included."""
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


def agree(shown, printed):
    losses = zip(LOSS.findall(shown), LOSS.findall(printed))
    return (masked(shown) == masked(printed) and EXACT.findall(shown) == EXACT.findall(printed) and
            all(abs(float(a) - float(b)) <= 0.01 * float(b) for a, b in losses))


def output_faults(shown, printed):
    remaining = iter(printed.splitlines())
    for line in shown:
        if line.strip() not in ("", "...") and not any(agree(line, other) for other in remaining):
            return [f"shows a line that is not printed, or not in this place: {line}"]
    return []


def run_blocks(text, folder, page="README.md"):
    """Runs the blocks in `folder`; yields faults."""
    environment = dict(os.environ, OMP_WAIT_POLICY="passive")  # other tests want the cores, too
    printed = None
    for language, lines, number, follows in fenced_blocks(text):
        where = f"{page}:{number}"
        if language == "text" and follows and printed is not None:
            yield from (f"{where}: {fault}" for fault in output_faults(lines, printed))
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
        printed = done.stdout
        if done.returncode != status:
            yield f"{where}: exit code {done.returncode}, not {status}:\n{printed}"


def config_rows(schema):
    """The rows of README's table of keys."""
    def row(path, field, required):
        meaning, *notes = field["description"].split("; only with: ")
        meaning, _, derived = meaning.partition("; default: ")
        if "default" in field:
            default = f"`{json.dumps(field['default'])}`"
        elif derived:
            default = derived
        else:
            default = "required" if required or notes else "-"
        if "enum" in field and path != "model.preset":
            meaning = f"{', '.join(f'`{word}`' for word in field['enum'])}: {meaning}"
        return f"| `{path}` | {default} | {meaning}{''.join(f' (only if {note})' for note in notes)} |"

    for section, content in schema["properties"].items():
        required = set(content.get("required", []))
        if section == "model":
            required.update(*(choice["required"] for choice in content["anyOf"] if choice["required"] != ["preset"]))
        for key, field in content["properties"].items():
            yield row(f"{section}.{key}", field, key in required)
    sources = schema["properties"]["data"]["properties"]
    for key, field in sources["train"]["items"]["properties"].items():
        yield row(f"data.train[].{key}", field, key in sources["train"]["items"]["required"])


def config_faults(text, program):
    schema = json.loads(program.output("config", "schema"))
    rows = list(config_rows(schema))
    for row in rows:
        if row not in text.splitlines():
            yield f"the table of keys lacks this row: {row}"
    described = {row.split("`")[1] for row in rows}
    for key in table_keys(section_of(text, "Every key")) - described:
        yield f"the table of keys has a key that does not exist: {key}"
    presets = section_of(text, "Presets")
    for preset in schema["properties"]["model"]["properties"]["preset"]["enum"]:
        if f"`{preset}`" not in presets:
            yield f"the preset {preset} is not named"


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
            yield f"exit code {code}: \"{codes.get(code)}\" in the help, \"{table.get(code)}\" in README.md"


def house_faults(text, root):
    rooms = re.search(r"foreach room : \[(.*?)\]", (root / "meson.build").read_text(), re.DOTALL)
    rooms = re.findall(r"'([^']+)'", rooms.group(1))
    listed = re.findall(r"^src/(\S+)", "\n".join(sum((lines for _, lines, _, _ in fenced_blocks(text)), [])),
                        re.MULTILINE)
    if listed != rooms:
        yield f"the map lists {listed}, and the house is built as {rooms}"
    for folder in sorted(path.name for path in (root / "tests").iterdir() if (path / "meson.build").is_file()):
        if not re.search(rf"^tests/.*\b{folder}\b", text, re.MULTILINE):
            yield f"the map does not name tests/{folder}"


def run_faults(text, folder, program):
    """What the walk-through left behind, against the lists of files and keys."""
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


def path_faults(text, folder):
    """Paths that exist neither in the source tree nor after the walk-through."""
    prose = without_blocks(text)
    paths = {path for path in re.findall(r"`([\w.*-]+(?:/[\w.*-]*)+)`", prose) if not path.startswith("OUT/")}
    paths.update(link for link in re.findall(r"\]\(([^)#]+)\)", prose) if "://" not in link)
    for path in sorted(paths):
        if not list(folder.glob(path)) and not list((folder / RUN).glob(path)):
            yield f"there is no {path}"


def check_that_faults_are_found(text, root, folder, program):
    """A check that finds nothing must be one that would have found something."""
    def without(old, new=""):
        if old not in text:
            sys.exit(f"README.md does not hold \"{old}\", which this test changes to see whether it notices")
        return text.replace(old, new)

    checks = [
        ("a default", config_faults(without("| `0.02` |", "| `0.03` |"), program)),
        ("a preset", config_faults(without("`gpt2-124m`, "), program)),
        ("an option", command_faults(without("--top-k"), program)),
        ("an exit code", command_faults(without("| 75 |", "| 76 |"), program)),
        ("a room", house_faults(without("src/mesh "), root)),
        ("a metric", run_faults(without("`grad_norm`"), folder, program)),
        ("a path", path_faults(text + "\n`src/base/nothing.h`\n", folder)),
        ("a link", path_faults(text + "\n[a](nothing.md)\n", folder)),
        ("an exit status", run_blocks("```sh\n# exits 3\nexit 2\n```\n", folder)),
        ("an output", run_blocks("```sh\necho loss 1.5\n```\n```text\nlosses 1.5\n```\n", folder)),
        ("a figure", run_blocks("```sh\necho peak 5,852,910,848\n```\n```text\npeak 5,852,910,849\n```\n", folder)),
        ("a script", check_scripts(folder, ["tools/nothing.sh"])),
    ]
    return [f"the check of README.md does not notice {what} that is wrong" for what, faults in checks
            if not list(faults)]


def main():
    root, program = Path(sys.argv[1]), Program(os.path.abspath(sys.argv[2]))
    text = (root / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "gptrain"
        copy_source_tree(root, folder)
        (folder / "build").mkdir()
        (folder / "build" / "gptrain").symlink_to(program.path)
        pages = {page: (root / page).read_text(encoding="utf-8") for page in PAGES}
        faults = [*run_blocks(text, folder),
                  *(fault for page, content in pages.items() for fault in run_blocks(content, folder, page)),
                  *config_faults(text, program), *command_faults("\n".join([text, *pages.values()]), program),
                  *house_faults(text, root)]
        if (folder / RUN).is_dir():
            faults += [*run_faults(text, folder, program), *path_faults(text, folder)]
        if not faults:
            faults = check_that_faults_are_found(text, root, folder, program)
    print("\n".join(faults) or "README.md and the program agree")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
