"""Tables of published figures on the pages: each figure of ours is computed from the output of a command.

The head of a table is FIGURES_HEAD, and the last command of gptrain in the ```sh block before it takes --json. Cells of a
row:
    figure      its name
    with        in code, added to the command: key=value is given to --set, an option or a config replaces the command's
    value       in code, a Python expression of the keys of the JSON; `fitting`: the points of --fit that have a model
    ours        the value in the unit of the published figure
    published   the published figure, or - if there is none
    difference  ours over published, less 1
    why         the reason of a difference of more than 15%
A value that ends with .predicted is a step in a published layout: its published figure must be the file's. The line
MEAN must state the mean difference of all these, and their number. A row whose figure ends with SEARCHED shows a time that
must not exceed the time of the row before it. Rows of a block that begins with LONG are computed by --long alone.
"""
import json
import math
import re
import shlex
import subprocess
from types import SimpleNamespace

FIGURES_HEAD = "| figure | with | value | ours | published | difference | why |"
SEARCHED = ", searched"
LONG = "# takes minutes"
MOST = 0.15  # a difference beyond this needs a reason, in a row and on average
# Files of mixtures of experts, and how far their steps may differ at most and on average.
MIXTURES = re.compile(r"published/(mixtral|grok-1|qwen3-\w+)\.json")
MOST_OF_MIXTURE, MOST_OF_MIXTURES = 0.2, 0.1
MEAN = re.compile(r"^The (\d+) steps in published layouts differ by ([\d.]+)% on average\.", re.MULTILINE)
AMOUNT = re.compile(r"([\d.,]+)( .*|%.*)?")


def command_of(lines):
    """Returns the words of a block's last command of gptrain, without a picture to write; None if there is none."""
    commands = [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.startswith("build/gptrain ")]
    if not commands:
        return None
    words = shlex.split(commands[-1], comments=True)[1:]
    if "--svg" in words:
        del words[words.index("--svg"):words.index("--svg") + 2]
    return words


def figure_rows(text, blocks):
    """Yields (line number, command, whether it takes long, cells) of each row. `blocks`: {first line: lines} of ```sh blocks."""
    command, row, is_long = None, None, False
    for number, line in enumerate(text.splitlines(), 1):
        if number in blocks:
            command, is_long = command_of(blocks[number]), blocks[number][:1] == [LONG]
        if line == FIGURES_HEAD:
            row = -2  # the head, and the line below it
        elif not line.startswith("|"):
            row = None
        elif row is not None:
            row += 1
            if row >= 0:
                yield number, command, is_long, [cell.strip() for cell in line.strip("|").split("|")]


def with_options(command, additions):
    """Returns the command with the words that a row adds."""
    words = list(command)
    for addition in additions:
        if addition.endswith(".json") and not addition.startswith("--"):
            words = [addition if word.startswith("configs/") else word for word in words]
            continue
        if not addition.startswith("--"):
            words += ["--set", addition]
            continue
        option, *values = shlex.split(addition)
        if option in words:
            at = words.index(option)
            del words[at:at + 1 + len(values)]
        words += [option, *values]
    return [*words, "--json"]


class Printed:
    """Output of commands, each run once."""

    def __init__(self, program, root):
        self.program, self.root, self.known = program, root, {}

    def names(self, command):
        """Returns the keys of the command's JSON, with objects as namespaces; or the error's text."""
        if tuple(command) not in self.known:
            done = subprocess.run([self.program, *command], cwd=self.root, capture_output=True, text=True, check=False)
            self.known[tuple(command)] = done.stderr.strip() if done.returncode else vars(
                json.loads(done.stdout, object_hook=lambda entries: SimpleNamespace(**entries)))
        return self.known[tuple(command)]


def value_of(expression, names):
    fitting = [point for point in names.get("points", []) if hasattr(point, "total_parameters")]
    allowed = {"__builtins__": {}, "max": max, "min": min, "sum": sum, "fitting": fitting, **names}
    return eval(expression, allowed)  # pylint: disable=eval-used


def shown(value, like):
    """Returns the value with four digits in the unit of `like`, and as yes or no if it is a truth."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    unit = AMOUNT.fullmatch(like)
    digits = f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"
    return digits + (unit.group(2) or "" if unit else "")


def amount(text):
    found = AMOUNT.fullmatch(text)
    return float(found.group(1).replace(",", "")) if found else math.nan


def correct_cells(cells, value):
    """Returns the cells `ours` and `difference` for a value."""
    published = cells[4]
    ours = shown(value, cells[3] if published == "-" else published)
    if published == "-":
        return ours, "-"
    if isinstance(value, bool):
        return ours, "none" if ours == published else "other"
    return ours, f"{round(100 * (value / amount(published) - 1), 1) + 0.0:+.1f}%"  # no -0.0


def row_faults(cells, command, printed, layouts):
    """Yields (content that is wrong, correct cells or None), and adds a step in a published layout to `layouts`."""
    additions, expressions = re.findall(r"`([^`]+)`", cells[1]), re.findall(r"`([^`]+)`", cells[2])
    if command is None or len(cells) != 7 or len(expressions) != 1:
        yield "no command of gptrain stands above this row, or its cells are not those of the head", None
        return
    names = printed.names(with_options(command, additions))
    if isinstance(names, str):
        yield f"the command fails: {names}", None
        return
    try:
        value = value_of(expressions[0], names)
    except (NameError, AttributeError, IndexError, TypeError, SyntaxError) as error:
        yield f"{expressions[0]}: {error}", None
        return
    if cells[4] != "-" and not isinstance(value, bool) and not amount(cells[4]) > 0:
        yield f"the published figure is no number: {cells[4]}", None
        return
    correct = correct_cells(cells, value)
    if (cells[3], cells[5]) != correct:
        yield f"{cells[3]}, {cells[5]}, and the program says {correct[0]}, {correct[1]} (--write corrects it)", correct
    far = correct[1] == "other" or correct[1].endswith("%") and abs(float(correct[1][:-1])) > 100 * MOST
    if far and not cells[6]:
        yield f"{correct[1]} is more than {MOST:.0%}, and the row does not say why", None
    if expressions[0].endswith(".predicted"):
        share = abs(value / amount(cells[4]) - 1)
        is_mixture = any(MIXTURES.search(word) for word in with_options(command, additions))
        layouts.append((share, is_mixture))
        if is_mixture and share > MOST_OF_MIXTURE:
            yield f"a step of a mixture of experts differs by more than {MOST_OF_MIXTURE:.0%}", None
        published = value_of(expressions[0].removesuffix("predicted") + "published", names)
        if published != amount(cells[4]):
            yield f"the published figure is {cells[4]}, and {published} in the file", None


def mean_line(layouts):
    return f"The {len(layouts)} steps in published layouts differ by {100 * mean(layouts):.1f}% on average."


def mean(layouts):
    return sum(share for share, _ in layouts) / len(layouts)


def figures_faults(page, text, blocks, printed, long=False):
    """Yields, for each wrong row, its place, its content, and its correct cells (ours, difference) or None.

    `long`: True checks only the rows that take long, False only the others."""
    layouts, before = [], math.inf
    for number, command, is_long, cells in figure_rows(text, blocks):
        for fault, correct in row_faults(cells, command, printed, layouts) if is_long == long else ():
            yield f"{page}:{number}", fault, correct
        if cells[0].endswith(SEARCHED) and not amount(cells[3]) <= before:
            yield f"{page}:{number}", f"{cells[3]} is more than the row before it", None
        before = amount(cells[3]) if len(cells) > 3 else math.nan
    if not layouts or long:
        return
    stated = MEAN.search(text)
    if not stated or stated.group() != mean_line(layouts):
        yield f"{page}: the mean", f"the page must say: {mean_line(layouts)}", None
    mixtures = [layout for layout in layouts if layout[1]]
    if mixtures and mean(mixtures) > MOST_OF_MIXTURES:
        yield f"{page}: the mean", f"steps of mixtures of experts differ by more than {MOST_OF_MIXTURES:.0%} on average", None
    if mean(layouts) > MOST:
        yield f"{page}: the mean", f"steps in published layouts differ by more than {MOST:.0%} on average", None


def corrected(text, blocks, printed, long=False):
    """Returns the page with the program's figures: of the rows that take long, else of the others."""
    lines = text.splitlines()
    layouts = []
    for number, command, is_long, cells in figure_rows(text, blocks):
        if is_long != long:
            continue
        for fault, correct in row_faults(cells, command, printed, layouts):
            if correct is None:
                print(f"line {number}: {fault}")
                continue
            cells[3], cells[5] = correct
            lines[number - 1] = re.sub(" {2,}", " ", f"| {' | '.join(cells)} |")
    result = "\n".join(lines) + "\n"
    return MEAN.sub(mean_line(layouts), result) if layouts and not long else result
