import pytest

from fedexp.drawing.style import MOST_LINES, class_colors, line_style


def test_the_lines_of_a_panel_are_distinct() -> None:
    styles = {(s["color"], s["linestyle"]) for s in map(line_style, range(MOST_LINES))}
    assert len(styles) == 10


@pytest.mark.parametrize("num_classes", [1, 10, 11, 100])
def test_each_class_has_a_colour_of_its_own(num_classes: int) -> None:
    colors = [tuple(color) for color in class_colors(num_classes)[:num_classes]]
    assert len(set(colors)) == num_classes
