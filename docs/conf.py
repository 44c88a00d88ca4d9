"""The settings of the documentation site; ``bash scripts/docs.sh`` builds it."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "fedexp"
author = "the authors of fedexp"
project_copyright = author
release = version = version_of("fedexp")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.doctest",
    "sphinx_design",
    "myst_nb",
    "generate.mathml",
    "generate.plain_docstrings",
    "generate",
    "generate.links",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebooks are stored with their outputs, which the tests check
suppress_warnings = [
    "misc.highlighting_failure",  # shell commands in a notebook's cells
    "mystnb.unknown_mime_type",  # rich text of a progress bar
]

napoleon_use_ivar = True  # a dataclass's fields are documented once
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
add_module_names = False

smartquotes_action = "qe"  # no dashes: -- and --- are signs of a leaderboard

html_theme = "furo"
html_title = f"fedexp {release}"
html_static_path = ["_static"]
html_css_files = ["fedexp.css"]
html_js_files = ["sort_table.js"]
html_extra_path = ["llms.txt"]
html_copy_source = False
html_show_sourcelink = False
