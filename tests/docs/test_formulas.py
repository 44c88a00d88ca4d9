"""Formulas in plain notation become LaTeX, and MathML on the pages."""

import re
from pathlib import Path

import pytest
from generate import pages
from generate.formulas import FormulaError, latex, replaced
from generate.options import GROUPS, all_options
from generate.target import explanation
from generate.text import checked, escape, prose
from generate.yaml_comments import read
from latex2mathml.converter import convert

TYPESET = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$")


@pytest.mark.parametrize(
    ("formula", "written"),
    [
        ("w <- w - eta sum_k p_k g_k", r"w \leftarrow w - \eta \sum_{k} p_{k} g_{k}"),
        ("||w~_j||^2 >= 2f", r"{\lVert \tilde{w}_{j} \rVert}^{2} \ge 2 f"),
        ("<c - c_k, w> < |a|", r"{\langle c - c_{k} , w \rangle} < {\lvert a \rvert}"),
        ("KL(p || q(y | x))", r"\text{KL} {( p \parallel q {( y \mid x )} )}"),
        ("pi_km rho^tau_i w^(t-m)", r"\pi_{km} \rho^{\tau_{i}} w^{t - m}"),
        (
            "tau_eff log p / sqrt(mean A')",
            r"\tau_{\text{eff}} \, \text{log} \, p / \sqrt{\text{mean} \, A'}",
        ),
        ("s * W_c . z", r"s \cdot W_{c} \cdot z"),
    ],
)
def test_latex(formula: str, written: str) -> None:
    assert latex(formula) == written
    assert convert(written).startswith("<math")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("(a + b", "no ) in the formula (a + b"),
        ("a)", ") in a wrong place in the formula a)"),
        ("||a", "no || in the formula ||a"),
        ("x<y", "no > in the formula x<y"),
        ("a_ + b", "nothing after _ in the formula a_ + b"),
        ("a # b", "the unknown sign # in the formula a # b"),
    ],
)
def test_a_malformed_formula_is_said(formula: str, message: str) -> None:
    with pytest.raises(FormulaError, match=f"^{re.escape(message)}$"):
        latex(formula)


def test_symbols_need_no_dollar_signs_and_code_is_left_alone() -> None:
    assert escape("w_k of lambda, in ``my_w_k`` and file_name, $a < b$.") == (
        r"$w_{k}$ of $\lambda$, in `my_w_k` and file\_name, $a < b$."
    )
    assert replaced("pi_k's w^t", "[{}]".format, str.upper) == r"[\pi_{k}]'S [w^{t}]"
    assert replaced("D~, ~/data, no~x", "[{}]".format, str) == r"[\tilde{D}], ~/data, no~x"


def test_an_indented_paragraph_has_a_formula_in_each_line() -> None:
    shown = prose("First:\n\n    $a = b$ if c,\n    $b$.\n\nThen.\n\n    fedexp a=b")
    formulas = ":::{div} formulas\n$a = b$ if c,\n\n$b$.\n:::"
    assert shown == f"First:\n\n{formulas}\n\nThen.\n\n```text\nfedexp a=b\n```"


def test_a_malformed_formula_ends_the_build_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text("# The loss.\nmu: 1  # in $mu (w$\n")
    with pytest.raises(FormulaError, match=r"a\.yaml: no \) in the formula mu \(w"):
        read(tmp_path / "a.yaml")
    with pytest.raises(FormulaError, match=r"fedexp/losses/moon\.py: no second dollar sign"):
        checked("The loss $a + b.", "fedexp/losses/moon.py")
    moon = next(each for each in all_options() if each.name == "moon" and each.group == "loss")
    monkeypatch.setattr("generate.target.inspect.getdoc", lambda found: "The loss $a + (b$.")
    with pytest.raises(FormulaError, match=r"^fedexp/losses/moon\.py: no \) in the formula"):
        explanation(moon)


@pytest.mark.slow
def test_every_formula_of_the_pages_becomes_mathml() -> None:
    found = {name: TYPESET.findall(page) for name, page in pages() if name.startswith("options/")}
    for formulas in found.values():
        assert all(convert(each).startswith("<math") for each in formulas)
    rooms = {name.split("/")[1] for name, formulas in found.items() if formulas}
    sockets = [name for name, about in GROUPS.items() if about.startswith("Socket")]
    assert {*sockets, "compression", "coordination"} <= rooms


def test_no_formula_of_a_part_is_left_as_plain_text() -> None:
    """A sum, a norm or an arrow in plain text would be a formula without dollar signs."""
    plain = re.compile(r"sum_\w|\|\||<-|\w_\w\b.* [-+*/=] ")
    for option in all_options():
        told = re.sub(r"``[^`]*``|`[^`]*`", "", explanation(option).split("\nArgs:")[0])
        rest = replaced(told, lambda formula: "", str)
        assert not plain.search(rest), (option.page, plain.search(rest))
