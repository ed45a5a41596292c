"""Settings that pytest needs for `tests` and `notebooks` alike."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Give nbval its sanitize file; a path in pyproject would hold in one working directory only."""
    if getattr(config.option, "nbval_sanitize_with", "absent") is None:
        config.option.nbval_sanitize_with = str(config.rootpath / "notebooks" / "sanitize.cfg")
