"""Optional packages, imported where they are used."""

from importlib import import_module
from typing import Any

from .errors import MissingExtraError


def optional(module: str, extra: str) -> Any:
    """The imported module; or one sentence that names the extra which brings it.

    >>> from tinynorm.extras import optional
    >>> optional("json", "examples").dumps([1])
    '[1]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module.partition('.')[0]} cannot be imported ({error}); install it with: pip install 'tinynorm[{extra}]'"
        ) from error
