"""The site, built by Sphinx: `make docs-site`."""

import os

import everyformer

os.environ["EVERYFORMER_CACHE"] = os.path.abspath("_build/cache")
project, author, copyright = "everyformer", "The everyformer authors", "The everyformer authors"
version = release = everyformer.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
html_theme, html_title = "furo", "everyformer"
html_static_path, html_css_files = ["style"], ["site.css"]
html_extra_path = ["_build/boards"]  # pages that are no documents
exclude_patterns = ["_build", "gallery", "gallery-drawn/**.ipynb", "**sg_execution_times.rst"]
suppress_warnings = ["myst.header", "config.cache", "toc.not_included"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autosummary_generate = True


def as_written(app, what, name, obj, options, lines):
    """Docstrings are plain text, as `help` shows them."""
    lines[:] = [".. code-block:: text", "", *(f"   {line}" for line in lines), ""]


def without_lambda(app, what, name, obj, options, signature, returned):
    """A default that is no expression would leave the whole signature unparsed."""
    return signature and signature.replace("<function <lambda>>", "..."), returned


def setup(app):
    app.connect("autodoc-process-signature", without_lambda)
    app.connect("autodoc-process-docstring", as_written)


SECTIONS = (
    *("attention", "positions", "memory", "depth", "sparse", "content", "kernels", "mixers"),
    "acting",
)
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "gallery-drawn",
    "subsection_order": [f"gallery/{name}" for name in SECTIONS],
    "within_subsection_order": "FileNameSortKey",
    "filename_pattern": r"/draw_",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 10_000,
}
