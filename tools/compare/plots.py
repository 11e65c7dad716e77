"""Pages and images with line plots that need only a browser, light and dark."""
import html
import math

STYLE = """body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em;
  color: #222; background: #fff; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(17em, 1fr)); gap: 1em; }
figure { margin: 0; } figcaption { font-weight: 600; }
table { border-collapse: collapse; } td, th { padding: 0.1em 0.8em; text-align: right; } td:first-child { text-align: left; }
svg { width: 100%; height: auto; } text { font-size: 11px; fill: #555; }
.frame { fill: none; stroke: #bbb; } polyline { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; } text { fill: #aaa; }
  .frame { stroke: #555; } }"""
COLORS = ("#2f7ed8", "#d8602f", "#3f9e4d", "#a24fc4", "#c0a020", "#20a0a0", "#c04070", "#808080")
LEFT, TOP, RIGHT, BOTTOM = 54, 8, 286, 150


def page(title, parts):
    return (f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>" + "\n".join(parts))


def figure(caption, plot):
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{plot}</figure>"


def sheet(figures, columns=3):
    """Returns one SVG of [(caption, plot)], for Markdown pages, which can only include images."""
    width, height = 300, 190
    rows = math.ceil(len(figures) / columns)
    cells = []
    for number, (caption, plot) in enumerate(figures):
        x, y = width * (number % columns), height * (number // columns)
        cells.append(f'<text x="{x + LEFT}" y="{y + 14}" font-weight="bold">{html.escape(caption)}</text>'
                     f'<svg x="{x}" y="{y + 18}" width="{width}" height="170"{plot.removeprefix("<svg")}')
    style = STYLE[STYLE.index("text {"):].replace("body { color: #ddd; background: #181818; } ", "")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * columns} {height * rows}" '
            f'font-family="system-ui, sans-serif"><style>{style}</style>{"".join(cells)}</svg>\n')


def line_plot(lines, x_range, y_range, x_marks, y_marks):
    """Returns an SVG. lines: [([(x, y)], color, opacity)]; marks: [(value, text)]."""
    def at_x(x):
        return LEFT + (RIGHT - LEFT) * (x - x_range[0]) / (x_range[1] - x_range[0])

    def at_y(y):
        return BOTTOM - (BOTTOM - TOP) * (y - y_range[0]) / (y_range[1] - y_range[0])

    parts = [f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}"/>']
    for points, color, opacity in lines:
        text = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{text}" stroke="{color}" opacity="{opacity:.2f}"/>')
    parts += [f'<text x="{LEFT - 4}" y="{at_y(y) + 4:.1f}" text-anchor="end">{text}</text>' for y, text in y_marks]
    parts += [f'<text x="{at_x(x):.1f}" y="{BOTTOM + 14}" text-anchor="middle">{text}</text>' for x, text in x_marks]
    return f'<svg viewBox="0 0 300 170" role="img">{"".join(parts)}</svg>'


def steps_between(low, high, most=5):
    """Returns round numbers from low to high."""
    step = 10 ** math.floor(math.log10((high - low) / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= most)
    first = math.ceil(low / step)
    return [round(number * step, 10) for number in range(first, math.floor(high / step) + 1)]
