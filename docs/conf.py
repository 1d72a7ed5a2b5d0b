"""The site that `make docs` builds from these pages, the notebooks and the docstrings."""

import os
import re

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.util import logging

import bisnn

# Jupyter asks for colours, and commands in a notebook would take it for a terminal
os.environ["TTY_COMPATIBLE"] = "0"

project = "bisnn"
version = release = bisnn.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["results"]
smartquotes_action = "D"  # dashes alone: "sigmoid" is a value

html_theme = "furo"
html_title = f"bisnn {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4  # as GitHub makes them
nb_execution_mode = "force"  # of pages that changed; Sphinx keeps the others
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 120  # seconds per cell

html_math_renderer = "mathml"  # which browsers show without a script from elsewhere
suppress_warnings = ["ref.python"]  # a name in a type, as `bytes`, that several classes have

default_role = "py:obj"  # in docstrings, `name` links to what it names, if it is in the reference
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
# Checked are the names of this package, but for types that only appear inside of others
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    ("py:.*", r"(?!bisnn\b).*"),
    ("py:class", r"bisnn\.(data\.loading|kernels\.draws|runs\.(decisions|results))\..*"),
    ("py:class", r"bisnn\.(layer\.LayerOutput|layer\.Readout|packed\.columns\.Column)"),
]


def shield(app, what, name, value, options, lines):
    """Keep what docstrings mean otherwise than Sphinx does, before Napoleon reads them."""
    # |x| is no substitution
    lines[:] = [re.sub(r"\|([^|`]+)\|", r"\\|\1\\|", line) for line in lines]
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # an empty comment, or what stands before a colon would be a type


def write_mathml(translator, node):
    as_block = isinstance(node, nodes.math_block)
    try:
        translator.body.append(latex2mathml.tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        logging.getLogger(__name__).warning("%s", error, location=node)
    raise nodes.SkipNode


def setup(app):
    app.connect("autodoc-process-docstring", shield, priority=1)
    app.add_html_math_renderer("mathml", (write_mathml, None), (write_mathml, None))
