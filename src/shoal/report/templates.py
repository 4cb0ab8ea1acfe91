"""Loads the templates of pages: missing values are errors, and all texts are escaped."""

from functools import cache

import jinja2


@cache
def template(name: str) -> jinja2.Template:
    """Return a template of this package."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("shoal.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)
