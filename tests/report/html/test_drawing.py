"""Pictures take the page's colours and font, and nothing from elsewhere."""

import re
from xml.etree import ElementTree

from bert4rec.report.html.drawing import MODEL, new_figure, to_svg


def test_colours_are_variables_ids_are_the_pictures_own_and_text_is_text() -> None:
    with new_figure() as (figure, (axes,)):
        axes.plot([1, 2, 3], [0.123456, 0.2, 0.1], color=MODEL, marker="o", label="<&>")
        axes.annotate("0.123456", (2, 0.2))
        axes.legend()
    svg = to_svg(figure, "one", "a &amp; b")
    root = ElementTree.fromstring(svg)
    assert (root.get("role"), root.get("aria-label")) == ("img", "a & b")
    assert root.get("viewBox") == "0 0 360 216"
    assert {"width", "height"}.isdisjoint(root.keys())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<&>", "0.123456"} <= {*texts}
    assert "var(--model)" in svg
    assert not re.search(r"#[0-9a-f]{6}\b|font-family|<style|<metadata", svg)
    assert {name.split("-")[0] for name in re.findall(r'(?:id="|#)([^")]*)', svg)} == {"one"}
    assert not re.search(r'd="[^"]*\.\d{3}', svg)
