"""How Sphinx builds these pages: each runs its own code, and a warning is an error."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]  # for the files beside this one, and for checkouts that are not installed

import tinynorm  # noqa: E402 - found through the lines above

# For the kernels that run the pages: pictures alike, and the same numbers on any number of threads.
os.environ["MATPLOTLIBRC"] = str(DOCS / "matplotlibrc")
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ["OPENBLAS_NUM_THREADS"] = "1"

project = "tinynorm"
author = "The tinynorm authors"
copyright = "the tinynorm authors, MIT license"
version = release = tinynorm.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
extensions += ["docstrings", "links", "mathml"]  # which are beside this file
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "code"

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # the text says what an argument may be
napoleon_use_ivar = True
add_module_names = False
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

html_theme = "furo"
html_title = "tinynorm"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["tinynorm.css"]
html_show_sourcelink = False
