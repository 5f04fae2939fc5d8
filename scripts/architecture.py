"""Draw `docs/architecture.svg` from the imports of the package: `python -m scripts.architecture`."""

import importlib.util
import textwrap
from ast import get_docstring, parse
from html import escape
from pathlib import Path

import grimp

PACKAGE = "bert4rec"
PICTURE = Path(__file__).parents[1] / "docs/architecture.svg"
LIBRARIES = {"torch": "torch", "polars": "Polars"}  # import name → tag
WIDTH, LEFT, BOX, GAP, LANE = 400, 10, 322, 18, 14  # pixels: that of a phone, so that nothing has to shrink
NAME, LINE, CHARACTERS = 22, 15, 48  # heights of a name and of a line of text, characters of a line
STYLE = """
  svg { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
    --back: #fff; --box: #f3f5f8; --edge: #c3cad4; --text: #1f2733; --arrow: #5a6b85;
    --torch: #b3441e; --polars: #0b6b8a }
  @media (prefers-color-scheme: dark) { svg {
    --back: #161b22; --box: #222a35; --edge: #3d4858; --text: #dde4ee; --arrow: #93a4bd;
    --torch: #ff9b75; --polars: #6ecbea } }
  .back { fill: var(--back) } .room { fill: var(--box); stroke: var(--edge) } text { fill: var(--text) }
  .name { font-size: 14px; font-weight: 600 } .tag { font-size: 11px; font-weight: 600; text-anchor: end }
  .torch { fill: var(--torch) } .polars { fill: var(--polars) }
  .arrow { fill: none; stroke: var(--arrow); stroke-width: 1.4; marker-end: url(#head) } .head { fill: var(--arrow) }
"""


def imports() -> dict[str, set[str]]:
    """Return what each room imports: other rooms and `LIBRARIES`."""
    graph = grimp.build_graph(PACKAGE, include_external_packages=True, cache_dir=None)
    rooms = {path.split(".")[1] for path in graph.find_children(PACKAGE)} - {"__main__"}  # which finds commands by name
    used: dict[str, set[str]] = {room: set() for room in rooms}
    for module in graph.modules:
        package, _, rest = module.partition(".")
        room = rest.partition(".")[0]
        if package == PACKAGE and room in rooms:
            for name in graph.find_modules_directly_imported_by(module):
                other = name.split(".")[1] if name.startswith(PACKAGE + ".") else name
                used[room] |= {other} & (rooms | {*LIBRARIES}) - {room}
    return used


def floors(used: dict[str, set[str]]) -> list[str]:
    """Return the rooms from the top: each above all that it uses."""
    height: dict[str, int] = {}
    while len(height) < len(used):
        for room in sorted(used.keys() - height.keys()):
            below = used[room] - {*LIBRARIES}
            if below <= height.keys():
                height[room] = 1 + max((height[other] for other in below), default=0)
    return sorted(used, key=lambda room: (-height[room], room))


def arrows(used: dict[str, set[str]], order: list[str]) -> list[tuple[int, int]]:
    """Return the imports as places in `order`, without those that follow from others; the shortest come first."""
    reached: dict[str, set[str]] = {}
    for room in reversed(order):
        below = used[room] - {*LIBRARIES}
        reached[room] = below.union(*(reached[other] for other in below))
    found = []
    for room in order:
        below = used[room] - {*LIBRARIES}
        for other in below:
            if not any(other in reached[between] for between in below):
                found.append((order.index(room), order.index(other)))
    return sorted(found, key=lambda ends: (ends[1] - ends[0], ends))


def description(room: str) -> list[str]:
    """Return the first line of the docstring of `room`, wrapped."""
    spec = importlib.util.find_spec(f"{PACKAGE}.{room}")
    assert spec is not None
    assert spec.origin is not None
    text = get_docstring(parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return textwrap.wrap(text.partition("\n")[0].replace("`", ""), CHARACTERS)


def picture() -> str:
    """Return the SVG."""
    used = imports()
    order = floors(used)
    texts = [description(room) for room in order]
    heights = [NAME + LINE * len(lines) + 8 for lines in texts]
    tops = [GAP // 2 + sum(heights[:place]) + GAP * place for place in range(len(order))]
    shapes = []
    for room, lines, top, height in zip(order, texts, tops, heights, strict=True):
        shapes.append(f'<rect class="room" x="{LEFT}" y="{top}" width="{BOX}" height="{height}" rx="6"/>')
        shapes.append(f'<text class="name" x="{LEFT + 10}" y="{top + 18}">{room}</text>')
        tags = [f'<tspan class="{name}">{tag}</tspan>' for name, tag in LIBRARIES.items() if name in used[room]]
        shapes.append(f'<text class="tag" x="{LEFT + BOX - 10}" y="{top + 17}">{" · ".join(tags)}</text>')
        for number, line in enumerate(lines, 1):
            shapes.append(f'<text x="{LEFT + 10}" y="{top + 17 + LINE * number}">{escape(line)}</text>')
    lanes: list[list[tuple[int, int]]] = []
    for first, last in arrows(used, order):
        if last == first + 1:
            path = f"M{LEFT + 24} {tops[first] + heights[first]}V{tops[last] - 2}"
        else:
            free = (n for n, lane in enumerate(lanes) if all(last <= start or end <= first for start, end in lane))
            number = next(free, len(lanes))
            lanes[number:] = lanes[number:] or [[]]
            lanes[number].append((first, last))
            edge, start, end = LEFT + BOX, tops[first] + heights[first] - 14, tops[last] + 14
            x = edge + LANE * (number + 1)
            path = f"M{edge} {start}H{x - 6}Q{x} {start} {x} {start + 6}V{end - 6}Q{x} {end} {x - 6} {end}H{edge + 2}"
        shapes.append(f'<path class="arrow" d="{path}"/>')
    bottom = tops[-1] + heights[-1] + GAP // 2
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom}" viewBox="0 0 {WIDTH} {bottom}">',
        f"<style>{STYLE}</style>",
        f'<defs>{head}<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect class="back" width="{WIDTH}" height="{bottom}" rx="8"/>', *shapes, "</svg>\n",
    ])  # fmt: skip


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
