"""Formulas in docstrings, as LaTeX.

A formula stands between dollar signs in plain notation, such as $w <- w - eta sum_k p_k (w - w_k)$.
A letter with a subscript, an exponent or a tilde, such as w_k, and the name of a Greek letter are
formulas also without dollar signs.

    w_k, w^t, w^(t+1)      subscript, exponent
    w~, D'                 with a tilde, with a prime
    lambda, Phi            Greek letters, also lam and eps
    sum, grad, sqrt(a)     sum, gradient, root
    other words            upright text
    a * b, a . b           products
    <-, <=, >=, !=, ...    arrow, comparisons, dots
    <a, b>, |a|, ||a||     inner product and norms, without a space inside
    a | b, a || b          a given b, a against b, with spaces
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi "
    "chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_WORDS = {each: f"\\{each}" for each in _GREEK.split()} | {
    "lam": r"\lambda",
    "eps": r"\epsilon",
    "sum": r"\sum",
    "grad": r"\nabla",
}
_MARKS = {each: each for each in "+-/=,;:<>"} | {
    "<-": r"\leftarrow",
    "<=": r"\le",
    ">=": r"\ge",
    "!=": r"\ne",
    "...": r"\ldots",
    "*": r"\cdot",
    ".": r"\cdot",
    "||": r"\parallel",
    "|": r"\mid",
}
_BRACKETS = {
    "(": (")", "(", ")"),
    "[": ("]", "[", "]"),
    "<": (">", r"\langle", r"\rangle"),
    "|": ("|", r"\lvert", r"\rvert"),
    "||": ("||", r"\lVert", r"\rVert"),
}
"""Opening sign -> closing sign, and LaTeX of both."""

_WORD = re.compile(r"([A-Za-z]+)(\d*)(~?)('*)")
_TOKEN = re.compile(
    rf"{_WORD.pattern}|\d+(?:\.\d+)?|<-|<=|>=|!=|\|\||\.\.\.|[-+*/=,;:.|<>()\[\]_^]"
)
_NAMES = "|".join([*_GREEK.split(), "lam", "eps"])
_SCRIPTS = r"(?:_\w+(?:\^\w+)?|\^\w+|\^\([\w+-]+\))"
_SYMBOL = rf"(?<![\w./-])(?:(?:{_NAMES}|[A-Za-z])(?:~?{_SCRIPTS}|~)|{_NAMES})(?![\w(])"
_FORMULA = re.compile(rf"\$(?P<marked>[^$]*)(?P<end>\$?)|(?P<symbol>{_SYMBOL})")


class FormulaError(ValueError):
    """A formula that cannot be read."""


def replaced(text: str, write: Callable[[str], str], other: Callable[[str], str]) -> str:
    """The text with each formula's LaTeX changed by ``write``, and all other text by ``other``.

    Raises FormulaError.
    """
    parts, end = [], 0
    for found in _FORMULA.finditer(text):
        if found["end"] == "":
            raise FormulaError(f"no second dollar sign after {found.group()}")
        formula = found["symbol"] or found["marked"]
        parts += [other(text[end : found.start()]), write(latex(formula))]
        end = found.end()
    return "".join([*parts, other(text[end:])])


def latex(formula: str) -> str:
    """LaTeX of a formula in plain notation; raises FormulaError."""
    try:
        return _Reader(formula).sequence("")
    except FormulaError as error:
        raise FormulaError(f"{error} in the formula {' '.join(formula.split())}") from None


class _Token(NamedTuple):
    text: str
    after_space: bool
    before_space: bool


class _Reader:
    """Reads one formula from left to right."""

    def __init__(self, formula: str) -> None:
        self.tokens: list[_Token] = []
        place = 0
        for found in _TOKEN.finditer(formula):
            if skipped := formula[place : found.start()].strip():
                raise FormulaError(f"the unknown sign {skipped}")
            place = found.end()
            spaces = (formula[found.start() - 1 : found.start()], formula[place : place + 1])
            self.tokens.append(_Token(found.group(), *(not each.strip() for each in spaces)))
        if skipped := formula[place:].strip():
            raise FormulaError(f"the unknown sign {skipped}")
        self.tokens.reverse()  # the next one is the last

    def sequence(self, end: str) -> str:
        """LaTeX up to the token ``end``, which is read too; an empty one is the formula's end."""
        found: list[str] = []
        while self.tokens:
            token = self.tokens.pop()
            if token.text == end and (end in ")]" or not token.after_space):
                return _joined(found)
            found.append(self._item(token))
        if end:
            raise FormulaError(f"no {end}")
        return _joined(found)

    def _item(self, token: _Token) -> str:
        """A word, number, mark or bracket with its scripts."""
        base = self._base(token)
        scripts = ""
        while self.tokens and self.tokens[-1].text in ("_", "^"):
            sign = self.tokens.pop().text
            scripts += f"{sign}{{{self._script(sign)}}}"
        return base + scripts

    def _base(self, token: _Token) -> str:
        text = token.text
        if text in _BRACKETS and (text in "([" or not token.before_space):
            end, left, right = _BRACKETS[text]
            return f"{{{left} {self.sequence(end)} {right}}}"
        if text in _MARKS:
            return _MARKS[text]
        if text == "sqrt":
            return f"\\sqrt{{{self._script(text)}}}"
        if text[0].isalpha():
            return _word(text)
        if text[0].isdigit():
            return text
        raise FormulaError(f"{text} in a wrong place")

    def _script(self, sign: str) -> str:
        """The operand of ``_``, ``^`` or ``sqrt``: a word or number, or a sequence in brackets."""
        token = self.tokens.pop() if self.tokens else _Token("", True, True)
        if token.text == "(":
            return self.sequence(")")
        if sign == "sqrt" or not token.text.isalnum():
            raise FormulaError(f"nothing after {sign}")
        if sign == "^":
            return self._item(token)
        is_two_indices = len(token.text) == 2 and token.text not in _WORDS
        return token.text if is_two_indices else self._base(token)


def _joined(items: list[str]) -> str:
    """Items in a row; a space stands between upright text and a symbol."""
    found = items[:1]
    for before, after in pairwise(items):
        is_text = [each.startswith(r"\text") for each in (before, after)]
        is_argument = after[0] == "{"
        if any(is_text) and not is_argument and not {before, after} & {*_MARKS.values()}:
            found.append(r"\,")
        found.append(after)
    return " ".join(found)


def _word(text: str) -> str:
    """A letter, a Greek letter or sign by its name, or upright text."""
    found = _WORD.fullmatch(text)
    assert found is not None
    name, number, tilde, primes = found.groups()
    written = _WORDS.get(name) or (name if len(name) == 1 else f"\\text{{{name}}}")
    written = f"\\tilde{{{written}}}" if tilde else written
    return written + primes + (f"_{{{number}}}" if number else "")
